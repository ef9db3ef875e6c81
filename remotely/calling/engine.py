"""The engine: every verb on actors, their calls and their values, over a carrier.

What a call promises is decided here, for every carrier.  Arguments are pickled once, when the call
is made.  Then it is sent

    immediately   on the caller's thread, if nothing delays it.  The value is borrowed: the carrier
                  has copied it before `send` returns
    queued        in its actor's queue (send_queue.py), if other calls wait there, if an argument
                  must be transferred or computed first, if the actor has no open channel and the
                  caller does not wait, or if the value is large and it is not settled yet how large
                  values reach the actor.  Then the value is Owned, in a `WaitingCall`

An actor, from birth to end:

    known      a handle arrived, or a name was looked up; as long as the last handle
    made       the carrier makes a process and an object.  Its maker keeps the class and the
               arguments if it may be restarted
    restarted  its process died, and its maker makes the next life: `begin_restart`
    ended      it was closed, killed or released, or it died for good: `CalledActor.end_with`
"""

import time
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

from remotely.calling import back_pressure
from remotely.calling.actor import CalledActor, MadeFrom, Names
from remotely.calling.back_pressure import RoomForCall
from remotely.calling.carrier import CallChannel, Carrier, Outgoing, WaitingCall, shut_down
from remotely.calling.send_queue import QueuedCall, RetriedFuture, SendQueues
from remotely.engine import Arguments, Arrival, Engine, Options, Prepared, RemoteActor
from remotely.errors import ActorDied, CallTimeout, NameTaken, RemotelyError, WorkerLost
from remotely.futures import wakeup
from remotely.futures.future import CallFuture, futures_among
from remotely.machine import threads
from remotely.machine.interrupts import is_for_main
from remotely.protocol.wire import Kind
from remotely.reporting.chrome_trace import trace
from remotely.reporting.cluster_status import ClusterStatus
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import NOTHING, counted_bytes, own, own_each
from remotely.values.payload import SEND_FROM_BYTES, Transfer
from remotely.values.sources import library
from remotely.values.unpicklable import PartNames


class Attempt(Enum):
    """The result of an attempt to send a call."""

    SENT = auto()
    UNSENT = auto()  # its channel is closed
    NEEDLESS = auto()  # it is not next in its queue, or a future among its arguments has failed


class CallEngine(Engine):
    """The engine over a carrier.  What its verbs promise is written in `Engine`."""

    def __init__(self, carrier: Carrier[Any]) -> None:
        self.carrier = carrier
        self.cluster = carrier.cluster
        self.promises = carrier.promises
        self._encoder = carrier.encoder
        self._begin_send = carrier.begin_send
        self._note_unretrieved = carrier.note_unretrieved
        self._names = Names(inside=bool(carrier.inside))
        self._queues: SendQueues[WaitingCall] = SendQueues(
            self._send_queued, carrier.check_wait, carrier.sleep_until
        )

    # --- actors -----------------------------------------------------------------------------------

    def place(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        self.carrier.check()
        patience_s = options.patience_s
        if patience_s is None:
            patience_s = self.carrier.patience_s
        deadline = time.monotonic() + patience_s
        again = False
        while True:
            if options.get_if_exists and (found := self._find(options.name or "")) is not None:
                return [found]
            try:
                return self._make(cls, arguments, options)
            except NameTaken as error:  # another client was faster; its actor may end meanwhile
                is_of_constructor = error.__cause__ is not None
                if is_of_constructor or not self.carrier.await_name(options, deadline, again):
                    raise
                again = True

    def _make(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        carrier = self.carrier
        carrier.check()
        encoded, state = self._encoder.constructors(cls, arguments)
        names = [self._names.of(cls, options) for _ in encoded]
        actors = carrier.new(self, cls, names, options)
        if options.max_restarts and state is not None:
            encoded = owned = own_each(encoded, lends=carrier.lends)
            for actor, its in zip(actors, owned, strict=True):
                actor.made_from = MadeFrom(its, options, state)
        for actor in actors:
            actor.class_name = cls.__name__
            carrier.known[actor.actor] = actor
        try:
            carrier.check()  # again: the end looks for the actors that are known
            carrier.place(actors, encoded, options, state, options.patience_s)
        except BaseException:
            carrier.abandon(actors, kill=True)
            raise
        return list(actors)

    def find(self, name: str) -> RemoteActor:
        self.carrier.check()
        if (found := self._find(name)) is None:
            where = " on this cluster" if self.cluster else ""
            raise NameError(f"there is no actor named {name!r}{where}")
        return found

    def _find(self, name: str) -> RemoteActor | None:
        found: CalledActor | None = self.carrier.find(self, name)
        return found

    def borrow(self, actor: str, name: str) -> CalledActor:
        known = self.carrier.known
        found: CalledActor | None = known.get(actor)
        if found is None or found.is_released:  # a weak reference finds it in its `__del__`
            found = known[actor] = self.carrier.borrowed(self, actor, name)
        return found

    def hold(self, actor: str, name: str, giver: str) -> RemoteActor:
        held = self.borrow(actor, name)
        self.carrier.hold(held, giver)
        return held

    def await_arrival(self, class_name: str) -> Arrival:
        return self.carrier.await_arrival(self, class_name)

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        carrier = self.carrier
        carrier.check()
        deadline = time.monotonic() + grace_s
        actors = [r for r in remotes if isinstance(r, CalledActor) and r.ended is None]
        if not grace_s:
            carrier.kill(actors)
            return
        if own := [actor for actor in actors if actor.actor == carrier.inside]:
            # It ends after its running methods, one of which may be the caller.
            self.send(own, Kind.END, "", NOTHING, background=True)
            actors = [actor for actor in actors if actor.actor != carrier.inside]
        # No frame here holds a future whose error it raises: see future.py.
        pending = self.send(actors, Kind.END, "", NOTHING, background=True)[::-1]
        failures: list[BaseException] = []  # raised by the classes' own `close`
        try:
            carrier.begin_end(actors, grace_s)
            while pending:
                try:
                    pending.pop().result(max(0.0, deadline - time.monotonic()))
                except (ActorDied, WorkerLost, CallTimeout):
                    pass
                except Exception as error:
                    failures.append(error)
            carrier.await_end(actors, deadline)
        finally:
            carrier.finish_end(actors)
        try:
            if failures:
                raise failures[0]
        finally:
            del failures  # errors refer to this frame

    def release(self, remote: RemoteActor) -> None:
        assert isinstance(remote, CalledActor)
        remote.is_released = True
        self.carrier.release(remote)

    # --- calls and values -------------------------------------------------------------------------

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        if retries and self.carrier.is_immediate:
            retries = 0  # no outcome is ever lost
        encoded, named = self._encoder.arguments(remotes, method, args, kwargs, "")
        return self.send(remotes, Kind.CALL, method, encoded, background, retries, named)

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        self.carrier.check()
        encoded, named = self._encoder.arguments((), method, args, kwargs, names)
        kept = own(encoded, lends=self.carrier.lends)
        futures = futures_among(named) if named else ()
        for future in futures:
            future.is_passed_on = True  # if it is not done, it keeps its result as it arrives
        # Not a function with annotations, which Python would evaluate for each call.
        return Prepared(
            lambda remote: self.send((remote,), Kind.CALL, method, kept, True, 0, named)[0],
            futures,
        )

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        return self.send(remotes, Kind.GET, name, NOTHING, len(remotes) > 1)

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        encoded = self._encoder.value(value, name)
        return self.send(remotes, Kind.SET, name, encoded, len(remotes) > 1)

    def put(self, value: object) -> Any:
        self.carrier.check()
        return self.carrier.put(value)

    def value_of(self, ref: object) -> Any:
        return self._encoder.value_of(ref)

    def is_any_elsewhere(self, remotes: Sequence[RemoteActor]) -> bool:
        """Tell whether large values for any of these are brought to other machines first."""
        return self.carrier.is_any_elsewhere(remotes)

    # --- the cluster ------------------------------------------------------------------------------

    def report(self, fresh: bool = True) -> ClusterStatus:
        return self.carrier.report(fresh)

    def timeline(self, seconds: float) -> dict[str, Any]:
        return trace(self.carrier.timeline(seconds))

    def forget(self) -> None:
        """In a forked child: leave everything, also the end of the cluster, to the parent."""
        self.carrier.forget()

    def shutdown(self) -> None:
        shut_down(self.carrier, lambda: self._queues.close(self.carrier.left()))

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self,
        remotes: Sequence[Any],
        kind: Kind,
        name: str,
        encoded: Encoded,
        background: bool,
        retries: int = 0,
        named: Sequence[NamedReference] = (),
    ) -> list[CallFuture[Any]]:
        """Send one call to each actor.  Without `background`, the caller is about to wait.

        `named` are the futures and refs among its arguments.
        """
        self._begin_send(name)  # before any state changes
        transfer = large = message = None
        is_ready = True
        if named or retries or encoded.nbytes >= SHARE_FROM_BYTES:
            carrier = self.carrier
            if named or retries:
                encoded = own(encoded, lends=carrier.lends)
            if encoded.nbytes >= SEND_FROM_BYTES and not named:
                encoded, transfer = carrier.transfer(remotes, encoded, background)
            transfers = () if transfer is None else (transfer,)
            large = carrier.outgoing(encoded, len(remotes) > 1, transfers)
            is_ready = not named and (transfer is None or transfer.done.done())
            if named or retries:
                message = self._message(remotes, kind, name, encoded, named, transfer)
        may_wait_for_room = background and kind is Kind.CALL
        is_full = False
        calls: list[tuple[CalledActor, CallFuture[Any]]] = []
        futures: list[CallFuture[Any]] = []
        for remote in remotes:
            future: CallFuture[Any]
            what = f"{remote.name}.{name}"
            if message is not None and retries:
                resend = partial(self._queues.add, remote, message)
                future = RetriedFuture(what, remote, resend, retries)
            else:
                future = CallFuture(what, remote)
            if encoded.travelling:
                future.travelling = encoded.travelling
            if may_wait_for_room:
                future.on_unretrieved = self._note_unretrieved
                channel = remote.channel
                if remote.queue is not None or (
                    channel is not None and len(channel.pending) >= back_pressure.MAX_CALLS
                ):
                    is_full = True
            if transfer is not None:
                future.keeps_alive = transfer
            calls.append((remote, future))
            futures.append(future)
        try:
            if large is not None or is_full:
                self._admit(calls, large, may_wait_for_room)
            for remote, future in calls:
                channel = remote.channel
                if not is_ready or remote.queue is not None:
                    channel = None
                elif (channel is None or not channel.is_open) and not background:
                    channel = self._open_for(remote, future)
                if channel is not None and large is not None and not channel.is_introduced:
                    channel = None
                is_sent = False
                if channel is not None and channel.is_open:
                    if channel.sources_sent < len(library.batches):
                        _send_sources(remote, channel)
                    is_sent = channel.send(kind, name, encoded, future, background, large, True)
                if not is_sent and not future.done() and future.receiver is None:
                    if message is None:
                        message = self._message(remotes, kind, name, encoded, named, transfer)
                    if background or not self._send_if_ready(remote, message, future):
                        self._enqueue(remote, message, future, background)
        except BaseException:  # they are not sent, or this thread is interrupted
            back_pressure.settle_unsent(futures)
            raise
        finally:
            if large is not None:
                large.close()
        # With REMOTELY_LOCAL=1 the error of a call holds this frame: so that holds no future, see
        # future.py.
        if calls:
            del future
        del calls
        try:
            return futures
        finally:
            del futures

    def _message(
        self,
        actors: Sequence[CalledActor],
        kind: Kind,
        name: str,
        encoded: Encoded,
        named: Sequence[NamedReference],
        transfer: Transfer | None,
    ) -> WaitingCall:
        value = own(encoded, lends=self.carrier.lends)
        transfers = () if transfer is None else (transfer,)
        return self.carrier.message(actors, kind, name, value, named, transfers)

    def _admit(
        self,
        calls: Sequence[tuple[CalledActor, CallFuture[Any]]],
        large: Outgoing | None,
        may_wait: bool,
    ) -> None:
        """Count the calls with a value; with `may_wait`, wait until there is room for all of them.

        What a ref in it keeps in memory anyway does not count.
        """
        nbytes = 0
        if large is not None:
            lent = all(actor.channel and actor.channel.lends for actor, _ in calls)
            nbytes = counted_bytes(large.encoded) if lent else large.nbytes
        wait = _wait_for_room if may_wait and self.carrier.may_wait() else None
        back_pressure.limits.admit(calls, nbytes, wait)

    def _open_for(self, actor: CalledActor, future: CallFuture[Any]) -> CallChannel | None:
        """Connect to an actor for a caller that waits; None if the call is queued or has failed."""
        if not self.carrier.may_wait() and actor.ended is None:
            return None
        try:
            return self.carrier.connect(actor)
        except RemotelyError as error:
            future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
            future.run_callbacks()
            return None

    # --- queued calls -----------------------------------------------------------------------------

    def _enqueue(
        self, actor: CalledActor, message: WaitingCall, future: CallFuture[Any], background: bool
    ) -> None:
        needs = message.needs(actor)
        if not background:
            self.carrier.check_wait(actor, future, bool(needs))
        future.keeps_alive = message
        self._queues.add(actor, message, future, needs)

    def _send_if_ready(
        self, actor: CalledActor, message: WaitingCall, future: CallFuture[Any]
    ) -> bool:
        """Send a call whose caller waits, if nothing delays it; return whether it is dealt with."""
        channel = actor.channel
        if actor.queue is not None or channel is None or not channel.is_introduced:
            return False
        if not all(need.done() for need in message.needs(actor)):
            return False
        attempt = self._send_message(channel, actor, message, future)
        return attempt is not Attempt.UNSENT

    def _send_queued(self, call: QueuedCall[WaitingCall]) -> None:
        """On a thread of the queue: send the call that is next."""
        actor, message, future = call.actor, call.message, call.future
        channel = self.carrier.connect(actor)
        if message.may_be_large:
            channel.wait_until_introduced()
        match self._send_message(channel, actor, message, future, call):
            case Attempt.SENT:
                channel.receive_in_background()
            case Attempt.UNSENT:
                call.give_back()

    def _send_message(
        self,
        channel: CallChannel,
        actor: CalledActor,
        message: WaitingCall,
        future: CallFuture[Any],
        queued: QueuedCall[WaitingCall] | None = None,
    ) -> Attempt:
        """Try to send a message whose needs are all done; one that is `queued` leaves its queue."""
        try:
            outgoing = message.outgoing_to(actor)
        except BaseException as error:  # of a future among the arguments
            if is_for_main(error):
                raise
            if queued is None or queued.take():
                future.settle(None, error.with_traceback(None))
                future.run_callbacks()
            return Attempt.NEEDLESS
        if not channel.is_open:
            return Attempt.UNSENT
        if queued is not None and not queued.take():
            return Attempt.NEEDLESS
        future.keeps_alive = message
        large = outgoing if outgoing.is_large else None
        if large is not None and future.counted_by is None:  # with the values of its futures
            back_pressure.limits.admit([(actor, future)], outgoing.nbytes, None)
        if channel.sources_sent < len(library.batches):
            _send_sources(actor, channel)
        is_sent = channel.send(
            message.kind, message.name, outgoing.encoded, future, queued is not None, large, True
        )
        return Attempt.SENT if is_sent else Attempt.UNSENT


def _wait_for_room(actor: CalledActor, room: RoomForCall) -> None:
    """Wait for an outcome of an actor, and receive it if no other thread does."""
    channel = actor.channel
    if channel is not None and channel.is_open:
        channel.wait(room)
    else:
        room.block(None)


def _send_sources(actor: CalledActor, channel: CallChannel) -> None:
    """Send the modules that an actor may lack.

    They count as sent once the actor confirms them: the connection may break before.
    """
    life, sent = channel.life, channel.sources_sent
    batches, total = library.unsent_for(actor, life, sent)
    for digest, content in batches:
        value = Encoded((), (memoryview(content),))
        confirmed: CallFuture[Any] = CallFuture("the actor")
        confirmed.then(partial(_note_arrival, actor, life, digest))
        channel.send(Kind.SOURCES, digest, value, confirmed, background=True)
    channel.sources_sent = total


def _note_arrival(actor: CalledActor, life: int, digest: str, confirmed: Any) -> None:
    if confirmed.exception() is None:
        library.arrived(actor, life, digest)


# --- the next life of an actor --------------------------------------------------------------------


def begin_restart(
    carrier: Carrier[Any], actor: CalledActor, patience_s: float | None = None
) -> None:
    """Make the next life of an actor that died, on a thread of its own.  Its handles stay valid.

    `patience_s` is how long it waits for room; None for that of `connect`.
    Its maker calls this, which has what it is made from, and has noted that it is `restarting`.
    """
    threads.start("restart", _restart, carrier, actor, actor.life, patience_s)


def _restart(
    carrier: Carrier[Any], actor: CalledActor, life: int, patience_s: float | None
) -> None:
    """Wait for a place, and run the constructor; what that raises ends the actor.

    A life that is not needed is removed again, because its constructor raised, or the actor was
    closed or released meanwhile.
    """
    assert actor.made_from is not None
    encoded, options, state = actor.made_from
    try:
        carrier.place([actor], [encoded], options, state, patience_s)
    except Exception as error:
        # As text: the error refers to this frame, and so to the actor, which must be released with
        # its last handle and not when the collector comes.
        reason = str(error) if isinstance(error, RemotelyError) else repr(error)
        why = f"{actor.name} died, and could not be restarted: {reason}"
        with actor.lock:
            # Otherwise a later life is being made, or the actor was closed: a better reason.
            if actor.life == life and actor.ended is None:
                actor.end_with(lambda may: ActorDied(why, may_have_run=may))
    finally:
        if actor.is_released or actor.ended is not None:
            carrier.abandon([actor], kill=False)
        with actor.lock:
            if actor.life == life:
                actor.restarting = False
        wakeup.wake(actor)
