"""The start of actor processes: a burst does not block the worker; failures leave nothing."""

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from remotely.machine import processes, this_machine
from remotely.protocol import control
from remotely.protocol.listening import Listening
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.fence import WorkerFence
from remotely.transport.loop import Loop
from remotely.worker.output import LogFiles
from remotely.worker.reaper import Child
from remotely.worker.spawner import FORKS_AT_ONCE, Spawner, WorkerInfo
from tests.clusters import freeze, wait_until


class Family:
    """A parent that records the reports of its spawner."""

    def __init__(self, folder: Path) -> None:
        self.all_prepared: list[Child] = []
        self.all_started: list[Child] = []
        self.lost: list[Child] = []
        self.said: dict[str, str] = {}
        self.unbound_by: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.refused: dict[str, bool] = {}
        self.loop = Loop()
        self.master = f"ipc://{folder}/master"
        info = WorkerInfo(
            "a worker", folder, self.master, b"", Listening(), [], "host", "machine", True
        )
        before = set(processes.children_of(os.getpid()))
        self.spawner = Spawner(self.loop, info, LogFiles(folder), self, ThrottledLog(print))
        (self.zygote,) = set(processes.children_of(os.getpid())) - before

    def admitted(self, request: control.Request) -> list[bytes]:
        return []

    def prepared(self, child: Child) -> None:
        self.all_prepared.append(child)

    def started(self, child: Child) -> None:
        self.all_started.append(child)

    def preparing(self, child: Child, what: str) -> None:
        self.said[child.request.actor] = what

    def unbound(self, child: Child, told: control.NotBound) -> None:
        self.unbound_by[child.request.actor] = told.why

    def spawn_lost(self, child: Child) -> None:
        self.lost.append(child)

    def spawn_failed(self, request: control.Request, why: str, is_refused: bool = False) -> None:
        self.failures[request.actor] = why
        self.refused[request.actor] = is_refused

    def exited(self, pid: int, status: int) -> None:
        pass

    def printed(self, request: control.Request, is_error: bool, text: str) -> None:
        pass

    def logged(self, request: control.Request, logged: control.Logged) -> None:
        pass

    def asks(self, actor: str, env: dict[str, str] | None = None, interpreter: str = "") -> None:
        request = control.Request(
            actor=actor,
            name=actor,
            class_name="C",
            owner="o",
            job="j",
            python=this_machine.PYTHON,
            env=env or {},
            interpreter=interpreter,
        )
        self.spawner.ask(control.Spawn(request=request, gpu_ids=[]))

    def turns_until(self, fact: Callable[[], object], what: str) -> None:
        def turn() -> bool:
            self.loop.turn(0)
            return bool(fact())

        wait_until(turn, what)

    def close(self) -> None:
        self.spawner.stop()
        for child in self.all_started:
            child.kill()
            child.watched = None
        for child in self.all_prepared:
            child.line.close()
            for fd in child.pipes:
                os.close(fd)
        self.spawner.close()
        self.loop.close()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path)
    yield made
    made.close()


def test_a_thousand_requests_wait_for_a_busy_zygote_without_blocking_the_worker(
    family: Family,
) -> None:
    freeze(family.zygote)
    for number in range(1000):
        family.asks(f"{number}")

    rest = 1000 - FORKS_AT_ONCE
    family.turns_until(lambda: len(family.spawner.waiting) == rest, "all allowed forks are pending")

    assert [child.request.actor for child in family.all_prepared] == [
        f"{number}" for number in range(FORKS_AT_ONCE)
    ]
    for spawn in family.spawner.waiting[10:]:
        assert family.spawner.withdraw(spawn.request.actor) == spawn.request
    assert family.spawner.withdraw("999") is None
    os.kill(family.zygote, signal.SIGCONT)
    family.turns_until(
        lambda: len(family.all_started) == FORKS_AT_ONCE + 10, "the rest has started"
    )
    assert [child.request.actor for child in family.all_started] == [
        f"{number}" for number in range(FORKS_AT_ONCE + 10)
    ]


def an_interpreter(folder: Path, first: str = "") -> str:
    """Return an interpreter with a name of its own; its starts begin with these lines of sh."""
    file = folder / "their-python"
    file.write_text(f'#!/bin/sh\n{first}\nexec {sys.executable} "$@"\n')
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    return an_interpreter(tmp_path)


@pytest.fixture
def fence(family: Family, tmp_path: Path) -> Iterator[None]:
    """Without it actors end at once."""
    made = WorkerFence(tmp_path, family.master)
    yield
    made.close()


@pytest.fixture
def fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the pid of a `uv` that fetches an interpreter for ever."""
    pid = tmp_path / "pid"
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\n[ "$2" = find ] && exit 1\necho $$ > {pid}\nexec sleep 1000\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return pid


def test_actors_of_an_environment_are_forks_of_one_process_which_ends_with_the_last(
    family: Family, fence: None, interpreter: str
) -> None:
    for actor in ("a", "b"):
        family.asks(actor, interpreter=interpreter)
    family.turns_until(lambda: len(family.all_started) == 2, "both have started")
    first, last = family.all_started
    (parent,) = {psutil.Process(child.pid).ppid() for child in family.all_started}
    assert parent not in (family.zygote, os.getpid())
    first.kill()
    family.turns_until(lambda: processes.birth(first.pid) is None, "the first has ended")
    assert processes.birth(parent) is not None
    last.kill()
    family.turns_until(lambda: processes.birth(parent) is None, "it has ended")
    assert processes.birth(family.zygote) is not None


def test_of_those_that_wait_for_an_environment_one_says_so_and_each_may_be_ended(
    family: Family, fetching: Path
) -> None:
    for actor in ("a", "b"):
        family.asks(actor, interpreter="99")
    family.turns_until(lambda: len(family.said) == 2 and fetching.exists(), "it is fetched")
    assert family.said == {"a": "uv fetches Python 99", "b": ""}
    first, last = family.all_prepared
    first.kill()
    family.turns_until(lambda: family.unbound_by, "the first is given up")
    assert family.unbound_by == {"a": "killed before it began"}
    uv = int(fetching.read_text())
    tag = processes.tag_of(uv)  # no stray of the first, and yet its worker's
    assert tag.startswith("a worker:")
    assert not processes.is_of_actor(tag)
    assert processes.birth(uv) is not None
    last.kill()
    family.turns_until(lambda: processes.birth(uv) is None, "nobody waits for it")
    assert set(family.unbound_by) == {"a", "b"}
    assert not family.all_started


def test_a_request_begins_when_those_before_it_have_given_up(
    family: Family, fetching: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remotely.worker.spawner.FORKS_AT_ONCE", 1)
    for actor in ("a", "b"):
        family.asks(actor, interpreter="99")
    family.turns_until(fetching.exists, "it is fetched")
    family.all_prepared[0].kill()
    family.turns_until(lambda: len(family.all_prepared) == 2, "the other has begun")


def test_a_fork_for_a_try_that_was_given_up_is_not_the_next_trys(
    family: Family, fence: None, interpreter: str
) -> None:
    family.asks("c", interpreter=interpreter)
    family.turns_until(lambda: family.all_started, "its zygote serves")
    zygote = psutil.Process(family.all_started[0].pid).ppid()
    freeze(zygote)
    family.asks("a", interpreter=interpreter)
    family.turns_until(lambda: len(family.all_prepared) == 2, "a fork is asked for")
    family.all_prepared[1].kill()
    family.turns_until(lambda: family.unbound_by, "it is given up")
    family.asks("a", interpreter=interpreter)
    family.turns_until(lambda: len(family.all_prepared) == 3, "another is asked for")
    os.kill(zygote, signal.SIGCONT)
    family.turns_until(lambda: len(family.all_started) == 2, "it has started")
    started = family.all_started[1]
    assert started is family.all_prepared[2]
    alive = {family.all_started[0].pid, started.pid}
    family.turns_until(lambda: set(processes.children_of(zygote)) == alive, "the other has ended")


def test_the_end_of_a_zygote_is_seen_though_another_holds_its_line(
    family: Family, fence: None, tmp_path: Path
) -> None:
    interpreter = an_interpreter(tmp_path, "sleep 1000 > /dev/null 2>&1 &")
    family.asks("a", interpreter=interpreter)
    family.turns_until(lambda: family.all_started, "it has started")
    zygote = psutil.Process(family.all_started[0].pid).ppid()
    os.kill(zygote, signal.SIGKILL)
    family.asks("b", interpreter=interpreter)
    family.turns_until(lambda: len(family.all_started) == 2, "the next has started")
    assert psutil.Process(family.all_started[1].pid).ppid() != zygote


def test_an_interpreter_that_starts_threads_is_not_forked(
    family: Family, fence: None, tmp_path: Path
) -> None:
    thread = (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    (tmp_path / "sitecustomize.py").write_text(thread)
    interpreter = an_interpreter(tmp_path, f"export PYTHONPATH={tmp_path}:$PYTHONPATH")
    for actor in ("a", "b"):
        family.asks(actor, interpreter=interpreter)
    family.turns_until(lambda: len(family.all_started) == 2, "they have started")
    pids = {child.pid for child in family.all_started}
    assert pids <= set(processes.children_of(os.getpid()))
    before = set(processes.children_of(os.getpid()))
    family.asks("c", interpreter=interpreter)
    family.turns_until(lambda: len(family.all_started) == 3, "the next has, without a zygote")
    assert set(processes.children_of(os.getpid())) - before == {family.all_started[2].pid}


def test_an_environment_that_cannot_be_had_is_refused_to_each_that_asks(family: Family) -> None:
    for actor in ("a", "b"):
        family.asks(actor, interpreter="/nowhere/python")
    family.turns_until(lambda: len(family.unbound_by) == 2, "both are refused")
    assert all("no interpreter '/nowhere" in why for why in family.unbound_by.values())
    assert not family.all_started


def test_a_new_interpreter_does_not_wait_for_the_zygote(family: Family) -> None:
    freeze(family.zygote)
    for number in range(FORKS_AT_ONCE + 1):
        family.asks(f"{number}")
    family.asks("own", {"A": "1"})
    family.turns_until(lambda: family.all_started, "it has started")
    assert [child.request.actor for child in family.all_started] == ["own"]
    os.kill(family.zygote, signal.SIGCONT)


def descriptors() -> int:
    gc.collect()  # files of earlier tests
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("env", "why"),
    [({"A": "x" * 300_000}, "Message too long"), ({"A": "\ud800"}, "UnicodeEncodeError")],
)
def test_a_birth_that_cannot_be_sent_is_reported_and_leaks_no_descriptor(
    family: Family, env: dict[str, str], why: str
) -> None:
    before = descriptors()
    family.asks("a", env)
    family.turns_until(lambda: family.failures, "the failure is reported")
    assert why in family.failures["a"]
    assert family.refused["a"]
    assert not family.all_prepared
    assert descriptors() == before


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"A": "\0"}])
def test_a_failed_exec_is_reported_and_the_next_request_runs(
    family: Family, env: dict[str, str]
) -> None:
    before = descriptors()
    family.asks("a", env)
    family.asks("b")
    family.turns_until(lambda: family.all_started and family.failures, "one has started")
    assert family.failures["a"].startswith("ValueError: ")
    assert family.refused["a"]
    per_child = 4  # a socket, two pipes and a page
    assert descriptors() - before == 2 * per_child + 1  # and a pidfd


def test_a_process_without_a_pidfd_is_killed(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def no_room(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", no_room)
    family.asks("a", {"A": "1"})
    family.turns_until(lambda: family.failures, "the failure is reported")
    assert family.failures["a"] == "Too many open files"
    assert os.waitstatus_to_exitcode(os.waitpid(begun[0], 0)[1]) == -signal.SIGKILL


def test_requests_that_the_zygote_of_an_environment_lost_enter_it_by_themselves(
    family: Family, interpreter: str
) -> None:
    before = set(processes.children_of(os.getpid()))
    family.asks("a", interpreter=interpreter)
    family.turns_until(lambda: family.all_prepared, "it is asked for")
    (zygote,) = set(processes.children_of(os.getpid())) - before
    os.kill(zygote, signal.SIGKILL)
    os.waitpid(zygote, 0)
    family.turns_until(lambda: family.all_started, "it has started")
    assert [child.request.actor for child in family.lost] == ["a"]
    assert family.all_started[0].pid in processes.children_of(os.getpid())


@pytest.mark.parametrize("leaving", [False, True])
def test_requests_that_a_zygote_lost_get_new_interpreters_unless_the_worker_is_leaving(
    family: Family, leaving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their imports may have ended the zygote."""
    monkeypatch.setattr("remotely.worker.spawner.FORKS_AT_ONCE", 3)
    zygote = family.zygote
    freeze(zygote)
    for number in range(4):
        family.asks(f"{number}")
    family.turns_until(lambda: len(family.all_prepared) == 3, "all allowed forks are pending")
    family.all_prepared[1].asked = True  # to end
    if leaving:  # the spawner does not wait for a zygote that hangs in an import
        family.spawner.withdraw("3")
        family.spawner.stop()
    else:
        os.kill(zygote, signal.SIGKILL)
    os.waitpid(zygote, 0)

    if leaving:
        family.turns_until(lambda: len(family.failures) == 3, "the failures are reported")
        assert not family.all_started
    else:
        family.turns_until(lambda: len(family.all_started) == 3, "the others have started")
        assert {child.request.actor for child in family.all_started} == {"0", "2", "3"}
        assert {child.request.actor for child in family.lost} == {"0", "2"}
        # A process that the zygote forked before its end does not use the socket of the next.
        assert len({child.location.ipc for child in family.all_prepared}) == 6
        assert set(family.failures) == {"1"}
    assert set(family.failures.values()) == {"the zygote that was to fork it ended"}
