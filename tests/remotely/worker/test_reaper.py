"""The end of actors: deadlines, flight recorders, and the processes that they leave behind."""

import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import remotely
from remotely.machine import memory_file, processes, this_machine
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.numbers import MOST_FLIGHT_RECORD, ROUTE_BYTES
from remotely.transport.activity import SIZE, BegunCalls, OneByOne
from remotely.transport.line import Line
from remotely.transport.loop import Loop
from remotely.worker.output import LogRelay, Output
from remotely.worker.reaper import Child, Reaper, Stage
from tests.clusters import wait_until

NO_PIDS_FROM = 1 << 22  # above the kernel's largest pid


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def child_of(loop: Loop, number: int, folder: Path) -> Child:
    """Return a child whose process has ended."""
    name = f"C-{number}"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    read, write = os.pipe2(os.O_NONBLOCK)
    os.close(write)
    line = Line(ours, control.Decoder("actor > worker"))
    line.watch(loop, lambda message, fds: None, lambda: None)
    loop.watch(read, lambda: None)
    output = Output(folder / name, lambda is_error, text: None, lambda _, action: None)
    return Child(
        request=control.Request(
            actor=name, name=name, class_name="C", owner="o", job="j", python=this_machine.PYTHON
        ),
        seal=b"",
        gpu_ids=[],
        location=control.Location(
            actor=name,
            name=name,
            class_name="C",
            life=0,
            pid=NO_PIDS_FROM + number,
            host="h",
            machine="m",
            ipc=f"ipc://{folder}/{name}",
            tcp="",
            public_key=b"",
        ),
        line=line,
        output=output,
        log=LogRelay(output, lambda logged: None, lambda _, action: None),
        page=mmap.mmap(-1, SIZE),
        pipes={read: False},
        since=0.0,
        pid=NO_PIDS_FROM + number,
        status=0,
    )


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the processes whose children were checked for strays."""

    pids: list[int] = []

    def children_of(pid: int) -> list[int]:
        pids.append(pid)
        return []

    def all_processes() -> Iterator[psutil.Process]:
        raise AssertionError("it checks every process of the machine")

    monkeypatch.setattr(processes, "children_of", children_of)
    monkeypatch.setattr(processes, "all_processes", all_processes)
    return pids


def test_one_check_for_strays_serves_five_hundred_actors_that_die_together(
    loop: Loop, tmp_path: Path, checked: list[int]
) -> None:
    obituaries: list[control.Obituary] = []
    children = {
        child.request.actor: child for child in (child_of(loop, n, tmp_path) for n in range(500))
    }
    reaper = Reaper(loop, "w", children, lambda _: None, lambda _, told: obituaries.append(told))
    for child in list(children.values()):
        reaper.reap(child)
    loop.turn(0)

    assert len(obituaries) == 500
    assert not children
    assert checked == [os.getpid()]


@pytest.fixture
def child(loop: Loop, tmp_path: Path) -> Child:
    return child_of(loop, 1, tmp_path)


@pytest.fixture
def reaper(loop: Loop, child: Child) -> Reaper:
    return Reaper(loop, "w", {"C-1": child}, lambda _: None, lambda *_: None)


def test_a_repeated_request_to_end_may_only_shorten_the_wait(
    child: Child, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("remotely.worker.reaper.time.monotonic", lambda: now)
    ends_at = []
    for grace_s in (5, 60, 1, 5):
        reaper.end(child, grace_s)
        ends_at.append(child.term_at)
    assert ends_at == [105, 105, 101, 101]
    now, timers = 102.0, child.timers  # SIGTERM was sent; SIGKILL is to come
    reaper.end(child, 0)
    assert child.timers is timers
    reaper.reap(child)


def test_an_actor_that_moves_is_asked_to_end_once_it_has_been_idle(
    child: Child, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[control.Obituary] = []
    reaper = Reaper(loop, "w", {"C-1": child}, lambda _: None, lambda _, end: told.append(end))
    now, due = [100.0], []
    monkeypatch.setattr("remotely.worker.reaper.time.monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "after", lambda _, look: due.append(look))

    def looks_at(second: float) -> bool:
        now[0] = second
        due.pop()()
        return child.is_moved

    activity, begun = OneByOne(child.page), BegunCalls(child.page)
    activity.begin("step")
    reaper.end_when_idle(child)
    reaper.end_when_idle(child)  # it is told again when its worker was away
    assert not looks_at(110.0)
    assert not looks_at(120.0)
    activity.end(0)
    begun.note(bytes(ROUTE_BYTES - 1) + b"r", 7)  # a call came, and has ended
    activity.note_streams(1)
    assert not looks_at(120.4)
    activity.note_streams(0)
    assert not looks_at(120.5)
    assert not looks_at(121.3)
    assert looks_at(121.4)
    assert due == []
    del activity, begun  # they have mapped the page
    child.stage = Stage.EXITS
    reaper.reap(child)
    assert [(end.moved, end.asked, end.why) for end in told] == [
        (True, False, "its machine is being drained")
    ]


def test_an_actor_whose_move_was_withdrawn_and_begun_again_is_looked_at_once_at_a_time(
    child: Child, reaper: Reaper, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, due = [100.0], []
    monkeypatch.setattr("remotely.worker.reaper.time.monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "after", lambda _, look: due.append(look))
    reaper.end_when_idle(child)
    assert reaper.withdraw_move(child)
    now[0] = 102.0
    due.pop()()
    assert due == []
    reaper.end_when_idle(child)
    assert reaper.withdraw_move(child)
    reaper.end_when_idle(child)
    now[0] = 103.5
    before, last = due
    before()
    assert not child.is_moved
    last()
    assert child.is_moved
    assert not reaper.withdraw_move(child)
    reaper.reap(child)


def test_an_actor_gains_time_once_for_each_stage_of_its_end(
    child: Child, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("remotely.worker.reaper.time.monotonic", lambda: now)
    reaper.end(child, 1)
    ends_at = []
    for stage in (Stage.ENDS, Stage.ENDS, Stage.EXITS, Stage.EXITS, Stage.ENDS):
        reaper.extend_deadline(child, stage)
        ends_at.append(child.term_at)
        now += 1
    assert ends_at == [105, 105, 107, 107, 107]
    reaper.reap(child)


def test_the_first_memory_file_is_the_flight_recorder_and_other_descriptors_are_ignored(
    child: Child, reaper: Reaper
) -> None:
    read, write = os.pipe()
    os.close(write)
    child.keep_recorder([])
    child.keep_recorder([OwnedFd(read)])
    assert child.recorder is None
    for text in (b"first", b"second"):
        memory = memory_file.create("remotely-test", 8)
        os.pwrite(memory, text, 0)
        child.keep_recorder([OwnedFd(memory)])
    assert child.take_flight_record() == b"first\0\0\0"
    assert child.take_flight_record() == b""
    reaper.reap(child)


def test_a_flight_record_is_cut_at_its_maximum_size(child: Child, reaper: Reaper) -> None:
    child.keep_recorder([OwnedFd(memory_file.create("remotely-test", 2 * MOST_FLIGHT_RECORD))])
    assert len(child.take_flight_record()) == MOST_FLIGHT_RECORD
    reaper.reap(child)


def test_the_ends_of_strays_are_followed_by_one_check_and_not_kept(
    loop: Loop, checked: list[int]
) -> None:
    reaper = Reaper(loop, "w", {}, lambda _: None, lambda *_: None)
    before = {name: repr(value) for name, value in vars(reaper).items() if name != "_checks_left"}
    for pid in range(NO_PIDS_FROM, NO_PIDS_FROM + 100):
        reaper.exited(pid, 0)
    loop.turn(0)
    assert checked == [os.getpid()]
    assert before.items() <= {n: repr(value) for n, value in vars(reaper).items()}.items()


def test_the_children_of_a_process_and_their_tags_are_found() -> None:
    environment = {**os.environ, processes.TAG: "w:actor"}
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as tagged:
        assert tagged.pid in processes.children_of(os.getpid())
        assert processes.children_of(tagged.pid) == []
        wait_until(lambda: processes.tag_of(tagged.pid) == "w:actor", "the exec")
        assert processes.tag_of(os.getpid()) == os.environ.get(processes.TAG, "")
        processes.kill_tree(tagged.pid)
    assert processes.tag_of(NO_PIDS_FROM) == ""
    assert processes.children_of(NO_PIDS_FROM) == []


@remotely.remote_class
class Leaver:
    def leave(self, depth: int) -> int:
        """Start a chain of processes, each in a session of its own; return the pid of the first."""
        program = (
            "import subprocess, sys, time\n"
            "depth = int(sys.argv[1])\n"
            "if depth:\n"
            "    again = [sys.executable, *sys.orig_argv[1:-1], str(depth - 1)]\n"
            "    subprocess.Popen(again, start_new_session=True)\n"
            "time.sleep(600)\n"
        )
        command = [sys.executable, "-c", program, str(depth)]
        return subprocess.Popen(command, start_new_session=True).pid

    def fork_away(self) -> int:
        """Fork a daemon in a session of its own, without exec; return its pid."""
        read, write = os.pipe()
        if (between := os.fork()) == 0:
            os.setsid()
            if (daemon := os.fork()) == 0:
                while True:
                    time.sleep(600)
            os.write(write, str(daemon).encode())
            os._exit(0)
        os.waitpid(between, 0)
        os.close(write)
        pid = int(os.read(read, 20))
        os.close(read)
        return pid


@pytest.mark.promise("own_process")
@pytest.mark.parametrize(("env", "depth"), [({}, 0), ({"A": "1"}, 0), ({}, 2)])
def test_the_daemons_of_an_actor_end_with_it_and_others_stay(
    cluster: str, env: dict[str, str], depth: int
) -> None:
    dies, lives = remotely.options(Leaver, env=env)(), Leaver()
    left = psutil.Process(dies.leave(depth) if depth else dies.fork_away())
    kept = psutil.Process(lives.fork_away())
    wait_until(lambda: len(left.children(recursive=True)) == depth, "the whole chain")
    chain = [left, *left.children(recursive=True)]

    remotely.close(dies)

    wait_until(lambda: not any(map(is_running, chain)), "the end of its daemons")
    assert is_running(kept)
    remotely.close(lives)
    wait_until(lambda: not is_running(kept), "the end of the other")


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two
        return False
