"""Flight recorders: the last record of an actor is in the error of its callers, however it ends."""

import ctypes
import gc
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied
from tests.clusters import wait_until


@remotely.remote_class(cpus=0)
class Recorded:
    def __init__(self, first: bytes = b"") -> None:
        if first:
            self.write(first)

    def write(self, text: bytes, nbytes: int = 16) -> int:
        remotely.flight_recorder(nbytes)[: len(text)] = text
        return os.getpid()

    def write_and_end(self, text: bytes, how: str) -> None:
        self.write(text)
        self.end(how)

    def write_and_wait(self, text: bytes, gate: str) -> None:
        self.write(text)
        Path(gate).touch()
        while True:
            signal.pause()

    def end(self, how: str) -> None:
        match how:
            case "os._exit":
                os._exit(0)
            case "sys.exit":
                sys.exit(3)
            case "segfault":
                ctypes.string_at(0)
            case name:
                os.kill(os.getpid(), signal.Signals[name])

    def end_in_a_fork_that_writes(self, text: bytes) -> None:
        record = remotely.flight_recorder(16)
        child = os.fork()
        if child == 0:
            record[: len(text)] = text
            plain = remotely.flight_recorder(7)  # of another process: plain memory
            os._exit(len(plain))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        os.kill(os.getpid(), signal.SIGKILL)

    def pid(self) -> int:
        return os.getpid()

    def close(self) -> None:
        pass


def record_of(future: Any) -> bytes:
    with pytest.raises(ActorDied) as died:
        future.result(timeout=40)
    return died.value.flight_record


@pytest.mark.promise("exit_status")
@pytest.mark.parametrize("how", ["os._exit", "sys.exit", "segfault", "SIGKILL"])
def test_the_last_record_is_in_the_error_of_the_call(any_cluster: None, how: str) -> None:
    actor = Recorded()
    actor.write(b"before")
    record = record_of(remotely.submit(actor.write_and_end, b"at the end", how))
    assert record == b"at the end".ljust(16, b"\0")


def test_an_actor_that_writes_and_dies_at_once_is_recorded(here: None) -> None:
    for _ in range(10):
        actor = Recorded()
        record = record_of(remotely.submit(actor.write_and_end, b"quick", "SIGKILL"))
        assert record.startswith(b"quick")


def test_a_constructor_that_dies_is_recorded(here: None) -> None:
    class Dying(Recorded):
        def __init__(self) -> None:
            super().__init__(b"constructing")
            os._exit(1)

    with pytest.raises(ActorDied) as died:
        Dying()
    assert died.value.flight_record.startswith(b"constructing")


def test_a_killed_actor_is_recorded_and_a_closed_one_is_not(here: None, tmp_path: Path) -> None:
    actor = Recorded()
    gate = tmp_path / "gate"
    waiting = remotely.submit(actor.write_and_wait, b"waiting", str(gate))
    wait_until(gate.exists, "it waits")
    remotely.kill(actor)
    assert record_of(waiting).startswith(b"waiting")

    closed = Recorded(b"open")
    remotely.close(closed)
    with pytest.raises(ActorDied) as died:
        closed.pid()
    assert died.value.flight_record == b""


def test_every_caller_of_an_actor_or_group_gets_the_record(here: None, tmp_path: Path) -> None:
    @remotely.remote_class(cpus=0)
    class Caller:
        def call(self, other: Recorded) -> bytes:
            try:
                other.pid()
            except ActorDied as died:
                return died.flight_record
            return b"no error"

    actors = remotely.group(Recorded, 2)
    callers = remotely.group(Caller, 2)
    gates = [str(tmp_path / name) for name in "ab"]
    calls = [remotely.submit(actors[i].write_and_wait, b"for %d" % i, gates[i]) for i in range(2)]
    wait_until(lambda: all(Path(gate).exists() for gate in gates), "both wait")
    by_actors = callers.call.submit(actors[0])
    grouped = actors.pid.submit()
    remotely.kill(actors)
    assert [record_of(call)[:5] for call in calls] == [b"for 0", b"for 1"]
    assert [record_of(call)[:5] for call in grouped] == [b"for 0", b"for 1"]
    assert [future.result()[:5] for future in by_actors] == [b"for 0", b"for 0"]


def test_each_life_has_its_own_record(here: None) -> None:
    actor = remotely.options(Recorded, max_restarts=2)()
    pid = actor.write(b"first life")
    assert record_of(remotely.submit(actor.end, "SIGKILL")).startswith(b"first life")
    wait_until(lambda: _is_restarted(actor, pid), "the restart")
    pid = actor.pid()
    assert record_of(remotely.submit(actor.end, "SIGKILL")) == b""
    wait_until(lambda: _is_restarted(actor, pid), "the restart")
    actor.write(b"third", 8)
    assert record_of(remotely.submit(actor.end, "SIGKILL")) == b"third\0\0\0"


def _is_restarted(actor: Any, pid: int) -> bool:
    try:
        return bool(actor.pid() != pid)
    except ActorDied:
        return False


def test_a_forked_child_writes_the_record_of_its_actor(here: None) -> None:
    actor = Recorded()
    record = record_of(remotely.submit(actor.end_in_a_fork_that_writes, b"from the child"))
    assert record.startswith(b"from the child")


def test_a_second_request_returns_the_same_memory_and_refuses_another_size(here: None) -> None:
    @remotely.remote_class(cpus=0)
    class Twice:
        def run(self) -> tuple[bytes, str]:
            first, second = remotely.flight_recorder(4), remotely.flight_recorder(4)
            first[0] = 7
            try:
                remotely.flight_recorder(5)
            except ValueError as error:
                return bytes(second), str(error)
            return b"", ""

    memory, why = Twice().run()
    assert memory == b"\7\0\0\0"
    assert "has a flight recorder, of 4 bytes" in why


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, "8", (1 << 20) + 1, None])
def test_an_invalid_size_is_refused(nbytes: Any) -> None:
    with pytest.raises(ValueError, match="nbytes="):
        remotely.flight_recorder(nbytes)


def test_the_largest_record_arrives_whole(here: None) -> None:
    actor = Recorded()
    actor.write(b"x" * (1 << 20), 1 << 20)
    assert record_of(remotely.submit(actor.end, "SIGKILL")) == b"x" * (1 << 20)


def test_in_a_script_the_record_is_plain_memory() -> None:
    record = remotely.flight_recorder(4)
    record[0] = 1
    assert bytes(record) == b"\1\0\0\0"
    assert bytes(remotely.flight_recorder(4)) == bytes(4)


def test_a_pickled_error_keeps_its_record() -> None:
    died = ActorDied("it died", "SIGKILL", False, "words", b"record")
    copy = pickle.loads(pickle.dumps(died))
    assert (copy.exit, copy.may_have_run, copy.stderr) == ("SIGKILL", False, "words")
    assert copy.flight_record == b"record"


def test_the_worker_keeps_no_descriptor_of_dead_actors(here: None) -> None:
    def recorders() -> int:
        return sum("remotely-flight-recorder" in link for link in _links(worker))

    actor = Recorded()
    pid = actor.write(b"x")
    worker = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    worker = _worker_above(worker)
    wait_until(lambda: recorders() == 1, "one descriptor")
    del actor
    gc.collect()
    wait_until(lambda: recorders() == 0, "the descriptor is closed")


def _worker_above(pid: int) -> int:
    while b"remotely.worker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return pid


def _links(pid: int) -> list[str]:
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    return links
