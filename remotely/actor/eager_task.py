"""Tasks that begin at once: they run up to their first suspension before `start` returns.

A task of asyncio begins on the loop's next turn, so a plain method that is called after an `async
def` method would overtake it.  Python 3.12 has eager tasks, Python 3.11 has not.  So this takes the
first step itself, as the task: the coroutine sees it as `asyncio.current_task`, in the task's own
context.  The task then takes what that step yielded, or raised, for its own first step.

    1  make the task, which asks the loop for its first step
    2  make it the current one, and run the coroutine up to its first suspension
    3  on the loop, the task's first step gets the outcome of 2; further ones go to the coroutine

A future marks itself as awaited, and its task removes the mark in 3.  Until then, the mark is kept
here: another task that awaited the same future would find it, and fail.

A task that is cancelled between 2 and 3 raises the cancellation where the coroutine has stopped,
and cancels what that awaits, as asyncio does.
"""

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from typing import Any

_LEAVE_THE_LOOP = (SystemExit, KeyboardInterrupt)  # as asyncio has it


def start(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
    """Begin a coroutine on the running loop; return its task, or None if it has returned already.

    SystemExit is raised here.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    begun = _Begun(coroutine)
    task = asyncio.Task(begun, loop=loop, context=context)  # 1
    outer = asyncio.current_task(loop)
    if outer is not None:
        asyncio._leave_task(loop, outer)  # documented for tasks of one's own: "Extending asyncio"
    asyncio._enter_task(loop, task)
    try:
        begun.suspend(context.run(coroutine.send, None))  # 2
    except StopIteration:
        begun.is_over = True
    except _LEAVE_THE_LOOP:
        begun.is_over = True
        raise
    except BaseException as error:
        trace = error.__traceback__
        begun.raised = error.with_traceback(trace and trace.tb_next)  # this frame would be a cycle
    finally:
        asyncio._leave_task(loop, task)
        if outer is not None:
            asyncio._enter_task(loop, outer)
    return None if begun.is_over else task


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine whose first step has been taken before its task asks for it.

    It is in no reference cycle afterwards, so that the collector has no work with each call.
    """

    __slots__ = ("_coroutine", "_is_first", "_is_marked", "_yielded", "is_over", "raised")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._is_first = True
        self._yielded: Any = None  # by the first step
        self._is_marked = False  # that is a future, which the coroutine awaits
        self.raised: BaseException | None = None  # by the first step
        self.is_over = False  # it was the last one

    def suspend(self, yielded: Any) -> None:
        """Keep what the first step has yielded, and its mark."""
        self._yielded = yielded
        if getattr(yielded, "_asyncio_future_blocking", False):
            yielded._asyncio_future_blocking, self._is_marked = False, True

    def send(self, value: Any) -> Any:
        if not self._is_first:
            return self._coroutine.send(value)
        self._is_first = False  # 3
        if self.is_over:
            raise StopIteration
        error, self.raised = self.raised, None
        if error is None:
            return self._resume()
        try:
            raise error
        finally:
            del error

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine: its task was cancelled, or awaits what has failed."""
        if self._is_first and (self.is_over or self.raised is not None):
            return self.send(None)
        was_first, self._is_first = self._is_first, False
        if was_first and self._is_marked and self._yielded.cancel(*error[0].args):
            return self._resume()  # the end of what it awaits raises the cancellation
        self._yielded = None
        return self._coroutine.throw(*error)

    def _resume(self) -> Any:
        """Return what the first step has yielded, with its mark."""
        yielded, self._yielded = self._yielded, None
        if self._is_marked:
            yielded._asyncio_future_blocking = True
        return yielded

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        """Delegate what asyncio shows of a task: `cr_code`, `cr_frame` and the like."""
        return getattr(self._coroutine, name)
