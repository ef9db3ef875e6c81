"""The carrier of "ray:..." addresses."""

import atexit
import contextlib
import functools
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import ray
from ray.exceptions import RayError

from remotely.calling.carrier import NO_TIMELINE, PICKLED
from remotely.calling.engine import CallEngine
from remotely.engine import Arrival, Engine, Options
from remotely.engines.ray import PROMISES, placing
from remotely.engines.ray.actor import (
    HostedActor,
    closed,
    end_error,
    ends_actor,
    host_of,
    is_of_argument,
    new_id,
)
from remotely.engines.ray.channel import HostChannel, Replies
from remotely.engines.ray.host import HostState
from remotely.engines.ray.placing import NAME_LOOK_S, HostPlacing
from remotely.engines.ray.report import report
from remotely.engines.ray.stored import HostMessage, HostOutgoing, PlasmaRef
from remotely.errors import NotConnected, RemotelyError
from remotely.futures import callbacks, unfinished, wakeup
from remotely.futures.future import CallFuture
from remotely.futures.unretrieved import report_key, report_text
from remotely.machine.gate import Gate
from remotely.objects import introspection
from remotely.protocol.control import MakerState
from remotely.protocol.lease import DRAIN_S, OWNER_GRACE_S, PLACE_S
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClusterStatus
from remotely.reporting.throttled_log import ThrottledLog
from remotely.values import codec, references
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import Owned
from remotely.values.shipping import Shipment
from remotely.values.sources import library

SHUT_DOWN = "this process has left the Ray cluster: it called remotely.shutdown(), or ends"
NEXT_LIFE_S = 5.0  # how long a caller other than the owner waits for the next life
NAMED_ANSWER_S = 1.0  # timeout for the actor that has a name; one without a process does not reply


class RayCarrier:
    """A `carrier.Carrier` to actors of the Ray cluster to which this process is connected.

    cluster         its address and session, which identify it uniquely
    inside          the name of the actor that this process is; empty in a script
    owns_session    whether this process connected to Ray itself, and so disconnects on shutdown
    """

    promises = PROMISES
    encoder = PICKLED
    lends = False
    is_immediate = False

    def __init__(
        self,
        cluster: str,
        shipment: Shipment,
        patience_s: float = PLACE_S,
        inside: str = "",
        owns_session: bool = False,
    ) -> None:
        self.cluster = cluster
        self.inside = inside
        self.patience_s = patience_s
        self.known: weakref.WeakValueDictionary[str, HostedActor] = weakref.WeakValueDictionary()
        self._owns_session = owns_session
        self._gate = Gate(lambda: NotConnected(SHUT_DOWN))
        self._throttled = ThrottledLog(lambda text: print(text, file=sys.stderr, flush=True))
        self._ending: set[str] = set()  # actors whose last handle is gone, and that still run
        self._replies = replies = Replies(self._lost)
        self._placing = HostPlacing(
            cluster, replies, self, shipment, patience_s, self._warn, inside
        )
        callbacks.lend(replies.thread)
        unfinished.watch(replies)

    # --- actors -----------------------------------------------------------------------------------

    def new(
        self, engine: Engine, cls: type, names: Sequence[str], options: Options
    ) -> list[HostedActor]:
        placing.check(options, cls.__name__, len(names))
        actors = []
        for name in names:
            actor = HostedActor(
                engine, new_id(options.name or ""), name, not options.detached, cls.__name__
            )
            actor.is_serial = introspection.is_serial(cls, options.concurrency)
            actors.append(actor)
        return actors

    def borrowed(self, engine: Engine, actor: str, name: str) -> HostedActor:
        return HostedActor(engine, actor, name, owned=False)

    def place(
        self,
        actors: Sequence[HostedActor],
        encoded: Sequence[Encoded],
        options: Options,
        state: MakerState | None,
        patience_s: float | None,
    ) -> None:
        assert state is not None
        lives = [actor.life for actor in actors]
        try:
            self._placing.make(actors, encoded, options, state, patience_s)
        except RayError as error:
            first = actors[0]
            end = end_error(first.name, None, error)
            if not first.is_made:
                raise end(False) from None
            self._placing.on_death(first, lives[0], end)  # another thread makes the next life
            return
        for actor in actors:
            actor.is_made = True
            if actor.made_from is not None:
                self._placing.watch(actor)

    def abandon(self, actors: Sequence[HostedActor], kill: bool) -> None:
        for actor in actors:
            actor.kill("not created" if kill else "")

    def await_name(self, options: Options, deadline: float, again: bool) -> bool:
        # If it was not found, another client creates it, or it is ending.
        is_free_soon = again or options.get_if_exists or self._is_ending(options.name or "")
        if not is_free_soon or time.monotonic() >= deadline:
            return False
        time.sleep(NAME_LOOK_S)
        return True

    def find(self, engine: Engine, name: str) -> HostedActor | None:
        with contextlib.suppress(ValueError, RayError):
            host, state = host_of(name)
            if state is not None and not self._was_asked_to_end(state):
                found = engine.borrow(state.birth.actor, name)
                assert isinstance(found, HostedActor)
                self._note_host(found, host, state)
                return found
        return None

    def hold(self, actor: HostedActor, giver: str) -> None:
        """Do nothing: on Ray, a handle that was returned is a borrowed one."""

    def await_arrival(self, engine: Engine, class_name: str) -> Arrival:
        raise NotConnected(
            "a process cannot dial in to a Ray cluster: serve objects, and wait for them, on a "
            "cluster of 'remotely start'"
        )

    def _was_asked_to_end(self, state: HostState) -> bool:
        """Return whether an actor was asked to end, by this client or another."""
        return state.is_leaving or state.birth.actor in self._ending

    def _is_ending(self, name: str) -> bool:
        """Return whether the actor of this name is ending, or has just ended but still has it."""
        try:
            _, state = host_of(name, NAMED_ANSWER_S)
        except ValueError:
            return True
        except RayError as error:
            return ends_actor(error)
        return state is not None and self._was_asked_to_end(state)

    def _note_host(self, actor: HostedActor, host: Any, state: HostState) -> HostChannel:
        """Open the channel of an actor of another process, unless it is open already."""
        with actor.lock:
            if actor.channel is None:
                actor.life, actor.is_serial = state.birth.life, state.birth.is_serial
                actor.owner_restarts = not actor.owned and state.birth.options.max_restarts > 0
                channel = HostChannel(self._replies, host, actor.life, actor.is_serial)
                actor.channel = channel.open()
            found: HostChannel = actor.channel
            return found

    # --- calls ------------------------------------------------------------------------------------

    def begin_send(self, what: str) -> None:
        self.check()
        library.look()

    def connect(self, actor: HostedActor) -> HostChannel:
        """Return the channel of an actor, which is found by its name if another process made it.

        If its owner may restart it, this waits up to NEXT_LIFE_S for its next life.
        """
        while True:
            self.check()
            actor.wait_until_alive()
            with actor.lock:
                actor.check_alive()
                channel: HostChannel | None = actor.channel
                is_restarting = actor.restarting  # it has died since the wait
            if channel is None and not is_restarting:
                channel = self._find_host(actor)
            if channel is not None and channel.is_open:
                return channel

    def _find_host(self, actor: HostedActor) -> HostChannel:
        deadline = time.monotonic() + (NEXT_LIFE_S if actor.owner_restarts else 0.0)
        while True:
            with contextlib.suppress(ValueError, RayError):
                host, state = host_of(actor.actor)
                if state is not None:
                    break
            if time.monotonic() >= deadline:
                raise closed(actor.name, "closed, or has died")(False)
            time.sleep(NAME_LOOK_S)
        if state.birth.actor != actor.actor:  # another actor has the name now
            raise closed(actor.name, "closed")(False)
        return self._note_host(actor, host, state)

    def transfer(
        self, actors: Sequence[HostedActor], encoded: Encoded, background: bool
    ) -> tuple[Encoded, None]:
        return encoded, None

    def outgoing(self, encoded: Encoded, several: bool, transfers: object) -> HostOutgoing:
        return HostOutgoing(encoded, several)

    def message(
        self,
        actors: Sequence[HostedActor],
        kind: Kind,
        name: str,
        value: Owned,
        named: Sequence[NamedReference],
        transfers: object,
    ) -> HostMessage:
        return HostMessage(kind, name, value, named, len(actors) > 1)

    def may_wait(self) -> bool:
        return not self._replies.thread.is_own_thread()

    def check_wait(self, actor: HostedActor, future: CallFuture[Any], has_needs: bool) -> None:
        """Do nothing: deadlocks are not told on Ray."""

    def sleep_until(
        self,
        is_over: Callable[[], object],
        timeout_s: float | None,
        actor: HostedActor,
        future: CallFuture[Any],
    ) -> None:
        wakeup.sleep_until(is_over, timeout_s, future)

    def is_any_elsewhere(self, actors: object) -> bool:
        return False

    def put(self, value: object) -> PlasmaRef:
        return PlasmaRef(codec.encode(value))

    def _lost(
        self, channel: HostChannel, actor: HostedActor | None, error: RayError, may_have_run: bool
    ) -> BaseException:
        """Return the error of a call whose outcome is lost, and handle the death of its actor."""
        if is_of_argument(error):
            return references.of_argument(
                end_error("its actor", None, error.cause)(True), "an argument"
            )
        if actor is None:  # no caller waits for it
            if not ends_actor(error):
                channel.take_new_route()  # the message may not have arrived
            return end_error("the actor", channel.place, error)(may_have_run)
        if actor.ended is not None:
            return actor.ended(may_have_run)
        end = end_error(actor.name, channel.place, error)
        if ends_actor(error):
            self._placing.on_death(actor, channel.life, end)
        else:
            channel.take_new_route()  # the message may not have arrived
        return end(may_have_run)

    # --- the end ----------------------------------------------------------------------------------

    def check(self) -> None:
        self._gate.check()
        if not ray.is_initialized():  # Ray would connect to any cluster
            raise NotConnected(SHUT_DOWN)

    def begin_end(self, actors: Sequence[HostedActor], grace_s: float) -> None:
        for actor in actors:
            if actor.channel is not None:
                actor.leaving = _leave(actor.channel.host, grace_s)
            actor.end_with(closed(actor.name, "closed"))  # now, so that its end is not a death

    def await_end(self, actors: Sequence[HostedActor], deadline: float) -> None:
        for actor in actors:
            with contextlib.suppress(RayError):
                if actor.leaving is not None:
                    ray.get(actor.leaving, timeout=max(0.1, deadline - time.monotonic()))
            actor.kill()

    def finish_end(self, actors: Sequence[HostedActor]) -> None:
        """Do nothing: their calls have failed since `begin_end`."""

    def kill(self, actors: Sequence[HostedActor]) -> None:
        for actor in actors:
            actor.kill("killed")

    def release(self, actor: HostedActor) -> None:
        channel: HostChannel | None = actor.channel
        if not self._gate.is_open or channel is None:
            return
        host, route = channel.host, channel.route
        # In the background: the last reference may be dropped anywhere, even within a call.
        if not actor.owned:
            self._replies.run(lambda: host.forget.remote(route))
        elif actor.ended is None:
            self._ending.add(actor.actor)
            on_end = functools.partial(self._ending.discard, actor.actor)
            self._replies.run(lambda: _end_released(host, on_end))

    def timeline(self, seconds: float) -> NoReturn:
        raise RemotelyError(NO_TIMELINE)

    def report(self, fresh: bool) -> ClusterStatus:
        self.check()
        return report(self.cluster.partition(" ")[0])

    def note_unretrieved(self, what: str, error: BaseException) -> None:
        if not isinstance(error, NotConnected):
            self._warn(report_key(what, error), report_text(what, error))

    def forget(self) -> None:
        self._gate.close()  # without its lock, which a thread of the parent may have had

    def leave(self) -> bool:
        """End the actors that this process owns.  Meanwhile none is created or called any more."""
        with self._gate:
            is_first = self._gate.close()
        if is_first and ray.is_initialized():
            self._end_owned()
        return is_first

    def close(self) -> None:
        """Fail every pending call.  Does not wait for callbacks that take longer than DRAIN_S."""
        callbacks.withdraw(self._replies.thread)
        self._replies.thread.finish(DRAIN_S)
        self._replies.close(self.left)
        callbacks.users.finish(DRAIN_S)
        if self._owns_session:
            ray.shutdown()

    def left(self) -> NotConnected:
        return NotConnected(SHUT_DOWN)

    def _end_owned(self) -> None:
        owned = [actor for actor in list(self.known.values()) if actor.owned]
        for actor in owned:
            with actor.lock:
                actor.end_with(actor.ended or closed(actor.name, "closed"))
        hosts = [actor.channel.host for actor in owned if actor.channel is not None]
        left = [_leave(host, OWNER_GRACE_S, stops=True) for host in hosts]
        if left:
            ray.wait(left, num_returns=len(left), timeout=OWNER_GRACE_S + DRAIN_S)
        for actor in owned:
            actor.kill()

    def _warn(self, key: str, text: str) -> None:
        self._throttled.add(key, text, time.monotonic())


def engine_on(carrier: RayCarrier) -> CallEngine:
    """Return an engine, which leaves the cluster when the interpreter exits.

    It does so before Ray's own exit function runs, which was registered first.
    """
    engine = CallEngine(carrier)
    atexit.register(_shut_down, weakref.ref(engine))
    return engine


def _shut_down(engine: "weakref.ref[CallEngine]") -> None:
    if (found := engine()) is not None:
        found.shutdown()


def _end_released(host: Any, on_end: Callable[[], None]) -> None:
    """End an actor whose last handle is gone; no call is pending, since each holds a handle."""

    # `host` is kept: Ray kills an actor with its creator's last handle, and it has to close first.
    def has_ended(left: "Future[Any]", host: Any = host) -> None:
        left.exception()
        on_end()

    _leave(host, PLACE_S, stops=True).future().add_done_callback(has_ended)


def _leave(host: Any, grace_s: float, stops: bool = False) -> Any:
    """Ask a process to end within `grace_s`; the returned reference fails when it has ended."""
    left = host.leave.remote(grace_s, stops)
    if stops:
        host.stop.remote()
    return left
