"""Births: a burst of them keeps nobody waiting, and one that fails is told and leaves nothing."""

import errno
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remotely.machine import processes, this_machine
from remotely.protocol import control
from remotely.protocol.listening import Listening
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.loop import Loop
from remotely.worker.output import LogFiles
from remotely.worker.reaper import Child
from remotely.worker.spawner import FORKS_AT_ONCE, Home, Spawner
from tests.clusters import wait_until


class Family:
    """A parent that only takes notes, and its spawner."""

    def __init__(self, folder: Path) -> None:
        self.prepared_ones: list[Child] = []
        self.started_ones: list[Child] = []
        self.lost: list[Child] = []
        self.failures: dict[str, str] = {}
        self.loop = Loop()
        home = Home(
            "a worker",
            folder,
            f"ipc://{folder}/master",
            b"",
            Listening(),
            [],
            "host",
            "machine",
            True,
        )
        before = set(processes.children_of(os.getpid()))
        self.spawner = Spawner(self.loop, home, LogFiles(folder), self, ThrottledLog(print))
        (self.zygote,) = set(processes.children_of(os.getpid())) - before

    def prepared(self, child: Child) -> None:
        self.prepared_ones.append(child)

    def started(self, child: Child) -> None:
        self.started_ones.append(child)

    def spawn_lost(self, child: Child) -> None:
        self.lost.append(child)

    def spawn_failed(self, request: control.Request, why: str) -> None:
        self.failures[request.actor] = why

    def exited(self, pid: int, status: int) -> None:
        pass

    def printed(self, request: control.Request, is_error: bool, text: str) -> None:
        pass

    def logged(self, request: control.Request, logged: control.Logged) -> None:
        pass

    def asks(self, actor: str, env: dict[str, str] | None = None) -> None:
        request = control.Request(
            actor=actor,
            name=actor,
            class_name="C",
            owner="o",
            job="j",
            python=this_machine.PYTHON,
            env=env or {},
        )
        self.spawner.ask(control.Spawn(request=request, gpu_ids=[]))

    def turns_until(self, fact: Callable[[], object], what: str) -> None:
        def look() -> bool:
            self.loop.turn(0)
            return bool(fact())

        wait_until(look, what)

    def close(self) -> None:
        self.spawner.stop()
        for child in self.started_ones:
            child.kill()
            os.close(child.pidfd)
        for child in self.prepared_ones:
            child.socket.close()
            for fd in child.pipes:
                os.close(fd)
        self.spawner.close()
        self.loop.close()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path)
    yield made
    made.close()


def test_a_thousand_started_ones_wait_for_a_zygote_that_is_busy_and_keep_nobody_waiting(
    family: Family,
) -> None:
    os.kill(family.zygote, signal.SIGSTOP)
    for number in range(1000):
        family.asks(f"{number}")

    rest = 1000 - FORKS_AT_ONCE
    family.turns_until(lambda: len(family.spawner.waiting) == rest, "as many were asked as may be")

    assert [child.request.actor for child in family.prepared_ones] == [
        f"{number}" for number in range(FORKS_AT_ONCE)
    ]
    for spawn in family.spawner.waiting[10:]:
        assert family.spawner.withdraw(spawn.request.actor) == spawn.request
    assert family.spawner.withdraw("999") is None
    os.kill(family.zygote, signal.SIGCONT)
    family.turns_until(
        lambda: len(family.started_ones) == FORKS_AT_ONCE + 10, "the rest has started"
    )
    assert [child.request.actor for child in family.started_ones] == [
        f"{number}" for number in range(FORKS_AT_ONCE + 10)
    ]


def test_an_interpreter_of_its_own_need_not_wait_for_the_zygote(family: Family) -> None:
    os.kill(family.zygote, signal.SIGSTOP)
    for number in range(FORKS_AT_ONCE + 1):
        family.asks(f"{number}")
    family.asks("own", {"A": "1"})
    family.turns_until(lambda: family.started_ones, "it has started")
    assert [child.request.actor for child in family.started_ones] == ["own"]
    os.kill(family.zygote, signal.SIGCONT)


def descriptors() -> int:
    gc.collect()  # the files of what earlier tests printed
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("env", "why"),
    [({"A": "x" * 300_000}, "Message too long"), ({"A": "\ud800"}, "UnicodeEncodeError")],
)
def test_a_child_that_cannot_be_told_who_it_is_leaves_no_descriptor(
    family: Family, env: dict[str, str], why: str
) -> None:
    before = descriptors()
    family.asks("a", env)
    family.turns_until(lambda: family.failures, "the failure is told")
    assert why in family.failures["a"]
    assert not family.prepared_ones
    assert descriptors() == before


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"A": "\0"}])
def test_a_child_that_cannot_be_executed_is_told_of(family: Family, env: dict[str, str]) -> None:
    before = descriptors()
    family.asks("a", env)
    family.asks("b")
    family.turns_until(lambda: family.started_ones and family.failures, "one has started")
    assert family.failures["a"].startswith("ValueError: ")
    ours = 4  # of each, a socket, two pipes and a page
    assert descriptors() - before == 2 * ours + 1


def test_a_child_whose_end_could_not_be_seen_is_ended(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def no_room(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", no_room)
    family.asks("a", {"A": "1"})
    family.turns_until(lambda: family.failures, "the failure is told")
    assert family.failures["a"] == "Too many open files"
    assert os.waitstatus_to_exitcode(os.waitpid(begun[0], 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("leaving", [False, True])
def test_started_ones_that_a_zygote_took_along_need_no_zygote_the_next_time(
    family: Family, leaving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they import may be what ended it."""
    monkeypatch.setattr("remotely.worker.spawner.FORKS_AT_ONCE", 3)
    zygote = family.zygote
    os.kill(zygote, signal.SIGSTOP)
    for number in range(4):
        family.asks(f"{number}")
    family.turns_until(lambda: len(family.prepared_ones) == 3, "as many were asked as may be")
    family.prepared_ones[1].asked = True  # to end, meanwhile
    if leaving:  # a zygote that hangs in an import is not waited for
        family.spawner.withdraw("3")
        family.spawner.stop()
    else:
        os.kill(zygote, signal.SIGKILL)
    os.waitpid(zygote, 0)

    if leaving:
        family.turns_until(lambda: len(family.failures) == 3, "those are told")
        assert not family.started_ones
    else:
        family.turns_until(lambda: len(family.started_ones) == 3, "the others have started")
        assert {child.request.actor for child in family.started_ones} == {"0", "2", "3"}
        assert {child.request.actor for child in family.lost} == {"0", "2"}
        # What was forked before the zygote could say so is not in the way of the next.
        assert len({child.location.ipc for child in family.prepared_ones}) == 6
        assert set(family.failures) == {"1"}
    assert set(family.failures.values()) == {"the zygote that was to fork it ended"}
