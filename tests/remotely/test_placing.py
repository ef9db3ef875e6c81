"""A real master with scripted workers and clients: sockets, keys, leases.

The rules of placement are tested pure, in tests/remotely/master.

The master runs on a real socket with real keys, and shorter times.  The tests play its peers, so
they can produce any order of events and read all replies.
"""

import dataclasses
import errno
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from remotely.calling.actor import MadeFrom
from remotely.calling.engine import CallEngine, begin_restart
from remotely.client.carrier import ClusterCarrier
from remotely.client.channels import ActorState
from remotely.client.placing import ConstructorValues, Placing
from remotely.engine import Options
from remotely.errors import ActorDied, MasterLost, NotAllowed, RemotelyError
from remotely.futures import wakeup
from remotely.machine import this_machine
from remotely.master import master as master_module
from remotely.master.master import Master
from remotely.protocol import control
from remotely.protocol.configs import MasterConfig
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources
from remotely.transport import master_link, sockets
from remotely.transport.keys import MemberKey, fresh_keys, fresh_pair
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink
from remotely.transport.sockets import Reconnect
from remotely.values.owned import NOTHING
from remotely.values.shipping import Shipment

DEADLINE_S = 40.0
LEASE_S = 0.6
TICK_S = 0.05

Received = TypeVar("Received")

numbers = itertools.count(1)


class Peer:
    """A worker or client that sends the messages of a test and records those that it receives."""

    def __init__(self, world: "World", key: MemberKey, introduction: msgspec.Struct) -> None:
        self.world = world
        self.received: list[object] = []
        self.introduction = introduction
        self._link = MasterLink(
            world.loop,
            world.context,
            world.address,
            key,
            lambda: self.introduction,
            self.received.append,
            self.received.append,
        )

    def send(self, message: msgspec.Struct) -> None:
        self._link.send(message)

    def receive(
        self, kind: type[Received], of: Callable[[Received], bool] = lambda _: True
    ) -> Received:
        """Wait for a message of this kind, and remove it from `received`."""

        def found() -> list[Received]:
            return [said for said in self.received if isinstance(said, kind) and of(said)]

        self.world.until(lambda: bool(found()), kind.__name__)
        first = found()[0]
        self.received.remove(first)
        return first

    def disconnect(self) -> None:
        """Disconnect without a message, as when a cable is pulled."""
        self._link.close()


class Client(Peer):
    def __init__(
        self, world: "World", nonce: str = "", key: MemberKey | None = None, **hello: Any
    ) -> None:
        self.key = key = key or world.client_key
        self.nonce = nonce or f"session-{next(numbers)}"
        self.session = bound_id("client", key.pair.public, self.nonce)
        fields: dict[str, Any] = {
            "session": self.session,
            "nonce": self.nonce,
            "python": this_machine.PYTHON,
            "pid": 1,
            "host": "elsewhere",
            "machine": "a client's machine",
            **hello,
        }
        super().__init__(world, key, control.Hello(**fields))

    def request(self, patience_s: float = 60.0, **wishes: Any) -> control.Place:
        """Request an actor."""
        actor = f"actor-{next(numbers)}"
        fields: dict[str, Any] = {
            "actor": actor,
            "name": actor,
            "class_name": "Counter",
            "owner": self.session,
            "job": self.session,
            "python": this_machine.PYTHON,
            "key": self.world.client_key.pair.public,
            "resources": Resources(
                wishes.pop("cpus", 1), wishes.pop("gpus", 0), wishes.pop("memory", 0)
            ),
            **wishes,
        }
        request = control.Request(**fields)
        place = control.Place(ticket=next(numbers), request=request, patience_s=patience_s)
        self.send(place)
        return place

    def locate(self, actor: str = "", name: str = "") -> control.Located:
        ticket = next(numbers)
        self.send(control.Locate(ticket=ticket, actor=actor, name=name))
        return self.receive(control.Located, lambda located: located.ticket == ticket)

    def status(self) -> control.Status:
        ticket = next(numbers)
        self.send(control.AskStatus(ticket=ticket, fresh=False))
        return self.receive(control.Status, lambda status: status.ticket == ticket)

    def place(self, worker: "Worker", **wishes: Any) -> control.Request:
        """Request an actor, and have the worker spawn it."""
        place = self.request(**wishes)
        worker.spawn(place.request.actor)
        self.receive(control.Placed, lambda placed: placed.ticket == place.ticket)
        return place.request


class Worker(Peer):
    def __init__(self, world: "World", cpus: float = 2, **register: Any) -> None:
        nonce = f"worker-{next(numbers)}"
        self.name = bound_id("worker", world.worker_key.pair.public, nonce)
        self.living: dict[str, control.ActorStatus] = {}
        fields: dict[str, Any] = {
            "worker": self.name,
            "nonce": nonce,
            "python": this_machine.PYTHON,
            "host": "elsewhere",
            "machine": f"the machine of {self.name}",
            "address": "somewhere",
            "pid": 1,
            "resources": Resources(cpus, 0, 1 << 30),
            "actors": [],
            **register,
        }
        super().__init__(world, world.worker_key, control.Register(**fields))
        self.receive(control.Registered)

    def spawn(self, actor: str) -> control.Location:
        """Wait for the request to spawn an actor, and report it spawned."""
        spawn = self.receive(control.Spawn, lambda spawn: spawn.request.actor == actor)
        location = self.add_actor(spawn)
        self.send(control.Spawned(location=location))
        return location

    def add_actor(self, spawn: control.Spawn) -> control.Location:
        request = spawn.request
        location = control.Location(
            actor=request.actor,
            name=request.name,
            class_name=request.class_name,
            life=request.life,
            pid=next(numbers),
            host="elsewhere",
            machine="the worker's machine",
            ipc="ipc://somewhere",
            tcp="",
            public_key=b"k" * 40,
        )
        status = control.ActorStatus(
            location=location, request=request, gpu_ids=spawn.gpu_ids, seal=spawn.seal
        )
        self.living[request.actor] = status
        self.introduction = msgspec.structs.replace(
            self.introduction, actors=list(self.living.values())
        )
        return location

    def delegate(self, actor: str) -> MemberKey:
        """Have the master admit an actor as a client; return its key."""
        pair = fresh_pair()
        self.send(control.Delegate(actor=actor, key=pair.public))
        self.receive(control.Delegated, lambda said: said.actor == actor)
        status = msgspec.structs.replace(self.living[actor], delegate=pair.public)
        self.living[actor] = status
        self.introduction = msgspec.structs.replace(
            self.introduction, actors=list(self.living.values())
        )
        return MemberKey("client", pair, self.world.client_key.master_public)

    def report_death(self, actor: str, life: int = 0, **how: Any) -> None:
        """Report the end of an actor."""
        if self.living.pop(actor, None):
            actors = list(self.living.values())
            self.introduction = msgspec.structs.replace(self.introduction, actors=actors)
        self.send(control.Died(obituary=control.Obituary(actor=actor, life=life, **how)))


class World:
    """A master and its peers, whose event loops the test runs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.master_key, self.client_key, self.worker_key, _ = fresh_keys()
        self.loop = Loop()
        self.context = sockets.new_context()
        self.master: Master | None = None
        self.start_master(learns=False)

    def start_master(self, learns: bool = True) -> None:
        self.master = Master(
            MasterConfig(
                address=self.address, key=self.master_key.to_dict(), lifeline=False, learns=learns
            )
        )

    def end_master(self) -> None:
        assert self.master is not None
        self.master._context.destroy(linger=0)
        self.master._loop.close()
        self.master = None

    def until(self, fact: Callable[[], bool], what: str = "it") -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            self.turn()

    def turn(self) -> None:
        if self.master is not None:
            self.master._loop.turn(0.002)
        self.loop.turn(0.002)

    def close(self) -> None:
        if self.master is not None:
            self.end_master()
        self.context.destroy(linger=0)
        self.loop.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(master_module, "LEASE_S", LEASE_S)
    monkeypatch.setattr(master_module, "TICK_EVERY_S", TICK_S)
    monkeypatch.setattr(master_link, "BEAT_EVERY_S", TICK_S)
    # Members of embedded clusters do not beat, but these must, although they use no port.
    monkeypatch.setattr(master_link, "is_remote", lambda address: True)
    made = World(f"ipc://{tmp_path}/m")
    yield made
    made.close()


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)


@pytest.fixture
def worker(world: World) -> Worker:
    return Worker(world)


# --- roles ----------------------------------------------------------------------------------------


def answer_to(world: World, key: MemberKey, *frames: bytes) -> object:
    """Return the first reply of the master to a handmade message."""
    socket = sockets.client(world.context, key.pair, key.master_public, Reconnect.NEVER)
    reader = control.Decoder(f"master > {key.role}")
    answers: list[object] = []
    world.loop.watch_socket(socket, lambda f: answers.append(reader.decode(f[0].buffer)))
    socket.connect(world.address)
    socket.send_multipart(frames)
    world.until(lambda: bool(answers), "an answer")
    world.loop.unwatch_socket(socket)
    socket.close(linger=0)
    return answers[0]


def register(world: World) -> control.Register:
    return control.Register(
        worker=bound_id("worker", world.worker_key.pair.public, "intruder"),
        nonce="intruder",
        python=this_machine.PYTHON,
        host="elsewhere",
        machine="",
        address="",
        pid=1,
        resources=Resources(cpus=100),
        actors=[],
    )


def hello(world: World) -> control.Hello:
    return control.Hello(
        session=bound_id("client", world.client_key.pair.public, "intruder"),
        nonce="intruder",
        python=this_machine.PYTHON,
        pid=1,
        host="elsewhere",
        machine="",
    )


def test_a_client_key_cannot_register_a_worker(world: World, client: Client) -> None:
    answer = answer_to(world, world.client_key, control.encode(register(world)))
    assert isinstance(answer, control.Refused)
    assert answer.error == "WireError"
    assert client.status().workers == []


@pytest.mark.parametrize("role", ["client", "worker"])
def test_messages_before_hello_are_processed_up_to_goodbye(
    world: World, client: Client, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    """A new master may receive them in this order: it holds them until the peer is known."""
    said: list[msgspec.Struct]
    if role == "client":
        key = world.client_key
        said = [control.Goodbye(), control.AskStatus(ticket=1), control.Goodbye(), hello(world)]
    else:
        key = world.worker_key
        said = [control.Left(), control.Report(actors=[]), control.Left(), register(world)]
    line = sockets.client(world.context, key.pair, key.master_public, Reconnect.NEVER)
    answers: list[object] = []
    reader = control.Decoder(f"master > {role}")
    world.loop.watch_socket(line, lambda frames: answers.append(reader.decode(frames[0].buffer)))
    line.connect(world.address)
    for message in said:
        line.send_multipart([control.encode(message)])
    kinds = (control.Welcome, control.Registered)
    world.until(lambda: any(isinstance(answer, kinds) for answer in answers), "its name is known")
    status = client.status()
    assert (len(status.workers), len(status.clients)) == (0, 1)
    assert caplog.messages == []
    world.loop.unwatch_socket(line)
    line.close(linger=0)


def test_a_worker_key_cannot_send_client_messages(world: World, client: Client) -> None:
    hello = control.Hello(
        session="intruder", python=this_machine.PYTHON, pid=1, host="elsewhere", machine=""
    )
    for message in (hello, control.AskStatus(ticket=1), control.End(actor="x", grace_s=0.0)):
        answer = answer_to(world, world.worker_key, control.encode(message))
        assert isinstance(answer, control.Refused)
        assert answer.error == "WireError"
    assert [session.session for session in client.status().clients] == [client.session]


def test_a_viewer_key_is_read_only(world: World, worker: Worker, client: Client) -> None:
    placed = client.place(worker, env={"SECRET": "of the script"})
    pair = fresh_pair()
    key = MemberKey("viewer", pair, world.client_key.master_public)
    world.end_master()
    world.master_key = world.master_key.listing("viewer", (pair.public,))
    world.start_master()
    client.place(worker)
    hello = control.Hello(
        session=bound_id("viewer", pair.public, "nonce"),
        nonce="nonce",
        python=this_machine.PYTHON,
        pid=1,
        host="elsewhere",
        machine="",
        modules=["torch"],
    )
    viewer = Peer(world, key, hello)
    viewer.receive(control.Welcome)
    viewer.send(control.AskStatus(ticket=1, fresh=False))
    status = viewer.receive(control.Status)
    ((found, _),) = [told.actors for told in status.workers]
    assert found.request == msgspec.structs.replace(placed, env={}, key=found.request.key)
    assert [told.session for told in status.clients] == [client.session]

    for said in (
        control.Place(ticket=2, request=placed, patience_s=1.0),
        control.End(actor=placed.actor, grace_s=0.0, kill=True),
        control.Locate(ticket=3, actor=placed.actor),
        control.AskArrival(ticket=4, class_name="Counter"),
        control.Unanswered(calls={placed.actor: 1}),
        register(world),
    ):
        answer = answer_to(world, key, control.encode(said))
        assert isinstance(answer, control.Refused)
        assert answer.error == "WireError"
    assert not any(isinstance(said, control.End | control.Preload) for said in worker.received)
    assert [len(told.actors) for told in client.status().workers] == [2]
    viewer.disconnect()


def guest_of(world: World) -> Worker:
    """Return a worker whose one actor is an object of its process (guest.py)."""
    nonce = "guest"
    name = bound_id("worker", world.worker_key.pair.public, nonce)
    request = control.Request(
        actor=name,
        name="sim",
        named=True,
        class_name="Counter",
        owner="",
        job="",
        resources=Resources(),
        python=this_machine.PYTHON,
        classes=["Counter"],
    )
    location = control.Location(
        actor=name,
        name="sim",
        class_name="Counter",
        life=0,
        pid=1,
        host="elsewhere",
        machine="a machine",
        ipc="ipc://somewhere",
        tcp="",
        public_key=b"k" * 40,
    )
    actors = [control.ActorStatus(location=location, request=request)]
    empty = Resources()
    return Worker(world, nonce=nonce, worker=name, python="", resources=empty, actors=actors)


def test_the_holder_of_a_revoked_key_hears_why_before_its_actor_is_ended(world: World) -> None:
    guest = guest_of(world)
    assert world.master is not None
    world.master._set_keys(dataclasses.replace(world.master_key, worker_keys=()))

    def heard() -> list[type]:
        kinds = [type(said) for said in guest.received]
        return [kind for kind in kinds if kind in (NotAllowed, control.End)]

    world.until(lambda: control.End in heard())
    assert heard()[:2] == [NotAllowed, control.End]  # and again, if it has sent a beat meanwhile


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([b""], "WireError"),
        ([bytes([control.VERSION]) + b"garbage"], "WireError"),
        ([bytes([control.VERSION]) + b"\xff\xff\xff"], "WireError"),
        ([control.encode(control.Beat()), b"a frame too many"], "WireError"),
        ([bytes([control.VERSION + 1]) + b"anything"], "VersionMismatch"),
    ],
)
def test_an_invalid_message_is_refused_and_harms_no_other_peer(
    world: World, client: Client, frames: list[bytes], error: str
) -> None:
    for key in (world.client_key, world.worker_key):
        answer = answer_to(world, key, *frames)
        assert isinstance(answer, control.Refused)
        assert answer.error == error
        assert answer.why
    assert client.status().workers == []


def test_repeated_invalid_messages_are_logged_once_a_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        answer_to(world, world.client_key, control.encode(register(world)))
    assert answer_to(world, world.worker_key, b"nothing that is known")
    logged = [record.message for record in caplog.records]
    assert [line.split(" at ")[0] for line in logged] == [
        "refused a message of a client",
        "refused a message of a worker",
    ]


@pytest.mark.parametrize("cpus", [float("inf"), float("nan"), -1.0])
def test_a_worker_with_an_invalid_number_of_cpus_is_refused(
    world: World, client: Client, cpus: float
) -> None:
    bad = msgspec.structs.replace(register(world), resources=Resources(cpus))
    answer = answer_to(world, world.worker_key, control.encode(bad))
    assert isinstance(answer, control.Refused)
    assert client.status().workers == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EINVAL])
def test_a_peer_whose_process_cannot_be_watched_is_kept(
    world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(pid: int, flags: int = 0) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(master_module.os, "pidfd_open", fails)
    client = Client(world, host=this_machine.identity(), pid=os.getpid())
    client.place(worker)
    assert [found.session for found in client.status().clients] == [client.session]
    assert not any(isinstance(said, control.End) for said in worker.received)


def test_an_unknown_connection_is_asked_to_introduce_itself(world: World) -> None:
    answer = answer_to(world, world.client_key, control.encode(control.AskStatus(ticket=1)))
    assert isinstance(answer, control.WhoAreYou)
    answer = answer_to(world, world.worker_key, control.encode(control.Beat()))
    assert isinstance(answer, control.WhoAreYou)


def test_a_peer_without_a_key_gets_no_reply(world: World, client: Client) -> None:
    pair = fresh_pair()
    stranger = Peer(
        world, MemberKey("client", pair, world.client_key.master_public), register(world)
    )
    refusal = stranger.receive(RemotelyError)
    assert "key" in str(refusal)
    assert client.status().workers == []
    stranger.disconnect()


# --- placing --------------------------------------------------------------------------------------


def test_an_actor_is_placed_when_its_worker_reports_it_spawned(
    client: Client, worker: Worker
) -> None:
    place = client.request(cpus=0.5)
    location = worker.spawn(place.request.actor)
    placed = client.receive(control.Placed)
    assert (placed.ticket, placed.location) == (place.ticket, location)
    assert client.status().workers[0].free_cpus == 1.5


# --- ends -----------------------------------------------------------------------------------------


def test_the_actors_of_a_lost_client_are_ended(world: World, worker: Worker) -> None:
    stays, lost = Client(world), Client(world)
    kept, ended = stays.place(worker), lost.place(worker)
    lost.disconnect()
    assert worker.receive(control.End).actor == ended.actor
    assert [session.session for session in stays.status().clients] == [stays.session]
    assert not [said for said in worker.received if isinstance(said, control.End)]
    assert stays.locate(actor=kept.actor).location is not None


def test_a_client_that_returns_within_its_lease_keeps_its_actors(
    world: World, worker: Worker
) -> None:
    first = Client(world)
    request = first.place(worker)
    first.disconnect()
    again = Client(world, nonce=first.nonce)
    begun = time.monotonic()
    world.until(lambda: time.monotonic() - begun > 2 * LEASE_S)  # its lease would have expired
    assert not [said for said in worker.received if isinstance(said, control.End)]
    worker.report_death(request.actor)
    assert again.receive(control.Died).obituary.actor == request.actor


def test_the_end_of_a_local_client_process_is_seen_at_once(world: World, worker: Worker) -> None:
    """Its connection is still open, so no lease has expired."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        client = Client(world, pid=process.pid, host=this_machine.identity())
        request = client.place(worker)
        process.kill()
        process.wait()
        assert worker.receive(control.End).actor == request.actor
    finally:
        process.kill()
        process.wait()


# --- workers that come and go ---------------------------------------------------------------------


def test_the_actors_of_a_lost_worker_are_lost(world: World, client: Client) -> None:
    lost = Worker(world, cpus=1)
    request = client.place(lost)
    stays = Worker(world, cpus=1)
    kept = client.place(stays)
    lost.disconnect()
    obituary = client.receive(control.Died).obituary
    assert (obituary.actor, obituary.lost) == (request.actor, True)
    assert f"the machine of {lost.name} was last heard" in obituary.why
    assert [found.worker for found in client.status().workers] == [stays.name]
    assert client.locate(actor=kept.actor).location is not None


def test_a_worker_ends_the_lease_of_a_predecessor_only_with_its_nonce(
    world: World, client: Client, worker: Worker
) -> None:
    actor = client.place(worker).actor
    assert isinstance(worker.introduction, control.Register)
    liar = Worker(world, predecessors=[worker.name, "guessed"])
    assert client.locate(actor=actor).location is not None
    nonce = worker.introduction.nonce
    worker.disconnect()

    following = Worker(world, predecessors=[nonce])

    died = client.receive(control.Died, lambda died: died.obituary.actor == actor)
    assert (died.obituary.lost, "was killed" in died.obituary.why) == (True, True)
    assert {w.worker for w in client.status().workers} == {liar.name, following.name}


def test_a_killed_local_worker_is_lost_at_once_and_its_restart_awaited(
    world: World, client: Client
) -> None:
    Worker(world, cpus=1)  # too small
    with subprocess.Popen(["sleep", "60"]) as process:
        killed = Worker(world, cpus=2, pid=process.pid, host=this_machine.identity())
        request = client.place(killed, cpus=2, max_restarts=1, maker=client.session)
        process.kill()
    assert client.receive(control.Died).obituary.restarting
    client.send(
        control.Place(
            ticket=7, request=msgspec.structs.replace(request, life=1), patience_s=DEADLINE_S
        )
    )
    assert "may come back" in client.receive(control.Queued).why
    assert isinstance(killed.introduction, control.Register)
    following = Worker(world, cpus=2, predecessors=[killed.introduction.nonce])
    following.spawn(request.actor)
    assert client.receive(control.Placed).ticket == 7


def test_a_disconnected_worker_gets_no_requests(world: World, client: Client) -> None:
    assert world.master is not None
    world.master.core.state.leases.lease_s = 600
    killed = Worker(world, cpus=8)
    other = Worker(world)
    killed.disconnect()
    place = client.request()
    other.spawn(place.request.actor)
    assert client.receive(control.Placed).ticket == place.ticket
    assert killed.name in {worker.worker for worker in client.status().workers}


# --- a new master ---------------------------------------------------------------------------------


def test_a_new_master_learns_the_cluster_from_registrations(
    world: World, client: Client, worker: Worker
) -> None:
    request = client.place(worker, name="store", named=True)
    world.end_master()
    world.start_master()
    world.until(lambda: client.status().workers != [])
    found = client.locate(name="store").location
    assert found == worker.living[request.actor].location
    assert client.status().workers[0].free_cpus == 1
    begun = time.monotonic()
    world.until(lambda: time.monotonic() - begun > 2 * LEASE_S)
    assert not [said for said in worker.received if isinstance(said, control.End)]


def test_requests_without_a_master_are_answered_by_the_next(
    world: World, client: Client, worker: Worker
) -> None:
    world.end_master()
    place = client.request()
    world.start_master()
    worker.spawn(place.request.actor)
    assert client.receive(control.Placed).ticket == place.ticket


def test_a_client_repeats_unanswered_requests_to_a_new_master(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as script:

        def done(function: Callable[..., Any], *arguments: Any) -> Any:
            future = script.submit(function, *arguments)
            world.until(future.done)
            return future.result()

        assert world.master is not None
        client = done(ClusterCarrier, world.address, world.client_key, Shipment())
        heard: list[int] = []
        with monkeypatch.context() as patched:
            patched.setattr("remotely.master.status.status", lambda ticket, _: heard.append(ticket))
            answer = script.submit(client.status)
            world.until(lambda: bool(heard))
            world.end_master()
        world.start_master()
        world.until(answer.done)
        assert [found.session for found in answer.result().clients] == [client.session_id]
        done(client.shutdown)


@pytest.mark.parametrize("life", [0, 1])
def test_an_abandoned_actor_ends_even_if_its_client_could_not_send_it(
    world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch, life: int
) -> None:
    """Its first life, or a restart: otherwise the client's lease would keep it for ever."""
    with ThreadPoolExecutor(1) as script:

        def done(function: Callable[..., Any], *arguments: Any) -> Any:
            future = script.submit(function, *arguments)
            world.until(future.done)
            return future.exception() or future.result()

        client = done(ClusterCarrier, world.address, world.client_key, Shipment())
        engine = CallEngine(client)
        if life:
            actor = restartable(client, engine)
            actor.restarting = True
            actor.expect_life(life)
            begin_restart(client, actor)
            made: Future[Any] = script.submit(actor.wait_until_alive)
        else:
            made = script.submit(engine.place, World, [((), {})], Options())
        born = worker.receive(control.Spawn)
        assert born.request.life == life
        with monkeypatch.context() as broken:
            broken.setattr(client._session.link, "send", lambda message: None)
            broken.setattr(
                "remotely.client.master_session.LEASE_S", -1.0
            )  # so that the client considers the master lost
            client._session.loop.call(client._session._check_master)
            world.until(made.done)
            settled = threading.Event()
            client._session.loop.call(settled.set)
            world.until(settled.is_set)
        worker.introduction = msgspec.structs.replace(worker.introduction, births=[born])
        world.end_master()
        world.start_master()
        assert worker.receive(control.End).actor == born.request.actor
        worker.report_death(born.request.actor)
        done(client.shutdown)
        assert isinstance(made.exception(), ActorDied if life else MasterLost)


def restartable(client: ClusterCarrier, engine: CallEngine) -> ActorState:
    options = Options(max_restarts=1)
    (actor,) = client.new(engine, World, ["restartable"], options)
    client.known[actor.actor] = actor
    actor.made_from = MadeFrom(NOTHING, options, control.MakerState())
    return actor


def test_an_abandoned_actor_is_not_restarted_on_its_obituary(world: World, worker: Worker) -> None:
    """Its handles report that it has ended, so nothing would ever end the restarted one."""
    with ThreadPoolExecutor(1) as script:
        connecting = script.submit(ClusterCarrier, world.address, world.client_key, Shipment())
        world.until(connecting.done)
        client = connecting.result()
        actor = restartable(client, CallEngine(client))
        actor.ended = lambda may: ActorDied("could not be restarted", may_have_run=may)
        told = control.Obituary(actor=actor.actor, life=0, restarting=True)
        client._on_death(control.Died(obituary=told))
        assert actor.request.life == 0
        leaving = script.submit(client.shutdown)
        world.until(leaving.done)
        assert not [said for said in worker.received if isinstance(said, control.Spawn)]


def test_an_actor_whose_last_handle_is_dropped_during_its_restart_ends(
    world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message to end it may overtake the request to restart it."""
    with ThreadPoolExecutor(1) as script:
        connecting = script.submit(ClusterCarrier, world.address, world.client_key, Shipment())
        world.until(connecting.done)
        client = connecting.result()
        monkeypatch.setattr(Placing, "_prepare", lambda *given: (None, [given[2]]))
        monkeypatch.setattr(ConstructorValues, "send", lambda *_: [])
        engine = CallEngine(client)
        actor = restartable(client, engine)
        engine.release(actor)
        actor.restarting = True
        actor.expect_life(1)
        begin_restart(client, actor)
        remade = script.submit(wakeup.sleep_until, lambda: not actor.restarting, None, actor)
        worker.spawn(actor.actor)
        assert worker.receive(control.End).actor == actor.actor
        worker.report_death(actor.actor, life=1, asked=True)
        world.until(remade.done)
        leaving = script.submit(client.shutdown)
        world.until(leaving.done)


def test_a_new_master_ends_the_actors_of_a_client_that_does_not_return(
    world: World, client: Client, worker: Worker
) -> None:
    gone = Client(world)
    request = gone.place(worker)
    detached = client.place(worker, owner="")
    gone.disconnect()
    world.end_master()
    world.start_master()
    assert worker.receive(control.End).actor == request.actor
    assert client.locate(actor=detached.actor).location is not None


def outlives_the_master(world: World, client: Client, worker: Worker) -> Client:
    """Return a calling actor at a new master with which its worker has not registered yet."""
    home = client.place(worker)
    inside = Client(world, key=worker.delegate(home.actor), actor=home.actor)
    inside.receive(control.Welcome)
    worker.disconnect()
    world.end_master()
    world.start_master()
    return inside


def test_a_calling_actor_returns_to_a_new_master_before_or_after_its_worker(
    world: World, client: Client, worker: Worker
) -> None:
    inside = outlives_the_master(world, client, worker)
    assert world.master is not None
    zap = world.master._zap
    world.until(lambda: bool(zap._undecided), "the question about its key")
    again = Peer(world, world.worker_key, worker.introduction)
    again.receive(control.Delegated)
    inside.receive(control.Welcome)
    child = inside.request(cpus=1)
    spawned = again.receive(control.Spawn).request
    assert spawned.owner == inside.session
    assert (spawned.job, spawned.key) == (client.session, client.key.pair.public)
    assert place_is_of(child, spawned)


def test_a_refused_actor_reconnects_when_its_worker_is_back(
    world: World,
    client: Client,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """libzmq does not reconnect after its key was refused."""
    monkeypatch.setattr(master_module, "UNKNOWN_KEY_WAIT_S", 0.01)
    inside = outlives_the_master(world, client, worker)
    inside.send(control.Beat())
    world.until(lambda: "unknown key" in caplog.text, "its refusal")
    again = Peer(world, world.worker_key, worker.introduction)
    again.receive(control.Delegated)
    inside.receive(control.Welcome)
    assert place_is_of(inside.request(), again.receive(control.Spawn).request)


def test_a_peer_whose_key_was_revoked_does_not_reconnect(
    world: World, client: Client, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.master is not None
    made: list[object] = []
    monkeypatch.setattr(MasterLink, "_reconnect", lambda link: made.append(master_link))
    home = client.place(worker)
    inside = Client(world, key=worker.delegate(home.actor), actor=home.actor)
    inside.receive(control.Welcome)
    worker.report_death(home.actor)
    client.receive(control.Died)
    inside.send(control.Beat())
    inside.receive(NotAllowed)
    world.end_master()
    world.start_master(learns=False)
    beats = itertools.count()
    world.until(lambda: inside._link._is_given_up and next(beats) > 50, "more beats")
    assert made == []


def place_is_of(place: control.Place, request: control.Request) -> bool:
    return place.request.actor == request.actor


def test_a_new_master_soon_refuses_an_unknown_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "UNKNOWN_KEY_WAIT_S", 0.05)
    stranger = MemberKey("client", fresh_pair(), world.client_key.master_public)
    refused = Client(world, key=stranger)
    assert isinstance(refused.receive(NotAllowed), NotAllowed)


# --- peers that lie -------------------------------------------------------------------------------


def test_a_peer_cannot_take_the_route_of_another(
    world: World, client: Client, worker: Worker
) -> None:
    """Neither in another role, nor with another key, nor with the same one."""
    request = client.place(worker)
    hello, register = client.introduction, worker.introduction
    assert isinstance(hello, control.Hello)
    assert isinstance(register, control.Register)
    replace = msgspec.structs.replace
    for key, said in (
        (world.worker_key, replace(register, worker=client.session, nonce=client.nonce)),
        (world.worker_key, replace(register, nonce="guessed")),
        (world.client_key, replace(hello, session=worker.name, nonce=register.nonce)),
        (world.client_key, replace(hello, nonce="guessed")),
    ):
        answer = answer_to(world, key, control.encode(said))
        assert isinstance(answer, control.Refused)
        assert answer.error == "NotAllowed"
    worker.report_death(request.actor, exit=3)
    assert client.receive(control.Died).obituary.exit == 3  # both still have theirs


def test_a_worker_cannot_claim_an_actor_that_was_not_placed_there(
    world: World, client: Client, worker: Worker
) -> None:
    request = client.place(worker, name="store", named=True)
    genuine = worker.living[request.actor]
    world.end_master()
    world.start_master()
    location = msgspec.structs.replace(genuine.location, public_key=b"l" * 40)
    forged = msgspec.structs.replace(genuine.request, actor="forged")
    liar = Worker(
        world,
        actors=[
            msgspec.structs.replace(genuine, location=location),  # with the seal of the genuine one
            control.ActorStatus(location=location, request=forged, delegate=b"d" * 40),
        ],
    )
    assert {liar.receive(control.End).actor for _ in range(2)} == {request.actor, "forged"}
    world.until(lambda: client.locate(name="store").location == genuine.location)


# --- keys -----------------------------------------------------------------------------------------


def test_a_worker_is_sent_the_keys_that_its_actors_admit(world: World) -> None:
    register_again = Peer(world, world.worker_key, register(world))
    keys = register_again.receive(control.Registered).client_keys
    assert keys == [world.client_key.pair.public]
