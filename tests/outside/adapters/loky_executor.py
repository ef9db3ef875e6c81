"""loky's tests of its process executor, with `remotely.Executor` in its place.

What is adapted: `context` and `timeout` are ignored, `kill_workers` is `kill()`, a lost process
raises ActorDied and not TerminatedWorkerError or BrokenProcessPool, the event that the processes
share is an actor, and scripts import the executor from `remotely`.
"""

import threading
import time
from typing import Any

from loky.backend import get_context

import remotely
from tests import _executor_mixin  # of loky's source, as the next
from tests import _test_process_executor as theirs

remotely.connect(cpus=8)


@remotely.remote_class(cpus=0, concurrency=16)
class Event(threading.Event): ...


class Executor(remotely.Executor):
    def __init__(
        self,
        max_workers: int | None = None,
        context: object = None,
        timeout: object = None,
        **how: Any,
    ) -> None:
        super().__init__(max_workers, **how)

    def shutdown(self, wait: bool = True, kill_workers: bool = False) -> None:
        if kill_workers:
            self.kill()
        super().shutdown(wait)


for name in ("BrokenProcessPool", "TerminatedWorkerError"):
    setattr(theirs, name, remotely.ActorDied)


def check_subprocess_call(command: list[str], **how: Any) -> Any:
    *start, code = command
    for old, new in (
        ("from loky.process_executor import ProcessPoolExecutor", "from remotely import Executor"),
        ("from loky.process_executor", "from remotely"),
        (", context=context", ""),
    ):
        code = code.replace(old, new)
    return _check_subprocess_call([*start, code], **how)


_check_subprocess_call = theirs.check_subprocess_call
theirs.check_subprocess_call = check_subprocess_call


class Mixin:
    executor_type = Executor
    worker_count = 5
    context = get_context("loky")

    def setup_method(self) -> None:
        _executor_mixin._test_event = event = Event()
        self.executor: Executor | None = Executor(
            self.worker_count, initializer=_executor_mixin.initializer_event, initargs=(event,)
        )

    def teardown_method(self) -> None:
        if self.executor is not None:
            self.executor.kill()

    @staticmethod
    def check_no_running_workers(patience: float = 5) -> None:
        deadline = time.monotonic() + patience
        while any(actor.class_name == "Runner" for actor in remotely.status().actors):
            assert time.monotonic() < deadline, "there are processes left"
            time.sleep(0.05)


class TestShutdown(Mixin, theirs.ExecutorShutdownTest): ...


class TestWait(Mixin, theirs.WaitTests): ...


class TestAsCompleted(Mixin, theirs.AsCompletedTests): ...


class TestExecutor(Mixin, theirs.ExecutorTest): ...
