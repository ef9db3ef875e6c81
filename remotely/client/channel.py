"""One connection from a client to one life of an actor, and the calls in flight on it.

A ZeroMQ socket belongs to one thread at a time; `_lock` is that time.  Who receives?

    a thread that waits for its own reply leads: it takes in whatever arrives, for everybody, and
    sleeps on the socket's descriptor outside of the lock
    when nobody leads, calls were submitted and somebody wants to be told (a callback, an await, a
    second thread that waits), the client's loop takes in what arrives
    when nobody has asked yet, the loop looks after LOOK_S: a program that submits and then waits
    is not disturbed by a second thread, which would take turns with it at every reply

And who sends?  Whoever calls.  But small calls that are submitted while many are in flight are held
and leave together: when there are HOLD_CALLS, when somebody waits, or when the loop looks.

So a blocking call leaves from and returns to its own thread.  ZeroMQ's descriptor is edge-triggered
and any operation may swallow its edge; so whoever has held the socket, while another sleeps on it,
drains it before letting go, and wakes the leader if something came.

The main thread may be interrupted anywhere, by Ctrl-C or by a handler that itself calls this actor.
Three things see to it that no other call suffers:

    what cannot be done again is done `with shield`: taking a message, and sending several frames
    what was taken stays in its thread's deque until it is handed over (delivery.py)
    whoever is interrupted leaves the rest to the loop's thread, which no signal reaches (`_mend`)

And a handler that waits here takes the lead from its own thread, and gives it back.  It may have
struck while its thread held the lock, and wait for something that the loop has to do.  So the loop
does not wait for a lock: it comes again (`_in_turn`).  Refused: to put handlers off wherever the
lock is held, which costs a submitted call a seventh of its time.

To sleep and be woken is most of a short call.  So who leads first looks for SPIN_S without
sleeping, if the last answer of this actor came soon.

A channel never reconnects.  When its connection breaks, its calls end, typed with doubt, and the
next call opens a new channel: nothing that was queued can reach the next life of an actor, and a
late reply of an older life has nowhere to go.

Over 500 lines: all of it happens under one lock, and its order is what makes it right.
"""

import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import zmq

from remotely.client import delivery, in_flight
from remotely.client.deadlock import Blocked
from remotely.client.delivery import Arrived
from remotely.client.end_reasons import Ended
from remotely.client.in_flight import Account, Budget
from remotely.errors import WireError
from remotely.futures.future import CallFuture
from remotely.futures.shield import shield
from remotely.futures.stream import Stream, Token
from remotely.machine import this_machine
from remotely.objects.stand_in import Itself
from remotely.protocol import control, wire
from remotely.protocol.control import Location
from remotely.protocol.wire import Kind
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.keys import KeyPair
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect, client, readable
from remotely.values import arena, codec
from remotely.values.arena import Loan
from remotely.values.codec import NOTHING
from remotely.values.memory_peer import MemoryPeer, OutgoingValue, decline, unpack

BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
LOOK_S = 0.002
LOOKS_PUT_OFF = 25  # in a row, for a program that submits on and on
TURN_S = 0.005  # for the loop to have the lock: hardly anybody holds it as long
LONGEST_POLL_MS = 2**31 - 1  # that poll takes: 24 days
log = logging.getLogger("remotely")

HOLD_ABOVE = 16  # calls in flight: the actor has work for a while, and further ones may travel
HOLD_CALLS = 32  # together, so many at most
SPIN_S = 400e-6 if this_machine.cores() > 1 else 0.0  # with one core, it would be the actor's time
SOON_S = 1e-3

_STAND_INS = frozenset((Token, Itself))


class Channel:
    """Calls to one life of an actor.  `on_broken` is called on the loop's thread."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: Loop,
        location: Location,
        same_host: bool,
        pair: KeyPair,
        budget: Budget,
        on_broken: Callable[["Channel"], None],
        blocked: Blocked | None = None,
    ) -> None:
        self.location = location
        self.connected = False
        self.sources_sent = 0  # so many batches of sources.py
        self._loop = loop
        self._lock = threading.RLock()  # a signal handler may call amid a call
        self._ids = itertools.count(1)
        self._pending: dict[int, CallFuture[Any]] = {}
        self._broken = False
        self._unsent: set[int] = set()
        self._held: dict[int, bytes | memoryview] = {}  # calls that leave together
        self._leader: int | None = None  # the wake descriptor of the thread that receives
        self._armed = False  # the loop receives
        self._looking = False  # the loop is going to look
        self._looks_put_off = 0
        self._attending = False  # the loop is going to attend
        self._due: deque[Callable[[Arrived], object]] = deque()  # for the loop to do in its turn
        self._is_late = False  # it waits for its turn
        self._busy = False  # somebody used the socket since
        self._soon = True  # the last answer came soon
        self._account = Account(budget)
        self._told = False
        self._may_share = same_host and arena.SUPPORTED
        self._memory_peer: MemoryPeer | None = None
        self._ended: Ended | None = None
        self._on_broken = on_broken
        self._blocked = blocked  # if this process is an actor
        self._socket = client(context, pair, location.public_key, Reconnect.NEVER)
        self._monitor = self._socket.get_monitor_socket(BROKEN | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._fd = int(self._socket.FD)
        sockets.connect(self._socket, location.ipc if same_host else location.tcp)
        loop.watch(self._monitor.FD, self._hear_monitor, edge=True)
        loop.call(self._hear_monitor)

    @property
    def unanswered(self) -> int:
        """How many calls wait for their reply, as any thread may ask."""
        return len(self._pending)

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def send(
        self,
        kind: Kind,
        name: str,
        outgoing: OutgoingValue,
        future: CallFuture[Any],
        background: bool,
    ) -> None:
        """Send one call.  Without `background` the caller is about to wait for it."""
        if self._blocked is not None and not background:
            self._blocked.refuse(self.location, future.what)
        bounded = background and kind is Kind.CALL
        if bounded and len(self._pending) >= in_flight.CALLS_A_HANDLE:
            self._wait_for_room(0)
        loan = None
        left = False
        try:
            if outgoing.is_large:
                nbytes = outgoing.encoded.nbytes
                may_wait = bounded and not self._loop.is_own_thread()
                if may_wait and self._account.nbytes + nbytes > in_flight.BYTES_A_HANDLE:
                    self._wait_for_room(nbytes)
                self._account.count(nbytes, future, may_wait)
                with shield:
                    loan = outgoing.lend(self._memory_peer)
                if loan is None:
                    self._offer_memory()
            with self._lock:
                if self._ended is None:
                    call_id = next(self._ids)
                    frames = outgoing.message(kind, call_id, name, loan)
                    future.call_id = call_id
                    future.receiver = self
                    self._pending[call_id] = future
                    if faults.ON and faults.at("client.call"):
                        self._cut()
                    if self._broken:  # why, we are about to hear
                        self._unsent.add(call_id)
                        if loan is not None:
                            self._take_back(loan)
                    elif (
                        bounded
                        and len(frames) == 1
                        and loan is None
                        and len(self._pending) > HOLD_ABOVE
                        and not outgoing.is_large
                    ):
                        self._hold(call_id, frames[0])
                    else:
                        self._send_held()  # `_after_call` is to follow
                        # Who submits may change its arrays at once; who waits leaves them.
                        if loan is None and len(frames) == 1:
                            sockets.send(self._socket, frames, copy=background)
                        else:
                            with shield:
                                sockets.send(self._socket, frames, copy=background)
                                left = True
                    came = self._after_call(background)
            if not future.call_id:
                assert self._ended is not None
                if loan is not None:
                    self._take_back(loan)
                self._account.settle(future)
                future.lose(self._ended(False))
                future.tell()
            elif came:
                delivery.hand_over(delivery.of_this_thread())
        except BaseException:  # it cannot be sent, or we are interrupted
            self._withdraw(future, None if left else loan)
            self._leave_to_loop(delivery.of_this_thread())
            raise

    def send_file(self, digest: str, content: bytes, future: CallFuture[None]) -> None:
        """Send one of the client's files."""
        outgoing = OutgoingValue(codec.Encoded((), (memoryview(content),)))
        self.send(Kind.FILE, digest, outgoing, future, background=True)

    def wait(self, future: CallFuture[Any], timeout: float | None = None) -> None:
        """Return when `future` is done, or after `timeout` seconds."""
        begin = time.monotonic()
        deadline = None if timeout is None else begin + timeout
        me = delivery.of_this_thread()
        wake, arrived = me.wake, me.arrived
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        leads = has_looked = False
        outer: int | None = None  # ours, if this is a signal handler's wait within our own
        blocks = None
        within, me.waits = me.waits, True
        try:
            if self._blocked is not None and deadline is None:
                blocks = self._blocked if self._blocked.begin(self.location, future) else None
            if arrived:  # we are within a hand-over of our own, and this may be the next
                delivery.hand_over(me)
            while not future.done():
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    if has_looked:
                        return
                    left_s = 0.0  # what has arrived counts
                has_looked = True
                if blocks is not None:
                    left_s = blocks.go_on(self.location, begin)
                with self._lock:
                    self._flush(arrived)
                    here = self._pending.get(future.call_id) is future  # or sent again, elsewhere
                    if here and (self._leader is None or self._leader == wake):
                        outer, leads = self._leader, True
                        self._leader = wake
                        self._drain(arrived)  # sending may have swallowed its edge
                    elif here:
                        self._arm()
                        if left_s == 0.0:  # nobody has the time to wait for who leads
                            self._after_send(arrived)
                # A handler may have interrupted us with the lock held: it is to be let go of.
                held = self._lock._release_save() if self._lock._is_owned() else None  # type: ignore[attr-defined]
                try:
                    # A handler may also have had our reply taken in, just before we led.
                    if not arrived and not future.done():
                        if leads:
                            self._sleep(poll, wake, begin, left_s)
                        else:  # somebody else receives it, or is completing it at this moment
                            future.block(left_s)
                finally:
                    if held is not None:
                        self._lock._acquire_restore(held)  # type: ignore[attr-defined]
                if leads:
                    with self._lock:
                        self._leader, leads = outer, False
                        self._drain(arrived)
                        self._after_lead()
                # Not as the leader: a done-callback may call again, and wait.
                delivery.hand_over(me)
        except BaseException:
            if leads and self._leader == wake:
                self._leader = outer
            self._leave_to_loop(me)
            raise
        finally:
            me.waits = within
            if blocks is not None:
                blocks.end()
            if within:  # its socket's edge may be gone, or its word taken here
                os.eventfd_write(wake, 1)
        self._soon = time.monotonic() - begin < SOON_S

    def attend(self) -> None:
        """Let the loop take in replies as they come."""
        me = delivery.of_this_thread()
        try:
            with self._lock:
                self._begin_to_attend(me.arrived)
            delivery.hand_over(me)
        except BaseException:
            self._leave_to_loop(me)
            raise

    def attend_soon(self) -> None:
        """The same, but complete nothing on this thread, which may hold a lock."""
        if not self._attending and (self._held or not self._armed):
            self._attending = True
            try:
                self._loop.call(self._attend)
            except BaseException:  # interrupted on the way
                self._attending = False
                raise

    def tend(self) -> None:
        """On the loop's thread, now and then: take in what nobody is going to.

        Whoever was interrupted between a call's departure and the wait for it does not come back.
        """
        if self._pending and self._leader is None and not (self._armed or self._looking):
            self._in_turn(self._begin_to_attend)

    def holds(self, future: CallFuture[Any]) -> bool:
        """Tell whether the call has not left yet."""
        with self._lock:
            call_id = future.call_id
            return call_id in self._held and self._pending.get(call_id) is future

    def recall(self, future: CallFuture[Any]) -> bool:
        """Forget a call that has not left; false if it has."""
        with self._lock:
            if not self.holds(future):
                return False
            del self._held[future.call_id], self._pending[future.call_id]
            if not self._pending:
                self._disarm()
            return True

    def end(self, ended: Ended, asked: bool = False, now: bool = False) -> None:
        """End every call in flight and close.  Once is enough, twice is harmless.

        If the end was `asked` for, futures that nobody looks at are not told of.  The loop ends it
        when it has its turn, if not `now`.
        """
        if self._ended is not None:
            return
        end = partial(self._end, ended, asked)
        if self._loop.is_own_thread() and not now:
            self._in_turn(end)
            return
        me = delivery.of_this_thread()
        try:
            with shield:
                with self._lock:
                    end(me.arrived)
                if now:  # there may be no loop to leave it to
                    delivery.deliver(me)
            delivery.hand_over(me)
        except BaseException:  # an interrupt that was put off is raised at the shield's end
            self._leave_to_loop(me)
            raise

    # --- sending and receiving; the lock is held --------------------------------------------------

    def _end(self, ended: Ended, asked: bool, arrived: Arrived) -> None:
        if self._ended is not None:
            return
        self._drain(arrived)  # what arrived before the end counts
        self._ended = ended
        may_have_left = self._may_have_left()
        pending, self._pending = self._pending, {}
        self._unsent.update(self._held)
        if self._leader is not None:  # it cannot leave, and close its descriptor, meanwhile
            os.eventfd_write(self._leader, 1)
        self._disarm()
        self._socket.disable_monitor()
        self._loop.call(self._close_monitor)  # whose thread it belongs to
        self._socket.close(linger=0)
        self._memory_peer = None
        for future in pending.values():
            if asked:
                future.on_unseen = None
            error = ended(may_have_left and future.call_id not in self._unsent)
            arrived.append((self, future, error))

    def _begin_to_attend(self, arrived: Arrived) -> None:
        self._flush(arrived)
        if self._pending and self._leader is None and not self._armed:
            self._arm()
            self._drain(arrived)

    def _hold(self, call_id: int, call: bytes | memoryview) -> None:
        self._held[call_id] = call
        if len(self._held) >= HOLD_CALLS:
            self._send_held()
        else:
            self._look_soon()

    def _send_held(self) -> None:
        if self._held and self._ended is None and not self._broken:
            with shield:
                held, self._held = self._held, {}
                sockets.send(self._socket, wire.together(Kind.CALLS, [*held.values()]))

    def _drain(self, arrived: Arrived) -> None:
        """Take in what has arrived, for this thread to hand over."""
        if self._pending and self._ended is None and readable(self._socket):
            with shield:
                self._take_in(arrived)
        if not self._pending:
            self._disarm()

    def _take_in(self, arrived: Arrived) -> None:
        taken = []
        more = True  # or a signal handler has taken it in a moment ago
        while more:
            with suppress(WireError, zmq.Again):
                for message in wire.each(wire.decode(sockets.receive(self._socket), "actor")):
                    if (future := self._pending.pop(message.call_id, None)) is not None:
                        taken.append((self, future, self._open(message)))
                    else:
                        decline(message, self._memory_peer)
            more = bool(self._pending) and readable(self._socket)
        if faults.ON and taken and faults.at("client.reply"):
            self._pending.update((future.call_id, future) for _, future, _ in taken)
            self._cut()
        else:
            arrived.extend(taken)

    def _open(self, message: wire.Message) -> wire.Message | Exception:
        """Have what was lent at hand.  Now: who hands it over may come after our end."""
        if not message.loan:
            return message
        try:
            payload, buffers = unpack(message, self._memory_peer)
        except Exception as error:  # for its caller
            return error
        return message._replace(payload=payload, buffers=buffers, loan=b"")

    def _cut(self) -> None:
        """Break the connection, as a fault on purpose."""
        self._broken = True
        self._loop.call(lambda: self._on_broken(self))

    def _flush(self, arrived: Arrived) -> None:
        """Send what is held."""
        if self._held:
            self._send_held()
            self._after_send(arrived)

    def _after_send(self, arrived: Arrived) -> None:
        """Take in what whoever sleeps on the socket may never be told of: its edge may be gone."""
        if self._leader is not None or self._armed:
            self._drain(arrived)
            if arrived and self._leader is not None:
                os.eventfd_write(self._leader, 1)

    def _after_call(self, background: bool) -> bool:
        """See to it that somebody receives; true if this thread has."""
        if self._leader is not None or self._armed:
            arrived = delivery.of_this_thread().arrived
            self._after_send(arrived)
            return bool(arrived)
        if background:
            self._busy = True
            self._look_soon()
        return False

    def _after_lead(self) -> None:
        if self._pending and not self._armed:
            self._busy = True
            self._look_soon()

    def _take_edge(self, arrived: Arrived) -> None:
        if self._leader is None:
            self._drain(arrived)

    def _look_now(self, arrived: Arrived) -> None:
        self._looking = False
        self._flush(arrived)
        # Who leads looks after the rest when it leaves.
        if self._leader is None and self._ended is None and self._pending:
            if self._busy and self._looks_put_off < LOOKS_PUT_OFF:
                self._looks_put_off += 1
                self._busy, self._looking = False, True
                self._loop.after(LOOK_S, self._look)
            else:
                self._looks_put_off = 0
                self._arm()
                self._drain(arrived)

    def _see_to_all(self, arrived: Arrived) -> None:
        """Whoever was interrupted may have left any of it undone."""
        self._looking = False
        self._send_held()
        if self._leader is not None:  # it drains what an edge that was swallowed told of
            os.eventfd_write(self._leader, 1)
        elif self._pending and self._ended is None:
            self._arm()
            self._drain(arrived)

    def _look_soon(self) -> None:
        if not self._looking:
            self._loop.call(self._look_later)
            self._looking = True

    def _look_later(self) -> None:
        self._loop.after(LOOK_S, self._look)

    def _arm(self) -> None:
        if not self._armed and self._ended is None:
            with shield:
                self._armed = True
                self._loop.watch(self._fd, self._hear, edge=True)

    def _disarm(self) -> None:
        if self._armed:
            with shield:
                self._armed = False
                self._loop.unwatch(self._fd)

    # --- receiving; without the lock --------------------------------------------------------------

    def _sleep(self, poll: Any, wake: int, begin: float, left_s: float | None) -> None:
        """Return when something may have arrived."""
        ready = poll.poll(0)
        if self._soon:
            spin_until = begin + min(SPIN_S, SPIN_S if left_s is None else left_s)
            while not ready and time.monotonic() < spin_until:
                os.sched_yield()  # libzmq's own threads, ours and the actor's, need a core
                ready = poll.poll(0)
        if not ready:
            ready = poll.poll(None if left_s is None else min(left_s * 1000, LONGEST_POLL_MS))
        if any(fd == wake for fd, _ in ready):
            os.eventfd_read(wake)

    def _hear(self) -> None:
        """On the loop's thread, at an edge."""
        self._in_turn(self._take_edge)

    def _look(self) -> None:
        """On the loop's thread, a while after something was submitted."""
        self._in_turn(self._look_now)

    def _attend(self) -> None:
        self._attending = False
        self._in_turn(self._begin_to_attend)

    def _in_turn(self, act: Callable[[Arrived], object]) -> None:
        """On the loop's thread: act with the lock held, if need be a little later."""
        self._due.append(act)
        if self._is_late:
            delivery.hand_over(delivery.of_this_thread())
        else:
            self._take_turn()

    def _take_turn(self) -> None:
        me = delivery.of_this_thread()
        has_turn = self._lock.acquire(timeout=TURN_S)
        self._is_late = not has_turn
        if has_turn:
            try:
                while self._due:
                    self._due.popleft()(me.arrived)
            finally:
                self._lock.release()
                if self._due:  # one has raised, and the others are to come
                    self._loop.call(self._take_turn)
        else:
            self._loop.after(LOOK_S, self._take_turn)
        delivery.hand_over(me)

    def _leave_to_loop(self, me: delivery.OfThread) -> None:
        """Have what this thread was interrupted in be done to its end."""
        with shield:
            rest = [*me.arrived], [*me.to_tell]
            me.arrived.clear()
            me.to_tell.clear()
            self._loop.call(partial(self._mend, *rest))

    def _mend(self, arrived: list[delivery.Arrival], to_tell: list[CallFuture[Any]]) -> None:
        """On the loop's thread: whatever was to be done, or seen to, is."""
        me = delivery.of_this_thread()
        me.arrived.extend(arrived)
        me.to_tell.extend(to_tell)
        self._in_turn(self._see_to_all)

    def _withdraw(self, future: CallFuture[Any], loan: Loan | None) -> None:
        """Forget a call that nobody is going to wait for; a reply to it is declined."""
        with self._lock:
            self._pending.pop(future.call_id, None)
        self._account.settle(future)
        if loan is not None:
            self._take_back(loan)

    def deliver(self, future: CallFuture[Any], message: wire.Message | BaseException) -> None:
        """Give a call its outcome.  Outside of the lock: it may run a user's code."""
        self._account.settle(future)
        if future.answered:  # by a Deadlock, or before an interrupt
            return
        if isinstance(message, BaseException):
            with shield:  # once: to be lost twice is to be tried twice again
                if future.receiver is self:
                    future.lose(message)
            return
        if self._may_share and message.buffers and _is_large(message):
            self._offer_memory()
        try:
            if message.kind is Kind.RESULT:
                value = codec.decode(message.payload, message.buffers)
                if type(value) in _STAND_INS:
                    with shield:  # a stream that is dropped again would close it over there
                        future.settle(self._here(value, future.keep), None)
                else:
                    future.settle(value, None)
            else:
                future.settle(None, delivery.error_of(message))
        except Exception as error:  # a value that does not unpickle here
            future.settle(None, delivery.without_frames(error))

    def _here(self, value: Token | Itself, actor: Any) -> object:
        """Return what the caller gets where the actor answered with a stand-in."""
        return actor.face(actor) if isinstance(value, Itself) else self._stream(value.name, actor)

    def _stream(self, name: str, keep: object) -> Stream[Any]:
        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", keep)
            self.send(Kind.NEXT, name, OutgoingValue(NOTHING), future, background=True)
            return future

        def end() -> None:
            # From wherever the last reference went, perhaps amid a call: not on this thread.
            last: CallFuture[Any] = CallFuture("a stream", keep)
            close = lambda: self.send(
                Kind.CLOSE, name, OutgoingValue(NOTHING), last, background=True
            )
            self._loop.call(close)

        return Stream(ask, end)

    # --- back-pressure ----------------------------------------------------------------------------

    def _take_back(self, loan: Loan) -> None:
        if (ours := arena.ours()) is not None:
            with shield:
                ours.take_back(loan)

    def _wait_for_room(self, nbytes: int) -> None:
        """Wait for the oldest calls until what is in flight is within its bounds."""
        if self._loop.is_own_thread():  # a done-callback: it is the one that receives
            return
        if not self._told:
            self._told = True
            in_flight.tell(self.location.name, len(self._pending), self._account.nbytes)
        while (oldest := self._oldest()) is not None and (
            len(self._pending) >= in_flight.CALLS_A_HANDLE
            or self._account.nbytes + nbytes > in_flight.BYTES_A_HANDLE
        ):
            self.wait(oldest)

    def _oldest(self) -> CallFuture[Any] | None:
        with self._lock:
            return next(iter(self._pending.values()), None)

    # --- memory shared with the actor -------------------------------------------------------------

    def _offer_memory(self) -> None:
        """Ask the actor to exchange large values through memory from now on."""
        if not self._may_share or (ours := arena.ours()) is None:
            return
        self._may_share = False  # asked once
        future: CallFuture[Any] = CallFuture("the actor")
        future.add_done_callback(self._open_memory)
        address = codec.Encoded((control.encode(ours.address),), ())
        self.send(Kind.OPEN, "", OutgoingValue(address), future, background=True)

    def _open_memory(self, future: Any) -> None:
        if future.exception() is not None or (theirs := future.result()) is None:
            return  # it died, or it cannot: by socket, as before
        with suppress(Exception):  # we cannot
            peer = MemoryPeer(theirs)
            peer.reads = True
            self._memory_peer = peer
            said: CallFuture[Any] = CallFuture("the actor")
            self.send(Kind.OPENED, "", OutgoingValue(NOTHING), said, background=True)

    # --- the connection ---------------------------------------------------------------------------

    def _close_monitor(self) -> None:
        if not self._monitor.closed:
            self._loop.unwatch(self._monitor.FD)
            self._monitor.close(linger=0)

    def _may_have_left(self) -> bool:
        """Tell whether the actor may have received anything, by the last word of the monitor.

        libzmq tells it of the handshake before it sends the first byte: so what is not told by now
        has not been.  Who may not ask, since it is the loop's, cannot rule it out.
        """
        if self._loop.is_own_thread():
            self._read_monitor()
            return self.connected
        return True

    def _hear_monitor(self) -> None:
        """On the loop's thread."""
        self._read_monitor()

    def _read_monitor(self) -> None:
        while not self._monitor.closed and readable(self._monitor):
            event = sockets.event_of(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
            elif event & BROKEN and not self._broken:
                self._broken = True
                self._on_broken(self)


def _is_large(message: wire.Message) -> bool:
    return sum(map(len, message.buffers)) >= arena.SHARE_FROM_BYTES
