"""One connection from a client to one life of an actor: what is sent over it, and what is received.

A channel never reconnects.  When its connection breaks, its calls wait for the obituary of the
actor, then fail with an error that tells whether they may have run, and the next call opens a new
channel.  So no queued call can reach the next life of an actor, and a late reply of an earlier life
has nowhere to go.

Over 700 lines: one state machine under one lock, whose steps interrupt each other.

A ZeroMQ socket belongs to one thread at a time, and the channel's lock is that time.  A blocking
call leaves from and returns to its own thread.  The numbers stand beside the code.

Sending, by the thread that calls:

    1  The call gets an id, and is pending until its reply is taken in.
    2  It leaves at once.  If it is small and the actor has work for a while (HOLD_ABOVE calls are
       pending), it is held, and leaves together with others in one message: when HOLD_CALLS are
       held, when a thread waits for a reply, or when the loop looks.
    3  Any use of the socket may swallow the edge of its descriptor, which is edge-triggered.  So a
       thread that has used it while another one sleeps on it drains it before it lets go of the
       lock, and wakes that thread if something came.

Receiving, by leader and followers:

    4  A thread that waits leads if no other does: it drains the socket, lets go of the lock, and
       sleeps on the descriptor.  It takes in whatever arrives, for every thread.
    5  It wakes, takes the lock, drains, and leads no more.  The loop looks after what is pending.
    6  A thread that waits while another one leads is a follower: it sleeps until its call has an
       outcome.  From then on the loop receives too, as the leader may leave first.  The loop's own
       thread, if a callback or a value that it unpickles calls an actor, has nobody to do so: it
       looks every TURN_S whether it can lead.
    7  If somebody wants to be told (a callback, an await), the loop receives.
    8  If nobody has asked yet, the loop looks after LOOK_S.  So a program that submits and then
       waits is not disturbed by a second thread that would take turns with it at every reply.

Replies that a thread has taken from the socket stay in deques of its own, `ThreadState`, until they
are delivered, without the lock:

    9  All calls get their outcomes.  This may unpickle, and so run the user's code.
   10  Then the done-callbacks run.  One that waits delivers what arrives meanwhile, and leaves the
       callbacks to the hand-over that called it, so hand-overs do not nest.

A signal handler that raises, as Ctrl-C does, interrupts the main thread between any two steps, and
must harm no other call:

   11  What cannot be repeated runs `with shield`: to take a message from the socket, and to send
       several frames.
   12  An interrupted thread leaves the rest to the loop's thread, which no signal reaches: replies
       that it has taken, calls that are held, an edge that it may have swallowed.  So a reply may
       be delivered twice; the second time does nothing.
   13  A handler may run for long while its thread holds the lock.  So the loop tries to get the
       lock for TURN_S, and comes back later if it did not.  What the client itself has to tell the
       actor later leaves so too: where results are to stay, that memory is open, the end of a
       stream.

A handler must not call an actor: it may have interrupted the very step that it would take.  Such
calls are refused (`ThreadState.in_call`).  Not done: to delay handlers whenever the lock is held.
That costs a submitted call a seventh of its time.

The end:

   14  The connection breaks: nothing leaves any more.  The master is about to say why.
   15  The actor has exited in good order.  Its last replies may still be on their way, and behind
       them comes the end of the connection.
   16  It ends: what has arrived counts, and every other pending call fails.  A call may have run
       if it has left, and if the actor had begun it: the obituary has the last id that it began
       for this connection, as the actor wrote it into memory that its worker reads.  Without an
       obituary every call that has left may have run.  A leader is woken, finds that nothing is
       pending, and sleeps on its own future until the loop has settled it.

Sleeping and being woken take most of the time of a short call.  So a leader first polls for SPIN_S
without sleeping, if the last reply of this actor came soon.
"""

import itertools
import os
import secrets
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import zmq

from remotely.calling import back_pressure
from remotely.calling.actor import EndError
from remotely.calling.back_pressure import Room
from remotely.client import stored_results
from remotely.client.bulk_transfer import Stores
from remotely.client.deadlock import WaitReporter
from remotely.client.end_errors import last_begun
from remotely.client.master_session import MasterSession
from remotely.errors import RemotelyError, WireError
from remotely.futures.future import CallFuture
from remotely.futures.reference import Elsewhere
from remotely.futures.stream import Stream
from remotely.machine import this_machine
from remotely.machine.owned_fd import OwnedFd
from remotely.machine.shield import RLock, shield
from remotely.protocol import control, wire
from remotely.protocol.control import Location, Obituary
from remotely.protocol.lease import DRAIN_S
from remotely.protocol.numbers import ROUTE_BYTES
from remotely.protocol.wire import Kind
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.connection_monitor import ConnectionMonitor
from remotely.transport.keys import KeyPair
from remotely.transport.listening import nearest
from remotely.transport.sockets import EVENTS, NOBLOCK, POLLIN, Reconnect, readable
from remotely.values import arena
from remotely.values.arena import Loan
from remotely.values.codec import Encoded
from remotely.values.owned import NOTHING
from remotely.values.payload import MemoryPeer, OutgoingValue, Parcel, read_loan, with_loan

HOLD_ABOVE = 16  # calls in flight: the actor has work for a while, and further ones may wait
HOLD_CALLS = 32  # at most so many calls leave together
LOOK_S = 0.002
MAX_LOOKS_DELAYED = 25  # in a row, for a program that keeps submitting
LONGEST_POLL_MS = 2**31 - 1  # the most that poll takes: 24 days
SPIN_S = 400e-6 if this_machine.cores() > 1 else 0.0  # a single core is the actor's to use
SOON_S = 1e-3
TURN_S, RETRY_S = 0.005, 0.002  # for the loop to get the lock; hardly any thread holds it so long
TELL_AFTER_S = 2.0  # that a call waits for one whose own wait was interrupted
ANSWER_S = 0.5  # to a cancellation: the actor may be stopped, or hold the interpreter

Arrival = tuple["Channel", CallFuture[Any], wire.Message | BaseException]


class ThreadState:
    """What one thread receives with, for all channels.

    arrived     replies that it has taken from a socket and not begun to deliver
    begun       replies that it is delivering: several, if the user's code waits in there
    to_tell     delivered futures whose done-callbacks still have to run
    in_call     it sends or sleeps: whatever calls now is a signal handler, or a destructor that the
                garbage collector runs
    wake        an eventfd that wakes the thread, and is closed with it
    """

    def __init__(self) -> None:
        self.arrived: deque[Arrival] = deque()
        self.begun: list[Arrival] = []
        self.to_tell: deque[CallFuture[Any]] = deque()
        self.hands_over = False
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
    """The replies and descriptors of the parent stay with the parent."""
    global _local
    _local = threading.local()


os.register_at_fork(after_in_child=_after_fork)


def refuse_in_call(what: str) -> None:
    """Raise RemotelyError if this thread is in the middle of sending or receiving."""
    if this_thread().in_call:
        raise RemotelyError(
            f"{what} is called in the middle of another call, by a signal handler or a destructor, "
            "which must not call actors: set a flag there and look at it between calls, or have a "
            "thread of your own make the call"
        )


def hand_over(me: ThreadState) -> None:
    """Hand over all that a thread has taken.  Hold no lock: this runs the user's code.

    A signal handler may strike between any two lines.  If it raises, what is in `arrived` and in
    `begun` goes to the loop (12).  If it calls an actor, that hands over all that has arrived, and
    leaves nothing to take away; the reply that this was about to begin is then delivered twice.
    """
    arrived, begun, to_tell = me.arrived, me.begun, me.to_tell
    while arrived:  # (9)
        try:
            first = arrived[0]
        except IndexError:
            break
        begun.append(first)
        with suppress(IndexError):
            arrived.popleft()  # if the user's code waits in there, it begins with the next
        channel, future, reply = first
        if channel.deliver(future, reply):
            to_tell.append(future)
        with suppress(IndexError):  # a wait in there was interrupted, and has left it to the loop
            begun.pop()
    if to_tell and not me.hands_over:  # (10)
        me.hands_over = True
        try:
            while to_tell:
                to_tell[0].tell()
                if to_tell:  # else a wait in there was interrupted, and has left them to the loop
                    del to_tell[0]
        finally:
            me.hands_over = False


class Shared(NamedTuple):
    """What all channels of a client share."""

    pair: KeyPair
    session: MasterSession
    stores: Stores
    waits: WaitReporter | None  # if this process is an actor


class Channel:
    """Calls to one life of an actor.  The `Receiver` of their replies.

    is_open         whether calls can leave; when it is broken, how it ended is known soon
    ended           how it ended, or None until that is known
    endpoint        the address of the actor to which it is connected
    sources_sent    how many of the batches of sources.py were sent

    `on_broken` is called on the loop's thread; `on_news` when it is connected, broken, or has
    ended.

    _peer               the actor as a partner in memory, once it has opened ours
    _may_offer_memory   the actor is on this machine, and was not asked yet

    With the lock:

    _pending    the calls that have no reply, by their ids; empty for good once it has ended
    _held       of those, the encoded ones that have not left
    _unsent     the ids of those that cannot leave, as the connection is broken
    _leader     the wake descriptor of the thread that receives
    _armed      the loop receives
    _looking    the loop is going to look
    _busy       some thread has used the socket since the last look
    """

    def __init__(
        self,
        shared: Shared,
        location: Location,
        on_news: Callable[[], None],
        on_broken: Callable[["Channel"], None],
    ) -> None:
        pair, session, stores, waits = shared
        loop = session.loop
        self.location = location
        self.is_open = True
        self.ended: EndError | None = None
        self.sources_sent = 0
        self._loop = loop
        self._on_news = on_news
        self._on_broken = on_broken
        self._session = session
        self._stores = stores
        self._waits = waits
        self._lock = RLock()
        self._ids = itertools.count(1)
        self._pending: dict[int, CallFuture[Any]] = {}
        self._held: dict[int, bytes | memoryview] = {}
        self._unsent: set[int] = set()
        self._is_broken = False  # nothing leaves any more
        self._end_after_replies: Callable[[], None] | None = None
        self._leader: int | None = None
        self._armed = False
        self._looking = False
        self._looks_delayed = 0
        self._busy = False
        self._soon = True  # the last reply came soon
        self._interrupted: weakref.ref[CallFuture[Any]] | None = None  # the last wait was for that
        public_key = location.public_key
        self._socket: Any = sockets.client(session.context, pair, public_key, Reconnect.NEVER)
        self._fd = int(self._socket.FD)
        # By it a cancellation names this connection, and an obituary says what of it has begun.
        self._route = b"r" + secrets.token_bytes(ROUTE_BYTES - 1)
        self._socket.setsockopt(zmq.ROUTING_ID, self._route)
        same_host = location.host == session.host
        self._peer: MemoryPeer | None = None
        self._may_offer_memory = same_host and arena.SUPPORTED
        self._fetches = False
        self.endpoint = location.ipc if same_host else nearest(location.tcp)
        self._monitor = ConnectionMonitor(self._socket, loop, self._break, on_news)
        try:
            sockets.connect(self._socket, self.endpoint)
        except BaseException:  # the loop would keep them
            self._monitor.close()
            self._socket.close(linger=0)
            raise

    @property
    def unanswered(self) -> int:
        """How many calls wait for their reply; any thread may ask."""
        return len(self._pending)

    @property
    def connected(self) -> bool:
        """Whether the connection was ever established, as far as the loop has heard."""
        return self._monitor.connected

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: OutgoingValue | None = None,
        may_wait_elsewhere: bool = False,
    ) -> bool:
        """Send one call.  Without `background` the caller is about to wait for it.

        `large` is the value too, if that may go through memory or is in a store.  If nothing can
        leave any more, the call fails; or this returns false, if it `may_wait_elsewhere` for
        another channel.
        """
        me = this_thread()
        refuse_in_call(future.what)
        if self._waits is not None and not background:
            self._waits.refuse(self.location.actor, future.what)
        bounded = background and kind is Kind.CALL
        if bounded and len(self._pending) >= back_pressure.MAX_CALLS and future.receiver is None:
            self._wait_for_room(future, 0)
        loan = None
        try:
            if large is not None and large.is_large:
                if future.counted_by is None and future.keep is not None:
                    # One that waited in a queue had room, and holds up those that make it.
                    self._count(large.nbytes, future, bounded and future.receiver is None)
                with shield:
                    loan = large.lend(self._peer)
                if loan is None:
                    self._offer_memory()
            me.in_call = True
            with self._lock:
                is_sent = self.is_open or (self.ended is None and not may_wait_elsewhere)
                if is_sent and loan is None:
                    self._leave(kind, name, value, future, background, large)
                elif is_sent:
                    with shield:  # (11)
                        if self._leave(kind, name, value, future, background, large, loan):
                            loan = None
                if is_sent:
                    if self._leader is not None or self._armed:
                        self._drain_for_sleepers(me.arrived)
                    elif background:  # (8)
                        self._busy = True
                        self._look_soon()
            me.in_call = False
            if loan is not None and large is not None:
                with shield:  # (11): later the slot may be another loan's
                    large.take_back(loan)
                    loan = None
            if not is_sent and not may_wait_elsewhere:
                assert self.ended is not None
                future.lose(self.ended(False))
                future.tell()
            if me.arrived:
                hand_over(me)
            return is_sent
        except BaseException:  # it cannot be sent, or we are interrupted
            me.in_call = False
            self._withdraw(future)
            if loan is not None and large is not None:
                large.take_back(loan)
            self._leave_to_loop(me)
            raise

    def _leave(
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
        self._pending[call_id] = future
        if faults.ON and faults.at("client.call"):
            self._cut()
        if self._is_broken:
            self._unsent.add(call_id)
            return False
        may_be_held = background and kind is Kind.CALL and large is None and len(frames) == 1
        if may_be_held and len(self._pending) > HOLD_ABOVE:  # (2)
            self._held[call_id] = frames[0]
            if len(self._held) >= HOLD_CALLS:
                self._send_held()
            else:
                self._look_soon()
            return True
        if self._held:
            self._send_held()
        if len(frames) == 1:
            self._socket.send(frames[0], NOBLOCK)
        else:
            with shield:  # (11)
                sockets.send(self._socket, frames)
        return True

    def _tell(self, kind: Kind, name: str, value: Encoded, arrived: deque[Arrival]) -> None:
        """With the lock, on the loop's thread: send what nobody waits for (13)."""
        if self.is_open:
            self._leave(kind, name, value, CallFuture("the actor"), background=True)
            self._drain_for_sleepers(arrived)
            self._look_soon()

    def send_file(self, digest: str, content: bytes, future: CallFuture[None]) -> None:
        """Send one of the client's files."""
        value = Encoded((), (memoryview(content),))
        self.send(Kind.FILE, digest, value, future, background=True)

    def fetch_results(self, fetches: bool) -> None:
        """Tell the actor whether large results are to stay in its machine's store."""
        self._fetches = fetches
        if self._loop.is_own_thread():
            self._in_turn(self._tell_where)
        else:  # of who opens the channel
            told: CallFuture[Any] = CallFuture("the actor")
            self.send(Kind.STORE, "", self._where(), told, background=True)

    def _tell_where(self, arrived: deque[Arrival]) -> None:
        self._tell(Kind.STORE, "", self._where(), arrived)

    def _where(self) -> Encoded:
        return Encoded((wire.FETCHES if self._fetches else b"",), ())

    def _send_held(self) -> None:
        """With the lock: send the calls that are held, unless the connection is broken."""
        if self._held and not self._is_broken:
            with shield:  # (11)
                held, self._held = self._held, {}
                sockets.send(self._socket, wire.batch(Kind.CALLS, [*held.values()]))

    def _drain_for_sleepers(self, arrived: deque[Arrival]) -> None:
        """With the lock, after the socket was used: (3)."""
        if self._leader is not None or self._armed:
            self._drain(arrived)
            if arrived and self._leader is not None:
                os.eventfd_write(self._leader, 1)

    def _count(self, nbytes: int, future: CallFuture[Any], may_wait: bool) -> None:
        """Count a large value as in flight; if it `may_wait`, when there is room for it."""
        may_wait = may_wait and not self._loop.is_own_thread()
        if may_wait:
            self._wait_for_room(future, nbytes)
        future.keep.back_pressure.count(future, nbytes, may_wait)  # type: ignore[attr-defined]

    def _wait_for_room(self, future: CallFuture[Any], nbytes: int) -> None:
        actor: Any = future.keep
        if not self._loop.is_own_thread():  # else a done-callback: replies arrive on its thread
            actor.back_pressure.wait_for_room(actor, nbytes, self.wait)

    def _withdraw(self, future: CallFuture[Any]) -> None:
        """Forget a call that nobody will wait for; a reply to it is declined."""
        with self._lock:
            if self._pending.get(future.call_id) is future:  # the id may be of another channel
                del self._pending[future.call_id]
        if future.counted_by is not None:
            future.counted_by.settle(future)

    def _offer_memory(self) -> None:
        """Ask the actor, once, to exchange large values through memory from now on."""
        if self._may_offer_memory and (ours := arena.ours()) is not None:
            self._may_offer_memory = False
            future: CallFuture[Any] = CallFuture("the actor")
            future.add_done_callback(self._open_theirs)
            address = Encoded((control.encode(ours.address),), ())
            self.send(Kind.OPEN, "", address, future, background=True)

    def _open_theirs(self, future: Any) -> None:
        if future.exception() is not None or (theirs := future.result()) is None:
            return  # the actor died, or cannot share memory: go on by socket
        with suppress(Exception):  # this process cannot open it: go on by socket
            peer = MemoryPeer(theirs)
            peer.reads = True
            self._peer = peer
            tell = partial(self._tell, Kind.OPENED, "", NOTHING)
            self._loop.call(partial(self._in_turn, tell))

    # --- calls that are taken back ----------------------------------------------------------------

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

    def cancel(self, future: CallFuture[Any], waits: bool) -> bool:
        """Have the actor not begin a call that has left; true if it is known that it never will.

        The request goes by the master, and the answer comes over the connection of the call, as the
        reply of a call that was never sent: see actor/dispatch.py.  With `waits`, this waits
        for it.  Whether or not anybody does, the reply to a call that was taken back says so.
        """
        waits = waits and not self._loop.is_own_thread()  # which receives the answer
        asked: CallFuture[bool] = CallFuture("a cancellation")
        with self._lock:
            if self._pending.get(future.call_id) is not future:
                return False
            asked.call_id, asked.receiver = next(self._ids), self
            if waits:
                self._pending[asked.call_id] = asked
        self._session.tell(
            control.Cancel(
                actor=self.location.actor,
                route=self._route,
                call=future.call_id,
                answer=asked.call_id,
            )
        )
        if not waits:
            return False
        try:
            never_runs = asked.result(ANSWER_S)
        except RemotelyError:  # no answer, or the connection broke
            never_runs = False
        with self._lock:
            self._pending.pop(asked.call_id, None)
            if never_runs:  # its reply, which says so too, is not waited for
                self._pending.pop(future.call_id, None)
        return never_runs

    # --- receiving --------------------------------------------------------------------------------

    def wait(self, future: "CallFuture[Any] | Room", timeout: float | None = None) -> None:
        """Return when `future` is done, or after `timeout` seconds."""
        me = this_thread()
        refuse_in_call(future.what)
        begin = time.monotonic()
        deadline = None if timeout is None else begin + timeout
        arrived, wake = me.arrived, me.wake
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        leads = has_looked = False
        reported = None
        if self._interrupted is not None and isinstance(future, CallFuture):
            told = partial(self._tell_what_runs, self._interrupted, weakref.ref(future))
            self._loop.after(TELL_AFTER_S, told)
            self._interrupted = None
        try:
            if self._waits is not None and deadline is None:
                reported = self._waits if self._waits.begin(self.location, future) else None
            if arrived:  # this thread is handing over replies, and the next may be this one
                hand_over(me)
            is_done = future.answered
            while not is_done:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    if has_looked:
                        return
                    left_s = 0.0  # a reply that has arrived counts
                has_looked = True
                if reported is not None:
                    is_answered = not self._is_here(future)
                    left_s = reported.go_on(self.location, begin, is_answered)
                me.in_call = True
                with self._lock:
                    if self._held:
                        self._send_held()
                        self._drain_for_sleepers(arrived)
                    is_here = self._is_here(future)  # else sent again, elsewhere
                    if is_here and self._leader is None:  # (4)
                        leads, self._leader = True, wake
                        self._drain(arrived)
                    elif is_here:  # (6)
                        self._arm()
                        if left_s == 0.0:  # there is no time to wait for the leader
                            self._drain_for_sleepers(arrived)
                if not arrived:
                    if leads:
                        self._sleep(poll, wake, begin, left_s)
                    elif not self._loop.is_own_thread():
                        # Another thread receives the reply, or is delivering it right now.
                        future.block(left_s)
                    else:  # in the user's code: no loop would receive once the leader has left
                        future.block(TURN_S if left_s is None else min(left_s, TURN_S))
                if leads:  # (5)
                    with self._lock:
                        leads, self._leader = False, None
                        self._drain(arrived)
                        if self._pending and not self._armed:
                            self._busy = True
                            self._look_soon()
                me.in_call = False
                # Do not lead meanwhile: a done-callback may call again, and wait.
                hand_over(me)
                is_done = future.answered or future.done()
        except BaseException:
            if leads:
                self._leader = None
            self._leave_to_loop(me)
            if isinstance(future, CallFuture) and not future.answered:
                self._interrupted = weakref.ref(future)
            raise
        finally:
            me.in_call = False
            if reported is not None:
                reported.end()
        self._soon = time.monotonic() - begin < SOON_S

    def _sleep(self, poll: Any, wake: int, begin: float, left_s: float | None) -> None:
        """Without the lock: return when something may have arrived."""
        ready = poll.poll(0)
        if self._soon:
            spin_until = begin + min(SPIN_S, SPIN_S if left_s is None else left_s)
            while not ready and time.monotonic() < spin_until:
                os.sched_yield()  # libzmq's threads, our own and the actor need a core
                ready = poll.poll(0)
        if not ready:
            ready = poll.poll(None if left_s is None else min(left_s * 1000, LONGEST_POLL_MS))
        if any(fd == wake for fd, _ in ready):
            os.eventfd_read(wake)

    def _is_here(self, future: "CallFuture[Any] | Room") -> bool:
        """Tell whether a reply of ours may complete a future, or make room."""
        if isinstance(future, Room):
            return bool(self._pending)
        return self._pending.get(future.call_id) is future

    def _drain(self, arrived: deque[Arrival]) -> None:
        """With the lock: take in what has arrived, for this thread to hand over."""
        if self._pending and self._socket.get(EVENTS) & POLLIN:
            with shield:  # (11)
                self._take_in(arrived)
        if not self._pending:
            self._disarm()

    def _take_in(self, arrived: deque[Arrival]) -> None:
        taken: list[Arrival] = []
        more = True
        while more:
            with suppress(WireError):
                for reply in wire.unbatch(wire.decode(sockets.receive(self._socket), "actor")):
                    if (future := self._pending.pop(reply.call_id, None)) is not None:
                        # Now, as it may be handed over after the channel has ended.
                        opened = with_loan(reply, self._peer) if reply.loan else reply
                        taken.append((self, future, opened))
                    else:
                        self._decline(reply)
            more = bool(self._pending and self._socket.get(EVENTS) & POLLIN)
        if faults.ON and taken and faults.at("client.reply"):
            self._pending.update((future.call_id, future) for _, future, _ in taken)
            self._cut()
        else:
            arrived.extend(taken)

    def deliver(self, future: CallFuture[Any], reply: wire.Message | BaseException) -> bool:
        """Give a call its outcome, and return whether callbacks have to be told of it.

        The outcome is a reply, or the error of a call that has none.  Without the lock, as this may
        run the user's code.
        """
        if future.answered:  # before an interrupt (12)
            if isinstance(reply, wire.Message) and not isinstance(future.where, Elsewhere):
                self._decline(reply)
        elif isinstance(reply, BaseException):
            if future.receiver is self:  # else it is being sent again already
                future.lose(reply)
        elif reply.loan:
            stored_results.take(self, self._stores, future, reply)
        else:
            if reply.buffers and self._may_offer_memory and _is_large(reply):
                self._offer_memory()
            return future.settle_by(reply, self._stream)
        return future.has_callbacks

    def _decline(self, reply: wire.Message) -> None:
        """Release the value of a message that nobody waits for."""
        loan = read_loan(reply.loan) if reply.loan else None
        if isinstance(loan, Parcel):
            self._stores.release(loan, store=self.location.store)
        elif loan is not None and self._peer is not None:
            self._peer.lender.decline(loan)

    def _stream(self, name: str, keep: object) -> Stream[Any]:
        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", keep)
            self.send(Kind.NEXT, name, NOTHING, future, background=True)
            return future

        def end() -> None:
            # The last reference may go anywhere, even in the middle of a call: so not here.
            tell = partial(self._tell, Kind.CLOSE, name, NOTHING)
            self._loop.call(partial(self._in_turn, tell))

        return Stream(ask, end)

    # --- what the loop does -----------------------------------------------------------------------

    def receive_in_background(self) -> None:
        """Have the loop take in replies as they come (7).

        This completes no call on this thread, which may hold the locks of futures.
        """
        if self._armed and not self._held:
            return
        action = self._receive
        if not self._held and not self._loop.is_own_thread():  # saves a switch of threads
            with self._lock:
                if not self._pending or self._leader is not None:  # the loop looks when it leaves
                    return
                self._arm()
                if not readable(self._socket):
                    return
            action = self._take_edge
        self._loop.call(partial(self._in_turn, action))

    def recover(self) -> None:
        """On the loop's thread, now and then: take in replies that no other thread will.

        A thread that was interrupted between sending a call and waiting for it does not come back.
        """
        if self._pending and self._leader is None and not (self._armed or self._looking):
            self._in_turn(self._receive)

    def _in_turn(self, action: Callable[[deque[Arrival]], object]) -> None:
        """On the loop's thread: run an action with the lock, and hand over what it takes in."""
        me = this_thread()
        if not self._lock.acquire(timeout=TURN_S):  # (13)
            self._loop.after(RETRY_S, partial(self._in_turn, action))
            return
        me.in_call = True  # a destructor that the collector runs in here must not receive
        try:
            action(me.arrived)
        finally:
            me.in_call = False
            self._lock.release()
        hand_over(me)

    def _receive(self, arrived: deque[Arrival]) -> None:
        if self._held:
            self._send_held()
            self._drain_for_sleepers(arrived)
        if self._pending and self._leader is None and not self._armed:
            self._arm()
            self._drain(arrived)

    def _take_edge(self, arrived: deque[Arrival]) -> None:
        if self._leader is None:  # which drains as it leaves
            self._drain(arrived)

    def _look(self, arrived: deque[Arrival]) -> None:
        """A while after a call was submitted: (8)."""
        self._looking = False
        if self._busy and self._looks_delayed < MAX_LOOKS_DELAYED and self._leader is None:
            if self._held:
                self._send_held()
                self._drain_for_sleepers(arrived)
            if self._pending:
                self._looks_delayed += 1
                self._busy, self._looking = False, True
                self._loop.after(LOOK_S, partial(self._in_turn, self._look))
        else:
            self._looks_delayed = 0
            self._receive(arrived)

    def _look_soon(self) -> None:
        """With the lock: have the loop look after LOOK_S, unless it is going to anyway."""
        if not self._looking:
            look = partial(self._in_turn, self._look)
            self._loop.call(lambda: self._loop.after(LOOK_S, look))
            self._looking = True

    def _arm(self) -> None:
        if not self._armed:
            with shield:
                self._armed = True
                edge = partial(self._in_turn, self._take_edge)
                self._loop.watch(self._fd, edge, edge=True)

    def _disarm(self) -> None:
        if self._armed:
            with shield:
                self._armed = False
                self._loop.unwatch(self._fd)

    def _leave_to_loop(self, me: ThreadState) -> None:
        """Have the loop finish what this thread was doing when it was interrupted (12)."""
        with shield:
            rest = [*me.begun, *me.arrived], [*me.to_tell]
            me.begun.clear()
            me.arrived.clear()
            me.to_tell.clear()
            self._loop.call(partial(self._resume, *rest))

    def _resume(self, arrived: list[Arrival], to_tell: list[CallFuture[Any]]) -> None:
        me = this_thread()
        me.arrived.extend(arrived)
        me.to_tell.extend(to_tell)
        self._in_turn(self._look_at_all)
        hand_over(me)

    def _look_at_all(self, arrived: deque[Arrival]) -> None:
        self._looking = False
        self._send_held()
        if self._leader is not None:  # it drains what a swallowed edge had announced
            os.eventfd_write(self._leader, 1)
        elif self._pending:
            self._arm()
            self._drain(arrived)

    def _tell_what_runs(self, *calls: "weakref.ref[CallFuture[Any]]") -> None:
        """Tell, once, that a call waits in line behind one whose wait was interrupted."""
        before, later = (call() for call in calls)
        if before and later and not before.done() and not later.done():
            self._session.complain(
                before.what,
                f"remotely: {later.what} has no answer yet: {before.what}, whose wait was "
                "interrupted, still runs there. To end it, end the actor: remotely.kill(...)",
            )

    # --- the end ----------------------------------------------------------------------------------

    def end(self, ended: EndError, obituary: Obituary | None = None) -> None:
        """Fail every call in flight and close: at once on the loop's thread, else soon.

        Calling this twice is harmless.  If the end was asked for, dropped futures are not reported.
        """
        end = partial(self._in_turn, partial(self._end, ended, obituary))
        if self._loop.is_own_thread():
            end()
        else:
            self.is_open = False
            self._loop.call(end)

    def end_without_loop(self, ended: EndError) -> None:
        """The same when the loop has stopped, on any thread."""
        me = this_thread()
        with self._lock:
            self._end(ended, None, me.arrived)
        hand_over(me)

    def end_after_replies(self, ended: EndError, obituary: Obituary) -> None:
        """On the loop's thread: the actor has exited in good order, so end when its replies are in.

        See (15).
        """
        end = partial(self.end, ended, obituary)
        if not self._pending or not self._monitor.may_have_connected() or self._is_broken:
            end()
            return
        self._leave_no_more()  # a further call cannot leave, and fails with the others
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
        lost, unsent = [*self._pending.values()], self._unsent.union(self._held)
        self._pending.clear()
        self._held.clear()
        if self._leader is not None:  # it cannot leave, and close its descriptor, meanwhile
            os.eventfd_write(self._leader, 1)
        self._disarm()
        self._monitor.close()
        self._socket.close(linger=0)
        self._peer = None
        self._on_news()
        for future in lost:
            if obituary is not None and obituary.asked:
                future.on_unretrieved = None
            error = ended(future.call_id <= last and future.call_id not in unsent)
            arrived.append((self, future, error))

    def _break(self) -> None:
        """On the loop's thread: the connection is broken (14)."""
        if self.ended is not None:
            return
        if self._end_after_replies is not None:
            self._end_after_replies()
        elif not self._is_broken:
            self._leave_no_more()
            self._on_broken(self)
            self._on_news()

    def _cut(self) -> None:
        """Break the connection, as an injected fault."""
        self._leave_no_more()
        self._loop.call(lambda: self._on_broken(self))

    def _leave_no_more(self) -> None:
        self._is_broken = True
        self.is_open = False


def _is_large(message: wire.Message) -> bool:
    return sum(map(len, message.buffers)) >= arena.SHARE_FROM_BYTES
