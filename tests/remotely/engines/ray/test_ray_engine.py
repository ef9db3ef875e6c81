"""Promises of the Ray engine alone; the promises of every engine are tested elsewhere."""

import contextlib
import gc
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import remotely
from remotely.api import connection
from remotely.calling import back_pressure
from remotely.futures.future import CallFuture
from remotely.protocol.wire import Kind
from remotely.values import shipping
from remotely.values.owned import NOTHING
from tests.clusters import wait_until
from tests.remotely.engines.ray.gate import Gate

pytestmark = pytest.mark.usefixtures("on_ray")


@remotely.remote_class(cpus=0)
class Log:
    def __init__(self) -> None:
        self.lines: list[int] = []

    def add(self, line: int, *_: object) -> None:
        self.lines.append(line)

    def call(self, other: "Log", line: int) -> None:
        other.add(line)


def hosts() -> set[int]:
    """Return the pids of this Ray's hosts."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end while we look
            if re.search(r"ray::\w+Host", " ".join(child.cmdline())):
                found.add(child.pid)
    return found


def test_calls_run_in_order() -> None:
    log = Log()

    calls = [log.add.submit(line, np.zeros(50_000 * (line % 2))) for line in range(50)]

    for call in calls:
        call.result()
    assert log.lines == list(range(50))


def test_a_call_that_waits_for_an_argument_keeps_its_place() -> None:
    log, gate = Log(), Gate()
    log.add.submit(1, gate.wait.submit())
    last = log.add.submit(2)

    gate.open()

    last.result()
    assert log.lines == [1, 2]


def test_a_handle_that_is_received_repeatedly_can_be_called_each_time() -> None:
    caller, log = Log(), Log()

    for line in range(3):
        caller.call(log, line)

    assert log.lines == [0, 1, 2]


def test_submit_blocks_at_the_limit_of_pending_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_pressure, "MAX_CALLS", 3)
    log, gate = Log(), Gate()
    held = [gate.wait.submit() for _ in range(3)]
    fourth = threading.Thread(target=gate.wait.submit)

    fourth.start()

    fourth.join(0.3)
    assert fourth.is_alive()
    log.add.submit(1).result()  # another actor has limits of its own
    gate.open()
    fourth.join(20)
    assert not fourth.is_alive()
    assert [future.result() for future in held] == [7] * 3


class CallsWhenCollected:
    """Calls the log when it is garbage collected, on any thread."""

    def __init__(self, log: Log, sent: list[CallFuture[None]]) -> None:
        self.log, self.sent = log, sent
        self.itself = self

    def __del__(self) -> None:
        self.sent.append(self.log.add.submit(1))


def test_the_garbage_collector_may_call_an_actor_in_the_middle_of_a_call() -> None:
    log = Log()
    sent: list[CallFuture[None]] = []
    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        for _ in range(100):
            CallsWhenCollected(log, sent)
            sent.append(log.add.submit(0))
    finally:
        gc.set_threshold(*before)
    gc.collect()

    for call in sent:
        call.result(timeout=30)
    assert sorted(log.lines) == [0] * 100 + [1] * 100


@remotely.remote_class(cpus=0, max_restarts=1)
class Once:
    """Can be created once."""

    def __init__(self, marker: Path) -> None:
        marker.touch(exist_ok=False)

    def die(self) -> None:
        os._exit(1)


def test_an_actor_that_fails_to_restart_leaves_no_process(tmp_path: Path) -> None:
    before = hosts()
    once = Once(tmp_path / "created")
    with pytest.raises(remotely.ActorDied):
        once.die()

    with pytest.raises(remotely.ActorDied, match="could not be restarted: FileExistsError"):
        once.die()

    wait_until(lambda: hosts() <= before, "the end of its host")


@remotely.remote_class(cpus=0, max_restarts=1)
class Mortal:
    @remotely.idempotent(retries=1)
    def die_once(self, folder: Path) -> int:
        """Return the number of the life that survives it."""
        life = 1 + len(list(folder.iterdir()))
        (folder / str(life)).touch()
        if life == 1:
            os._exit(1)
        return life


def test_a_callback_may_wait_for_a_call_that_is_retried(tmp_path: Path) -> None:
    mortal, log = Mortal(), Log()
    done: CallFuture[int] = CallFuture("the callback")

    log.add.submit(1).add_done_callback(lambda _: done.set_result(mortal.die_once(tmp_path)))

    assert done.result(20) == 2


def test_restarts_of_a_detached_actor_are_refused_with_advice() -> None:
    with pytest.raises(remotely.RemotelyError, match="leave out max_restarts"):
        remotely.options(Log, detached=True, max_restarts=1)()


def test_a_closed_actor_is_not_restarted() -> None:
    log = remotely.options(Log, max_restarts=3)()
    log.add(1)

    remotely.close(log)

    with pytest.raises(remotely.ActorDied, match="closed"):
        log.add(2)
    assert not remotely.actors()


@remotely.remote_class(cpus=0, max_restarts=1)
class Phoenix:
    def pid(self) -> int:
        return os.getpid()

    def die(self) -> None:
        os._exit(1)


def test_an_actor_whose_process_ends_during_a_restart_is_restarted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    from remotely.engines.ray.actor import NAMESPACE

    phoenix = remotely.options(Phoenix, max_restarts=2, name="phoenix")()
    first, prepare = phoenix.pid(), shipping.prepare
    killed: list[Any] = []

    def kill_and_prepare(*settings: Any) -> Any:
        """Kill the process before it receives its object."""
        if not killed:
            ray.kill(ray.get_actor("phoenix", namespace=NAMESPACE))
            killed.append(settings)
        return prepare(*settings)

    monkeypatch.setattr(shipping, "prepare", kill_and_prepare)
    with pytest.raises(remotely.ActorDied):
        phoenix.die()

    assert phoenix.pid() != first
    assert killed


@remotely.remote_class(cpus=0)
class Finder:
    def outlive(self, name: str) -> tuple[int, int]:
        """Return the processes of two lives of an actor that another process restarts."""
        found: Phoenix = remotely.get_actor(name)
        first = found.pid()
        with contextlib.suppress(remotely.ActorDied):
            found.die()
        return first, found.pid()


def test_a_handle_from_get_actor_follows_a_restart() -> None:
    phoenix = remotely.options(Phoenix, name="phoenix")()

    first, second = Finder().outlive("phoenix")

    assert first != second == phoenix.pid()


def test_groups_that_do_not_fit_together_are_placed_one_after_the_other() -> None:
    together = threading.Barrier(3)

    def use(line: int) -> None:
        together.wait()
        group = remotely.group(remotely.options(Log, cpus=8), 2)  # of 16
        group.add(line)
        remotely.close(group)

    with ThreadPoolExecutor() as threads:
        for use_of_one in [threads.submit(use, line) for line in range(3)]:
            use_of_one.result()


def test_a_group_can_be_placed_on_one_machine() -> None:
    here = remotely.status().machines[0].machine

    group = remotely.group(remotely.options(Log, cpus=1, machine=here), 2)

    assert group.add(1) == [None, None]


def test_a_group_that_never_fits_is_refused_immediately() -> None:
    with pytest.raises(remotely.NoResources, match="has room for 16 Log, not for 17"):
        remotely.group(remotely.options(Log, cpus=1), 17)


def test_a_local_cluster_has_whole_cpus() -> None:
    from remotely.engines.ray.session import own_cluster
    from remotely.machine.gpus import OfferedResources

    with pytest.raises(ValueError, match="whole CPUs"):
        own_cluster(OfferedResources(cpus=0.5))


@remotely.remote_class(cpus=0)
class Slow:
    """Closes slowly."""

    def __init__(self, closing: Path, may_close: Path) -> None:
        self.closing, self.may_close = closing, may_close

    def nap(self) -> None: ...

    def close(self) -> None:
        self.closing.touch()
        while not self.may_close.exists():
            time.sleep(0.01)


def test_calls_and_new_actors_are_refused_during_shutdown(
    tmp_path: Path,
) -> None:
    slow = Slow(tmp_path / "closing", tmp_path / "may close")
    slow.nap()
    engine = connection.current()
    leaving = threading.Thread(target=engine.shutdown)
    leaving.start()
    wait_until((tmp_path / "closing").exists, "the beginning of close()")

    with pytest.raises(remotely.NotConnected):
        slow.nap()
    with pytest.raises(remotely.NotConnected):
        Log()

    (tmp_path / "may close").touch()
    leaving.join()


def test_waiting_on_the_replies_thread_is_refused() -> None:
    from remotely.engines.ray.channel import HostChannel, Replies

    replies = Replies(lambda channel, actor, error, may_have_run: error)
    channel, refused = HostChannel(replies, None, 0, is_serial=True), threading.Event()

    def wait() -> None:
        with pytest.raises(remotely.RemotelyError, match="a call cannot be waited for here"):
            channel.wait(CallFuture[None]("a call"), None)
        refused.set()

    replies.thread.call(wait)
    replies.thread.finish(within_s=20)

    assert refused.is_set()


def test_shutdown_fails_waiting_calls() -> None:
    gate = remotely.options(Gate, name="gate", detached=True)()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(gate.wait)
        wait_until(lambda: gate.waiters() == 1, "a waiting call")

        remotely.shutdown()

        with pytest.raises(remotely.NotConnected, match="has left the Ray cluster"):
            waiting.result(20)
    remotely.connect("ray:local")
    remotely.kill(remotely.get_actor("gate"))


def test_an_actor_that_waits_for_room_has_its_name_but_is_not_found(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fill = remotely.group(remotely.options(Log, cpus=8), 2)  # of 16
    monkeypatch.setattr("remotely.engines.ray.actor.HOST_ANSWER_S", 0.5)
    monkeypatch.setattr("remotely.engines.ray.carrier.NAMED_ANSWER_S", 0.5)
    monkeypatch.setattr("remotely.engines.ray.placing.SAY_WAITING_AFTER_S", 1.5)
    early = remotely.options(Log, cpus=1, name="early", patience_s=6)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(early)
        printed = ""
        while "waiting for 1 of 1 Log" not in printed:
            printed += capfd.readouterr().err

        with pytest.raises(NameError):
            remotely.get_actor("early")
        with pytest.raises(remotely.NameTaken, match="early"):
            remotely.options(Log, name="early", get_if_exists=True, patience_s=0.1)()
        assert [actor.class_name for actor in remotely.status().actors] == ["Log", "Log"]

        with pytest.raises(remotely.NoResources, match="no room for 1 of 1 Log for 6 s"):
            waiting.result(20)
    printed += capfd.readouterr().err
    assert printed.count("waiting for 1 of 1 Log: the Ray cluster has no room") == 1
    assert "(giving up after 6 s)" in printed
    remotely.close(fill)


@remotely.remote_class(cpus=0)
class Hub:
    def __init__(self) -> None:
        self.found: Guest | None = None

    def greet(self, name: str) -> None:
        self.found = found = remotely.get_actor(name)
        found.where()

    def where(self) -> bool:
        assert self.found is not None
        return self.found.where()


@remotely.remote_class(cpus=0)
class Guest:
    def __init__(self, hub: Hub, name: str) -> None:
        self.thread = threading.get_ident()
        asked = hub.greet.submit(name)
        with pytest.raises(remotely.CallTimeout):  # long enough for the hub to find it, and to call
            asked.result(1)

    def where(self) -> bool:
        return threading.get_ident() == self.thread


def test_a_call_during_the_constructor_waits_for_it() -> None:
    hub = Hub()

    guest = remotely.options(Guest, name="guest")(hub, "guest")

    assert hub.where()
    assert guest.where()


@remotely.remote_class(cpus=0)
class Closing:
    def __init__(self, marker: Path) -> None:
        self.marker, self.thread = marker, threading.get_ident()

    def close(self) -> None:
        self.marker.write_text(str(threading.get_ident() == self.thread))


def test_an_object_is_closed_on_the_thread_that_ran_its_calls(tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    closing = Closing(marker)

    del closing

    wait_until(lambda: marker.exists() and marker.read_text() == "True", "the end of close()")


def test_stop_closes_the_object_without_leave(tmp_path: Path) -> None:
    import ray

    from remotely.engines.ray.actor import NAMESPACE

    marker = tmp_path / "closed"
    closing = remotely.options(Closing, name="closing")(marker)

    ray.get_actor("closing", namespace=NAMESPACE).stop.remote()  # Ray may deliver this first

    wait_until(lambda: marker.exists() and marker.read_text() == "True", "the end of close()")
    del closing


def test_a_detached_host_ends_if_it_receives_no_object() -> None:
    script = (
        "import time; from remotely.engines.ray.host import SerialHost;"
        "SerialHost('orphan', 0.1); time.sleep(60)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    assert done.returncode == 1
    assert b"orphan has no object after 0.1 s" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_actors_leave_no_process() -> None:
    before = hosts()
    for _ in range(50):
        group = remotely.group(Log, 4)
        group.add(1)
        remotely.close(group)

    wait_until(lambda: hosts() <= before, "the end of all processes")
    assert not remotely.actors()


def test_leaving_fails_the_calls_of_channels_that_have_ended_and_later_ones() -> None:
    from remotely.engines.ray.channel import HostChannel, Replies

    def never() -> Any:
        return SimpleNamespace(add_done_callback=lambda callback: None)

    replies = Replies(lambda channel, actor, error, may_have_run: error)
    host: Any = SimpleNamespace(do=SimpleNamespace(remote=lambda *_: SimpleNamespace(future=never)))
    channel = HostChannel(replies, host, 0, is_serial=True).open()
    sent, later = CallFuture[Any]("sent"), CallFuture[Any]("later")
    channel.send(Kind.CALL, "f", NOTHING, sent, background=True)
    assert replies.pending == {sent}

    replies.close(lambda: remotely.NotConnected("it has left"))
    channel.send(Kind.CALL, "f", NOTHING, later, background=True)
    channel.end()

    for future in (sent, later):
        error = future.exception(20)
        assert isinstance(error, remotely.NotConnected)
    replies.thread.finish(within_s=20)


def test_an_environment_that_cannot_be_made_is_said_to_be_that() -> None:
    from ray.exceptions import RuntimeEnvSetupError

    from remotely.engines.ray.actor import end_error

    failed = RuntimeEnvSetupError("could not be made:\nERROR: no such wheel: toy.whl")
    error = end_error("A-1", None, failed)(False)
    assert isinstance(error, remotely.NotStartable)
    assert str(error) == "A-1 cannot be started: ERROR: no such wheel: toy.whl"
    assert not error.may_have_run
