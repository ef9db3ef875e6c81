"""The carrier of a cluster: ZeroMQ, from this process to its actors, and to the master.

The calling thread sends a call, and the thread that waits for it receives the reply.  One daemon
thread runs the loop, which talks to the master, prints the output of actors, and receives the
replies of submitted calls.  It never blocks.  The only user code that it runs is what unpickling
runs.  The user's done-callbacks have a thread of their own (futures/callbacks.py).

The carrier connects these parts; each uses only those above it:

    printing.py         output, log records and warnings
    master_session.py   the client's session with the master: its id, its questions
    bulk_transfer.py    large values in the stores of other machines
    channels.py         the channel of each actor
    messages.py         calls that wait, with the values that they refer to
    placing.py          the making of actors

An actor that is to end: the client asks the master, and repeats that until the master confirms.
"""

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from remotely.calling import spare
from remotely.calling.carrier import PICKLED, shut_down
from remotely.calling.engine import begin_restart
from remotely.client.bulk_transfer import BulkTransfer, Stores
from remotely.client.channel import Channel, Shared, refuse_in_call, this_thread
from remotely.client.channels import ActorState, Channels
from remotely.client.deadlock import WaitReporter
from remotely.client.end_errors import end_error
from remotely.client.master_session import Handlers, MasterSession
from remotely.client.messages import DelayedCall
from remotely.client.placing import Placing, requests
from remotely.client.printing import Display, ErrorReporter, LogListener
from remotely.client.ref import Ref
from remotely.client.termination import Termination
from remotely.engine import Engine, Options, Promises
from remotely.errors import SHUT_DOWN, CallTimeout, NotConnected, RemotelyError, VersionMismatch
from remotely.futures import callbacks
from remotely.futures.future import CallFuture
from remotely.machine import daemons, folders, this_machine
from remotely.protocol import control
from remotely.protocol.address import OWN_CLUSTER, parse_address
from remotely.protocol.control import MakerState, Obituary, StoreAddress
from remotely.protocol.lease import DRAIN_S, PLACE_S, TERM_S
from remotely.protocol.listening import Listening
from remotely.protocol.spans import CLIENT_SPAN, MOST_SPANS
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClusterStatus, cluster_status
from remotely.transport import key_files, own_metrics
from remotely.transport.keys import MemberKey
from remotely.transport.listening import reach
from remotely.transport.loop import Timer
from remotely.values import arena, codec, forks, in_transit, published
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded, NamedReference
from remotely.values.following import followings, publishing
from remotely.values.owned import Owned, own
from remotely.values.payload import SEND_FROM_BYTES, OutgoingValue, Transfer
from remotely.values.shipping import Shipment
from remotely.values.sources import library

RECOVER_EVERY_S = 1.0  # all channels
MAX_DESCRIPTORS = 65_536  # each called actor takes six; many systems allow 1,024
KILLED_WAIT_S = 5.0  # for the report that a killed actor has ended; a core dump may take long
GONE_WAIT_S = 1.0  # after the worker has killed an actor, for the report to arrive


class ClusterCarrier:
    """A `carrier.Carrier` to the actors of one cluster; a client of its master.

    `on_shutdown` stops a cluster that belongs to this client alone; `on_forget`, in a forked child,
    releases what keeps that cluster alive.
    """

    promises = Promises()
    encoder = PICKLED
    lends = True
    is_immediate = False

    def __init__(
        self,
        address: str,
        key: MemberKey,
        shipment: Shipment,
        patience_s: float = PLACE_S,
        show_output: bool = True,
        job: str = "",
        inside: str = "",
        on_shutdown: Callable[[], None] = lambda: None,
        on_forget: Callable[[], None] = lambda: None,
    ) -> None:
        if not inside:
            arena.size_wanted()  # raises for an invalid setting: here, not at a large value
        self.address = address
        self.cluster = f"{address} {key.master_public.decode()}"
        self.inside = inside
        self.known: weakref.WeakValueDictionary[str, ActorState] = weakref.WeakValueDictionary()
        # Requested, and not confirmed yet.
        self._ends: dict[str, control.End | control.LetGo] = {}
        self._on_shutdown = on_shutdown
        self._on_forget = on_forget
        self._display = Display(show_output)
        self._log_listener = LogListener(self._display.show)
        daemons.raise_descriptor_limit(at_most=MAX_DESCRIPTORS)
        self._session = session = MasterSession(
            address,
            key,
            job,
            inside,
            patience_s,
            self._display.warn,
            self._repeat_requests,
            self._table(),
        )
        self.session_id, self._loop = session.id, session.loop
        self._timeline_ends: Timer | None = None
        self.patience_s = session.patience_s
        self._stores = Stores(session.context, self._loop, key.pair, this_machine.machine_name())
        wait_reporter = WaitReporter(inside, session.send) if inside else None
        shared = Shared(key.pair, session, self._stores, wait_reporter)
        self._channels = channels = Channels(shared)
        self._error_reporter = ErrorReporter(session, self._display)
        self._placing = Placing(session, channels, self._stores, shipment)
        self._termination = Termination(session)
        self._loop.every(arena.TIDY_EVERY_S, arena.tidy)
        self._loop.every(arena.TIDY_EVERY_S, forks.tidy)
        self._loop.every(RECOVER_EVERY_S, channels.recover)
        callbacks.lend(self._loop)
        if not inside and not address.startswith("ipc:"):
            publishing.find_listening = partial(_listening_towards, address)
            published.serve, published.follow = publishing.origin_of, followings.follow
        try:
            session.start(self._run, "client")
        except BaseException:
            self._release_all()
            raise

    def say_goodbye_when_terminated(self) -> None:
        """Have SIGTERM end the actors of this script at once, wherever the master is."""
        if not self._session.is_near_master:
            self._termination.install()

    def check_python(self) -> None:
        """Raise VersionMismatch if no worker runs the Python of this process."""
        pythons = self._session.pythons
        if pythons and this_machine.PYTHON not in pythons:
            self.shutdown()
            raise VersionMismatch(
                f"this is Python {this_machine.PYTHON}; the workers at {self.address} run "
                f"{' and '.join(pythons)}, and code does not travel between versions"
            )

    # --- actors -----------------------------------------------------------------------------------

    def new(
        self, engine: Engine, cls: type, names: Sequence[str], options: Options
    ) -> list[ActorState]:
        owned = not options.detached
        wanted = requests(self._session, cls, names, options)
        return [self._actor(engine, request, owned) for request in wanted]

    def borrowed(self, engine: Engine, actor: str, name: str) -> ActorState:
        request = control.Request(
            actor=actor, name=name, class_name="", owner="", job="", python=this_machine.PYTHON
        )
        return self._actor(engine, request, owned=False)

    def _actor(self, engine: Engine, request: control.Request, owned: bool) -> ActorState:
        giver = self._session.id if self.inside else ""
        in_transit.is_used |= bool(giver)  # this actor may return a handle
        return ActorState(engine, request, owned, giver)

    def place(
        self,
        actors: Sequence[ActorState],
        encoded: Sequence[Encoded],
        options: Options,
        state: MakerState | None,
        patience_s: float | None,
    ) -> None:
        assert state is not None
        self._placing.make(actors, encoded, options, state, patience_s)

    def abandon(self, actors: Sequence[ActorState], kill: bool) -> None:
        # An actor without a place may get one meanwhile; at a restart, its last life has ended.
        self._request_end([actor.actor for actor in actors], 0.0, kill)

    def await_name(self, options: Options, deadline: float, again: bool) -> bool:
        return options.get_if_exists

    def find(self, engine: Engine, name: str) -> ActorState | None:
        located: control.Located = self._session.ask(control.Locate, name=name).result()
        if located.location is None:
            return None
        found = engine.borrow(located.location.actor, name)
        assert isinstance(found, ActorState)
        found.class_name = located.location.class_name
        return found

    def hold(self, actor: ActorState, giver: str) -> None:
        """Hold an actor; the giver is told each time, since it keeps the actor until then."""
        actor.holds |= not actor.owned
        self._loop.call(partial(self._send_hold, actor.actor, giver))

    def await_arrival(self, engine: Engine, class_name: str) -> "ArrivalQuestion":
        return ArrivalQuestion(self._session, engine, class_name)

    # --- calls ------------------------------------------------------------------------------------

    def begin_send(self, what: str) -> None:
        if this_thread().in_call:
            refuse_in_call(what)
        session = self._session
        if not session.gate.is_open or session.pid != os.getpid():
            session.check()
        if library.loaded != len(sys.modules):
            library.look()

    def connect(self, actor: ActorState) -> Channel:
        return self._channels.connected(actor)

    def transfer(
        self, actors: Sequence[ActorState], encoded: Encoded, background: bool
    ) -> tuple[Encoded, BulkTransfer | None]:
        stores = _stores_of(actors)
        if not stores or not (background or self.may_wait()):
            return encoded, None
        if background:
            encoded = own(encoded)
        transfer = self._stores.transfer(encoded, stores)
        if transfer is None:
            return encoded, None
        if background:
            self._stores.run(transfer)
        else:
            transfer.run()
        return encoded, transfer

    def outgoing(
        self, encoded: Encoded, several: bool, transfers: Sequence[Transfer]
    ) -> OutgoingValue | None:
        if encoded.nbytes < SHARE_FROM_BYTES:
            return None
        return OutgoingValue(encoded, several, transfers)

    def message(
        self,
        actors: Sequence[ActorState],
        kind: Kind,
        name: str,
        value: Owned,
        named: Sequence[NamedReference],
        transfers: Sequence[Transfer],
    ) -> DelayedCall:
        stores = _stores_of(actors)
        ship = partial(self._ship, stores)
        message = DelayedCall(kind, name, value, named, transfers, ship, self.may_wait)
        for ref in message.refs:
            self._stores.bring(ref, stores)
        return message

    def _ship(
        self, others: Sequence[StoreAddress], outgoing: OutgoingValue, store: StoreAddress | None
    ) -> None:
        """Transfer a large value to `store` and the others, if this thread may wait for it."""
        is_small = outgoing.nbytes < SEND_FROM_BYTES
        if store is None or is_small or not self.may_wait():
            return
        lacking = [s for s in (store, *others) if not any(t.covers(s) for t in outgoing.transfers)]
        if store in lacking and (transfer := self._stores.transfer(outgoing.encoded, lacking)):
            outgoing.transfers = (*outgoing.transfers, transfer)
            transfer.run()

    def may_wait(self) -> bool:
        return self._channels.may_wait()

    def check_wait(self, actor: ActorState, future: CallFuture[Any], has_needs: bool) -> None:
        self._channels.check_wait(actor, future)

    def sleep_until(
        self,
        is_over: Callable[[], object],
        timeout_s: float | None,
        actor: ActorState,
        future: CallFuture[Any],
    ) -> None:
        self._channels.sleep_until(is_over, timeout_s, actor, future)

    def is_any_elsewhere(self, actors: Sequence[ActorState]) -> bool:
        return bool(_stores_of(actors))

    def put(self, value: object) -> Ref:
        return Ref(own(codec.encode(value)))

    # --- the end of actors ------------------------------------------------------------------------

    def check(self) -> None:
        self._session.check()

    def begin_end(self, actors: Sequence[ActorState], grace_s: float) -> None:
        """Do nothing: END says it."""

    def await_end(self, actors: Sequence[ActorState], deadline: float) -> None:
        for actor in actors:
            self._wait_for_end(actor, deadline)

    def finish_end(self, actors: Sequence[ActorState]) -> None:
        for actor in actors:
            _mark_closed(actor)

    def kill(self, actors: Sequence[ActorState]) -> None:
        for actor in actors:
            if not actor.owned:  # the master reports an end to the clients that located the actor
                self._channels.locate(actor)
            self._request_end([actor.actor], 0.0, kill=True)
        for actor in actors:
            actor.is_gone(KILLED_WAIT_S)
            _mark_closed(actor)

    def release(self, actor: ActorState) -> None:
        if not self._session.gate.is_open or self._session.is_forked:
            return
        if (actor.holds or (actor.owned and actor.given)) and actor.ended is None:
            self._request({actor.actor: control.LetGo(actor=actor.actor)})
        elif actor.owned and actor.ended is None:
            self._request_end([actor.actor], PLACE_S)
        if (channel := actor.channel) is not None:  # no call is pending: it would hold a handle
            gone = NotConnected("the last handle is gone")
            self._loop.call(partial(channel.end, lambda may_have_run: gone))

    def _wait_for_end(self, actor: ActorState, deadline: float) -> None:
        """Wait until an actor's process has ended; have it killed at the deadline."""
        if self._loop.is_own_thread():  # a value that is unpickled: this thread receives the report
            return
        if not actor.wait_for_end(deadline):
            self._request_end([actor.actor], 0.0)
            actor.wait_for_end(time.monotonic() + TERM_S + GONE_WAIT_S)

    def _request_end(self, actors: Sequence[str], grace_s: float, kill: bool = False) -> None:
        """Ask the master to end actors, also those given up before they had a place."""
        ends = {actor: control.End(actor=actor, grace_s=grace_s, kill=kill) for actor in actors}
        self._request(ends)

    def _request(self, ends: Mapping[str, control.End | control.LetGo]) -> None:
        """Send these requests, by actor, and repeat them to a new master until the actors end."""

        def send() -> None:
            self._ends.update(ends)
            for end in ends.values():
                self._session.link.send(end)

        self._loop.call(send)

    # --- the cluster ------------------------------------------------------------------------------

    def report(self, fresh: bool) -> ClusterStatus:
        return cluster_status(self.status(fresh), self.address.removeprefix("tcp://"))

    def status(self, fresh: bool = True) -> control.Status:
        """Return the status of the cluster; with `fresh`, with current activity and usage."""
        found: control.Status = self._session.ask(control.AskStatus, fresh=fresh).result()
        return found

    def read_log(self, actor: str, offset: int) -> Future[control.LogPiece]:
        """Return the future of the next chunk of an actor's output."""
        return self._session.ask(control.ReadLog, actor=actor, offset=offset)

    def events(self, after: int = 0) -> control.Events:
        """Return the events after the one with this number; of all that are remembered by 0."""
        found: control.Events = self._session.ask(control.AskEvents, after=after).result()
        return found

    def timeline(self, seconds: float) -> list[control.ProcessTimeline]:
        """Return what all processes have recorded in the next seconds.  Raises RemotelyError if
        another timeline is being recorded."""
        return self._session.ask_timeline(seconds).result()  # type: ignore[no-any-return]

    def drain(self, machine: str, within_s: float, undo: bool = False) -> control.DrainHeard:
        """Have a machine drained.  Raises RemotelyError if there is none of this name."""
        ask = self._session.ask(control.Drain, machine=machine, within_s=within_s, undo=undo)
        heard: control.DrainHeard = ask.result()
        if heard.why:
            raise RemotelyError(heard.why)
        return heard

    def attend(self, actor: str) -> None:
        """Have an actor look out for a debugger, also while it runs a call."""
        self._session.send(control.Attend(actor=actor))

    def note_unretrieved(self, what: str, error: BaseException) -> None:
        self._error_reporter.note(what, error)

    def forget(self) -> None:
        self._on_forget()

    def leave(self) -> bool:
        if not self._session.gate.is_open or self._session.is_forked:
            return False
        self._session.leave()
        return True

    def close(self) -> None:
        try:
            self._release_all()
        finally:
            self._on_shutdown()

    def left(self) -> NotConnected:
        return NotConnected(SHUT_DOWN)

    def end_with(self, pid: int, why: str) -> None:
        """As of the session."""
        self._session.end_with(pid, why)

    def shutdown(self) -> None:
        """Leave a cluster on which no engine makes calls, as the command line does."""
        shut_down(self)

    def _release_all(self) -> None:
        """Release everything in this process, whatever state it is in."""
        self._termination.remove()
        callbacks.withdraw(self._loop)
        if not self.inside:
            publishing.stop()
        self._session.stop()
        self._log_listener.close()
        self._channels.end_all()
        self._stores.close()
        callbacks.users.finish(DRAIN_S)
        self._error_reporter.report()
        self._display.close()
        self._session.close()
        arena.trim()

    # --- on the loop's thread ---------------------------------------------------------------------

    def _table(self) -> Handlers:
        """Return what to do about the messages that are not about the session."""
        return {
            control.Died: self._on_death,
            control.Moving: self._on_move,
            control.Held: self._on_held,
            control.LetGoHeard: lambda heard: self._note_let_go(heard.actor),
            control.RoomWanted: lambda _: spare.give_back(),
            control.ToReplace: lambda told: spare.replace(told.actors),
            control.OutputBatch: self._on_output,
            control.AskFigures: lambda _: self._report_unanswered(),
            control.RecordTimeline: self._record_timeline,
            control.Notice: lambda notice: self._display.warn(
                notice.text, f"remotely: {notice.text}"
            ),
        }

    def _on_output(self, output: control.OutputBatch) -> None:
        for item in output.items:
            if isinstance(item, control.Printed):
                self._display.show(item)
            else:
                self._log_listener.hear(item)

    def _on_death(self, died: control.Died) -> None:
        """Handle the end of a life of an actor, reported by the master."""
        obituary = died.obituary
        self._session.arrivals.discard(obituary.actor)
        if not obituary.restarting:
            self._ends.pop(obituary.actor, None)  # confirmed
        actor = self.known.get(obituary.actor)
        if actor is None or (obituary.restarting and obituary.life < actor.request.life):
            return
        error = end_error(actor.name, actor.location, obituary)
        if not obituary.restarting:
            actor.gone = True
            actor.end_with(error)
        elif actor.made_from is not None and (actor.owned or obituary.lost or obituary.moved):
            with actor.lock:
                # If it was given up, the master was asked to end it.
                is_given_up = actor.ended is not None or actor.is_released
                if not is_given_up:
                    actor.restarting = True
                    actor.expect_life(obituary.life + 1)
            if not is_given_up:
                # What moves has been promised a next life, and what crashes has not.
                begin_restart(self, actor, control.LONGEST_S if obituary.moved else None)
        else:  # the next call locates it; the master replies once it is restarted
            actor.expect_life(obituary.life + 1)
        actor.wake()
        channel: Channel | None = actor.channel
        is_over = not obituary.restarting or (channel and channel.life <= obituary.life)
        if channel is None or not is_over:
            return
        if obituary.exited:
            actor.channel = None  # for later calls
            channel.end_after_replies(error, obituary)
        else:
            channel.end(error, obituary)

    def _on_move(self, moving: control.Moving) -> None:
        """Keep further calls to an actor whose machine is drained for its next life, or do so no
        longer."""
        actor = self.known.get(moving.actor)
        channel: Channel | None = actor.channel if actor is not None else None
        if channel is not None and channel.life == moving.life:
            if moving.stays:
                channel.use_again()
            else:
                channel.retire()

    def _on_held(self, held: control.Held) -> None:
        """Another client holds an actor, so this one need not keep it."""
        if (known := self.known.get(held.actor)) is not None:
            known.note_arrival()
            del known
            in_transit.tidy(time.monotonic())

    def _note_let_go(self, actor: str) -> None:
        """The master knows that this process has let go of an actor, or this one holds it again."""
        if isinstance(self._ends.get(actor), control.LetGo):
            del self._ends[actor]

    def _send_hold(self, actor: str, giver: str = "") -> None:
        self._note_let_go(actor)  # if this process had it before
        self._session.link.send(control.Hold(actor=actor, giver=giver))

    def _repeat_requests(self) -> None:
        """Send a new master the requests that are not confirmed, and wait for no move that it may
        know nothing of."""
        self._channels.use_again()
        # By reference: iterating over the values would fail if another thread adds one.
        for reference in self.known.valuerefs():
            if (actor := reference()) is not None and actor.holds:
                self._send_hold(actor.actor)
        for request in self._ends.values():
            self._session.link.send(request)

    def _report_unanswered(self) -> None:
        self._session.link.send(
            control.Unanswered(calls=self._channels.unanswered(), metrics=own_metrics.of_client())
        )

    def _record_timeline(self, asked: control.RecordTimeline) -> None:
        """Record the calls that this process makes for so long, then send them to the master.

        Without an id, none of them is recorded any more.
        """
        if self._timeline_ends is not None:
            self._timeline_ends.cancel()
        if not asked.timeline:
            self._channels.take_spans()
            return
        self._channels.begin_spans()
        self._session.link.send(
            control.TimelineClock(timeline=asked.timeline, clock=time.monotonic())
        )
        self._timeline_ends = self._loop.after(
            asked.seconds, partial(self._send_timeline, asked.timeline)
        )

    def _send_timeline(self, timeline: str) -> None:
        made: dict[bytes, bytes] = {}
        actors: dict[bytes, str] = {}
        room, missing = MOST_SPANS, 0
        for channel, calls in self._channels.take_spans():
            packed = calls.packed()
            kept = packed[: CLIENT_SPAN.size * room]
            room -= len(kept) // CLIENT_SPAN.size
            missing += calls.missing + (len(packed) - len(kept)) // CLIENT_SPAN.size
            if kept:
                made[channel.route], actors[channel.route] = kept, channel.location.actor
        if made:
            self._session.link.send(
                control.ProcessTimeline(
                    timeline=timeline,
                    host=self._session.host,
                    machine=this_machine.machine_name(),
                    pid=os.getpid(),
                    clock=time.monotonic(),
                    name=this_machine.script_name() or "a script",
                    actor=self.inside,
                    made=made,
                    actors=actors,
                    missing=missing,
                )
            )
        self._session.link.send(control.TimelineEnd(timeline=timeline))

    def _run(self) -> None:
        self._loop.run()
        self._loop.run_calls()
        self._channels.end_all()  # on this thread, which no signal interrupts


class ArrivalQuestion:
    """A question to the master for an actor that dials in.  Implements `engine.Arrival`."""

    def __init__(self, session: MasterSession, engine: Engine, class_name: str) -> None:
        session.check()
        if session.address.startswith("ipc:"):
            raise NotConnected(
                "no process can dial in to a cluster that this one has started for itself: start "
                "one with 'remotely start', and connect to that"
            )
        self._session = session
        self._engine = engine
        self._class_name = class_name
        self._question = session.ask(control.AskArrival, class_name=class_name)

    def result(self, timeout: float | None = None) -> ActorState:
        try:
            located: control.Located = self._question.result(timeout)
        except CallTimeout:
            what = f"no {self._class_name} has dialled in within {timeout:g} s"
            raise CallTimeout(what, still_running=False) from None
        assert located.location is not None
        actor = self._engine.borrow(located.location.actor, located.location.name)
        assert isinstance(actor, ActorState)
        if actor.location is None:
            actor.set_location(located.location, self._session.host)
        self._session.arrivals.add(actor.actor)
        return actor

    def give_back(self) -> None:
        self._question.cancel()
        if self._session.gate.is_open:
            self._session.send(control.NoArrival(ticket=self._question.message.ticket))


def _listening_towards(address: str) -> Listening:
    """Return where this process listens for machines of the cluster at an address."""
    host, port = parse_address(address)
    return Listening(host=this_machine.address_towards(host, port))


def _stores_of(actors: Sequence[Any]) -> list[StoreAddress]:
    """Return the stores of the other machines on which these actors are."""
    return [a.store for a in actors if isinstance(a, ActorState) and a.store is not None]


def _mark_closed(actor: ActorState) -> None:
    """Fail the pending and later calls of an actor that was closed."""
    if actor.ended is None:
        gone = Obituary(actor=actor.actor, life=actor.request.life, asked=True)
        ended = end_error(actor.name, actor.location, gone)
        actor.end_with(ended)
        actor.wake()
        if actor.channel is not None:
            actor.channel.end(ended, gone)


def client_of(
    address: str,
    key: str | Path | None = None,
    ship: str | Path | Iterable[str | Path] = (),
    patience_s: float | None = None,
    show_output: bool = True,
) -> ClusterCarrier:
    """Return a client of the cluster at `address`.

    With `patience_s`, wait that long for a cluster that does not answer yet.
    """
    host, port = parse_address(address)
    shipment = Shipment(ship)
    file = key or os.environ.get("REMOTELY_KEY") or folders.key_folder() / "client.key"
    where = reach(host, port, OWN_CLUSTER, patience_s or 0.0)
    member = key_files.load_member(Path(file), "client")
    patience_s = PLACE_S if patience_s is None else patience_s
    return ClusterCarrier(f"tcp://{where}", member, shipment, patience_s, show_output)
