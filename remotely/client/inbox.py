"""The receiving side of a channel: which thread reads the replies, and when.

A ZeroMQ socket belongs to one thread at a time, and the channel's lock is that time.  The threads
that wait follow the leader/followers pattern:

    A thread that waits for its own reply leads: it takes in whatever arrives, for every thread, and
    sleeps on the socket's descriptor without the lock.
    If no thread leads, and somebody wants to be told of a reply (a callback, an await, a second
    thread that waits), the client's loop receives.
    If nobody has asked yet, the loop looks after LOOK_S.  So a program that submits and then waits
    is not disturbed by a second thread that would take turns with it at every reply.

So a blocking call leaves from and returns to its own thread.  ZeroMQ's descriptor is
edge-triggered, and any operation on the socket may swallow the edge.  So a thread that used the
socket while another one sleeps on it drains the socket before it lets go of the lock, and wakes the
leader if something came.

Signal handlers interrupt the main thread anywhere: by an exception (Ctrl-C), or by code that calls
this very actor.  Three rules keep all other calls unharmed:

    What cannot be repeated runs `with shield`: taking a message, and sending several frames.
    What was taken stays in the deque of its thread until it is handed over (delivery.py).
    An interrupted thread leaves the rest to the loop's thread, which no signal reaches (`_resume`).

A handler that waits here takes the lead from its own thread, and gives it back.  It may have struck
while its thread held the lock, and wait for something that only the loop can do; so the loop never
waits for the lock (loop_turns.py).  Refused: to delay handlers whenever the lock is held.  That
costs a submitted call a seventh of its time.

Sleeping and being woken take most of the time of a short call.  So a leader first polls for SPIN_S
without sleeping, if the last reply of this actor came soon.

Over 250 lines: all of it happens under one lock, and the order of its steps is what makes it
correct.  More objects would also mean more look-ups in `wait`, which every blocking call runs.
"""

import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import zmq

from remotely.calling.back_pressure import Room
from remotely.client import delivery
from remotely.client.cancellation import Cancellation
from remotely.client.deadlock import WaitReporter
from remotely.client.delivery import Arrival, Arrived, Deliver
from remotely.client.loop_turns import LoopTurns
from remotely.client.outbox import Outbox
from remotely.client.shared_memory import SharedMemory
from remotely.errors import WireError
from remotely.futures.future import CallFuture
from remotely.machine import this_machine
from remotely.machine.shield import shield
from remotely.protocol import wire
from remotely.protocol.control import Location
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.loop import Loop
from remotely.transport.sockets import readable

LOOK_S = 0.002
MAX_LOOKS_DELAYED = 25  # in a row, for a program that keeps submitting
LONGEST_POLL_MS = 2**31 - 1  # the most that poll takes: 24 days
SPIN_S = 400e-6 if this_machine.cores() > 1 else 0.0  # a single core is the actor's to use
SOON_S = 1e-3
TELL_AFTER_S = 2.0  # that a call waits for one whose own wait was interrupted


class Inbox:
    """Receives the replies of one channel.

    pending     the calls that have no reply, by their ids.  Empty for good once it is closed
    deliver     gives one call its outcome
    complain    prints a sentence for the user
    cut         breaks the connection, as an injected fault
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        loop: Loop,
        location: Location,
        lock: "threading.RLock",
        turns: LoopTurns,
        pending: dict[int, CallFuture[Any]],
        outbox: Outbox,
        memory: SharedMemory,
        waits: WaitReporter | None,
        deliver: Deliver,
        cancellation: Cancellation,
        complain: Callable[[str, str], None],
        cut: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._fd = int(socket.FD)
        self._loop = loop
        self._location = location
        self._lock = lock
        self._turns = turns
        self._pending = pending
        self._outbox = outbox
        self._memory = memory
        self._waits = waits  # if this process is an actor
        self._deliver = deliver
        self._cancellation = cancellation
        self._complain = complain
        self._cut = cut
        self._interrupted: weakref.ref[CallFuture[Any]] | None = None  # the last wait was for that
        self._leader: int | None = None  # the wake descriptor of the thread that receives
        self._armed = False  # the loop receives
        self._looking = False  # the loop is going to look
        self._looks_delayed = 0
        self._attending = False  # the loop is going to attend
        self._busy = False  # some thread has used the socket since the last look
        self._soon = True  # the last reply came soon

    def wait(self, future: "CallFuture[Any] | Room", timeout: float | None = None) -> None:
        """Return when `future` is done, or after `timeout` seconds."""
        begin = time.monotonic()
        deadline = None if timeout is None else begin + timeout
        me = delivery.this_thread()
        wake, arrived = me.wake, me.arrived
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        leads = has_looked = False
        outer: int | None = None  # our own, if this is a signal handler that waits within a wait
        reported = None
        within, me.waits = me.waits, True
        if self._interrupted is not None and isinstance(future, CallFuture):
            told = partial(self._tell_what_runs, self._interrupted, weakref.ref(future))
            self._loop.after(TELL_AFTER_S, told)
            self._interrupted = None
        try:
            if self._waits is not None and deadline is None:
                reported = self._waits if self._waits.begin(self._location, future) else None
            if arrived:  # this thread is handing over replies, and the next may be this one
                delivery.hand_over(me)
            while not future.done():
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    if has_looked:
                        return
                    left_s = 0.0  # a reply that has arrived counts
                has_looked = True
                if reported is not None:
                    is_answered = not self._is_here(future)
                    left_s = reported.go_on(self._location, begin, is_answered)
                with self._lock:
                    if self._outbox.held:
                        self._flush(arrived)
                    here = self._is_here(future)  # else sent again, elsewhere
                    if here and (self._leader is None or self._leader == wake):
                        outer, leads = self._leader, True
                        self._leader = wake
                        self.drain(arrived)  # sending may have swallowed the edge
                    elif here:
                        self._arm()
                        if left_s == 0.0:  # there is no time to wait for the leader
                            self._after_send(arrived)
                # This may be a handler that interrupted us while we held the lock: release it.
                held = self._lock._release_save() if self._lock._is_owned() else None  # type: ignore[attr-defined]
                try:
                    # A handler may have taken in our reply just before we took the lead.
                    if not arrived and not future.done():
                        if leads:
                            self._sleep(poll, wake, begin, left_s)
                        else:  # another thread receives the reply, or is delivering it right now
                            future.block(left_s)
                finally:
                    if held is not None:
                        self._lock._acquire_restore(held)  # type: ignore[attr-defined]
                if leads:
                    with self._lock:
                        self._leader, leads = outer, False
                        self.drain(arrived)
                        self._after_lead()
                # Do not lead meanwhile: a done-callback may call again, and wait.
                delivery.hand_over(me)
        except BaseException:
            if leads and self._leader == wake:
                self._leader = outer
            self.leave_to_loop(me)
            if isinstance(future, CallFuture) and not future.done():
                self._interrupted = weakref.ref(future)
            raise
        finally:
            me.waits = within
            if reported is not None:
                reported.end()
            if within:  # the outer wait's edge, or its wake-up, may have been consumed here
                os.eventfd_write(wake, 1)
        self._soon = time.monotonic() - begin < SOON_S

    def attend(self) -> None:
        """Let the loop take in replies as they come."""
        me = delivery.this_thread()
        try:
            with self._lock:
                self._begin_to_attend(me.arrived)
            delivery.hand_over(me)
        except BaseException:
            self.leave_to_loop(me)
            raise

    def attend_soon(self) -> None:
        """The same, but complete no future on this thread, which may hold a lock."""
        if not self._attending and (self._outbox.held or not self._armed):
            self._attending = True
            try:
                self._loop.call(self._attend)
            except BaseException:  # interrupted on the way
                self._attending = False
                raise

    def tend(self) -> None:
        """On the loop's thread, now and then: take in replies that no other thread will.

        A thread that was interrupted between sending a call and waiting for it does not come back.
        """
        if self._pending and self._leader is None and not (self._armed or self._looking):
            self._turns.take(self._begin_to_attend)

    def holds(self, future: CallFuture[Any]) -> bool:
        """Tell whether the call has not left yet."""
        with self._lock:
            call_id = future.call_id
            return call_id in self._outbox.held and self._pending.get(call_id) is future

    def recall(self, future: CallFuture[Any]) -> bool:
        """Forget a call that has not left; false if it has."""
        with self._lock:
            if not self.holds(future):
                return False
            del self._outbox.held[future.call_id], self._pending[future.call_id]
            if not self._pending:
                self._disarm()
            return True

    def cancel(self, future: CallFuture[Any], waits: bool) -> bool:
        """Have the actor not begin a call that has left; true if it is known that it never will."""
        return self._cancellation.cancel(future, self, waits)

    # --- while this thread holds the lock ---------------------------------------------------------

    def close(self) -> list[CallFuture[Any]]:
        """Receive nothing more.  Returns the calls that will have no reply."""
        lost = [*self._pending.values()]
        self._pending.clear()
        if self._leader is not None:  # it cannot leave, and close its descriptor, meanwhile
            os.eventfd_write(self._leader, 1)
        self._disarm()
        return lost

    def after_call(self, background: bool) -> bool:
        """Make sure that some thread receives; true if this thread has taken in replies."""
        if self._leader is not None or self._armed:
            arrived = delivery.this_thread().arrived
            self._after_send(arrived)
            return bool(arrived)
        if background:
            self._busy = True
            self.look_soon()
        return False

    def look_soon(self) -> None:
        """Have the loop look after LOOK_S, unless it is going to anyway."""
        if not self._looking:
            self._loop.call(self._look_later)
            self._looking = True

    def drain(self, arrived: Arrived) -> None:
        """Take in what has arrived, for this thread to hand over."""
        if self._pending and readable(self._socket):
            with shield:
                self._take_in(arrived)
        if not self._pending:
            self._disarm()

    def _take_in(self, arrived: Arrived) -> None:
        taken: list[Arrival] = []
        more = True  # unless a signal handler has just taken it in
        while more:
            with suppress(WireError, zmq.Again):
                for message in wire.each(wire.decode(sockets.receive(self._socket), "actor")):
                    if (future := self._pending.pop(message.call_id, None)) is not None:
                        opened = self._memory.open(message) if message.loan else message
                        taken.append((self._deliver, future, opened))
                    else:
                        self._memory.decline(message)
            more = bool(self._pending) and readable(self._socket)
        if faults.ON and taken and faults.at("client.reply"):
            self._pending.update((future.call_id, future) for _, future, _ in taken)
            self._cut()
        else:
            arrived.extend(taken)

    def _flush(self, arrived: Arrived) -> None:
        """Send the calls that are held."""
        self._outbox.send_held()
        self._after_send(arrived)

    def _after_send(self, arrived: Arrived) -> None:
        """Take in what a thread that sleeps on the socket may miss: its edge may be gone."""
        if self._leader is not None or self._armed:
            self.drain(arrived)
            if arrived and self._leader is not None:
                os.eventfd_write(self._leader, 1)

    def _after_lead(self) -> None:
        if self._pending and not self._armed:
            self._busy = True
            self.look_soon()

    def _arm(self) -> None:
        if not self._armed:
            with shield:
                self._armed = True
                self._loop.watch(self._fd, self._hear, edge=True)

    def _disarm(self) -> None:
        if self._armed:
            with shield:
                self._armed = False
                self._loop.unwatch(self._fd)

    # --- on the loop's thread, in its turn: it holds the lock -------------------------------------

    def _begin_to_attend(self, arrived: Arrived) -> None:
        if self._outbox.held:
            self._flush(arrived)
        if self._pending and self._leader is None and not self._armed:
            self._arm()
            self.drain(arrived)

    def _take_edge(self, arrived: Arrived) -> None:
        if self._leader is None:
            self.drain(arrived)

    def _look_now(self, arrived: Arrived) -> None:
        self._looking = False
        if self._outbox.held:
            self._flush(arrived)
        # A leader looks after the rest when it leaves.
        if self._leader is None and self._pending:
            if self._busy and self._looks_delayed < MAX_LOOKS_DELAYED:
                self._looks_delayed += 1
                self._busy, self._looking = False, True
                self._loop.after(LOOK_S, self._look)
            else:
                self._looks_delayed = 0
                self._arm()
                self.drain(arrived)

    def _check_all(self, arrived: Arrived) -> None:
        """Do whatever an interrupted thread may have left undone."""
        self._looking = False
        self._outbox.send_held()
        if self._leader is not None:  # it drains what a swallowed edge had announced
            os.eventfd_write(self._leader, 1)
        elif self._pending:
            self._arm()
            self.drain(arrived)

    def _is_here(self, future: "CallFuture[Any] | Room") -> bool:
        """Tell whether a reply of ours may complete a future, or make room."""
        if isinstance(future, Room):
            return bool(self._pending)
        return self._pending.get(future.call_id) is future

    def _tell_what_runs(self, *calls: "weakref.ref[CallFuture[Any]]") -> None:
        """Tell, once, that a call waits in line behind one whose wait was interrupted."""
        before, later = (call() for call in calls)
        if before and later and not before.done() and not later.done():
            self._complain(
                before.what,
                f"remotely: {later.what} has no answer yet: {before.what}, whose wait was "
                "interrupted, still runs there. To end it, end the actor: remotely.kill(...)",
            )

    # --- without the lock -------------------------------------------------------------------------

    def _sleep(self, poll: Any, wake: int, begin: float, left_s: float | None) -> None:
        """Return when something may have arrived."""
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

    def _hear(self) -> None:
        """On the loop's thread, at an edge of the socket's descriptor."""
        self._turns.take(self._take_edge)

    def _look_later(self) -> None:
        self._loop.after(LOOK_S, self._look)

    def _look(self) -> None:
        """On the loop's thread, a while after a call was submitted."""
        self._turns.take(self._look_now)

    def _attend(self) -> None:
        self._attending = False
        self._turns.take(self._begin_to_attend)

    def leave_to_loop(self, me: delivery.ThreadState) -> None:
        """Have the loop finish what this thread was doing when it was interrupted."""
        with shield:
            rest = [*me.arrived], [*me.to_tell]
            me.arrived.clear()
            me.to_tell.clear()
            self._loop.call(partial(self._resume, *rest))

    def _resume(self, arrived: list[Arrival], to_tell: list[CallFuture[Any]]) -> None:
        """On the loop's thread: finish it."""
        me = delivery.this_thread()
        me.arrived.extend(arrived)
        me.to_tell.extend(to_tell)
        self._turns.take(self._check_all)
