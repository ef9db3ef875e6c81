"""CPython's tests of concurrent.futures, with `remotely.Executor` in place of its executors.

What is adapted: `mp_context` is ignored, a lost process raises ActorDied and not BrokenProcessPool,
and the scripts in test_shutdown import `Executor` from `remotely`.
"""

import multiprocessing
import os
import unittest
from typing import Any

from test import support
from test.test_concurrent_futures import (
    test_as_completed,
    test_deadlock,
    test_init,
    test_process_pool,
    test_shutdown,
    test_wait,
    util,
)

import remotely

support.use_resources = ["walltime", "cpu"]


class Executor(remotely.Executor):
    def __init__(self, max_workers: int | None = None, mp_context: object = None, **how: Any):
        super().__init__(max_workers, **how)


class Mixin(util.ExecutorMixin):
    worker_count = 5
    executor_type = Executor

    def get_context(self) -> object:
        return multiprocessing.get_context("spawn")


def assert_python_ok(*args: str, **variables: Any) -> Any:
    for old, new in (("from concurrent.futures", "from remotely"), (", mp_context=context", "")):
        args = tuple(arg.replace(old, new) for arg in args)
    variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return _assert_python_ok(*args, __isolated=False, **variables)


_assert_python_ok = test_shutdown.assert_python_ok
test_shutdown.assert_python_ok = assert_python_ok
test_deadlock.BrokenProcessPool = remotely.ActorDied
test_process_pool.BrokenProcessPool = remotely.ActorDied


class Base(unittest.TestCase):
    """Without the checks for threads, which a connection to a cluster keeps."""


def setUpModule() -> None:
    remotely.connect(cpus=5)


def tearDownModule() -> None:
    remotely.shutdown()


class ExecutorTest(Mixin, test_process_pool.ProcessPoolExecutorTest, Base): ...


class AsCompletedTest(Mixin, test_as_completed.AsCompletedTests, Base): ...


class WaitTest(Mixin, test_wait.WaitTests, Base): ...


class ShutdownTest(Mixin, test_shutdown.ProcessPoolShutdownTest, Base): ...


class InitializerTest(test_init.InitializerMixin, Mixin, Base): ...


class FailingInitializerTest(test_init.FailingInitializerMixin, Mixin, Base): ...


class DeadlockTest(Mixin, test_deadlock.ExecutorDeadlockTest, Base):
    TIMEOUT = 60
