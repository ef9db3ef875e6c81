"""The results of calls for the items of an iterable, which is read on a thread of its own.

The iterable may wait: for a file, for a queue into which the consumer of these results puts what it
learns from them, or for what never comes.  Beside it, results are there as soon as they are.

    reader                  reads an item whenever fewer results than the members' appetite are
                            still to be taken
    consumer                takes a result, in the order of the items or as they come
    the iterable ends       or raises: the consumer hears of it behind the results of all items
    the consumer goes       calls that have not begun are cancelled, and the reader ends at its next
                            item, since nobody can interrupt it in the iterable
"""

import contextvars
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from remotely.machine.shield import Condition
from remotely.pools.scheduler import Scheduler


class Reading:
    """Each step of `calls` submits one to the scheduler."""

    def __init__(self, calls: Iterator[Future[Any]], scheduler: Scheduler, in_order: bool) -> None:
        self._calls = calls
        self._scheduler = scheduler
        self._in_order = in_order
        # Its lock is one that a thread may take twice: `_stop` runs wherever garbage is collected.
        self._changed = Condition()
        self._pending: set[Future[Any]] = set()  # read, and not taken
        self._is_stopped = False
        self._error: BaseException | None = None  # of the iterable
        # What to take next, done or not; None when there is no more to come.
        self._to_take: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
        self._next: Future[Any] | None = None
        self._has_ended = False  # no more is to come
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._read,),
            name="remotely-reader",
            daemon=True,
        )
        self._thread.start()

    def results(self, return_exceptions: bool, keep: object) -> Iterator[Any]:
        """Return an iterator that stops the reading when it is gone; it holds `keep`."""
        results = self._results(return_exceptions, keep)
        next(results)  # else nothing of it would run if nobody ever asks for a result
        return results

    def _results(self, return_exceptions: bool, keep: object) -> Iterator[Any]:
        try:
            yield None
            while self._has_next():
                yield self._take(return_exceptions)
            self._thread.join()
            if (error := self._error) is not None:
                try:
                    raise error
                finally:
                    del error
        finally:
            self._stop()

    def _has_next(self) -> bool:
        """Return when it is known whether there is another call, and which."""
        while self._pending or not self._has_ended:
            self._next = self._to_take.get()
            if self._next is not None:
                return True
            self._has_ended = True
        return False

    def _take(self, return_exceptions: bool) -> Any:
        assert self._next is not None
        try:
            return outcome(self._next, return_exceptions)
        finally:
            with self._changed:
                self._pending.discard(self._next)
                self._changed.notify()
            self._next = None  # its error holds this frame

    def _stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._error = None
            pending, self._pending = self._pending, set()
            self._changed.notify()
        for call in pending:
            call.cancel()

    # --- on the thread ----------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while self._await_room() and (call := next(self._calls, None)) is not None:
                self._add(call)
        except BaseException as error:
            self._error = error
        del self._calls  # and with it the iterable
        self._to_take.put(None)

    def _await_room(self) -> bool:
        """Return when another item may be read; false if none is to be."""
        while True:
            room = self._scheduler.appetite
            with self._changed:
                if self._is_stopped or len(self._pending) < room:
                    return not self._is_stopped
                self._changed.wait()

    def _add(self, call: Future[Any]) -> None:
        with self._changed:
            self._pending.add(call)
        if self._is_stopped:
            call.cancel()
        elif self._in_order:
            self._to_take.put(call)
        else:
            call.add_done_callback(self._to_take.put)


def outcome(call: Future[Any], return_exceptions: bool) -> Any:
    """Return the result of a call, or its error; without `return_exceptions` raise that."""
    try:
        error = call.exception() if return_exceptions else None
        return call.result() if error is None else error
    finally:
        del call
