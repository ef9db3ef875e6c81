"""Every way in which asyncio and anyio wait for something, tried on the futures of calls."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

Make = Callable[[Any], Any]


async def wait_in_every_way(quick: Make, running: Any) -> None:
    """Wait for calls that return the value given to `quick`, and for one that runs until later."""
    await _wait_for_sets(quick, running)
    await _wait_for_one(quick, running)
    await _be_cancelled(running)
    await _wait_in_anyio(quick, running)


async def _wait_for_sets(quick: Make, running: Any) -> None:
    ways: list[dict[str, Any]] = [{}, {"timeout": 40}, {"return_when": asyncio.FIRST_EXCEPTION}]
    for how in ways:
        calls = {quick(1), quick(2)}
        assert await asyncio.wait(calls, **how) == (calls, set())
    first = quick(1)
    done, pending = await asyncio.wait(
        [first, running], timeout=40, return_when=asyncio.FIRST_COMPLETED
    )
    assert done == {first}
    assert pending == {running}
    assert await asyncio.wait([running], timeout=0.01) == (set(), {running})
    assert list(await asyncio.gather(quick(1), quick(2))) == [1, 2]
    coming = asyncio.as_completed([quick(1), quick(2)])
    assert sorted([await each for each in coming]) == [1, 2]


async def _wait_for_one(quick: Make, running: Any) -> None:
    assert await quick(1) == 1
    assert await asyncio.ensure_future(quick(1)) == 1
    assert await asyncio.wait_for(quick(1), 40) == 1
    assert await asyncio.shield(quick(1)) == 1
    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        tasks = [group.create_task(_result(quick(value))) for value in (1, 2)]
    assert [task.result() for task in tasks] == [1, 2]
    loop = asyncio.get_running_loop()

    def elsewhere() -> Any:
        return asyncio.run_coroutine_threadsafe(_result(quick(1)), loop).result(40)

    assert await asyncio.to_thread(elsewhere) == 1


async def _be_cancelled(running: Any) -> None:
    for wait in (_result, asyncio.shield, asyncio.ensure_future):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await wait(running)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(running), 0.01)
    task = asyncio.create_task(_result(running))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ExceptionGroup):
        await _raise_beside(running)
    assert not running.done()


async def _wait_in_anyio(quick: Make, running: Any) -> None:
    with anyio.fail_after(40):
        assert await quick(1) == 1
    with anyio.move_on_after(0.01) as scope:
        await running
    assert scope.cancelled_caught
    async with anyio.create_task_group() as group:
        group.start_soon(_result, running)
        assert await quick(1) == 1
        group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(quick(1).result) == 1


async def _result(call: Any) -> Any:
    return await call


async def _raise_beside(call: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_result(call))
        await asyncio.sleep(0)
        raise ValueError("of the block")


def run_in(loop: str, quick: Make, running: Any) -> None:
    """Wait in every way, in an event loop of this kind."""
    factory: Any = None if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(wait_in_every_way(quick, running), 60))
