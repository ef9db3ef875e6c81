"""Tasks that begin at once: as any task of asyncio, but for the moment at which they begin."""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from remotely.actor import eager_task

SAID: contextvars.ContextVar[str] = contextvars.ContextVar("SAID", default="")


def run(coroutine: Coroutine[Any, Any, None]) -> list[Any]:
    """Start a coroutine from a callback of a loop; return its task, once it is done."""

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        tasks: list[Any] = []
        loop.call_soon(lambda: tasks.append(eager_task.start(coroutine)))
        await asyncio.sleep(0)
        await asyncio.wait(tasks)
        return tasks

    return asyncio.run(main())


def test_it_runs_to_its_first_suspension_before_start_returns() -> None:
    steps = []

    async def work() -> None:
        steps.append("first")
        await asyncio.sleep(0)
        steps.append("last")

    async def main() -> None:
        task = eager_task.start(work())
        steps.append("started")
        assert task is not None
        await task

    asyncio.run(main())
    assert steps == ["first", "started", "last"]


def test_its_first_step_sees_its_own_task_and_context() -> None:
    seen: list[Any] = []

    async def work() -> None:
        seen.append(asyncio.current_task())
        SAID.set("in the task")
        await asyncio.sleep(0)
        seen.extend([asyncio.current_task(), SAID.get()])

    (task,) = run(work())
    assert seen == [task, task, "in the task"]
    assert SAID.get() == ""


@pytest.mark.parametrize("pauses", [0, 1])
def test_an_error_is_that_of_the_task(pauses: int) -> None:
    async def work() -> None:
        for _ in range(pauses):
            await asyncio.sleep(0)
        raise LookupError

    (task,) = run(work())
    assert isinstance(task.exception(), LookupError)


def test_a_timeout_that_begins_in_the_first_step_ends_it() -> None:
    seen = []

    async def work() -> None:
        try:
            async with asyncio.timeout(0), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("too late")

    run(work())
    assert seen == ["too late"]


@pytest.mark.parametrize("waits", [asyncio.sleep(0), asyncio.sleep(60)])
def test_a_cancellation_is_raised_where_the_first_step_has_stopped(waits: Any) -> None:
    seen = []

    async def work() -> None:
        try:
            await waits
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> bool:
        task = eager_task.start(work())
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())
    assert seen == ["cancelled"]


def test_two_may_await_the_same_future() -> None:
    got = []

    async def main() -> None:
        shared = asyncio.get_running_loop().create_future()

        async def work() -> None:
            got.append(await shared)

        tasks = [task for _ in range(2) if (task := eager_task.start(work())) is not None]
        shared.set_result("value")
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert got == ["value", "value"]


def test_a_cancellation_cancels_the_task_that_the_first_step_awaits() -> None:
    async def main() -> tuple[bool, bool]:
        inner = asyncio.ensure_future(asyncio.sleep(60))

        async def work() -> None:
            await inner

        task = eager_task.start(work())
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled(), inner.cancelled()

    assert asyncio.run(main()) == (True, True)


def test_one_that_returns_in_its_first_step_needs_no_task() -> None:
    async def work() -> None: ...

    async def main() -> None:
        assert eager_task.start(work()) is None

    asyncio.run(main())


def test_sys_exit_in_the_first_step_leaves_the_loop_at_once() -> None:
    async def work() -> None:
        raise SystemExit(3)

    async def main() -> None:
        with pytest.raises(SystemExit):
            _ = eager_task.start(work())

    asyncio.run(main())
