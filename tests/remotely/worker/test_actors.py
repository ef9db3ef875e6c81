"""The worker's table of actors: a new life during a kill, keys, and the socket of a dead actor.

The zygote is a fake: an actor is a socket into which the test writes, without a process.
"""

import contextlib
import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remotely.machine import memory_file, this_machine
from remotely.machine.watched_process import WatchedProcess
from remotely.protocol import control
from remotely.protocol.listening import Listening
from remotely.transport.loop import Loop
from remotely.values import restart_file
from remotely.worker.actors import WorkerActors
from remotely.worker.reaper import Child
from remotely.worker.spawner import WorkerInfo

NO_PID = 1 << 30  # of no process: larger than any
OLD, NEW = b"old".ljust(40), b"new".ljust(40)


class NoZygote:
    """Accepts requests for forks without forking; keeps the actor's end of each socket."""

    ends: dict[str, socket.socket]

    is_own = is_needed = True

    def __init__(self, *_: Any) -> None:
        self.expected: dict[int, Child] = {}
        self.is_closing = False
        NoZygote.ends = {}

    def preload(self, modules: list[str]) -> None:
        pass

    def fork(self, number: int, child: Child, descriptors: list[int]) -> None:
        actor = child.request.actor
        if before := self.ends.pop(actor, None):
            before.close()
        self.expected[number] = child
        self.ends[actor] = socket.socket(fileno=os.dup(descriptors[0]))

    def stop(self) -> None:
        self.is_closing = True

    close = stop


class Played:
    """Actors with a loop that the test turns, and a master that records its messages."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[msgspec.Struct] = []
        self.loop = Loop()
        info = WorkerInfo("w", folder, "", b"", Listening(), [], "host", "machine", True)
        self.actors = WorkerActors(self.loop, info, self.sent.append, lambda: None, None)
        self.ends = NoZygote.ends

    def spawn(self, actor: str, life: int = 0, **options: Any) -> None:
        request = control.Request(
            actor=actor,
            name=actor,
            class_name="C",
            owner=options.pop("owner", "o"),
            job="j",
            python=this_machine.PYTHON,
            life=life,
            **options,
        )
        self.actors.spawn(control.Spawn(request=request, gpu_ids=[]))
        self.loop.turn(0)

    def says(self, actor: str, message: msgspec.Struct) -> None:
        self.ends[actor].send(control.encode(message))
        self.loop.turn(0)

    def sent_of(self, kind: type[msgspec.Struct]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def close(self) -> None:
        for child in list(self.actors.children):
            self.actors.spawn_lost(child)
        for end in self.ends.values():
            end.close()
        self.loop.close()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.setattr("remotely.worker.spawner.ZygoteLine", NoZygote)
    made = Played(tmp_path)
    yield made
    made.close()


def test_the_master_learns_that_a_key_is_refused_when_the_actor_has_said_so(
    played: Played,
) -> None:
    played.actors.list_keys([OLD, NEW])
    played.sent.clear()
    played.spawn("a")
    played.says("a", control.MayCall(key=NEW))
    assert not played.sent_of(control.MayCall)
    played.actors.update_caller(control.Caller(key=NEW, admitted=False))
    assert not played.sent_of(control.CallerHeard)
    played.says("a", control.CallerHeard(key=NEW))
    assert played.sent_of(control.CallerHeard) == [control.CallerHeard(key=NEW)]


@pytest.mark.parametrize("life", [0, 1])
def test_an_actor_requested_while_its_last_process_is_being_killed_starts_after_that(
    played: Played, life: int
) -> None:
    played.spawn("a")
    (before,) = played.actors.children
    played.actors.end(control.End(actor="a", grace_s=0.0, kill=True))
    played.spawn("a", life)
    assert list(played.actors.children) == [before]
    assert [birth.request.life for birth in played.actors.births()] == [0, life]

    played.actors.spawn_failed(before.request, "it was killed")
    played.loop.turn(0)

    (after,) = played.actors.children
    assert after is not before
    # If the master requests the same life again, it knows that the last process has ended.
    assert len(played.sent_of(control.Died)) == life


def test_the_full_socket_of_a_dead_actor_is_drained_although_another_process_holds_it(
    played: Played,
) -> None:
    played.spawn("a")
    (child,) = played.actors.children
    end = played.ends["a"]
    end.setblocking(False)
    memory = memory_file.create("remotely-recorder", 4096)
    os.pwrite(memory, b"the memory", 0)
    socket.send_fds(end, [control.encode(control.FlightRecorder())], [memory])
    os.close(memory)
    messages = 1
    with contextlib.suppress(BlockingIOError):
        while True:  # as many as a socket holds
            end.send(control.encode(control.Count(calls=1)))
            messages += 1
    assert messages >= 278

    played.actors.spawn_failed(child.request, "it was killed")

    (died,) = played.sent_of(control.Died)
    assert died.obituary.flight_record.startswith(b"the memory")
    assert not list(played.actors.children)


def test_messages_to_an_actor_that_reads_nothing_wait_for_it_in_order(played: Played) -> None:
    played.spawn("a")
    keys = [f"{number:040}".encode() for number in range(1000)]
    for key in keys:
        played.actors.tell("a", control.Caller(key=key, admitted=False))
    decoder = control.Decoder("worker > actor")
    read: list[object] = []
    while len(read) < 1 + len(keys):
        read.append(decoder.decode(played.ends["a"].recv(control.MAX_MESSAGE)))
        played.loop.turn(0)
    birth, *callers = read
    assert isinstance(birth, control.Birth)
    assert callers == [control.Caller(key=key, admitted=False) for key in keys]


# --- starts that fail -----------------------------------------------------------------------------


def obituary_of(played: Played) -> control.Obituary:
    (died,) = played.sent_of(control.Died)
    obituary: control.Obituary = died.obituary
    return obituary


def test_a_machine_without_descriptors_is_to_blame(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pipe(_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("remotely.worker.spawner._pipe", no_pipe)
    played.spawn("a")
    obituary = obituary_of(played)
    assert obituary.unstarted
    assert obituary.why == "its machine could not start a process: Too many open files"


def test_a_machine_that_cannot_fork_is_to_blame(played: Played) -> None:
    played.spawn("a")
    (child,) = played.actors.children
    played.actors.spawn_failed(child.request, "Resource temporarily unavailable")
    assert obituary_of(played).unstarted


def test_a_process_with_variables_of_its_own_may_have_ended_by_them_unless_it_says_otherwise(
    played: Played,
) -> None:
    played.spawn("a")
    (child,) = played.actors.children
    child.request = msgspec.structs.replace(child.request, env={"LD_PRELOAD": "nothing.so"})
    assert child.is_unstarted
    child.pid = NO_PID
    assert not child.is_unstarted
    played.says("a", control.NotBound(why="no port is free"))
    assert child.is_unstarted


@pytest.mark.parametrize("end", ["closed", "killed", "started", "begun", "refused"])
def test_a_machine_is_not_to_blame_for_an_actor_that_was_ended_or_had_started(
    played: Played, end: str
) -> None:
    played.spawn("a")
    (child,) = played.actors.children
    match end:
        case "closed":
            played.actors.end(control.End(actor="a", grace_s=1.0))
        case "killed":  # by the limit of its memory
            child.kill()
        case "started":  # its worker has not read that yet
            played.ends["a"].send(control.encode(control.Bound(tcp="")))
        case "begun":  # its constructor, in a next life
            played.says("a", control.Begun())
            assert played.sent_of(control.Begun) == [control.Begun(actor="a")]
    played.actors.spawn_failed(child.request, "it ended", is_refused=end == "refused")
    assert not obituary_of(played).unstarted


def test_an_actor_that_is_quicker_than_its_zygote_is_announced_with_its_pid(
    played: Played,
) -> None:
    played.spawn("a")
    (child,) = played.actors.children
    played.says("a", control.Bound(tcp="there"))
    assert not played.sent_of(control.Spawned)
    assert not child.is_unstarted
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        child.pid, child.watched = process.pid, WatchedProcess(process.pid)
        child.location = msgspec.structs.replace(child.location, pid=process.pid)
        played.actors.started(child)
        (spawned,) = played.sent_of(control.Spawned)
        assert (spawned.location.pid, spawned.location.tcp) == (process.pid, "there")
        child.kill()


# --- drained machines -----------------------------------------------------------------------------


def test_a_request_to_move_that_crosses_a_crash_leaves_the_restart_file(
    played: Played, tmp_path: Path
) -> None:
    restart_file.write(tmp_path, "a", [[b"class", b"arguments"]])
    played.actors.end(control.End(actor="a", grace_s=60.0, moves=True))
    assert restart_file.read(tmp_path, "a")
    assert not played.sent_of(control.Died)


def test_a_worker_has_something_to_do_until_the_master_says_what_follows_a_crash(
    played: Played,
) -> None:
    for follows in ("another life", "the end"):
        played.spawn("a", owner="", max_restarts=1)
        (child,) = played.actors.children
        child.pid = NO_PID
        played.says("a", control.Bound(tcp=""))
        played.actors.spawn_failed(child.request, "it crashed")
        assert not played.actors.children
        assert not played.actors.is_idle
        if follows == "another life":
            played.spawn("a", 1, owner="", max_restarts=1)
            (child,) = played.actors.children
            played.actors.spawn_failed(child.request, "no space left")
        else:
            played.actors.end(control.End(actor="a", grace_s=0.0))
        assert played.actors.is_idle


def test_an_actor_that_was_to_move_stays_unless_it_ends_already(played: Played) -> None:
    played.spawn("a")
    (child,) = played.actors.children
    move = control.End(actor="a", grace_s=60.0, moves=True)
    played.actors.end(move)
    assert child.as_status().moves
    played.actors.stay("a")
    played.actors.stay("a")  # it is told again until the master knows
    assert not child.as_status().moves
    assert played.sent_of(control.Stay) == [control.Stay(actor="a")] * 2
    played.actors.end(move)
    child.is_moved = True
    played.actors.stay_all()
    played.actors.stay("none")
    assert len(played.sent_of(control.Stay)) == 2


def _timelines() -> list[str]:
    """The descriptors of memory for timelines that this process has."""
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [each for each in paths if "remotely-timeline" in _target(each)]


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # that of the listing
        return ""


def test_a_timeline_holds_no_memory_of_actors_that_have_ended(played: Played) -> None:
    played.actors.record_timeline(control.RecordTimeline(timeline="t", seconds=100))
    for actor in ("a", "b", "c"):
        played.spawn(actor)
    assert len(_timelines()) == 3
    for child in list(played.actors.children):
        played.actors.spawn_failed(child.request, "it has ended")
    assert _timelines() == []


def test_a_timeline_replaces_the_one_before(played: Played) -> None:
    played.spawn("a")
    for each in ("before", "now"):
        played.actors.record_timeline(control.RecordTimeline(timeline=each, seconds=0))
    assert len(_timelines()) <= 1
    played.loop.turn(0)
    assert [each.timeline for each in played.sent_of(control.ProcessTimeline)] == ["now"]
    assert [each.timeline for each in played.sent_of(control.TimelineEnd)] == ["now"]
    assert _timelines() == []


def test_a_timeline_whose_asker_has_ended_is_dropped_and_nothing_of_it_is_sent(
    played: Played,
) -> None:
    played.spawn("a")
    played.actors.record_timeline(control.RecordTimeline(timeline="t", seconds=0))
    played.actors.record_timeline(control.RecordTimeline(timeline="", seconds=0))
    played.loop.turn(0)
    assert played.sent_of(control.ProcessTimeline) == []
    assert played.sent_of(control.TimelineEnd) == []
    assert _timelines() == []
