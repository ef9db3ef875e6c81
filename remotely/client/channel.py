"""One connection from a client to one life of an actor, and the calls in flight on it.

    inbox.py               which thread receives the replies, and when
    outbox.py              small calls that leave together
    loop_turns.py          how the client's loop gets the lock
    connection_monitor.py  what libzmq reports about the connection
    shared_memory.py       large values, through memory
    outcomes.py            what a reply becomes for its caller
    cancellation.py        calls that are taken back

The parts share one lock, one socket and one dict of pending calls, which the channel hands to each
of them.  A call therefore finds all that it needs one attribute away, as in a single object.

The thread that calls is the thread that sends.  Only small calls that are submitted while many are
in flight wait in the outbox.

A channel never reconnects.  When its connection breaks, its calls fail with an error that tells
whether they may have run, and the next call opens a new channel.  So no queued call can reach the
next life of an actor, and a late reply of an earlier life has nowhere to go.

The class is a little over 250 lines: what the parts share is wired, begun and ended in one place.
"""

import itertools
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import zmq

from remotely.calling import back_pressure
from remotely.client import delivery
from remotely.client.bulk_transfer import Stores
from remotely.client.cancellation import Cancellation
from remotely.client.connection_monitor import ConnectionMonitor
from remotely.client.deadlock import WaitReporter
from remotely.client.delivery import Arrived
from remotely.client.end_errors import EndError, last_begun
from remotely.client.inbox import Inbox
from remotely.client.loop_turns import LoopTurns
from remotely.client.outbox import Outbox
from remotely.client.outcomes import Outcomes
from remotely.client.shared_memory import SharedMemory, take_back
from remotely.futures.future import CallFuture
from remotely.machine.shield import RLock, shield
from remotely.protocol import wire
from remotely.protocol.control import Location, Obituary
from remotely.protocol.lease import DRAIN_S
from remotely.protocol.numbers import ROUTE_BYTES
from remotely.protocol.wire import Kind
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.keys import KeyPair
from remotely.transport.listening import nearest
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect, client
from remotely.values import codec
from remotely.values.arena import Loan
from remotely.values.payload import OutgoingValue

HOLD_ABOVE = 16  # calls in flight: the actor has work for a while, and further ones may wait


class Channel:
    """Calls to one life of an actor.

    is_open         whether calls can leave; when it is broken, how it ended is known soon
    ended           how it ended, or None until that is known
    endpoint        the address of the actor to which it is connected
    sources_sent    how many of the batches of sources.py were sent

    `on_broken` is called on the loop's thread; `on_news` when it is connected,
    broken, or has ended.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: Loop,
        location: Location,
        same_host: bool,
        pair: KeyPair,
        on_news: Callable[[], None],
        on_broken: Callable[["Channel"], None],
        tell_master: Callable[[msgspec.Struct], None],
        stores: Stores,
        complain: Callable[[str, str], None],
        waits: WaitReporter | None = None,
    ) -> None:
        self.location = location
        self._store = location.store
        self.is_open = True
        self.ended: EndError | None = None
        self.sources_sent = 0
        self._end_after_replies: Callable[[], None] | None = None
        self._loop = loop
        self._on_news = on_news
        self._on_broken = on_broken
        self._waits = waits  # if this process is an actor
        self._lock = RLock()  # a signal handler may call in the middle of a call
        self._ids = itertools.count(1)
        self._pending: dict[int, CallFuture[Any]] = {}
        self._socket = client(context, pair, location.public_key, Reconnect.NEVER)
        # By it a cancellation names this connection, and an obituary says what of it has begun.
        self._route = route = b"r" + secrets.token_bytes(ROUTE_BYTES - 1)
        self._socket.setsockopt(zmq.ROUTING_ID, route)
        self._monitor = ConnectionMonitor(self._socket, loop, self._break, on_news)
        self._turns = LoopTurns(loop, self._lock)
        self._outbox = Outbox(self._socket)
        self._memory = SharedMemory(
            same_host, self.send, partial(stores.release, store=location.store)
        )
        self._cancellation = Cancellation(
            location.actor, route, self._ids, self._pending, self._lock, loop, tell_master
        )
        self._inbox = Inbox(
            self._socket,
            loop,
            location,
            self._lock,
            self._turns,
            self._pending,
            self._outbox,
            self._memory,
            waits,
            Outcomes(self._memory, self.send, loop, stores, location.store).deliver,
            self._cancellation,
            complain,
            self._cut,
        )
        self.endpoint = location.ipc if same_host else nearest(location.tcp)
        sockets.connect(self._socket, self.endpoint)
        self._monitor.start()

    @property
    def unanswered(self) -> int:
        """How many calls wait for their reply; any thread may ask."""
        return len(self._pending)

    @property
    def connected(self) -> bool:
        """Whether the connection was ever established, as far as the loop has heard."""
        return self._monitor.connected

    def send(
        self,
        kind: Kind,
        name: str,
        outgoing: OutgoingValue,
        future: CallFuture[Any],
        background: bool,
        may_wait_elsewhere: bool = False,
    ) -> bool:
        """Send one call.  Without `background` the caller is about to wait for it.

        If nothing can leave any more, the call fails; or this returns false, if it
        `may_wait_elsewhere` for another channel.
        """
        if self._waits is not None and not background:
            self._waits.refuse(self.location.actor, future.what)
        bounded = background and kind is Kind.CALL
        if bounded and len(self._pending) >= back_pressure.MAX_CALLS and future.receiver is None:
            self._wait_for_room(future, 0)
        loan = None
        left = False
        try:
            if outgoing.is_large:
                if future.counted_by is None and future.keep is not None:
                    # One that waited in a queue had room, and holds up those that make it.
                    may_wait = bounded and future.receiver is None
                    self._count(outgoing.nbytes, future, may_wait)
                with shield:
                    loan = outgoing.lend(self._memory.peer)
                if loan is None:
                    self._memory.offer()
            with self._lock:
                is_sent = self.is_open or (self.ended is None and not may_wait_elsewhere)
                if is_sent:
                    call_id = next(self._ids)
                    frames = outgoing.message(kind, call_id, name, loan, self._store)
                    future.call_id = call_id
                    future.receiver = self._inbox
                    self._pending[call_id] = future
                    outbox = self._outbox
                    if faults.ON and faults.at("client.call"):
                        self._cut()
                    if outbox.is_broken:  # the reason is about to arrive
                        outbox.reject(call_id)
                        if loan is not None:
                            take_back(loan)
                    elif (
                        bounded
                        and len(frames) == 1
                        and loan is None
                        and len(self._pending) > HOLD_ABOVE
                        and not outgoing.is_large
                    ):
                        if not outbox.hold(call_id, frames[0]):
                            self._inbox.look_soon()
                    else:
                        if outbox.held:
                            outbox.send_held()  # `after_call` follows
                        if loan is None and len(frames) == 1:
                            sockets.send(self._socket, frames)
                        else:
                            with shield:
                                sockets.send(self._socket, frames)
                                left = True
                    came = self._inbox.after_call(background)
            if not is_sent:
                if loan is not None:
                    take_back(loan)
                if not may_wait_elsewhere:
                    assert self.ended is not None
                    future.lose(self.ended(False))
                    future.tell()
            elif came:
                delivery.hand_over(delivery.this_thread())
            return is_sent
        except BaseException:  # it cannot be sent, or we are interrupted
            self._withdraw(future, None if left else loan)
            self._inbox.leave_to_loop(delivery.this_thread())
            raise

    def fetch_results(self, fetches: bool) -> None:
        """Tell the actor whether large results are to stay in its machine's store."""
        body = OutgoingValue(codec.Encoded((wire.FETCHES if fetches else b"",), ()))
        self.send(Kind.STORE, "", body, CallFuture("the actor"), background=True)

    def receive_soon(self) -> None:
        """Have replies taken in as they come."""
        self._inbox.attend()

    def send_file(self, digest: str, content: bytes, future: CallFuture[None]) -> None:
        """Send one of the client's files."""
        outgoing = OutgoingValue(codec.Encoded((), (memoryview(content),)))
        self.send(Kind.FILE, digest, outgoing, future, background=True)

    def tend(self) -> None:
        """On the loop's thread, now and then: take in replies that no other thread will."""
        self._inbox.tend()

    def end(self, ended: EndError, obituary: Obituary | None = None, now: bool = False) -> None:
        """Fail every call in flight and close.  Calling this twice is harmless.

        If the end was asked for, dropped futures are not reported.  On the loop's thread the
        channel ends when the loop gets its turn, unless `now`.
        """
        if self.ended is not None:
            return
        end = partial(self._end, ended, obituary)
        if self._loop.is_own_thread() and not now:
            self._turns.take(end)
            return
        me = delivery.this_thread()
        try:
            with shield:
                with self._lock:
                    end(me.arrived)
                if now:  # there may be no loop to leave it to
                    delivery.deliver(me)
            delivery.hand_over(me)
        except BaseException:  # an interrupt that was delayed is raised at the end of the shield
            self._inbox.leave_to_loop(me)
            raise

    def end_after_replies(self, ended: EndError, obituary: Obituary) -> None:
        """On the loop's thread: the actor has exited in good order, so end when its replies are in.

        They may still be on their way.  Behind the last of them comes the end of the connection.
        """
        end = partial(self.end, ended, obituary)
        if not self._pending or not self._monitor.may_have_connected() or self._outbox.is_broken:
            end()
            return
        self._close_outbox()  # a further call cannot leave, and fails with the others
        self._end_after_replies = end
        self._loop.after(DRAIN_S, end)

    def _end(self, ended: EndError, obituary: Obituary | None, arrived: Arrived) -> None:
        """End it, with the lock held."""
        if self.ended is not None:
            return
        self._inbox.drain(arrived)  # what arrived before the end counts
        self.is_open = False
        self.ended = ended
        may_have_left = self._monitor.may_have_connected()
        last = last_begun(obituary, self.location.life, self._route) if may_have_left else 0
        lost, unsent = self._inbox.close(), self._outbox.close()
        self._monitor.close()
        self._socket.close(linger=0)
        self._memory.peer = None
        self._on_news()
        for future in lost:
            if obituary is not None and obituary.asked:
                future.on_unretrieved = None
            error = ended(future.call_id <= last and future.call_id not in unsent)
            arrived.append((self._lose, future, error))

    def _lose(self, future: CallFuture[Any], error: Any) -> None:
        """Tell a call that no reply will come.  Without the lock: it may run the user's code."""
        if not future.answered:
            with shield:  # once: a call that is lost twice would be retried twice
                if future.receiver is self._inbox:
                    future.lose(error)

    def _withdraw(self, future: CallFuture[Any], loan: Loan | None) -> None:
        """Forget a call that nobody will wait for; a reply to it is declined."""
        with self._lock:
            self._pending.pop(future.call_id, None)
        if future.counted_by is not None:
            future.counted_by.settle(future)
        if loan is not None:
            take_back(loan)

    def _count(self, nbytes: int, future: CallFuture[Any], may_wait: bool) -> None:
        """Count a large value as in flight; if it `may_wait`, when there is room for it."""
        may_wait = may_wait and not self._loop.is_own_thread()
        if may_wait:
            self._wait_for_room(future, nbytes)
        future.keep.back_pressure.count(future, nbytes, may_wait)  # type: ignore[attr-defined]

    def _wait_for_room(self, future: CallFuture[Any], nbytes: int) -> None:
        actor: Any = future.keep
        if not self._loop.is_own_thread():  # else a done-callback: replies arrive on its thread
            actor.back_pressure.wait_for_room(actor, nbytes, self._inbox.wait)

    def _break(self) -> None:
        """On the loop's thread: the connection is broken."""
        if self._end_after_replies is not None:
            self._end_after_replies()
        elif not self._outbox.is_broken:
            self._close_outbox()
            self._on_broken(self)
            self._on_news()

    def _cut(self) -> None:
        """Break the connection, as an injected fault."""
        self._close_outbox()
        self._loop.call(lambda: self._on_broken(self))

    def _close_outbox(self) -> None:
        """Nothing leaves any more."""
        self._outbox.is_broken = True
        self.is_open = False
