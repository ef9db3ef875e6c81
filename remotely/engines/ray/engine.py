"""The engine of "ray:..." addresses."""

import atexit
import contextlib
import functools
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError

from remotely.calling.actor import MadeFrom
from remotely.engine import Arguments, Arrival, Options, Prepared, RemoteActor
from remotely.engines.ray import PROMISES, placing
from remotely.engines.ray.actor import (
    HostedActor,
    closed,
    end_error,
    ends_actor,
    host_of,
    is_of_argument,
)
from remotely.engines.ray.calls import SHUT_DOWN, HostCalls
from remotely.engines.ray.host import HostState
from remotely.engines.ray.placing import NAME_LOOK_S, Placing
from remotely.engines.ray.report import report
from remotely.engines.ray.stored import PlasmaRef
from remotely.errors import ActorDied, CallTimeout, NameTaken, NotConnected, WorkerLost
from remotely.futures.future import CallFuture, futures_among
from remotely.futures.unretrieved import report_key, report_text
from remotely.protocol.lease import DRAIN_S, OWNER_GRACE_S, PLACE_S
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClusterStatus
from remotely.reporting.throttled_log import ThrottledLog
from remotely.values import codec, maker_state, references, sources
from remotely.values.owned import NOTHING, own, own_each
from remotely.values.shipping import Shipment
from remotely.values.unpicklable import PartNames

NEXT_LIFE_S = 5.0  # how long a caller other than the owner waits for the next life
NAMED_ANSWER_S = 1.0  # timeout for the actor that has a name; one without a process does not reply


class RayEngine:
    """Implements `engine.Engine` on the Ray cluster to which this process is connected.

    cluster         its address and session, which identify it uniquely
    inside          the name of the actor that this process is; empty in a script
    owns_session    whether this process connected to Ray itself, and so disconnects on shutdown
    """

    promises = PROMISES

    def __init__(
        self,
        cluster: str,
        shipment: Shipment,
        patience_s: float = PLACE_S,
        inside: str = "",
        owns_session: bool = False,
    ) -> None:
        self.cluster = cluster
        self._owns_session = owns_session
        self._actors: weakref.WeakValueDictionary[str, HostedActor] = weakref.WeakValueDictionary()
        self._is_closed = False
        self._patience_s = patience_s
        self._throttled = ThrottledLog(lambda text: print(text, file=sys.stderr, flush=True))
        self._ending: set[str] = set()  # actors whose last handle is gone, and that still run
        self._calls = HostCalls(self._host_of, self._lost, self._on_unretrieved)
        self._placing = Placing(self, self._calls, shipment, patience_s, self._warn, inside)
        atexit.register(self.shutdown)  # runs before Ray's own, which was registered first

    # --- making -----------------------------------------------------------------------------------

    def place(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        patience_s = self._patience_s if options.patience_s is None else options.patience_s
        deadline = time.monotonic() + patience_s
        is_free_soon = options.get_if_exists  # if not found, another creates it, or it is ending
        while True:
            if options.get_if_exists:
                with contextlib.suppress(NameError):
                    return [self.find(options.name)]
            try:
                return self._make(cls, arguments, options)
            except NameTaken as error:
                if error.__cause__ is not None:  # the constructor raised it
                    raise
                is_free_soon = is_free_soon or self._is_ending(options.name)
                if not is_free_soon or time.monotonic() >= deadline:
                    raise
            time.sleep(NAME_LOOK_S)

    def _make(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        self._check()
        sources.library.gather()
        state = maker_state.take()
        encoded = codec.encode_constructors(cls, arguments)
        kept = own_each(encoded, lends=False) if options.max_restarts else []
        placing.check(options, cls.__name__, len(encoded))
        actors = [self._placing.new(cls, options) for _ in encoded]
        self._actors.update((actor.actor, actor) for actor in actors)
        try:
            self._check()  # again: shutdown() ends the actors registered before it ran
            self._placing.make(actors, kept or encoded, options, state)
        except BaseException as error:
            for actor in actors:
                actor.kill("not created")
            if isinstance(error, RayError):
                raise end_error(actors[0].name, None, error)(False) from None
            raise
        for actor, its in zip(actors, kept, strict=False):  # without restarts, none is kept
            actor.made_from = MadeFrom(its, options, state)
            self._placing.watch(actor)
        return list(actors)

    # --- calling ----------------------------------------------------------------------------------

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        self._check()
        encoded, named = codec.encode_arguments(remotes, method, args, kwargs)
        return self._calls.send(remotes, Kind.CALL, method, encoded, background, retries, named)

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        encoded, named = codec.encode_arguments((), method, args, kwargs, names)
        kept = own(encoded, lends=False)

        def send(remote: RemoteActor) -> CallFuture[Any]:
            self._check()
            return self._calls.send((remote,), Kind.CALL, method, kept, True, 0, named)[0]

        return Prepared(send, futures_among(named))

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        self._check()
        return self._calls.send(remotes, Kind.GET, name, NOTHING, len(remotes) > 1)

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        self._check()
        encoded = codec.encode(value, name)
        return self._calls.send(remotes, Kind.SET, name, encoded, len(remotes) > 1)

    def put(self, value: object) -> PlasmaRef:
        self._check()
        return PlasmaRef(codec.encode(value))

    def value_of(self, ref: object) -> Any:
        if not isinstance(ref, PlasmaRef):
            raise TypeError(
                f"get() takes what ref() or put() returned, or the future of a call; {ref!r} is "
                "none of these"
            )
        return ref.get()

    # --- finding ----------------------------------------------------------------------------------

    def find(self, name: str) -> RemoteActor:
        self._check()
        with contextlib.suppress(ValueError, RayError):
            host, state = host_of(name)
            if state is not None and not self._was_asked_to_end(state):
                found = self.borrow(state.birth.actor, name)
                found.found(host, state)
                return found
        raise NameError(f"there is no actor named {name!r} on this cluster")

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

    def borrow(self, actor: str, name: str) -> HostedActor:
        found = self._actors.get(actor)
        if found is None:
            found = self._actors[actor] = HostedActor(self, actor, name, owned=False)
        return found

    def hold(self, actor: str, name: str, giver: str) -> HostedActor:
        return self.borrow(actor, name)

    def await_arrival(self, class_name: str) -> Arrival:
        raise NotConnected(
            "a process cannot dial in to a Ray cluster: serve objects, and wait for them, on a "
            "cluster of 'remotely start'"
        )

    def report(self, fresh: bool = True) -> ClusterStatus:
        self._check()
        return report(self.cluster.partition(" ")[0])

    def _host_of(self, actor: HostedActor) -> Any:
        """Return Ray's handle of an actor; None between two lives.  Raises ActorDied.

        An actor of another process is found by its name.  If its owner may restart it, this waits
        up to NEXT_LIFE_S for its next life.
        """
        self._check()
        with actor.lock:
            actor.check_alive()
            if actor.host is not None or actor.restarting:
                return actor.host
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
        actor.found(host, state)
        return actor.host

    # --- ending -----------------------------------------------------------------------------------

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        self._check()
        actors = [r for r in remotes if isinstance(r, HostedActor) and r.ended is None]
        if not grace_s:
            for actor in actors:
                actor.kill("killed")
            return
        deadline = time.monotonic() + grace_s
        asked = self._calls.send(actors, Kind.END, "", NOTHING, background=True)[::-1]
        left: list[Any] = []
        for actor in actors:
            left.append(None if actor.host is None else _leave(actor.host, grace_s))
            actor.end_with(closed(actor.name, "closed"))  # now, so that its end is not a death
        failures: list[BaseException] = []  # raised by users' `close`
        for actor, leaving in zip(actors, left, strict=True):
            try:
                asked.pop().result(max(0.0, deadline - time.monotonic()))
            except (ActorDied, WorkerLost, CallTimeout):
                pass
            except Exception as error:
                failures.append(error)
            with contextlib.suppress(RayError):
                if leaving is not None:
                    ray.get(leaving, timeout=max(0.1, deadline - time.monotonic()))
            actor.kill()
        if failures:
            raise failures[0]

    def release(self, remote: RemoteActor) -> None:
        assert isinstance(remote, HostedActor)
        remote.is_released = True
        host, route = remote.host, remote.route
        if self._is_closed or host is None:
            return
        # In the background: the last reference may be dropped anywhere, even within a call.
        if not remote.owned:
            self._calls.run_in_background(lambda: host.forget.remote(route))
        elif remote.ended is None:
            self._ending.add(remote.actor)
            on_end = functools.partial(self._ending.discard, remote.actor)
            self._calls.run_in_background(lambda: _end_released(host, on_end))

    def forget(self) -> None:
        """In a forked child: leave everything to the parent."""
        self._is_closed = True

    def shutdown(self) -> None:
        """End the actors that this process owns, and leave the cluster.

        Meanwhile no actor is created or called any more.
        """
        atexit.unregister(self.shutdown)
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if ray.is_initialized():
                self._end_owned()
        finally:
            self._calls.close()
            if self._owns_session:
                ray.shutdown()

    def _end_owned(self) -> None:
        owned = [actor for actor in list(self._actors.values()) if actor.owned]
        for actor in owned:
            with actor.lock:
                actor.end_with(actor.ended or closed(actor.name, "closed"))
        hosts = [actor.host for actor in owned if actor.host is not None]
        left = [_leave(host, OWNER_GRACE_S, stops=True) for host in hosts]
        if left:
            ray.wait(left, num_returns=len(left), timeout=OWNER_GRACE_S + DRAIN_S)
        for actor in owned:
            actor.kill()

    # --- errors -----------------------------------------------------------------------------------

    def _lost(
        self, actor: HostedActor, life: int, error: RayError, may_have_run: bool
    ) -> BaseException:
        if is_of_argument(error):
            return references.of_argument(
                end_error("its actor", None, error.cause)(True), "an argument"
            )
        if actor.ended is not None:
            return actor.ended(may_have_run)
        end = end_error(actor.name, actor.place, error)
        if ends_actor(error):
            self._placing.on_death(actor, life, end)
        else:
            actor.take_new_route()  # the message may not have arrived
        return end(may_have_run)

    def _check(self) -> None:
        if self._is_closed or not ray.is_initialized():  # Ray would connect to any cluster
            raise NotConnected(SHUT_DOWN)

    def _on_unretrieved(self, what: str, error: BaseException) -> None:
        if not isinstance(error, NotConnected):
            self._warn(report_key(what, error), report_text(what, error))

    def _warn(self, key: str, text: str) -> None:
        self._throttled.add(key, text, time.monotonic())


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
