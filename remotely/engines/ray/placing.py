"""Placement of actors on Ray: resources, process and object, in each life.

    1  `_reserved`    a group waits for the resources of all members in a placement group, which is
                      removed once the members have asked for theirs; while waiting, it holds none.
                      Members are not placed inside the group, since it would keep the resources of
                      a member that has ended, and the actor that replaces it would find none
    2  `_start`       Ray starts a process for each member, whose host is still empty
    3  `begin`        the host receives its description (Birth), and returns its Place
    4  PREPARE, FILE  the modules and files of this process
    5  INIT           the class and its arguments; from now on other processes find the actor
    6  `watch`        for an actor that may be restarted: it fails when the process ends, and the
                      next life begins at 2

Ray can restart actors itself, but it limits restarts over all time, and fails calls made during a
restart.  Here these wait, as on our own cluster.
"""

import contextlib
import gc
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from remotely.calling.actor import EndError
from remotely.calling.carrier import Carrier
from remotely.calling.engine import begin_restart
from remotely.engine import Options
from remotely.engines.ray.actor import (
    NAMESPACE,
    HostedActor,
    end_error,
    ends_actor,
    host_of,
    ray_name,
)
from remotely.engines.ray.address import NO_LABELS, NO_POST_MORTEM
from remotely.engines.ray.channel import HostChannel, Replies
from remotely.engines.ray.host import CALLS_AT_ONCE, Async, HostBirth, Serial
from remotely.engines.ray.stored import HostOutgoing
from remotely.errors import NameTaken, NoResources, RemotelyError, name_taken
from remotely.futures.future import CallFuture
from remotely.machine import this_machine
from remotely.machine.shield import shield
from remotely.protocol import control
from remotely.protocol.control import MakerState
from remotely.protocol.lease import PLACE_S
from remotely.protocol.resources import format_bytes
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClientStatus
from remotely.values import shipping
from remotely.values.codec import Encoded
from remotely.values.shipping import Shipment
from remotely.values.sources import library

NAME_FREE_S, NAME_LOOK_S = 10.0, 0.05  # how long Ray may keep the name of an ended life
COLLECT_AFTER_S = 1.0  # of waiting: uncollected handles in cycles may be filling the cluster
SAY_WAITING_AFTER_S = 5.0  # Ray does not say whether it has no room or a process is slow to start
GROUP_LOOK_S = 1  # signals are not handled while Ray waits for a placement group
UNITS = 10_000  # Ray counts resources in fractions of 1/10,000

Look = Callable[[float], int]  # waits for up to this time; returns how many have no room yet

_NOT_DETACHED = (
    "a detached actor cannot be restarted on Ray, since its creator may be gone: "
    "leave out max_restarts, or detached=True, or use a cluster of 'remotely start'"
)


class HostPlacing:
    """Creates actors, and restarts those that may be restarted.

    `warn` prints a message for the user; its first argument is a key by which similar messages
    are throttled.  `inside` is the name of the actor that this process is; empty in a script.
    """

    def __init__(
        self,
        cluster: str,
        replies: Replies,
        carrier: Carrier[Any],
        shipment: Shipment,
        patience_s: float,
        warn: Callable[[str, str], None],
        inside: str,
    ) -> None:
        self._cluster = cluster
        self._replies = replies
        self._carrier = carrier
        self._shipment = shipment
        self._patience_s = patience_s
        self._warn = warn
        self._inside = inside

    def make(
        self,
        actors: Sequence[HostedActor],
        encoded: Sequence[Encoded],
        options: Options,
        state: MakerState,
        patience_s: float | None,
    ) -> None:
        """Create a process and an object for each: for all of them, or raise an error.

        Raises RayError if a process ends before it has its object.
        """
        made: list[CallFuture[Any]] = []
        channels, begun = self._begin(actors, options, patience_s)
        uses = Counter(map(id, encoded))
        stored = {id(its): HostOutgoing(its, several=True) for its in encoded if uses[id(its)] > 1}
        for outgoing in stored.values():
            outgoing.store()
        for actor, channel, its, place in zip(actors, channels, encoded, begun, strict=True):
            channel.place = ray.get(place)
            made.append(self._prepare(actor, channel, its, options, state, stored.get(id(its))))
        while made:
            made.pop(0).result()
        for channel in channels:
            channel.open()

    def _begin(
        self, actors: Sequence[HostedActor], options: Options, patience_s: float | None
    ) -> tuple[list[HostChannel], list[Any]]:
        """Wait until each has a process; return channels, and Ray's references to their places."""
        node, count, what = _node_for(options), len(actors), actors[0].class_name
        if patience_s is None:
            patience_s = self._patience_s
        else:
            patience_s = max(patience_s, SAY_WAITING_AFTER_S)
        deadline = time.monotonic() + patience_s

        def wait_for_room(look: Look) -> None:
            self._wait_for_room(look, deadline, f"of {count} {what}", patience_s)

        with _reserved(options, count, node, wait_for_room):
            channels = [self._start(actor, options, node) for actor in actors]
            begun = [
                channel.host.begin.remote(self._birth_of(actor, options))
                for actor, channel in zip(actors, channels, strict=True)
            ]
        wait_for_room(
            lambda timeout_s: len(ray.wait(begun, num_returns=count, timeout=timeout_s)[1])
        )
        return channels, begun

    def _start(self, actor: HostedActor, options: Options, node: str) -> HostChannel:
        kind, at_once = (Serial, 1) if actor.is_serial else (Async, CALLS_AT_ONCE)
        # Others of the group may wait for room before this one receives its object.
        made_within_s = self._patience_s + PLACE_S if options.detached else 0.0
        described = kind.options(
            name=ray_name(actor.actor),
            namespace=NAMESPACE,
            lifetime="detached" if options.detached else "non_detached",
            max_concurrency=at_once,
            max_restarts=0,
            max_task_retries=0,
            num_cpus=options.cores,
            num_gpus=options.gpus,
            resources=dict(options.resources),
            memory=options.memory or None,
            runtime_env=_runtime_env(options),
            scheduling_strategy=(
                NodeAffinitySchedulingStrategy(node, soft=False) if node else "DEFAULT"
            ),
        )
        deadline = time.monotonic() + (NAME_FREE_S if actor.life else 0.0)
        while True:
            try:
                with actor.lock:  # so that a concurrent end finds the host, or prevents its start
                    actor.check_alive()
                    host = described.remote(actor.name, made_within_s)
                    channel = HostChannel(self._replies, host, actor.life, actor.is_serial)
                    actor.channel = channel
                return channel
            except ValueError:  # the name is taken
                if time.monotonic() >= deadline:
                    break
            time.sleep(NAME_LOOK_S)
        raise NameTaken(name_taken(actor.name, "on this cluster"))

    def _birth_of(self, actor: HostedActor, options: Options) -> HostBirth:
        owner = None
        if not options.detached:
            machine = this_machine.machine_name()
            owner = ClientStatus(pid=os.getpid(), machine=machine, actor=self._inside)
        return HostBirth(
            actor.actor,
            actor.name,
            actor.class_name,
            actor.life,
            actor.is_serial,
            options,
            owner,
            self._cluster,
        )

    def _wait_for_room(self, look: Look, deadline: float, what: str, patience_s: float) -> None:
        def look_until(limit_s: float) -> int:
            return look(max(0.0, min(limit_s, deadline - time.monotonic())))

        if not look_until(COLLECT_AFTER_S):
            return
        gc.collect()
        if not (waiting := look_until(SAY_WAITING_AFTER_S - COLLECT_AFTER_S)):
            return
        if time.monotonic() < deadline:
            self._warn(
                f"waiting for {what}",
                f"remotely: waiting for {waiting} {what}: the Ray cluster has no room, "
                f"or is slow to start processes (giving up after {patience_s:g} s)",
            )
        if waiting := look_until(float("inf")):
            raise NoResources(
                f"the Ray cluster has had no room for {waiting} {what} for "
                f"{patience_s:g} s: close actors, ask for less, or wait longer by "
                "connect(patience_s=...)"
            )

    def _prepare(
        self,
        actor: HostedActor,
        channel: HostChannel,
        encoded: Encoded,
        options: Options,
        state: MakerState,
        stored: HostOutgoing | None,
    ) -> CallFuture[Any]:
        """Send settings, code and files, and then the class and its arguments."""
        content, channel.sources_sent = library.whole_for(actor, actor.life)
        prepare = shipping.prepare(
            ray.get_runtime_context().get_job_id(),
            this_machine.identity(),
            self._shipment.files,
            options.concurrency,
            state,
            content,
        )

        def send(
            kind: Kind,
            name: str,
            value: Encoded,
            what: str = "the actor",
            large: HostOutgoing | None = None,
        ) -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture(what, actor)
            channel.send_to_new(kind, name, value, future, large)
            return future

        missing = send(Kind.PREPARE, "", Encoded((control.encode(prepare),), ()))
        if self._shipment.files:
            for digest in missing.result():
                file = Encoded((), (memoryview(self._shipment.read(digest)),))
                send(Kind.FILE, digest, file).result()
        return send(Kind.INIT, "", encoded, f"the constructor of {actor.name}", stored)

    # --- the next life ----------------------------------------------------------------------------

    def watch(self, actor: HostedActor) -> None:
        """Restart this actor when its present life ends."""
        channel, life = actor.channel, actor.life
        if channel is None:  # the actor was ended meanwhile
            return
        watched = channel.host.watch.remote().future()
        actor_ref = weakref.ref(actor)

        def on_done(done: Any) -> None:
            error = done.exception()
            if (found := actor_ref()) is None or not isinstance(error, RayError):
                return
            run = self._replies.run
            if ends_actor(error):
                end = end_error(found.name, channel.place, error)
                run(lambda: self.on_death(found, life, end))
            elif found.channel is not None and found.life == life:  # temporarily unreachable
                run(lambda: self.watch(found))

        with shield:  # an interrupt could leave a lock held that a thread of Ray waits for
            watched.add_done_callback(on_done)

    def on_death(self, actor: HostedActor, life: int, end: EndError) -> None:
        """Handle the end of a life: restart the actor, or record its end.

        The next call to an actor of another process looks for its next life.  Several threads may
        call this for one life; only the first call counts.
        """
        with actor.lock:
            if actor.ended is not None or actor.life != life:
                return
            if actor.owned:  # Ray keeps the name as long as there is a handle
                actor.kill()
            actor.take_channel()
            if actor.made_from is None or not actor.is_made:
                if actor.owned:
                    actor.end_with(end)
                return
            most = actor.made_from.options.max_restarts
            if not actor.restarts.allow(most, time.monotonic()):
                actor.end_with(end)
                return
            actor.life, actor.restarting = life + 1, True
        begin_restart(self._carrier, actor)


# --- resources ------------------------------------------------------------------------------------


def check(options: Options, what: str, count: int) -> None:
    """Raise RemotelyError for unsupported options, NoResources for what never fits the cluster."""
    if options.detached and options.max_restarts:
        raise RemotelyError(_NOT_DETACHED)
    if options.labels:
        raise RemotelyError(NO_LABELS)
    if options.post_mortem:
        raise RemotelyError(NO_POST_MORTEM)
    wanted = _wanted(options)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(_fits(wanted, node, count) for node in nodes)
    if room >= count:
        return
    if room:
        raise NoResources(
            f"the Ray cluster has room for {room} {what}, not for {count}: ask for fewer, or add "
            "a machine"
        )
    largest = {name: max(node.get(name, 0) for node in nodes) for name in wanted}
    raise NoResources(
        f"no machine of the Ray cluster has room for {what}, which asks for {_listed(wanted)}; the "
        f"most that one has is {_listed(largest)}: ask for less, or add a machine"
    )


def _runtime_env(options: Options) -> dict[str, Any] | None:
    """Return what Ray makes for the actor's process."""
    asked = {
        "env_vars": dict(options.env),
        "py_executable": options.python,
        "pip": list(options.packages),
    }
    return {name: value for name, value in asked.items() if value} or None


def _wanted(options: Options) -> dict[str, float]:
    """Return the resources of one actor, by Ray's names."""
    wanted = {"CPU": options.cores, "GPU": options.gpus, "memory": float(options.memory)}
    return {name: amount for name, amount in (wanted | dict(options.resources)).items() if amount}


def _fits(wanted: dict[str, float], node: dict[str, float], most: int) -> int:
    """Return how many actors fit on a node; `most` if they need no resources."""
    parts = ((node.get(name, 0.0), amount) for name, amount in wanted.items())
    return min((round(has * UNITS) // round(asks * UNITS) for has, asks in parts), default=most)


def _listed(amounts: dict[str, float]) -> str:
    return ", ".join(
        f"{format_bytes(int(amount))} of memory"
        if name == "memory"
        else f"{amount:g} {name}{'s' * (name in ('CPU', 'GPU'))}"
        for name, amount in amounts.items()
    )


@contextlib.contextmanager
def _reserved(
    options: Options, count: int, node: str, wait_for_room: Callable[[Look], None]
) -> Iterator[None]:
    """Hold the resources of a whole group while its members ask for theirs.

    `node` is the required node, or empty.  `wait_for_room` raises if there is no room.
    """
    bundle = _wanted(options)
    if count == 1 or not bundle:
        yield
        return
    labels = [{"ray.io/node-id": node}] * count if node else None
    group = placement_group([bundle] * count, bundle_label_selector=labels)

    def look(timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        while not group.wait(GROUP_LOOK_S):
            if time.monotonic() >= deadline:
                return count
        return 0

    try:
        wait_for_room(look)
        yield
    finally:
        remove_placement_group(group)


def _node_for(options: Options) -> str:
    """Return the required node of an actor; empty for any.  Raises NoResources."""
    if options.near:
        with contextlib.suppress(ValueError, RayError):
            _, state = host_of(options.near)
            if state is not None:
                return state.status.worker
        raise NoResources("near=...: that actor has ended")
    if not (machine := options.machine):
        return ""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if machine in (node["NodeName"], node["NodeManagerHostname"], node["NodeManagerAddress"]):
            return str(node["NodeID"])
    names = ", ".join(sorted({node["NodeManagerHostname"] for node in nodes}))
    raise NoResources(f"machine={machine!r}: the Ray cluster has no such machine; it has {names}")
