"""Objects of processes that dial in to a real cluster: `near`, on the machine of their callers, and
`far`, on an emulated second machine, whose messages pass through the relay of a worker.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.api import connection
from remotely.api.handle import remote_of
from remotely.calling.engine import CallEngine
from remotely.cli.debug import DebugSession
from remotely.engines.in_process import InProcess
from remotely.errors import (
    ActorDied,
    CallTimeout,
    MasterLost,
    NameTaken,
    NotAllowed,
    NotConnected,
    RemotelyError,
    RemoteTraceback,
    WorkerLost,
)
from remotely.machine import guest_folder
from remotely.protocol.address import parse_address
from remotely.protocol.debugging import Ask
from remotely.transport.bulk import Connection
from remotely.transport.listening import nearest
from tests.clusters import Here, Started, freeze, processes, run, wait_until
from tests.remotely.counter import Counter
from tests.remotely.guest.simulator import Base, Simulator

ROOT = Path(__file__).resolve().parents[3]


@remotely.remote_class
class Maker:
    def make(self, size: int) -> Any:
        return np.ones(size)


class Guests:
    """Starts processes that serve an object, and ends them."""

    def __init__(self, place: str = "near") -> None:
        self.place = place
        self.running: list[subprocess.Popen[str]] = []

    def start(self, cluster: Here | Started, **options: Any) -> subprocess.Popen[str]:
        home = cluster.home
        environment = {**os.environ, "REMOTELY_HOME": str(home)}
        environment.pop("REMOTELY_ADDRESS", None)
        if self.place == "far":
            environment["REMOTELY_HOST"] = "far"
        options = {"address": cluster.address, "patience_s": 40, **options}
        module = "tests.remotely.guest.simulator"
        guest = subprocess.Popen(
            [sys.executable, "-u", "-m", module, json.dumps(options)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.running.append(guest)
        return guest

    def end(self) -> None:
        for guest in self.running:
            guest.kill()
            guest.communicate()
        guest_folder.sweep()
        if remotely.is_connected():  # else the next test might get one of these
            wait_until(lambda: not any(a.dialled_in for a in remotely.status().actors), "gone")


@pytest.fixture(params=["near", "far"])
def guests(request: pytest.FixtureRequest) -> Iterator[Guests]:
    made = Guests(request.param)
    yield made
    made.end()


@pytest.fixture
def near() -> Iterator[Guests]:
    made = Guests()
    yield made
    made.end()


@pytest.fixture
def far() -> Iterator[Guests]:
    made = Guests("far")
    yield made
    made.end()


def output_of(guest: subprocess.Popen[str]) -> str:
    """Wait for the end of a process; return its output."""
    out, _ = guest.communicate(timeout=40)
    return out


def one(**options: Any) -> Simulator:
    (simulator,) = remotely.arrivals(Simulator, count=1, timeout=40, **options)
    return simulator


# --- an actor like any other ----------------------------------------------------------------------


def test_a_guest_is_an_actor_like_any_other(here: None, started_here: Here, guests: Guests) -> None:
    guest = guests.start(started_here, name="sim")
    simulator = one()
    assert isinstance(simulator, Simulator)
    assert simulator.pid() == guest.pid
    assert simulator.current() is None  # its process is no actor
    assert simulator.step(4) == 40
    assert [simulator.step.submit(n).result(40) for n in range(3)] == [0, 10, 20]
    assert simulator.steps == 4
    simulator.steps = 100
    simulator.step(0)
    assert simulator.steps == 101
    assert list(simulator.count(100)) == list(range(100))
    with pytest.raises(ValueError, match="thirteen") as failed:
        simulator.step(13)
    assert isinstance(failed.value.__cause__, RemoteTraceback)
    assert 'raise ValueError("thirteen")' in str(failed.value.__cause__)
    with pytest.raises(AttributeError, match="did you mean 'step'"):
        _ = simulator.stepp
    assert remotely.get_actor("sim").step(1) == 10
    (seen,) = [actor for actor in remotely.status().actors if actor.name == "sim"]
    assert (seen.class_name, seen.pid, seen.owner, seen.cpus) == ("Simulator", guest.pid, None, 0)
    assert seen.dialled_in
    (step,) = [each for each in seen.methods if each.method == "step"]
    assert step.calls == 7
    assert seen.received > 0


def test_a_guest_is_debugged_in_its_own_terminal_which_it_says_while_a_call_runs_too(
    here: None, started_here: Here, near: Guests, tmp_path: Path
) -> None:
    near.start(started_here, name="sim")
    simulator = one()
    actor: Any = remote_of(simulator)
    session = DebugSession(actor.engine, actor)
    refusal = "sim has dialled in: its breakpoint"
    with pytest.raises(RemotelyError, match=refusal):
        session.ask(Ask.ATTACH, "a test")
    call = simulator.echo_once_there_is.submit(str(tmp_path / "end"), 1)
    wait_until((tmp_path / "runs").exists, "a call that runs")
    actor.engine.carrier.attend(actor.actor)
    with pytest.raises(RemotelyError, match=refusal):
        session.ask(Ask.ATTACH, "a test", timeout_s=20)
    assert not call.done()
    (tmp_path / "end").touch()
    assert call.result(timeout=20) == 1


def test_the_log_of_a_guest_says_once_that_its_output_is_on_its_own_terminal(
    here: None, started_here: Here, near: Guests
) -> None:
    near.start(started_here)
    actor: Any = remote_of(one())
    read = actor.engine.carrier.read_log
    piece = read(actor.actor, -1).result(timeout=20)
    assert (piece.known, piece.ended) == (True, False)
    assert "own terminal" in piece.text
    assert read(actor.actor, piece.offset).result(timeout=20).text == ""


def test_the_caller_fetches_results_of_other_machines_for_a_guest(
    started: Started, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest may be able to reach only the machine of its relay."""
    pulled: list[int] = []
    pull = Connection.pull

    def counted(self: Connection, value: bytes, start: int, memory: memoryview) -> None:
        pulled.append(memory.nbytes)
        pull(self, value, start, memory)

    monkeypatch.setattr(Connection, "pull", counted)
    guests = Guests("far")
    remotely.connect(started.address, key=started.key)
    try:
        guests.start(started)
        simulator, maker = one(), Maker()
        made = maker.make.submit(500_000)

        assert simulator.echo(remotely.ref(made)).shape == (500_000,)

        assert 4_000_000 <= sum(pulled) < 4_010_000
    finally:
        guests.end()
        remotely.shutdown()


def test_large_values_of_several_callers_cross_at_the_same_time(
    here: None, started_here: Here, guests: Guests
) -> None:
    guests.start(started_here, concurrency=3)
    simulator = one()
    arrays = [np.random.default_rng(n).random(1_500_000) for n in range(4)]
    for _ in range(2):  # the second time perhaps through memory
        futures = [simulator.echo.submit(array) for array in arrays]
        for future, array in zip(futures, arrays, strict=True):
            assert np.array_equal(future.result(30), array)


def test_actors_can_call_a_guest_whose_handle_they_receive(
    here: None, started_here: Here, far: Guests
) -> None:
    far.start(started_here)
    simulator = one()
    callers = remotely.group(Caller, 3)
    assert callers.call(simulator) == [70, 70, 70]


@remotely.remote_class
class Caller:
    def call(self, simulator: Simulator) -> int:
        return simulator.step(7)


@pytest.mark.parametrize(
    "how", [{"concurrency": 2}, {"cls": "Shared"}], ids=["of serve", "of class"]
)
def test_a_guest_with_concurrency_serves_several_calls_at_a_time(
    here: None, started_here: Here, near: Guests, how: dict[str, Any]
) -> None:
    near.start(started_here, **how)
    simulator = one()
    calls = [simulator.meet.submit(), simulator.meet.submit()]
    assert sorted(call.result(40) for call in calls) == [0, 1]


def test_async_methods_of_a_guest_interleave(here: None, started_here: Here, near: Guests) -> None:
    near.start(started_here, cls="Awaiting")
    (awaiting,) = remotely.arrivals("Awaiting", count=1, timeout=40)
    assert [call.result(40) for call in [awaiting.meet.submit(), awaiting.meet.submit()]] == [2, 2]


def test_a_guest_with_a_client_key_can_call_a_handle_that_it_receives(
    here: None, started_here: Here, near: Guests
) -> None:
    near.start(started_here)  # client.key is in its home
    assert one().call(Counter()) == 1


# --- ends -----------------------------------------------------------------------------------------


def busy(simulator: Simulator, tmp_path: Path) -> "Future[None]":
    """Return the future of a running call."""
    running = simulator.sleep.submit(str(tmp_path / "runs"), 60)
    wait_until((tmp_path / "runs").exists, "the call runs")
    return running  # type: ignore[no-any-return]


def test_the_kill_of_a_guest_fails_its_calls_and_frees_its_name(
    here: None, started_here: Here, guests: Guests, tmp_path: Path
) -> None:
    guest = guests.start(started_here, name="sim")
    simulator = one()
    running = busy(simulator, tmp_path)
    guest.kill()
    error = running.exception(40)
    assert isinstance(error, ActorDied)
    assert error.may_have_run
    assert f"pid {guest.pid}" in str(error)
    with pytest.raises(ActorDied, match="did not run"):
        simulator.step(1)
    wait_until(lambda: remotely.status().actors == [], "the actor is gone")
    guests.start(started_here, name="sim")
    assert one().step(1) == 10


def test_a_client_that_closes_a_guest_ends_serve_but_not_the_process(
    here: None, started_here: Here, guests: Guests
) -> None:
    guest = guests.start(started_here)
    simulator = one()
    last = simulator.echo.submit(np.ones(1_000_000))
    remotely.close(simulator)
    assert last.result(40).sum() == 1_000_000
    assert output_of(guest).endswith("closed by a client\nserve has returned: closed\n")
    with pytest.raises(ActorDied, match="closed"):
        simulator.step(1)


@pytest.mark.parametrize("end", ["closed", "interrupted"])
def test_a_client_that_is_stopped_during_the_end_gets_the_last_reply(
    here: None, started_here: Here, far: Guests, tmp_path: Path, end: str
) -> None:
    guest = far.start(started_here, name="sim", last_reply_s=20)
    simulator = one()
    values = 125_000
    script = (
        "import sys, numpy, remotely\n"
        "remotely.connect(sys.argv[1], key=sys.argv[2])\n"
        "simulator = remotely.get_actor('sim')\n"
        "value = numpy.ones(int(sys.argv[4]))\n"
        "print(simulator.echo_once_there_is.submit(sys.argv[3], value).result(40).sum())\n"
    )
    arguments = (started_here.address, started_here.key, tmp_path / "go", values)
    client = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        text=True,
    )
    try:
        wait_until((tmp_path / "runs").exists, "the call runs")
        freeze(client.pid)
        (tmp_path / "go").touch()
        if end == "closed":
            remotely.close(simulator)
        else:
            assert simulator.step(1) == 10  # after the other client's call
            guest.send_signal(signal.SIGINT)
        wait_until(lambda: remotely.status().actors == [], "the actor is gone")
        client.send_signal(signal.SIGCONT)
        out, _ = client.communicate(timeout=40)
        output_of(guest)
    finally:
        client.kill()
        client.communicate()
    assert out == f"{values}.0\n"


def test_remotely_kill_ends_serve_but_not_the_process(
    here: None, started_here: Here, near: Guests
) -> None:
    guest = near.start(started_here)
    simulator = one()
    remotely.kill(simulator)
    with pytest.raises(ActorDied, match=f"killed by pid {os.getpid()}"):
        simulator.step(1)
    assert f"serve has returned: killed by pid {os.getpid()} (" in output_of(guest)
    assert guest.returncode == 0


def test_ctrl_c_and_exit_end_the_process_and_callers_get_the_reason(
    here: None, started_here: Here, far: Guests, tmp_path: Path
) -> None:
    guest = far.start(started_here)
    running = busy(one(), tmp_path)
    guest.send_signal(signal.SIGINT)
    error = running.exception(40)
    assert isinstance(error, ActorDied)
    assert "left `serve`: KeyboardInterrupt" in str(error)
    assert "KeyboardInterrupt" in output_of(guest)
    assert guest.returncode == -signal.SIGINT
    guest = far.start(started_here)
    with pytest.raises(ActorDied, match="left `serve`: SystemExit"):
        one().exit(4)
    output_of(guest)
    assert guest.returncode == 4


def test_a_process_can_serve_repeatedly_in_any_thread_and_leaks_nothing(
    here: None, started_here: Here
) -> None:
    ended: list[object] = []

    def work() -> None:
        remotely.serve(
            Simulator(), address=started_here.address, key=started_here.key.parent / "worker.key"
        )
        ended.append(True)

    descriptors = []
    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        simulator = one()
        assert simulator.step(1) == 10
        remotely.close(simulator)
        del simulator
        thread.join(40)
        gc.collect()
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert ended == [True, True, True]
    # ZeroMQ closes sockets in the background.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors[1], "the end of its sockets")
    assert not list(Path(tempfile.gettempdir()).glob("remotely-guest-*"))


# --- the end of the cluster, or of parts of it ----------------------------------------------------


def test_a_guest_dials_in_again_if_the_worker_of_its_relay_is_lost(
    nothing_left: None, tmp_path: Path
) -> None:
    cluster, guests = Started(tmp_path, machines=1), Guests("far")
    try:
        remotely.connect(cluster.address, key=cluster.key)
        guests.start(cluster, name="sim", key=str(cluster.home / "keys" / "worker.key"))
        simulator = one()
        running = simulator.echo_once_there_is.submit(str(tmp_path / "go"), 1)
        wait_until((tmp_path / "runs").exists, "the call runs")
        port = parse_address(nearest(remote_of(simulator).location.tcp))[1]
        workers = processes(str(tmp_path), "remotely.worker")
        relays = [w for w in workers if port in {c.laddr.port for c in w.net_connections("tcp")}]
        relays[0].kill()
        assert isinstance(running.exception(40), WorkerLost)
        (tmp_path / "go").touch()  # the guest dials in after the call has ended
        assert one().step(2) == 20
        assert remotely.get_actor("sim").step(3) == 30
    finally:
        remotely.shutdown()
        guests.end()
        cluster.stop()


def test_a_new_master_knows_the_guest_and_its_client_and_serve_returns_when_it_is_stopped(
    nothing_left: None, tmp_path: Path, far: Guests
) -> None:
    cluster = Here(tmp_path / "here")
    try:
        remotely.connect(cluster.address, key=cluster.key)
        guest = far.start(cluster, name="sim")
        simulator = one()
        assert simulator.step(1) == 10
        (master,) = processes(str(cluster.home), "remotely.master")
        master.kill()
        assert simulator.step(2) == 20  # calls need no master
        run(cluster.home, "start", "--port", str(cluster.port))
        assert remotely.get_actor("sim").step(3) == 30
        assert Caller().call(simulator) == 70  # with a key that only the new master knows
        with pytest.raises(CallTimeout):  # this client has it already
            next(remotely.arrivals(Simulator, timeout=0.1))
        far.start(cluster, name="second")
        wait_until(lambda: len(remotely.status().actors) == 2, "the second has dialled in")
        remotely.shutdown()
    finally:
        cluster.stop()
    assert output_of(guest).endswith("serve has returned: the cluster was stopped\n")


def test_the_revocation_of_its_key_ends_serve(
    here: None, started_here: Here, far: Guests, tmp_path: Path
) -> None:
    key = tmp_path / "robot.key"
    run(started_here.home, "keys", "add", "worker", str(key))
    guest = far.start(started_here, key=str(key))
    simulator = one()
    assert simulator.step(1) == 10
    run(started_here.home, "keys", "revoke", json.loads(key.read_text())["public"])
    assert "NotAllowed: " in output_of(guest)
    with pytest.raises(ActorDied):
        simulator.step(1)


# --- arrivals -------------------------------------------------------------------------------------


def test_arrivals_are_found_by_class_base_class_or_class_name(
    here: None, started_here: Here, near: Guests
) -> None:
    arrivals = remotely.arrivals(Base, timeout=40)
    with pytest.raises(CallTimeout, match=r"no Simulator has dialled in within 0.1 s"):
        next(remotely.arrivals(Simulator, timeout=0.1))
    for number in range(2):
        guest = near.start(started_here)
        simulator: Any = next(arrivals)
        assert simulator.pid() == guest.pid
        assert isinstance(simulator, Base)
        assert simulator.step(number) == number * 10
    guest = near.start(started_here)
    (by_name,) = remotely.arrivals("Simulator", count=1, timeout=40)
    assert by_name.pid() == guest.pid
    assert type(by_name).__name__ == "HandleOfSimulator"


def test_a_wait_for_an_arrival_that_ends_early_is_repeated(
    here: None, started_here: Here, near: Guests
) -> None:
    arrivals = remotely.arrivals(Simulator, count=1, timeout=0.2)
    with pytest.raises(CallTimeout):
        next(arrivals)
    guest = near.start(started_here)
    found = None
    while found is None:
        with suppress(CallTimeout):
            found = next(arrivals)
    assert found.pid() == guest.pid
    assert list(arrivals) == []


def test_an_arrival_goes_to_one_client_and_to_the_next_when_that_has_ended(
    here: None, started_here: Here, near: Guests
) -> None:
    guest = near.start(started_here, name="sim")
    script = (
        "import remotely, sys\n"
        "remotely.connect(sys.argv[1], key=sys.argv[2])\n"
        "next(remotely.arrivals('Simulator', timeout=40))\n"
        "print('has it', flush=True)\n"
        "sys.stdin.read()\n"
    )
    learner = subprocess.Popen(
        [sys.executable, "-c", script, started_here.address, str(started_here.key)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert learner.stdin is not None
    assert learner.stdout is not None
    assert learner.stdout.readline() == b"has it\n"
    with pytest.raises(CallTimeout):
        next(remotely.arrivals(Simulator, timeout=0.2))
    assert remotely.get_actor("sim").step(1) == 10  # any client may call it by name
    learner.kill()
    learner.communicate()
    assert one().pid() == guest.pid


# --- bad input ------------------------------------------------------------------------------------


def test_a_second_object_of_the_same_name_is_refused(
    here: None, started_here: Here, near: Guests
) -> None:
    near.start(started_here, name="sim")
    simulator = one()
    second = near.start(started_here, name="sim")
    assert "NameTaken: an actor named 'sim' is on this cluster already" in output_of(second)
    assert simulator.step(1) == 10
    with pytest.raises(NameTaken):
        remotely.options(Counter, name="sim")()


def test_serve_without_a_cluster_or_a_key_says_what_to_do(
    started_here: Here,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("REMOTELY_ADDRESS", raising=False)
    with pytest.raises(NotConnected, match=r"serve needs the address .*remotely start"):
        remotely.serve(Simulator())
    monkeypatch.setenv("REMOTELY_HOME", str(tmp_path))
    with pytest.raises(NotAllowed, match=r"worker\.key"):
        remotely.serve(Simulator(), address=started_here.address)
    with pytest.raises(NotAllowed, match="worker"):
        remotely.serve(Simulator(), address=started_here.address, key=started_here.key)
    key = started_here.key.parent / "worker.key"
    with pytest.raises(MasterLost, match="no master at 127"):
        remotely.serve(Simulator(), address="127.0.0.1:9", key=key, patience_s=1)
    (warning,) = [r.getMessage() for r in caplog.records if r.name == "remotely"]
    assert "nothing listens at port 9" in warning
    assert warning.endswith("Trying again for 1 s (patience_s)")
    with pytest.raises(ValueError, match="is not an address"):
        remotely.serve(Simulator(), address="127.0.0.1:x", key=key)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: remotely.serve(Simulator), "Simulator is a class: serve(Simulator())"),
        (lambda: remotely.serve(Counter()), "is a handle to another process"),
        (lambda: remotely.serve(Simulator(), name="a b"), "name='a b'"),
        (lambda: remotely.serve(Simulator(), concurrency=0), "concurrency=0"),
        (lambda: remotely.serve(Simulator(), patience_s=-1), "patience_s=-1"),
        (lambda: remotely.arrivals(5), "cls=5"),  # type: ignore[call-overload]
        (lambda: remotely.arrivals(Simulator, count=0), "count=0"),
        (lambda: remotely.arrivals(Simulator, timeout=-1), "timeout=-1"),
    ],
)
def test_bad_arguments_are_named(here: None, act: Callable[[], object], error: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        act()
    assert error in str(refused.value)


def test_arrivals_need_a_cluster_that_others_can_reach(
    embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotConnected, match="remotely start"):
        next(remotely.arrivals(Simulator))
    monkeypatch.setattr(connection, "_engine", CallEngine(InProcess()))
    with pytest.raises(NotConnected, match="REMOTELY_LOCAL"):
        next(remotely.arrivals(Simulator))
    monkeypatch.undo()
