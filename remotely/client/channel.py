"""One connection from a client to one life of an actor: sends calls and receives their replies.

A channel never reconnects.  When its connection breaks, its pending calls wait for the actor's
obituary, then fail with an error that says whether they may have run; the next call opens a new
channel.  So a queued call never reaches the actor's next life, and a late reply of an earlier life
is never received.

Only one thread at a time may use a ZeroMQ socket: the one that holds the channel's lock.  A
blocking call is sent, and its reply received, by the calling thread.  The numbers below stand
beside the code.

Sending, on the calling thread:

    1  The call gets an id, and is pending until its reply is received.
    2  It is sent immediately.  But if it is small, and HOLD_ABOVE calls keep the actor busy, it is
       held, to be sent with others in one message: when HOLD_CALLS are held, when a thread waits
       for a reply, or at the loop's next check.
    3  The socket's descriptor is edge-triggered, and any use of the socket may consume its edge.
       So a thread that has used the socket while another one sleeps on the descriptor drains the
       socket before it releases the lock, and wakes the sleeper if replies arrived.

Receiving, by a leader and its followers:

    4  A waiting thread becomes the leader if there is none: it drains the socket, releases the
       lock and sleeps on the descriptor.  It receives the replies of all threads.
    5  When it wakes, it takes the lock, drains the socket and steps down.  The loop then checks
       the calls that are still pending.
    6  A thread that waits while another one leads is a follower: it sleeps until its call is done.
       From then on the loop receives too, because the leader may leave first.  The loop's own
       thread can wait too, if a value that it unpickles calls an actor.  No loop receives for it
       then, so it checks every LOOP_WAIT_S whether it can become the leader.
    7  If a future has a done-callback or is awaited, the loop receives its reply.
    8  Otherwise, the loop first checks CHECK_AFTER_S after the call.  So in a program that submits
       calls and then waits, no second thread competes for each reply.

Each thread keeps the replies that it has received in its own `ThreadState`, and delivers them
without the lock:

    9  Every call gets its outcome.  Unpickling may run the user's code.
   10  Then the done-callbacks run, where futures/callbacks.py says.  A callback of the runtime that
       sends a call delivers newly arrived replies, but their callbacks are left to the outer
       `deliver_arrived`, so deliveries do not nest.

A signal handler that raises, as for Ctrl-C, can interrupt the main thread between any two steps,
and must not affect other calls:

   11  Steps that cannot be repeated run `with shield`: receiving a message, and sending one of
       several frames, for which its value is lent.  What comes before that can be dropped; what
       comes after it is repeated, or done by the loop.
   12  An interrupted thread leaves its unfinished work to the loop's thread, which no signal
       interrupts: received replies, held calls, and an edge that it may have consumed.  So a reply
       may be delivered twice; the second delivery has no effect.  An error of the handler that
       comes in the middle of unpickling is raised in the call that it interrupts, and is not the
       outcome of the call whose value was unpickled.
   13  A handler may run for long while its thread holds the lock.  So the loop waits for the lock
       for at most LOOP_WAIT_S, and retries after RETRY_S.  The loop also sends the client's own
       messages to the actor: what it can read from now on, and that a stream has ended.

A handler must not call an actor, because it may have interrupted the same operation.  Such calls
are refused (`ThreadState.in_call`).  Refused: to delay handlers whenever the lock is held, because
a submitted call would take a seventh longer.

The end:

   14  The connection breaks: nothing can be sent.  The master will report why.
   15  The actor has exited gracefully.  Its last replies may still be in transit; the end of the
       connection follows them.
   16  The channel ends: replies that have arrived count, and every other pending call fails.  A
       call may have run if it was sent and the actor had begun it.  The obituary has the id of the
       last call that the actor began for this connection, from memory that the actor shares with
       its worker.  Without an obituary, every call that was sent may have run.  A leader is woken,
       finds no pending calls, and sleeps on its own future until the loop has settled it.

Sleeping and waking take most of the time of a short call.  So if this actor's last reply was fast,
a leader first polls for SPIN_S without sleeping.
"""

import itertools
import os
import secrets
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import zmq

from remotely.calling.actor import EndError
from remotely.calling.back_pressure import RoomForCall
from remotely.client import stored_results
from remotely.client.bulk_transfer import Stores
from remotely.client.deadlock import WaitReporter, shorter
from remotely.client.end_errors import last_begun
from remotely.client.master_session import MasterSession
from remotely.errors import CallTimeout, RemotelyError, WireError
from remotely.futures.future import CallFuture
from remotely.futures.reference import DependencyCallback, StoredResult
from remotely.futures.stream import Stream
from remotely.machine import this_machine
from remotely.machine.owned_fd import OwnedFd
from remotely.machine.shield import RLock, shield
from remotely.protocol import control, wire
from remotely.protocol.control import Location, Obituary
from remotely.protocol.lease import DRAIN_S, HANDSHAKE_S
from remotely.protocol.numbers import ROUTE_BYTES
from remotely.protocol.wire import Kind
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.connection_monitor import ConnectionMonitor
from remotely.transport.keys import KeyPair
from remotely.transport.listening import nearest
from remotely.transport.sockets import EVENTS, NOBLOCK, POLLIN, Reconnect, readable
from remotely.transport.spans import ClientSpans
from remotely.values import arena
from remotely.values.arena import Loan
from remotely.values.codec import Encoded
from remotely.values.owned import NOTHING
from remotely.values.payload import (
    Invitation,
    MemoryPeer,
    OpenedProcess,
    OutgoingValue,
    Parcel,
    Reads,
    read_loan,
    with_loan,
)

HOLD_ABOVE = 16  # pending calls: they keep the actor busy while further ones are held
HOLD_CALLS = 32  # the most calls in one message
CHECK_AFTER_S = 0.002
MAX_CHECKS_DELAYED = 25  # in a row, for a program that keeps submitting
LONGEST_POLL_MS = 2**31 - 1  # the longest timeout that poll accepts: 24 days
SPIN_S = 400e-6 if this_machine.cores() > 1 else 0.0  # the actor needs a single core itself
FAST_REPLY_S = 1e-3
LOOP_WAIT_S, RETRY_S = 0.005, 0.002  # threads rarely hold the lock for longer
WARN_AFTER_S = 2.0  # if a call is queued behind one whose wait was interrupted
CANCEL_REPLY_S = 0.5  # the actor may be stopped, or its code may hold the GIL

Arrival = tuple["Channel", CallFuture[Any], wire.Message | BaseException]


class ThreadState:
    """The state of one thread that receives, for all channels.

    arrived     received replies that are not being delivered yet
    delivering  replies that are being delivered; several, if the user's code waits meanwhile
    to_notify   delivered futures whose done-callbacks have not run yet
    in_call     the thread is sending or sleeping: a call made now comes from a signal handler, or
                from a destructor that the garbage collector runs
    wake        an eventfd that wakes the thread; it is closed with this object
    """

    def __init__(self) -> None:
        self.arrived: deque[Arrival] = deque()
        self.delivering: list[Arrival] = []
        self.to_notify: deque[CallFuture[Any]] = deque()
        self.is_notifying = False
        self.in_call = False
        self._wake = OwnedFd(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.wake = self._wake.fd


_local = threading.local()


def this_thread() -> ThreadState:
    try:
        return _local.own  # type: ignore[no-any-return]
    except AttributeError:
        own = _local.own = ThreadState()
        return own


def _after_fork() -> None:
    """Leave the parent's replies and descriptors to the parent."""
    global _local
    _local = threading.local()


os.register_at_fork(after_in_child=_after_fork)


def refuse_in_call(what: str) -> None:
    """Raise RemotelyError: this thread is sending or receiving already."""
    raise RemotelyError(
        f"{what} is called in the middle of another call, by a signal handler or a destructor, "
        "which must not call actors: set a flag there and check it between calls, or make the "
        "call in a thread of your own"
    )


def deliver_arrived(me: ThreadState) -> None:
    """Deliver all replies that this thread has received.  Hold no lock: this runs the user's code.

    A signal handler may run between any two lines.  If it raises, `arrived` and `delivering` go to
    the loop (12).  If it calls an actor, that call delivers all that has arrived; the reply that
    was about to be delivered here is then delivered twice.
    """
    arrived, delivering, to_notify = me.arrived, me.delivering, me.to_notify
    while arrived:  # (9)
        try:
            first = arrived[0]
        except IndexError:
            break
        delivering.append(first)
        try:  # not `suppress`, which costs three calls for each reply
            arrived.popleft()  # if the user's code waits, it delivers the next one
        except IndexError:
            pass
        channel, future, reply = first
        if channel.deliver(future, reply):
            to_notify.append(future)
        try:
            delivering.pop()
        except IndexError:  # a nested wait was interrupted: the loop has it now
            pass
    if to_notify and not me.is_notifying:  # (10)
        me.is_notifying = True
        try:
            while to_notify:
                to_notify[0].run_callbacks()
                if to_notify:  # else a nested wait was interrupted: the loop has them now
                    del to_notify[0]
        finally:
            me.is_notifying = False


class Introduction(CallFuture[Any]):
    """The reply to READS; `open_memory` receives the actor's invitation before it is done."""

    def __init__(self, open_memory: Callable[[Invitation | None], None]) -> None:
        super().__init__("the actor")
        self._open_memory: Callable[[Invitation | None], None] | None = open_memory

    def _finish(self) -> None:
        if self._open_memory is not None and self._exception is None:
            self._open_memory(self._result)
        self._open_memory = None  # it holds the channel
        super()._finish()


class Shared(NamedTuple):
    """The parts of a client that all its channels share."""

    pair: KeyPair
    session: MasterSession
    stores: Stores
    wait_reporter: WaitReporter | None  # if this process is an actor


class Channel:
    """Calls to one life of an actor.  The `Receiver` of their replies.

    is_open         whether calls can be sent; if not, `ended` is set soon
    ended           how the channel ended; None until that is known
    endpoint        the actor's address
    sources_sent    the number of batches of sources.py that were sent
    pending         calls without a reply, by id; always empty after the end.  Guarded by the lock,
                    and its length by none

    `on_broken` is called on the loop's thread; `on_news` when the channel is connected, broken or
    ended.

    _peer               the actor's process, once it has opened our arena
    _introduction       the reply to READS, which sets it

    Guarded by the lock:

    _held               those of them that are encoded and not sent yet
    _unsent             ids of those that cannot be sent because the connection is broken
    _leader             the wake descriptor of the leader
    _armed              whether the loop receives
    _check_scheduled    whether the loop's next check is scheduled
    _used_since_check   whether a thread has used the socket since the last check
    """

    def __init__(
        self,
        shared: Shared,
        location: Location,
        on_news: Callable[[], None],
        on_broken: Callable[["Channel"], None],
    ) -> None:
        pair, session, stores, wait_reporter = shared
        loop = session.loop
        self.location = location
        self._opened = time.monotonic()
        self.is_open = True
        self.ended: EndError | None = None
        self.sources_sent = 0
        self._loop = loop
        self._on_news = on_news
        self._on_broken = on_broken
        self._session = session
        self._stores = stores
        self._wait_reporter = wait_reporter
        self._lock = RLock()
        self._ids: Iterator[int] = itertools.count(1)
        self._spans: ClientSpans | None = None  # while a timeline is recorded
        self.pending: dict[int, CallFuture[Any]] = {}
        self._held: dict[int, bytes | memoryview] = {}
        self._unsent: set[int] = set()
        self._is_broken = False
        self._is_retired = False
        self._end_after_replies: Callable[[], None] | None = None
        self._leader: int | None = None
        self._armed = False
        self._check_scheduled = False
        self._checks_delayed = 0
        self._used_since_check = False
        self._last_was_fast = True  # the last reply, by FAST_REPLY_S
        self._interrupted: weakref.ref[CallFuture[Any]] | None = None  # the last wait was for it
        public_key = location.public_key
        self._socket: Any = sockets.client(session.context, pair, public_key, Reconnect.NEVER)
        self._fd = int(self._socket.FD)
        # Identifies this connection in cancellations and in obituaries.
        self._route = b"r" + secrets.token_bytes(ROUTE_BYTES - 1)
        self._socket.setsockopt(zmq.ROUTING_ID, self._route)
        self._peer: MemoryPeer | None = None
        self._introduction: CallFuture[Any] | None = None
        self._reads = Reads()
        self.is_near = location.host == session.host
        self.endpoint = location.ipc if self.is_near else nearest(location.tcp)
        self._monitor = ConnectionMonitor(self._socket, loop, self._break, on_news)
        try:
            sockets.connect(self._socket, self.endpoint)
        except BaseException:  # otherwise the loop would keep them
            self._monitor.close()
            self._socket.close(linger=0)
            raise

    @property
    def life(self) -> int:
        """The number of the actor's life to which it leads."""
        return self.location.life

    def begin_spans(self) -> ClientSpans:
        """Record the calls from now on in what this returns.  Any thread may call this."""
        with self._lock:
            self._end_spans()
            self._spans = ClientSpans(self._ids)
            self._ids = self._spans.timed_ids
            return self._spans

    def end_spans(self) -> None:
        """Record no further calls."""
        with self._lock:
            self._end_spans()

    def _end_spans(self) -> None:
        if self._spans is not None:
            self._ids, spans, self._spans = self._spans.ids, self._spans, None
            spans.end()

    @property
    def route(self) -> bytes:
        """The name of this connection."""
        return self._route

    def unfinished(self) -> list[str]:
        """Return the names of the submitted calls among the pending ones.  Thread-safe."""
        return [call.what for call in [*self.pending.values()] if call.is_left_behind]

    @property
    def connected(self) -> bool:
        """Whether the connection was ever established, as far as the loop knows."""
        return self._monitor.connected

    @property
    def is_slow(self) -> bool:
        """Whether its process accepted the connection, and then was silent for a handshake's time.

        Its code holds the interpreter, or it is stopped.  A refusal would have come at once.
        """
        silent_s = time.monotonic() - self._opened
        return self._monitor.accepted and not self.connected and silent_s > HANDSHAKE_S / 2

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: OutgoingValue | None = None,
        may_requeue: bool = False,
    ) -> bool:
        me = this_thread()
        if me.in_call:
            refuse_in_call(future.what)
        if self._wait_reporter is not None and not background:
            self._wait_reporter.refuse(self.location.actor, future.what)
        try:
            if large is None and not value.buffers:  # one frame, which leaves in one step
                is_sent = self._commit(me, kind, name, value, future, background, None, may_requeue)
            else:
                with shield:  # (11)
                    is_sent = self._commit(
                        me, kind, name, value, future, background, large, may_requeue
                    )
            if not is_sent and not may_requeue:
                assert self.ended is not None
                future.lose(self.ended(False))
                future.run_callbacks()
            if me.arrived and shield.is_open():  # in which the user's code must not run
                rest = [*me.arrived]
                me.arrived.clear()
                self._loop.call(partial(self._resume, rest, []))
            elif me.arrived:
                deliver_arrived(me)
            return is_sent
        except BaseException:  # it cannot be sent, or this thread is interrupted
            me.in_call = False
            self._forget(future)
            self._defer_to_loop(me)
            raise

    def _commit(
        self,
        me: ThreadState,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: OutgoingValue | None,
        may_requeue: bool,
    ) -> bool:
        """Lend the value and send the call, or neither; return whether the channel can send."""
        loan = large.lend(self._peer) if large is not None and large.is_large else None
        try:
            me.in_call = True
            with self._lock:
                is_sent = self.is_open or (self.ended is None and not may_requeue)
                if is_sent:
                    if self._send_or_hold(kind, name, value, future, background, large, loan):
                        loan = None
                    if self._leader is not None or self._armed:
                        self._drain_for_sleepers(me.arrived)
                    elif background:  # (8)
                        self._used_since_check = True
                        self._schedule_check()
        finally:
            if loan is not None and large is not None:
                large.take_back(loan)
        me.in_call = False
        return is_sent

    def _send_or_hold(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: OutgoingValue | None = None,
        loan: Loan | None = None,
    ) -> bool:
        """With the lock: (1), (2).  Return false if the connection is broken."""
        call_id = next(self._ids)  # (1)
        if large is None:
            frames = wire.encode(kind, call_id, name, value.pieces, value.buffers)
        else:
            frames = large.message(kind, call_id, name, loan, self.location.store)
        future.call_id = call_id
        future.receiver = self
        self.pending[call_id] = future
        if faults.ON and faults.at("client.call"):
            self._cut()
        if self._is_broken:
            self._unsent.add(call_id)
            return False
        may_be_held = background and kind is Kind.CALL and large is None and len(frames) == 1
        if may_be_held and len(self.pending) > HOLD_ABOVE:  # (2)
            self._held[call_id] = frames[0]
            if len(self._held) >= HOLD_CALLS:
                self._send_held()
            else:
                self._schedule_check()
            return True
        if self._held:
            self._send_held()
        if len(frames) == 1:
            self._socket.send(frames[0], NOBLOCK)
        else:
            sockets.send(self._socket, frames)
        return True

    def _send_unawaited(
        self, kind: Kind, name: str, value: Encoded, arrived: deque[Arrival]
    ) -> None:
        """With the lock, on the loop's thread: send a message whose reply is not needed (13)."""
        if not self._is_broken and self.ended is None:  # one that is retired sends these still
            self._send_or_hold(kind, name, value, CallFuture("the actor"), background=True)
            self._drain_for_sleepers(arrived)
            self._schedule_check()

    def send_file(self, digest: str, content: bytes, future: CallFuture[None]) -> None:
        value = Encoded((), (memoryview(content),))
        self.send(Kind.FILE, digest, value, future, background=True)

    # --- what both can read -----------------------------------------------------------------------

    def introduce(self, fetches: bool) -> None:
        """Tell the actor what this client can read: first of all, and when that changes.

        `fetches`: it fetches large results from the store of the actor's machine.
        """
        ours = arena.ours() if self.is_near and arena.SUPPORTED else None
        self._reads = Reads(None if ours is None else ours.address, fetches)
        if self._loop.is_own_thread():
            self._run_locked(self._introduce_again)
        elif self._reads != Reads():
            future = self._introduction = Introduction(self._open_memory)
            self.send(Kind.READS, "", self._reads_encoded(), future, background=True)

    def _introduce_again(self, arrived: deque[Arrival]) -> None:
        self._send_unawaited(Kind.READS, "", self._reads_encoded(), arrived)

    def _reads_encoded(self) -> Encoded:
        return Encoded((control.encode(self._reads),), ())

    @property
    def unanswered(self) -> int:
        """The number of the calls that are pending: an introduction is no call of the user's."""
        introduction = self._introduction
        is_pending = introduction is not None and introduction.call_id in self.pending
        return len(self.pending) - is_pending

    @property
    def lends(self) -> bool:
        """Whether large values are lent to the actor."""
        return self._peer is not None

    @property
    def is_introduced(self) -> bool:
        """Whether it is settled how large values reach the actor."""
        return self._introduction is None or self._introduction.answered or not self.is_near

    def wait_until_introduced(self) -> None:
        """Wait until that is settled, or the channel has ended.  Not on the loop's thread."""
        if not self.is_introduced and self._introduction is not None:
            self.receive_in_background()
            self._introduction.block(None)

    def _open_memory(self, invitation: Invitation | None) -> None:
        """The actor has opened our arena: open its own.  If interrupted, repeat it."""
        if invitation is not None and self._peer is None:
            with shield, suppress(OSError):  # this process cannot open it: continue by socket
                peer = MemoryPeer(OpenedProcess(invitation.arena))
                self._peer = peer  # first: the actor may lend once the invitation is accepted
                peer.accept(invitation)

    def _send_held(self) -> None:
        """With the lock: send the held calls, unless the connection is broken."""
        if self._held and not self._is_broken:
            with shield:  # (11)
                held, self._held = self._held, {}
                sockets.send(self._socket, wire.batch(Kind.CALLS, [*held.values()]))

    def _drain_for_sleepers(self, arrived: deque[Arrival]) -> None:
        """With the lock, after using the socket: (3)."""
        if self._leader is not None or self._armed:
            self._drain(arrived)
            if arrived and self._leader is not None:
                os.eventfd_write(self._leader, 1)

    def _forget(self, future: CallFuture[Any]) -> None:
        """Forget a call that could not be sent; a reply to it is declined."""
        with self._lock:
            if self.pending.get(future.call_id) is future:  # the id may be another channel's
                del self.pending[future.call_id]
        if future.counted_by is not None:
            future.counted_by.settle(future)

    # --- cancelling -------------------------------------------------------------------------------

    def holds(self, future: CallFuture[Any]) -> bool:
        """Tell whether the call is held and not sent yet."""
        with self._lock:
            call_id = future.call_id
            return call_id in self._held and self.pending.get(call_id) is future

    def recall(self, future: CallFuture[Any]) -> bool:
        """Forget a call that is not sent yet; false if it was sent."""
        with self._lock:
            if not self.holds(future):
                return False
            del self._held[future.call_id], self.pending[future.call_id]
            if not self.pending:
                self._disarm()
            return True

    def cancel(self, future: CallFuture[Any], waits: bool) -> None:
        """Ask the actor not to begin a call that was sent; settle it if it will never run.

        The request goes through the master.  The answer arrives over the call's own connection, as
        the reply to a call that was never sent: see actor/dispatch.py.  Without `waits`, the future
        is cancelled when it arrives.
        """
        waits = waits and not self._loop.is_own_thread()  # the loop's thread receives the answer
        answer: CallFuture[bool] = CallFuture("a cancellation")
        with self._lock:
            if self.pending.get(future.call_id) is not future:
                return
            answer.call_id, answer.receiver = next(self._ids), self
            self.pending[answer.call_id] = answer
        self._session.send(
            control.Cancel(
                actor=self.location.actor,
                route=self._route,
                call=future.call_id,
                answer=answer.call_id,
            )
        )
        if not waits:
            answer.then(partial(self._cancelled, future))
            # The answer never comes if the request is lost; the call's own reply ends the wait.
            future.then(DependencyCallback(lambda _: self._forget(answer)))
            return
        try:
            answer.wait(CANCEL_REPLY_S)
        except CallTimeout:
            pass
        else:
            self._cancelled(future, answer)
        finally:
            self._forget(answer)

    def _cancelled(self, future: CallFuture[Any], answer: Any) -> None:
        """Settle a future by the answer to its cancellation; the call's own reply says the same."""
        if answer.exception() is None and answer.result():
            future.cancel_now()
            with self._lock:
                self.pending.pop(future.call_id, None)

    # --- receiving --------------------------------------------------------------------------------

    def wait(self, future: "CallFuture[Any] | RoomForCall", timeout: float | None = None) -> None:
        """Wait until `future` is done, for at most `timeout` seconds."""
        me = this_thread()
        if me.in_call:
            refuse_in_call(future.what)
        begin = time.monotonic()
        deadline = None if timeout is None else begin + timeout
        arrived, wake = me.arrived, me.wake
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        leads = has_polled = False
        waits, reporter = self._wait_reporter, None
        if self._interrupted is not None and isinstance(future, CallFuture):
            warn = partial(self._warn_of_blocked_call, self._interrupted, weakref.ref(future))
            self._loop.after(WARN_AFTER_S, warn)
            self._interrupted = None
        try:
            if waits is not None and waits.begin(self.location.actor, future, deadline is not None):
                reporter = waits
            if arrived:  # this thread is delivering replies, and the next may be this call's
                deliver_arrived(me)
            is_done = future.answered
            while not is_done:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    if has_polled:
                        return
                    left_s = 0.0  # a reply that has already arrived counts
                has_polled = True
                if reporter is not None:
                    left_s = shorter(left_s, reporter.report(not self._is_pending(future)))
                me.in_call = True
                with self._lock:
                    if self._held:
                        self._send_held()
                        self._drain_for_sleepers(arrived)
                    is_pending = self._is_pending(future)  # else it was resent on another channel
                    if is_pending and self._leader is None:  # (4)
                        leads, self._leader = True, wake
                        self._drain(arrived)
                    elif is_pending:  # (6)
                        self._arm()
                        if left_s == 0.0:  # no time to wait for the leader
                            self._drain_for_sleepers(arrived)
                if not arrived:
                    if leads:
                        self._sleep(poll, wake, begin, left_s)
                    elif not self._loop.is_own_thread():
                        # Another thread receives the reply, or is delivering it.
                        future.block(left_s)
                    else:  # the user's code: no loop would receive after the leader has left
                        future.block(LOOP_WAIT_S if left_s is None else min(left_s, LOOP_WAIT_S))
                if leads:  # (5)
                    with self._lock:
                        leads, self._leader = False, None
                        self._drain(arrived)
                        if self.pending and not self._armed:
                            self._used_since_check = True
                            self._schedule_check()
                me.in_call = False
                # Not as the leader: a done-callback may call an actor and wait.
                deliver_arrived(me)
                is_done = future.answered or future.done()
        except BaseException:
            if leads:
                self._leader = None
            self._defer_to_loop(me)
            if isinstance(future, CallFuture) and not future.answered:
                self._interrupted = weakref.ref(future)
            raise
        finally:
            me.in_call = False
            if reporter is not None:
                reporter.end()
        self._last_was_fast = time.monotonic() - begin < FAST_REPLY_S

    def _sleep(self, poll: Any, wake: int, begin: float, left_s: float | None) -> None:
        """Without the lock: sleep until something may have arrived."""
        ready = poll.poll(0)
        if self._last_was_fast:
            spin_until = begin + min(SPIN_S, SPIN_S if left_s is None else left_s)
            while not ready and time.monotonic() < spin_until:
                os.sched_yield()  # to libzmq's threads, the client's other threads and the actor
                ready = poll.poll(0)
        if not ready:
            ready = poll.poll(None if left_s is None else min(left_s * 1000, LONGEST_POLL_MS))
        if any(fd == wake for fd, _ in ready):
            os.eventfd_read(wake)

    def _is_pending(self, future: "CallFuture[Any] | RoomForCall") -> bool:
        """Tell whether a reply on this channel may complete the future, or make room."""
        if isinstance(future, RoomForCall):
            return bool(self.pending)
        return self.pending.get(future.call_id) is future

    def _drain(self, arrived: deque[Arrival]) -> None:
        """With the lock: receive what has arrived, for this thread to deliver."""
        if self.pending and self._socket.get(EVENTS) & POLLIN:
            with shield:  # (11)
                self._receive_messages(arrived)
        if not self.pending:
            self._disarm()

    def _receive_messages(self, arrived: deque[Arrival]) -> None:
        taken: list[Arrival] = []
        more = True
        while more:
            with suppress(WireError):
                for reply in wire.unbatch(wire.decode(sockets.receive(self._socket), "actor")):
                    if (future := self.pending.pop(reply.call_id, None)) is not None:
                        # Now, because it may be delivered after the channel has ended.
                        opened = with_loan(reply, self._peer) if reply.loan else reply
                        taken.append((self, future, opened))
                    else:
                        self._decline(reply)
            more = bool(self.pending and self._socket.get(EVENTS) & POLLIN)
        if self._spans is not None:
            self._spans.note_answers([future.call_id for _, future, _ in taken])
            if self._spans.is_full:
                self._ids = self._spans.ids
        if faults.ON and taken and faults.at("client.reply"):
            self.pending.update((future.call_id, future) for _, future, _ in taken)
            self._cut()
        else:
            arrived.extend(taken)

    def deliver(self, future: CallFuture[Any], reply: wire.Message | BaseException) -> bool:
        """Settle a call by its reply or an error; return whether its done-callbacks must run.

        Hold no lock: this may run the user's code.
        """
        if future.answered:  # before an interrupt (12)
            is_stored = isinstance(future.raw_result, StoredResult)
            if isinstance(reply, wire.Message) and not is_stored:
                self._decline(reply)
        elif isinstance(reply, BaseException):
            if future.receiver is self:  # else it is being retried already
                future.lose(reply)
        elif reply.loan:
            stored_results.receive(self, self._stores, future, reply)
        else:
            return future.settle_by(reply, self._stream)
        return future.has_callbacks

    def _decline(self, reply: wire.Message) -> None:
        """Release the value of a reply that is not needed."""
        loan = read_loan(reply.loan) if reply.loan else None
        if isinstance(loan, Parcel):
            self._stores.release(loan, store=self.location.store)
        elif loan is not None and self._peer is not None:
            self._peer.lender.decline(loan)

    def _stream(self, name: str, actor: object) -> Stream[Any]:
        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", actor)
            self.send(Kind.NEXT, name, NOTHING, future, background=True)
            return future

        def end() -> None:
            # Not here: the last reference may be dropped in the middle of another call.
            close = partial(self._send_unawaited, Kind.CLOSE, name, NOTHING)
            self._loop.call(partial(self._run_locked, close))

        return Stream(ask, end)

    # --- the loop's part --------------------------------------------------------------------------

    def receive_in_background(self) -> None:
        """Have the loop receive replies as they arrive (7).

        This settles no call on the calling thread, which may hold the locks of futures.
        """
        if self._armed and not self._held:
            return
        action = self._receive
        if not self._held and not self._loop.is_own_thread():  # saves a switch of threads
            with self._lock:
                if not self.pending or self._leader is not None:  # a leader schedules a check (5)
                    return
                self._arm()
                if not readable(self._socket):
                    return
            action = self._on_edge
        self._loop.call(partial(self._run_locked, action))

    def recover(self) -> None:
        """On the loop's thread, periodically: receive replies that no other thread will.

        A thread that is interrupted after it has sent a call never waits for the reply.  One that
        is interrupted as it has the loop receive may have consumed the edge.
        """
        if self.pending and self._leader is None and not self._check_scheduled:
            self._run_locked(self._on_edge if self._armed else self._receive)

    def _run_locked(self, action: Callable[[deque[Arrival]], object]) -> None:
        """On the loop's thread: run an action with the lock, and deliver what it receives."""
        me = this_thread()
        if not self._lock.acquire(timeout=LOOP_WAIT_S):  # (13)
            self._loop.after(RETRY_S, partial(self._run_locked, action))
            return
        me.in_call = True  # a destructor that the garbage collector runs must not receive
        try:
            action(me.arrived)
        finally:
            me.in_call = False
            self._lock.release()
        deliver_arrived(me)

    def _receive(self, arrived: deque[Arrival]) -> None:
        if self._held:
            self._send_held()
            self._drain_for_sleepers(arrived)
        if self.pending and self._leader is None and not self._armed:
            self._arm()
            self._drain(arrived)

    def _on_edge(self, arrived: deque[Arrival]) -> None:
        if self._leader is None:  # a leader drains as it steps down
            self._drain(arrived)

    def _check(self, arrived: deque[Arrival]) -> None:
        """CHECK_AFTER_S after a call was submitted: (8)."""
        self._check_scheduled = False
        may_delay = self._used_since_check and self._checks_delayed < MAX_CHECKS_DELAYED
        if may_delay and self._leader is None:
            if self._held:
                self._send_held()
                self._drain_for_sleepers(arrived)
            if self.pending:
                self._checks_delayed += 1
                self._used_since_check, self._check_scheduled = False, True
                self._loop.after(CHECK_AFTER_S, partial(self._run_locked, self._check))
        else:
            self._checks_delayed = 0
            self._receive(arrived)

    def _schedule_check(self) -> None:
        """With the lock: schedule the loop's next check, unless it is scheduled already."""
        if not self._check_scheduled:
            look = partial(self._run_locked, self._check)
            self._loop.call(lambda: self._loop.after(CHECK_AFTER_S, look))
            self._check_scheduled = True

    def _arm(self) -> None:
        # If interrupted, both steps are repeated; an edge that is not needed is harmless.
        if not self._armed:
            self._loop.watch(self._fd, partial(self._run_locked, self._on_edge), edge=True)
            self._armed = True

    def _disarm(self) -> None:
        if self._armed:
            self._armed = False
            self._loop.unwatch(self._fd)

    def _defer_to_loop(self, me: ThreadState) -> None:
        """Leave the unfinished work of this interrupted thread to the loop (12)."""
        with shield:
            rest = [*me.delivering, *me.arrived], [*me.to_notify]
            me.delivering.clear()
            me.arrived.clear()
            me.to_notify.clear()
            self._loop.call(partial(self._resume, *rest))

    def _resume(self, arrived: list[Arrival], to_notify: list[CallFuture[Any]]) -> None:
        me = this_thread()
        me.arrived.extend(arrived)
        me.to_notify.extend(to_notify)
        self._run_locked(self._recover_all)
        deliver_arrived(me)

    def _recover_all(self, arrived: deque[Arrival]) -> None:
        self._check_scheduled = False
        self._send_held()
        if self._leader is not None:  # it drains the socket, whose edge may have been consumed
            os.eventfd_write(self._leader, 1)
        elif self.pending:
            self._arm()
            self._drain(arrived)

    def _warn_of_blocked_call(self, *calls: "weakref.ref[CallFuture[Any]]") -> None:
        """Warn that a call is queued behind one whose wait was interrupted."""
        before, later = (call() for call in calls)
        if before and later and not before.done() and not later.done():
            self._session.warn(
                before.what,
                f"remotely: {later.what} has no result yet: {before.what}, whose wait was "
                "interrupted, is still running. To end it, end the actor: remotely.kill(...)",
            )

    # --- the end ----------------------------------------------------------------------------------

    def end(self, ended: EndError, obituary: Obituary | None = None) -> None:
        """Fail all pending calls and close: immediately on the loop's thread, otherwise soon.

        Idempotent.  If the end was requested, the errors of dropped futures are not reported.
        """
        end = partial(self._run_locked, partial(self._end, ended, obituary))
        if self._loop.is_own_thread():
            end()
        else:
            self.is_open = False
            self._loop.call(end)

    def end_without_loop(self, ended: EndError) -> None:
        """End the channel when the loop has stopped, on any thread."""
        me = this_thread()
        with self._lock:
            self._end(ended, None, me.arrived)
        deliver_arrived(me)

    def retire(self) -> None:
        """On the loop's thread: leave further calls to the next life of the actor, which moves."""
        self._run_locked(self._retire)

    def _retire(self, arrived: deque[Arrival]) -> None:
        self._send_held()
        if self.is_open:
            self.is_open, self._is_retired = False, True

    def use_again(self) -> None:
        """On the loop's thread: the actor does not move after all, so send calls to it again."""
        self._run_locked(self._use_again)

    def _use_again(self, arrived: deque[Arrival]) -> None:
        is_over = self.ended or self._is_broken or self._end_after_replies
        if self._is_retired and not is_over:
            self.is_open, self._is_retired = True, False
            self._on_news()

    def end_after_replies(self, ended: EndError, obituary: Obituary) -> None:
        """On the loop's thread: end after the last replies of an actor that exited (15)."""
        end = partial(self.end, ended, obituary)
        if not self.pending or not self._monitor.may_have_connected() or self._is_broken:
            end()
            return
        self._stop_sending()  # further calls fail with the pending ones
        self._end_after_replies = end
        self._loop.after(DRAIN_S, end)

    def _end(self, ended: EndError, obituary: Obituary | None, arrived: deque[Arrival]) -> None:
        """With the lock: (16)."""
        if self.ended is not None:
            return
        self._drain(arrived)  # what arrived before the end counts
        self.is_open = False
        self.ended = ended
        may_have_left = self._monitor.may_have_connected()
        last = last_begun(obituary, self.location.life, self._route) if may_have_left else 0
        lost, unsent = [*self.pending.values()], self._unsent.union(self._held)
        self.pending.clear()
        self._held.clear()
        if self._leader is not None:  # under the lock, it cannot leave and close its descriptor
            os.eventfd_write(self._leader, 1)
        self._armed = False
        self._loop.unwatch(self._fd)
        self._monitor.close()
        self._socket.close(linger=0)
        self._peer = None
        self._on_news()
        for future in lost:
            if obituary is not None and obituary.asked:
                future.on_unretrieved = None
            may_have_run = future.call_id <= last and future.call_id not in unsent
            future.may_have_run |= may_have_run  # even if the error cannot say so
            arrived.append((self, future, ended(may_have_run)))

    def _break(self) -> None:
        """On the loop's thread: handle a broken connection (14)."""
        if self.ended is not None:
            return
        if self._end_after_replies is not None:
            self._end_after_replies()
        elif not self._is_broken:
            self._stop_sending()
            self._on_broken(self)
            self._on_news()

    def _cut(self) -> None:
        """Inject a fault: break the connection."""
        self._stop_sending()
        self._loop.call(lambda: self._on_broken(self))

    def _stop_sending(self) -> None:
        self._is_broken = True
        self.is_open = False
