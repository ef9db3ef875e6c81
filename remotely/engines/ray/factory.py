"""How an actor is made on Ray: it gets a process, and then what its object is made of."""

import gc
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from remotely.calling.actor import Names, whole_sources
from remotely.engine import Engine, Options
from remotely.engines.ray import births, ends, room
from remotely.engines.ray.calls import Calls, put_beside
from remotely.engines.ray.host import Birth, Place
from remotely.engines.ray.remote import HostedActor, new_id
from remotely.engines.ray.room import Look
from remotely.errors import NameTaken, NoResources, name_taken
from remotely.futures.future import CallFuture
from remotely.machine import this_machine
from remotely.objects import introspection
from remotely.protocol import control
from remotely.protocol.lease import PLACE_S
from remotely.protocol.wire import Kind
from remotely.values import script_settings
from remotely.values.codec import Encoded
from remotely.values.shipping import Shipment

NAME_FREE_S, LOOK_EVERY_S = 10.0, 0.05  # how long Ray may keep the name of a life that has ended
COLLECT_AFTER_S = 1.0  # without room: handles in cycles of garbage may be what fills the cluster
REPORT_AFTER_S = 5.0  # Ray does not say whether it has no room, or a process only starts slowly


class ActorFactory:
    """`inside` is the name of the actor that this process is; empty in a script.

    `complain` prints a sentence for the user; its first argument tells which sentences are alike.
    """

    def __init__(
        self,
        engine: Engine,
        calls: Calls,
        shipment: Shipment,
        patience_s: float,
        complain: Callable[[str, str], None],
        inside: str,
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._shipment = shipment
        self._patience_s = patience_s
        self._complain = complain
        self._made_within_s = patience_s + PLACE_S  # the others of a group may wait for room first
        self._inside = inside
        self._names = Names(f"{secrets.token_hex(2)}." if inside else "")

    def new(self, cls: type, options: Options) -> HostedActor:
        """Return an actor that has a name and no process yet."""
        name, owned = self._names.of(cls, options), not options.detached
        actor = HostedActor(self._engine, new_id(options.name), name, owned, cls.__name__)
        actor.is_serial = introspection.is_serial(cls, options.concurrency)
        return actor

    def make(self, actors: Sequence[HostedActor], encoded: Encoded, options: Options) -> None:
        """Give each a process and its object.  Makes all of them or raises an error."""
        try:
            self.make_or_fail(actors, encoded, options)
        except RayError as error:
            raise ends.end_error(actors[0].name, None, error)(False) from None

    def make_or_fail(
        self, actors: Sequence[HostedActor], encoded: Encoded, options: Options
    ) -> None:
        """The same.  Raises RayError if a process ends before it is given its object."""
        made: list[CallFuture[Any]] = []
        begun = self._begin(actors, options)
        beside = put_beside(encoded) if len(actors) > 1 else None
        for actor, place in zip(actors, begun, strict=True):
            actor.place = msgspec.msgpack.decode(ray.get(place), type=Place)
            made.append(self._prepare(actor, encoded, options, beside))
        while made:
            made.pop(0).result()

    def _begin(self, actors: Sequence[HostedActor], options: Options) -> list[Any]:
        """Wait until each has a process; return Ray's references to their places."""
        node, count, what = births.node_for(options), len(actors), actors[0].class_name
        patience_s = self._patience_s
        if options.patience_s is not None:
            patience_s = max(options.patience_s, REPORT_AFTER_S)
        deadline = time.monotonic() + patience_s

        def wait_for_room(look: Look) -> None:
            self._wait_for_room(look, deadline, count, what)

        with room.reserved(options, count, node, wait_for_room):
            hosts = [self._start(actor, options, node) for actor in actors]
            begun = [
                host.begin.remote(self._birth_of(actor, options))
                for actor, host in zip(actors, hosts, strict=True)
            ]
        wait_for_room(
            lambda timeout_s: len(ray.wait(begun, num_returns=count, timeout=timeout_s)[1])
        )
        return begun

    def _start(self, actor: HostedActor, options: Options, node: str) -> Any:
        deadline = time.monotonic() + (NAME_FREE_S if actor.life else 0.0)
        while True:
            try:
                with actor.lock:  # whoever ends it meanwhile finds its host, or keeps it from one
                    if actor.ended is not None:
                        raise actor.ended(False)
                    host = births.new_host(actor, options, node, self._made_within_s)
                    actor.lives_as(host)
                return host
            except ValueError:
                if time.monotonic() >= deadline:
                    break
            time.sleep(LOOK_EVERY_S)
        raise NameTaken(name_taken(options.name, "on this cluster"))

    def _birth_of(self, actor: HostedActor, options: Options) -> bytes:
        assert isinstance(options.memory, int)
        owner = (0, "", "")
        if not options.detached:
            owner = (os.getpid(), this_machine.machine_name(), self._inside)
        birth = Birth(
            actor=actor.actor,
            name=actor.name,
            class_name=actor.class_name,
            life=actor.life,
            is_serial=actor.is_serial,
            max_restarts=options.max_restarts,
            cpus=options.cores,
            gpus=options.gpus,
            env=list(options.env),
            memory=options.memory,
            resources=dict(options.resources),
            owner=owner,
            cluster=self._engine.cluster,
        )
        return msgspec.msgpack.encode(birth)

    def _wait_for_room(self, look: Look, deadline: float, count: int, what: str) -> None:
        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        if not look(min(COLLECT_AFTER_S, left_s())):
            return
        gc.collect()
        if not (waiting := look(min(REPORT_AFTER_S - COLLECT_AFTER_S, left_s()))):
            return
        if left_s():
            self._complain(
                f"waiting for {what}",
                f"remotely: waiting for {waiting} of {count} {what}: the Ray cluster has no room, "
                f"or is slow to start processes (giving up after {self._patience_s:g} s)",
            )
        if not (waiting := look(left_s())):
            return
        raise NoResources(
            f"the Ray cluster has had no room for {waiting} of {count} {what} for "
            f"{self._patience_s:g} s: close actors, ask for less, or wait longer by "
            "connect(patience_s=...)"
        )

    def _prepare(
        self, actor: HostedActor, encoded: Encoded, options: Options, beside: Any = None
    ) -> CallFuture[Any]:
        """Send settings, code, files, and what the object is made of."""
        content, actor.learnt = whole_sources(actor, actor.life)
        prepare = script_settings.prepare(
            ray.get_runtime_context().get_job_id(),
            this_machine.identity(),
            self._shipment.files,
            options.concurrency,
            content,
        )
        missing: CallFuture[list[str]] = CallFuture("the actor", actor)
        body = Encoded((control.encode(prepare),), ())
        self._calls.send_to_new(actor, Kind.PREPARE, "", body, missing)
        if self._shipment.files:
            for digest in missing.result():
                stored: CallFuture[None] = CallFuture("the actor", actor)
                file = Encoded((), (memoryview(self._shipment.read(digest)),))
                self._calls.send_to_new(actor, Kind.FILE, digest, file, stored)
                stored.result()
        future: CallFuture[Any] = CallFuture(f"the constructor of {actor.name}", actor)
        self._calls.send_to_new(actor, Kind.INIT, "", encoded, future, beside)
        return future
