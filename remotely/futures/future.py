"""The future of a call: a `concurrent.futures.Future` that can also be awaited.

The base class gives each future a Condition.  That is ten objects, and would be a third of what a
submitted call costs here.  Threads hardly ever sleep on it, since the thread that waits for a call
receives its reply itself.  So there is no such Condition, and the code below does what the base
class would.  Threads that do sleep are woken by wakeup.py.  An outcome is noted without a lock: the
first that is appended to `_outcomes` wins.

The standard library's `wait` and `as_completed` hold the conditions of all their futures while they
look at them.  So a future makes its `_condition` when they ask for it.  The thread that settles the
future notes the outcome first and then looks for the condition; the thread that makes the condition
then looks for an outcome.  So one of the two always sees the other.

The thread that waits for a future receives its reply (client/channel.py), so a plain call is not
handed over by another thread.  If somebody wants to be told (a callback, an await, the `wait` and
`as_completed` of the standard library), the client's loop receives the reply.

A future holds its error, the error its traceback, the traceback its frames, and the frames their
locals.  If a frame also held the future, that would be a cycle, and all that the frames hold, above
all handles, would live until the garbage collector runs.  So code that raises the error of a future
lets go of the future first: `del self` below, and the like wherever `result` is called.  An error
that was caught before it was given to a future comes without its traceback.

The class is a little over 250 lines: it has all that the base class has, without its Condition.
"""

import contextlib
import logging
import operator
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import as_completed as _as_completed
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from remotely.errors import CallTimeout, RemoteTraceback
from remotely.futures import wakeup
from remotely.futures.reference import Elsewhere, Onward, refuse
from remotely.futures.unretrieved import Tell, UnretrievedReport
from remotely.machine.shield import Condition, is_for_main, shield
from remotely.other_names import no_such_name
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, raised_error, references
from remotely.values.owned import Owned, own

log = logging.getLogger("remotely")

R = TypeVar("R")
F = TypeVar("F", bound=Future[Any])

_Outcome = tuple[str, Any, BaseException | None, UnretrievedReport | None]  # state, result, error


class Receiver(Protocol):
    """Receives the reply of a call."""

    def wait(self, future: "CallFuture[Any]", timeout: float | None) -> None:
        """Return when the future is done, or after `timeout` seconds."""

    def receive_in_background(self) -> None:
        """Have replies taken in as they come: nobody waits, but somebody wants to be told.

        This completes no future on this thread, which may hold a lock.
        """

    def holds(self, future: "CallFuture[Any]") -> bool:
        """Tell whether the call has not left yet."""

    def recall(self, future: "CallFuture[Any]") -> bool:
        """Forget a call that has not left; false if it has."""

    def cancel(self, future: "CallFuture[Any]", waits: bool) -> bool:
        """Have the actor not begin a call that has left; true if it is known that it never will.

        Without `waits` it is not known yet; a call that was taken back is cancelled later.
        """


class StreamToken:
    """Travels in the place of a generator, which cannot be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name


class SelfPlaceholder:
    """The actor's own object, as the result of one of its methods."""


class CancelledPlaceholder:
    """Nothing: the call did not run, and will not."""


_PLACEHOLDERS = frozenset((StreamToken, SelfPlaceholder, CancelledPlaceholder))

# Takes the name of a stream and the actor that has it, and returns the stream.
StreamOf = Callable[[str, Any], object]


class Counts(Protocol):
    """Counts calls until their outcomes."""

    def settle(self, future: "CallFuture[Any]") -> None:
        """A call has its outcome.  Calling this twice is harmless."""


class CallFuture(Future[R]):
    """The one outcome of one call.  It can be cancelled until the call begins."""

    on_unretrieved: Tell | None = None  # told of an error that nobody retrieved
    travelling: object = None  # what its arguments need until they have been read
    counted_by: "Counts | None" = None  # until there is an outcome
    deadline: float | None = None  # of whoever waits without a timeout, on the monotonic clock
    seconds: float = 0.0  # that end then
    _report: UnretrievedReport | None = None
    _own: Condition | None = None
    needs: object = None  # what must be kept until there is an outcome
    stays: bool = False  # it is passed on: a large result stays where it is, until it is asked for
    kept: Owned | Elsewhere | None = None  # the result as it came, if it is passed on

    def __init__(self, what: str, keep: object = None) -> None:
        self._outcomes: list[_Outcome] = []
        self._state = "PENDING"
        self._result = None
        self._exception = None
        self._watchers: list[Any] | None = None
        self._done_callbacks: list[Any] = []
        self.answered = False
        self.call_id = 0
        self.receiver: Receiver | None = None
        self.what = what
        self.keep = keep  # an actor must not lose its last handle while its call runs

    def result(self, timeout: float | None = None) -> R:
        """Wait for the value.  Raises what the method raised, or CallTimeout after `timeout` s."""
        if not self.answered:
            self.wait(timeout)
        if self._report is not None:
            self._cancel_report()
        if self.stays:
            self._bring()
        if self._state == "FINISHED" and self._exception is None:
            return self._result  # type: ignore[return-value]
        try:
            if self._exception is None:
                raise CancelledError
            raise self._exception
        finally:
            del self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error, or None if there is none.  Raises CallTimeout."""
        if not self.answered:
            self.wait(timeout)
        if self._report is not None:
            self._cancel_report()
        if self.cancelled():
            raise CancelledError
        return self._exception

    def cancel(self) -> bool:
        """Take the call back if it has not begun; true means that the call never runs.

        A call that has left this process is taken back by its actor, which this waits for, for half
        a second at most, and not at all where an event loop runs.  An actor that has not answered
        by then may still take it back; the future is cancelled when it does.
        """
        receiver = self.receiver
        if self.answered or receiver is None:
            return self.cancelled()
        try:
            with shield:
                recalled = receiver.recall(self)
                if recalled:
                    self.settle_cancelled()
            if not recalled and receiver.cancel(self, waits=not _is_in_event_loop()):
                self.settle_cancelled()
        finally:  # an interrupt that was delayed is raised at the shield's end
            self.tell()
        return self.cancelled()

    def cancelled(self) -> bool:
        return self._state == "CANCELLED_AND_NOTIFIED"

    def done(self) -> bool:
        return self._state != "PENDING"

    def running(self) -> bool:
        """Tell whether the call has left and its outcome is unknown."""
        receiver = self.receiver  # a retry takes it away at any time
        return not self.answered and not (receiver and receiver.holds(self))

    def set_result(self, result: R) -> None:
        self._check_pending()
        self.settle(result, None)
        self.tell()

    def set_exception(self, exception: BaseException | None) -> None:
        self._check_pending()
        self.settle(None, exception)
        self.tell()

    def lose(self, error: BaseException) -> None:
        """No reply will come, and `error` says why.  Call `tell` afterwards.

        This is harmless if there is an outcome already.
        """
        if not self.answered:
            self.settle(None, error)

    def settle_by(self, reply: wire.Message, stream_of: StreamOf, lends: bool = True) -> bool:
        """Note the outcome that a RESULT or RAISED brings; `lends` as in `own`.

        This may run the user's code.  It returns whether callbacks have to be told, as `settle`.
        """
        try:
            if reply.kind is not Kind.RESULT:
                error = raised_error.unpack(reply.payload, reply.buffers[0])
                return self.settle(None, error)
            value = codec.decode(reply.payload, reply.buffers)
            if type(value) not in _PLACEHOLDERS:
                if self.stays:  # it is passed on as it came, whatever its caller does to it
                    with contextlib.suppress(Exception):  # then the call that it goes to tells why
                        self.kept = own(codec.encode(value), lends=lends)
                return self.settle(value, None)
            if type(value) is CancelledPlaceholder:
                return self.settle_cancelled()
            if type(value) is SelfPlaceholder:
                actor: Any = self.keep
                return self.settle(actor.face(actor), None)
            with shield:  # a stream that is dropped again closes its generator
                stream: Any = stream_of(value.name, self.keep)
                return self.settle(stream, None)
        except BaseException as error:  # a value that does not unpickle here
            if is_for_main(error):
                raise
            if error.__cause__ is None:  # as text only: the frames hold the future
                error.__cause__ = RemoteTraceback("".join(traceback.format_exception(error)))
            return self.settle(None, error.with_traceback(None))

    def settle(self, result: R | None, error: BaseException | None) -> bool:
        """Note the outcome, and return whether callbacks have to be told of it.

        Repeat this if you are interrupted.
        """
        return self._settle("FINISHED", result, error)

    def settle_cancelled(self) -> bool:
        """The call never runs.  Repeat this if you are interrupted."""
        return self._settle("CANCELLED_AND_NOTIFIED", None, None)

    def _settle(self, state: str, result: R | None, error: BaseException | None) -> bool:
        tell = None if error is None else self.on_unretrieved
        report = None if error is None or tell is None else UnretrievedReport(self.what, error)
        mine = state, result, error, report
        outcomes = self._outcomes
        outcomes.append(mine)
        outcome = outcomes[0]
        if outcome is not mine:
            del outcomes[1:]
        elif report is not None and tell is not None:
            report.arm(tell)
        if (own := self._own) is None:
            self._note(outcome)
        else:
            self._note_and_notify(own, outcome)
        if wakeup.sleepers:
            wakeup.wake(self)
        self._finish()
        self.answered = True
        return bool(self._done_callbacks)

    def _bring(self) -> None:
        """Fetch a result that has stayed where it is."""
        if isinstance(self._result, Elsewhere):
            self.kept = self._result
            self._result = self.kept.fetch()

    @property
    def where(self) -> Any:
        """The result, or the `Elsewhere` that stands for it."""
        return self._result

    def _note(self, outcome: _Outcome) -> None:
        state, self._result, self._exception, self._report = outcome
        self._state = state  # last: then the others are there

    def _note_and_notify(self, own: Condition, outcome: _Outcome) -> None:
        with own, shield:  # watchers must hear of it only once
            if self._state == "PENDING":
                self._note(outcome)
                state, _, error, _ = outcome
                for watcher in self._watchers or ():
                    if state != "FINISHED":
                        watcher.add_cancelled(self)
                    else:
                        (watcher.add_result if error is None else watcher.add_exception)(self)

    @property
    def is_wanted(self) -> bool:
        """Tell whether the value itself is asked for, as far as the future knows."""
        onward = [type(callback) is Onward for callback in self._done_callbacks]
        return not self.stays or not all(onward)

    @property
    def has_callbacks(self) -> bool:
        """Tell whether any callbacks still have to run."""
        return bool(self._done_callbacks)

    def tell(self) -> None:
        """Run the done-callbacks if the future is done.  Repeat this if you are interrupted."""
        while self.answered and self._done_callbacks:
            self._tell_next()

    def _tell_next(self) -> None:
        # All in C: no interrupt strikes between the moment when a callback is taken, and when it
        # begins.
        told = map(operator.call, map(self._done_callbacks.pop, (0,)), (self,))
        try:
            next(told)
        except BaseException as error:
            if isinstance(error, IndexError) and not self._done_callbacks and _is_ours(error):
                return  # another thread was first
            if is_for_main(error):
                raise
            log.exception("a done-callback of %s failed", self.what)

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        self._done_callbacks.append(fn)
        if self.answered:
            self.tell()
        elif (receiver := self.receiver) is not None:
            receiver.receive_in_background()

    def remove_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Do not call it, if it was not called yet."""
        with contextlib.suppress(ValueError):
            self._done_callbacks.remove(fn)

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # noqa: PLC0415 - slow to import, and whoever awaits has it

        return asyncio.wrap_future(self).__await__()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for any outcome.  Raises CallTimeout after `timeout` seconds."""
        limit = timeout
        if timeout is None and self.deadline is not None:
            limit, timeout = self.seconds, max(0.0, self.deadline - time.monotonic())
        receiver = self.receiver
        if receiver is not None:
            receiver.wait(self, timeout)
        else:
            self.block(timeout)
        if not self.done():
            raise CallTimeout(f"{self.what} has not answered after {limit:.3g} s; it still runs")

    def block(self, timeout: float | None) -> None:
        """Wait until another thread completes this; return in any case after `timeout` s."""
        wakeup.sleep_until(self.done, timeout, self)

    if not TYPE_CHECKING:  # checkers would take any name to exist

        def __getattr__(self, name: str) -> Any:
            raise no_such_name("the future", f"future.{name}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Go as a number while a call is pickled; it arrives as the value."""
        return references.as_reference(self) or refuse(self)

    def _own_condition(self) -> Condition:
        """What the standard library locks while it looks at the states of several futures."""
        own = self._own
        if own is None:  # in one step, as threads may ask together
            own = vars(self).setdefault("_own", Condition())
        if self._outcomes:
            self._note_and_notify(own, self._outcomes[0])
        return own

    _condition: threading.Condition = property(_own_condition)  # type: ignore[assignment]

    def _watched(self) -> list[Any]:
        """Where the standard library's `wait` and `as_completed` add their waiters.

        It is the only sign that they give, and they hold the condition meanwhile.
        """
        if self._watchers is None:
            self._watchers = []
        receiver = self.receiver
        if not self.answered and receiver is not None:
            receiver.receive_in_background()
        return self._watchers

    _waiters: list[Any] = property(_watched)  # type: ignore[assignment]

    def _cancel_report(self) -> None:
        report, self._report = self._report, None
        if report is not None:
            report.cancel()

    def _check_pending(self) -> None:
        if self._state != "PENDING":
            raise InvalidStateError(f"{self._state}: {self!r}")

    def _finish(self) -> None:
        if self.counted_by is not None:
            self.counted_by.settle(self)
            self.counted_by = None
        if wakeup.sleepers and self.keep is not None:
            wakeup.wake(self.keep)  # who waits for room to call this actor
        self.keep = None
        if self.travelling is not None:
            self.travelling = None
        if self.needs is not None:
            self.needs = None


def _is_ours(error: BaseException) -> bool:
    """Tell whether our own frame raised it, and no Python function that we called."""
    return error.__traceback__ is None or error.__traceback__.tb_next is None


def _is_in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def completed(value: R) -> CallFuture[R]:
    """Return a future that is done already."""
    future: CallFuture[R] = CallFuture("")
    future.set_result(value)
    return future


def failed(
    error: BaseException, what: str = "", on_unretrieved: Tell | None = None
) -> CallFuture[Any]:
    future: CallFuture[Any] = CallFuture(what)
    future.on_unretrieved = on_unretrieved
    future.set_exception(error)
    return future


def wait_for(futures: Iterable[CallFuture[Any]]) -> None:
    """Wait for all of them, whatever their outcomes; their errors count as retrieved.

    Of those with a deadline that is over, there may be none.
    """
    for future in futures:
        try:
            future.exception()
        except CallTimeout:
            pass


def as_completed(futures: Iterable[F], timeout: float | None = None) -> Iterator[F]:
    """Yield futures as they complete, as `concurrent.futures.as_completed` does."""
    return _as_completed(futures, timeout)  # type: ignore[return-value]
