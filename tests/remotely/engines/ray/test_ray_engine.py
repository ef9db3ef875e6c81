"""What only an engine on Ray has to keep; what every engine promises is tested elsewhere."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

import remotely
from remotely.futures.future import CallFuture
from tests.clusters import wait_until

pytestmark = pytest.mark.usefixtures("on_ray")


@remotely.remote_class(cpus=0)
class Log:
    def __init__(self) -> None:
        self.lines: list[int] = []

    def add(self, line: int, *_: object) -> None:
        self.lines.append(line)

    def call(self, other: "Log", line: int) -> None:
        other.add(line)


@remotely.remote_class(cpus=0, concurrency=2)
class Gate:
    def __init__(self) -> None:
        self.opened = threading.Event()

    def wait(self) -> int:
        self.opened.wait()
        return 7

    def open(self) -> None:
        self.opened.set()


def hosts() -> set[int]:
    """Return the processes of this Ray in which objects live."""
    me = psutil.Process()
    children = [c for c in me.children(recursive=True) if c.status() != psutil.STATUS_ZOMBIE]
    return {child.pid for child in children if "Host" in " ".join(child.cmdline())}


def test_calls_run_in_the_order_in_which_they_were_made() -> None:
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


def test_a_handle_that_arrives_again_and_again_can_be_called_each_time() -> None:
    caller, log = Log(), Log()

    for line in range(3):
        caller.call(log, line)

    assert log.lines == [0, 1, 2]


class Parting:
    """Calls the log once more when it is garbage, wherever that is noticed."""

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
            Parting(log, sent)
            sent.append(log.add.submit(0))
    finally:
        gc.set_threshold(*before)
    gc.collect()

    for call in sent:
        call.result(timeout=30)
    assert sorted(log.lines) == [0] * 100 + [1] * 100


@remotely.remote_class(cpus=0, max_restarts=1)
class Once:
    """Can be made once."""

    def __init__(self, marker: Path) -> None:
        marker.touch(exist_ok=False)

    def die(self) -> None:
        os._exit(1)


def test_an_actor_that_cannot_be_restarted_keeps_no_place(tmp_path: Path) -> None:
    before = hosts()
    once = Once(tmp_path / "made")
    with pytest.raises(remotely.ActorDied):
        once.die()

    with pytest.raises(remotely.ActorDied, match="its constructor raised FileExistsError"):
        once.die()

    wait_until(lambda: hosts() <= before, "the end of its host")


def test_a_callback_may_call_an_actor_itself() -> None:
    log = Log()
    done: CallFuture[None] = CallFuture("the callback")

    def again(_: object) -> None:
        log.add(2)
        done.set_result(None)

    log.add.submit(1).add_done_callback(again)

    done.result(20)
    assert log.lines == [1, 2]


def test_a_detached_actor_that_is_to_be_restarted_is_refused_with_what_to_do() -> None:
    with pytest.raises(remotely.RemotelyError, match="leave out max_restarts"):
        remotely.options(Log, detached=True, max_restarts=1)()


def test_an_actor_that_its_owner_closes_is_not_restarted() -> None:
    log = remotely.options(Log, max_restarts=3)()
    log.add(1)

    remotely.close(log)

    with pytest.raises(remotely.ActorDied, match="closed"):
        log.add(2)
    assert not remotely.actors()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_births_leave_nothing() -> None:
    before = hosts()
    for _ in range(250):
        group = remotely.group(Log, 4)
        group.add(1)
        remotely.close(group)

    wait_until(lambda: hosts() <= before, "the end of all processes")
    assert not remotely.actors()
