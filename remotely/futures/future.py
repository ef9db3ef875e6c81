"""The future of a call: a `concurrent.futures.Future` that can also be awaited.

No lock guards the outcome: the first one appended to `_outcomes` wins.

The `wait` and `as_completed` of the standard library hold the locks of all their futures while they
check them.  So a future makes its lock, the `_condition`, on demand.  The thread that settles the
future first records the outcome, then looks for a lock; the thread that makes the lock then looks
for an outcome.  So at least one of them sees the other.

The thread that waits for a future receives its reply (client/channel.py), so a plain call needs no
switch between threads.  If a future has a done-callback, is awaited, or is passed to `wait` or
`as_completed`, the client's loop receives the reply.

A future holds its error, the error its traceback, the traceback its frames, and the frames their
locals.  A frame that holds the future closes a cycle, and everything in these frames, above all
handles, lives until the garbage collector runs.  So code that raises a future's error deletes its
reference to the future first: `del self` below, and likewise wherever `result` is called.  An error
that was caught before a future got it has no traceback.
"""

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import as_completed as _as_completed
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from remotely.errors import CallTimeout, RemotelyError, RemoteTraceback, in_doubt
from remotely.futures import forked, wakeup
from remotely.futures.awaitable import (
    AwaitableFuture,
    Callback,
    OutcomeLock,
    in_its_loop,
    running_loop,
)
from remotely.futures.reference import DependencyCallback, StoredResult, refuse
from remotely.futures.unretrieved import OnUnretrieved, UnretrievedReport
from remotely.machine.interrupts import errors_ignored, is_for_main
from remotely.machine.shield import shield
from remotely.other_names import no_such_name
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, raised_error, references
from remotely.values.owned import Owned, own

R = TypeVar("R")
F = TypeVar("F", bound=Future[Any])

_Outcome = tuple[str, Any, BaseException | None, UnretrievedReport | None]  # state, result, error


class Receiver(Protocol):
    """Receives the reply of a call."""

    def wait(self, future: "CallFuture[Any]", timeout: float | None) -> None:
        """Wait until the future is done, for at most `timeout` seconds."""

    def receive_in_background(self) -> None:
        """Receive replies as they arrive, because a future has a done-callback.

        This settles no future on the calling thread, which may hold a lock.
        """

    def holds(self, future: "CallFuture[Any]") -> bool:
        """Tell whether the call is not sent yet."""

    def recall(self, future: "CallFuture[Any]") -> bool:
        """Forget a call that is not sent yet; false if it was sent."""

    def cancel(self, future: "CallFuture[Any]", waits: bool) -> None:
        """Ask the actor not to begin a call that was sent; if it will never run, `cancel_now`.

        Without `waits`, this does not wait for the actor, and the future is cancelled later.
        """


class StreamToken:
    """Stands for a generator, which cannot be pickled, as the result of a method."""

    def __init__(self, name: str) -> None:
        self.name = name


class SelfPlaceholder:
    """Stands for the actor's own object, as the result of one of its methods."""


class CancelledPlaceholder:
    """Stands for the result of a cancelled call, which never runs."""


_PLACEHOLDERS = frozenset((StreamToken, SelfPlaceholder, CancelledPlaceholder))

# Takes the name of a stream and its actor, and returns the stream.
StreamOf = Callable[[str, Any], object]


class Counts(Protocol):
    """Counts calls until their outcomes."""

    def settle(self, future: "CallFuture[Any]") -> None:
        """Stop counting a call, which has its outcome.  Idempotent."""


FETCH_WAIT_S = 2.0  # for another thread that fetches the same result, before it is fetched again


class CallFuture(AwaitableFuture[R]):
    """The outcome of one call.  It can be cancelled until the call begins."""

    on_unretrieved: OnUnretrieved | None = None  # called with an error that was never retrieved
    travelling: object = None  # what its arguments need until they have been read
    counted_by: "Counts | None" = None  # until there is an outcome
    _report: UnretrievedReport | None = None
    _made_lock: OutcomeLock | None = None
    keeps_alive: object = None  # until there is an outcome
    may_have_run: bool = False  # an attempt was sent, and no reply to it will arrive
    lost_by: BaseException | None = None  # the error of an attempt that was retried
    is_passed_on: bool = False  # as an argument: a large result stays in its store until it is read
    kept: Owned | StoredResult | None = None  # the result as it arrived, if it is passed on

    def __init__(self, what: str, actor: object = None) -> None:
        self._outcomes: list[_Outcome] = []
        self._process = forked.process
        self._state = "PENDING"
        self._result = None
        self._exception = None
        self._watchers: list[Any] | None = None
        self._done_callbacks = []
        self._continuations = []
        self.answered = False
        self.call_id = 0
        self.receiver: Receiver | None = None
        self.what = what
        self.actor = actor  # keeps the actor, whose call runs, from losing its last handle

    def result(self, timeout: float | None = None) -> R:
        """Wait for the value.  Raises what the method raised, or CallTimeout after `timeout` s."""
        if not self.answered:
            self.wait(timeout)
        if self._report is not None:
            self._cancel_report()
        if self.is_passed_on:
            self._fetch()
        if self._state == "FINISHED" and self._exception is None:
            return self._result  # type: ignore[no-any-return]
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

    def outcome(self) -> tuple[R | None, BaseException | None] | None:
        """Return the value and the error of a call that is done; None if it was cancelled.

        For callbacks of the runtime, which run once the value is here.
        """
        return (self._result, self._exception) if self._state == "FINISHED" else None

    def cancel(self) -> bool:
        """Cancel the call if it has not begun; true means that the call never runs.

        If the call was sent already, its actor must confirm.  This waits for that for at most half
        a second, and not at all in a running event loop.  If the actor confirms later, the future
        is cancelled then.
        """
        return self._cancel(waits=running_loop() is None)

    def cancel_soon(self) -> None:
        """Cancel the call if it has not begun, without waiting for its actor to confirm."""
        self._cancel(waits=False)

    def _cancel(self, waits: bool) -> bool:
        receiver = self.receiver
        if self.done() or receiver is None:
            return self.cancelled()
        with shield:  # a call that has left its queue is settled
            if is_recalled := receiver.recall(self):
                self.cancel_now()
        if not is_recalled:
            receiver.cancel(self, waits)
        return self.cancelled()

    def cancel_now(self) -> None:
        """Settle the future of a call that never runs.  If interrupted, repeat it."""
        self.settle_cancelled()
        self.run_callbacks()

    def cancelled(self) -> bool:
        return self._state == "CANCELLED_AND_NOTIFIED"

    def running(self) -> bool:
        """Tell whether the call was sent and has no outcome yet."""
        receiver = self.receiver  # read once: a retry may change it
        return not self.done() and not (receiver and receiver.holds(self))

    def set_result(self, result: R) -> None:
        self._check_pending()
        self.settle(result, None)
        self.run_callbacks()

    def set_exception(self, exception: BaseException | None) -> None:
        self._check_pending()
        self.settle(None, exception)
        self.run_callbacks()

    def lose(self, error: BaseException, may_have_run: bool = False) -> None:
        """Fail the call, because no reply will arrive; or retry it (RetriedFuture).

        `may_have_run`: this attempt may, even if the error does not say so.  Has no effect if there
        is an outcome.  Call `run_callbacks` afterwards.
        """
        if not self.answered:
            self.may_have_run |= may_have_run or getattr(error, "may_have_run", False)
            if not self.retry(error):
                self.settle(None, error)

    def retry(self, error: BaseException) -> bool:
        """Send the call again if that may help; return whether it is sent.  Never waits."""
        return False

    def settle_by(self, reply: wire.Message, stream_of: StreamOf, lends: bool = True) -> bool:
        """Settle the future by a RESULT or RAISED message; `lends` as in `own`.

        This may run the user's code.  Returns whether done-callbacks must run, as `settle`.  If
        interrupted, repeat it.
        """
        try:
            if reply.kind is not Kind.RESULT:
                error = raised_error.unpack(reply.payload, reply.buffers[0])
                if not isinstance(error, RemotelyError):  # else the actor may have refused the call
                    self.may_have_run = False  # it has
                return self.settle(None, error)
            value = codec.decode(reply.payload, reply.buffers)
            if type(value) not in _PLACEHOLDERS:
                if self.is_passed_on:  # as it arrived, even if the caller changes it
                    with errors_ignored:  # raised by the call that gets it
                        self.kept = own(codec.encode(value), lends=lends)
                return self.settle(value, None)
            if type(value) is CancelledPlaceholder:
                return self.settle_cancelled()
            if type(value) is SelfPlaceholder:
                actor: Any = self.actor
                return self.settle(actor.face(actor), None)
            with shield:  # a stream dropped by an interrupt would close its generator
                stream: Any = stream_of(value.name, self.actor)
                return self.settle(stream, None)
        except BaseException as error:  # the value cannot be unpickled here
            if is_for_main(error):  # as the call in which it interrupts this thread
                raise
            if error.__cause__ is None:  # only as text: the frames hold the future
                error.__cause__ = RemoteTraceback("".join(traceback.format_exception(error)))
            return self.settle(None, error.with_traceback(None))

    def settle(self, result: R | None, error: BaseException | None) -> bool:
        """Settle the future; return whether done-callbacks must run.  If interrupted, repeat it."""
        return self._settle("FINISHED", result, error)

    def settle_cancelled(self) -> bool:
        """Settle the future of a call that never runs.  If interrupted, repeat it."""
        return self._settle("CANCELLED_AND_NOTIFIED", None, None)

    def _settle(self, state: str, result: R | None, error: BaseException | None) -> bool:
        if self.may_have_run and (error is not None or state != "FINISHED"):
            # Whatever ends the call, an attempt may have run: so it is not cancelled either.
            if error is None:
                state, error = "FINISHED", self.lost_by or RemotelyError(f"{self.what} was sent")
                error.add_note("The call was to be retried, and that was cancelled.")
            error = in_doubt(error)
        callback = None if error is None else self.on_unretrieved
        report = None if error is None or callback is None else UnretrievedReport(self.what, error)
        mine = state, result, error, report
        outcomes = self._outcomes
        outcomes.append(mine)
        outcome = outcomes[0]
        if outcome is not mine:
            del outcomes[1:]
        elif report is not None and callback is not None:
            report.arm(callback)
        if (lock := self._made_lock) is None:
            self._record(outcome)
        else:
            self._record_and_notify(lock, outcome)
        self._finish()
        self.answered = True
        return bool(self._done_callbacks or self._continuations)

    def _fetch(self) -> None:
        """Fetch a result that is still in its store: once, if several threads come here."""
        stored = self._result
        if not isinstance(stored, StoredResult):
            return
        forked.check(self._process, self.what)
        lock = vars(self).setdefault("_fetching", threading.RLock())
        is_first = lock.acquire(timeout=FETCH_WAIT_S)  # the other may need this thread meanwhile
        try:
            if self._result is stored:
                self.kept = stored
                try:
                    self._result = stored.fetch()
                except Exception as error:  # it is lost, or cannot be unpickled here
                    if is_for_main(error):
                        raise
                    self._exception, self._result = error.with_traceback(None), None
        finally:
            if is_first:
                lock.release()

    @property
    def raw_result(self) -> Any:
        """The result, or the `StoredResult` that stands for it."""
        return self._result

    def _record(self, outcome: _Outcome) -> None:
        state, self._result, self._exception, self._report = outcome
        self._state = state  # last: readers of the state then find the others

    def _record_and_notify(self, lock: OutcomeLock, outcome: _Outcome) -> None:
        with lock, shield:  # watchers must be notified only once
            if self._state == "PENDING":
                self._record(outcome)
                state, _, error, _ = outcome
                for watcher in self._watchers or ():
                    if state != "FINISHED":
                        watcher.add_cancelled(self)
                    else:
                        (watcher.add_result if error is None else watcher.add_exception)(self)

    @property
    def needs_value(self) -> bool:
        """Tell whether the value itself is needed here, as far as is known."""
        if not self.is_passed_on or self._done_callbacks:
            return True
        return not all(type(each) is DependencyCallback for each in self._continuations)

    @property
    def is_left_behind(self) -> bool:
        """Tell whether this is a submitted call, and its caller would miss its outcome."""
        return self.on_unretrieved is not None and not self.done()

    def run_callbacks(self) -> None:
        """Have the done-callbacks of a future that is done run.  If interrupted, repeat it.

        If one of them needs a value that is still in its store, they run once it is here: this may
        be the thread of an event loop.
        """
        if not self.answered:
            return
        if isinstance(self._result, StoredResult) and self.needs_value:
            self._result.bring(self)
        else:
            super().run_callbacks()

    def bring(self) -> None:
        """Fetch a result that is still in its store, and run the callbacks that need it."""
        self._fetch()
        self.run_callbacks()

    def then(self, function: Callback) -> None:
        super().then(function)
        self._expect_reply()

    def add_done_callback(
        self, fn: Callable[[Future[R]], object], *, context: Context | None = None
    ) -> None:
        is_elsewhere = isinstance(self._result, StoredResult)
        if is_elsewhere and (notify := in_its_loop(fn, context)) is not None:
            self.then(notify)  # once it is here: the loop would fetch it
            return
        super().add_done_callback(fn, context=context)
        self._expect_reply()

    def _expect_reply(self) -> None:
        """Have the reply received although nobody may wait for it."""
        receiver = self.receiver
        if not self.answered and receiver is not None:
            receiver.receive_in_background()

    if not TYPE_CHECKING:  # checkers would take any name to exist

        def __getattr__(self, name: str) -> Any:
            raise no_such_name("the future", f"future.{name}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a number among the arguments of a call; it arrives as the value."""
        return references.as_reference(self) or refuse(self)

    def _make_lock(self) -> OutcomeLock:
        """Return what the standard library locks while it checks the states of several futures."""
        lock = self._made_lock
        if lock is None:  # in one step: several threads may come here
            lock = vars(self).setdefault("_made_lock", OutcomeLock())
        if self._outcomes:
            self._record_and_notify(lock, self._outcomes[0])
        return lock

    _condition: threading.Condition = property(_make_lock)  # type: ignore[assignment]

    def _watched(self) -> list[Any]:
        watchers = super()._watched()
        self._expect_reply()
        return watchers

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
        if wakeup.sleepers:
            wakeup.wake(self, self.actor)  # those that wait for room sleep about the actor
        self.actor = None
        if self.travelling is not None:
            self.travelling = None
        if self.keeps_alive is not None:
            self.keeps_alive = None


def completed(value: R) -> CallFuture[R]:
    """Return a future that is done."""
    future: CallFuture[R] = CallFuture("")
    future.set_result(value)
    return future


def failed(
    error: BaseException, what: str = "", on_unretrieved: OnUnretrieved | None = None
) -> CallFuture[Any]:
    future: CallFuture[Any] = CallFuture(what)
    future.on_unretrieved = on_unretrieved
    future.set_exception(error)
    return future


def futures_among(named: Sequence[codec.NamedReference]) -> list[CallFuture[Any]]:
    """Return the futures among the arguments of a call."""
    return [thing for thing, _ in named if isinstance(thing, CallFuture)]


def wait_for(futures: Iterable[AwaitableFuture[Any]]) -> None:
    """Wait until all futures are done or past their deadlines; their errors count as retrieved."""
    for future in futures:
        try:
            future.exception()
        except CallTimeout:
            pass


def as_completed(futures: Iterable[F], timeout: float | None = None) -> Iterator[F]:
    """Yield futures as they complete, as `concurrent.futures.as_completed` does."""
    return _as_completed(futures, timeout)  # type: ignore[return-value]
