"""Guests: how their objects become actors, and to which client each is assigned."""

from typing import Any

import msgspec
import pytest

from remotely.master import guests
from remotely.master.admission import Admission
from remotely.master.core import Core
from remotely.master.state import Forget, Instruction, Send
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources

CLIENT_KEY, WORKER_KEY = b"a client's key".ljust(40), b"a worker's key".ljust(40)
LEASE_S = 10.0
PYTHON = "3.11"


class Cluster:
    """A core with a worker and two clients, which send what the test tells them to.

    Tests name a guest by its nonce.
    """

    def __init__(self, recovers_until: float = 0.0) -> None:
        self.outbox: list[tuple[str, msgspec.Struct]] = []
        self.forgotten: list[str] = []
        self.refused: list[control.Refused] = []
        self.names: dict[str, str] = {}  # for this test, by the id
        self.tickets = 0
        self.admission = Admission([CLIENT_KEY], [WORKER_KEY], b"secret")
        self.core = Core(self.admission, LEASE_S, recovers_until)

    def execute(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Send):
                self.outbox.append((each.peer, each.message))
            elif isinstance(each, Forget):
                self.forgotten.append(each.peer)

    def client_says(self, who: str, message: msgspec.Struct) -> None:
        self.execute(self.core.handle_client(who, message, 0.0))

    def guest_says(self, nonce: str, message: msgspec.Struct) -> None:
        self.execute(self.core.handle_worker(id_of(nonce), message, 0.0))

    def sent(self, who: str, kind: type) -> list[Any]:
        """Remove and return the messages of this kind to a peer."""
        found = [message for to, message in self.outbox if to == who and isinstance(message, kind)]
        self.outbox = [one for one in self.outbox if one[1] not in found]
        return found

    def hello(self, who: str, arrivals: tuple[str, ...] = (), now: float = 0.0) -> None:
        hello = control.Hello(
            session=who, python=PYTHON, pid=1, host="", machine="", arrivals=[*arrivals]
        )
        self.execute(self.core.greet(hello, CLIENT_KEY, now))

    def joins(self, worker: str = "worker", is_near: bool = False) -> None:
        self.registers(
            control.Register(
                worker=worker, python=PYTHON, host="", machine="", address="", pid=1,
                resources=Resources(2, 0, 1 << 30), actors=[], relay=f"tcp://{worker}:1",
                relay_token=b"token",
            ),
            is_near=is_near,
        )  # fmt: skip

    def arrives(self, nonce: str, *classes: str, **more: Any) -> None:
        """Register a guest."""
        self.registers(guest(nonce, *classes, **more), **more)

    def registers(
        self, register: control.Register, key: bytes = WORKER_KEY, now: float = 0.0,
        is_near: bool = False, before: str = "", **_: Any,
    ) -> None:  # fmt: skip
        """Register a worker like the shell of the master."""
        self.names[register.worker] = register.nonce
        register = guests.vet(register, key, self.admission.seals)
        predecessors = [id_of(before, key)] if before else []
        if guests.is_guest(register):
            for each in predecessors:
                self.execute(self.core.remove_worker(each, guests.AGAIN, now))
            if refusal := self.core.refusal_of(register, now):
                self.refused.append(refusal)
                return
        self.execute(self.core.register_worker(register, now, is_near, predecessors))
        self.execute(self.core.reconcile_worker(register))

    def dies(self, nonce: str) -> None:
        obituary = control.Obituary(actor=id_of(nonce), life=0, why="gone")
        self.guest_says(nonce, control.Died(obituary=obituary))
        self.guest_says(nonce, control.Left())

    def asks(self, who: str, class_name: str) -> int:
        self.tickets += 1
        ask = control.AskArrival(ticket=self.tickets, class_name=class_name)
        self.client_says(who, ask)
        return self.tickets

    def given(self, who: str) -> dict[int, str]:
        """Return the actors that were newly assigned to a client, by ticket."""
        located = self.sent(who, control.Located)
        return {one.ticket: self.names[one.location.actor] for one in located}

    def finds(self, name: str) -> list[str]:
        """Return the guest that is found by a name."""
        self.client_says("ann", control.Locate(ticket=9, name=name))
        located = self.sent("ann", control.Located)
        return [self.names[one.location.actor] for one in located if one.location]


def guest(
    nonce: str, *classes: str, name: str = "", actor: str = "", key: bytes = WORKER_KEY,
    returns: bool = False, **_: Any,
) -> control.Register:  # fmt: skip
    """Return the registration of a guest; many of its fields are not for it to set."""
    worker = id_of(nonce, key)
    request = control.Request(
        actor=actor or worker, name=name or f"{classes[0]}-{nonce}", named=bool(name),
        class_name=classes[0], owner="somebody", job="job", resources=Resources(cpus=50),
        max_restarts=7, python=PYTHON, classes=[*classes],
    )  # fmt: skip
    location = control.Location(
        actor=request.actor, name=request.name, class_name=classes[0], life=0, pid=2, host="far",
        machine="robot", ipc="ipc://x", tcp="tcp://worker:2", public_key=b"its",
    )  # fmt: skip
    return control.Register(
        worker=worker, nonce=nonce, python="", host="far", machine="robot", address="", pid=2,
        resources=Resources(), returns=returns,
        actors=[control.ActorStatus(location=location, request=request)],
    )  # fmt: skip


def id_of(nonce: str, key: bytes = WORKER_KEY) -> str:
    """Return the id of a guest, which is that of its actor."""
    return bound_id("worker", key, nonce)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.joins()
    made.hello("ann")
    made.hello("bob")
    return made


def test_a_guest_becomes_an_actor_without_owner_or_resources(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim", name="sim")
    assert cluster.finds("sim") == ["a"]
    cluster.client_says("ann", control.AskStatus(ticket=1, fresh=False))
    (status,) = cluster.sent("ann", control.Status)
    (request,) = [actor.request for worker in status.workers for actor in worker.actors]
    assert (request.owner, request.job, request.max_restarts) == ("", "", 0)
    assert (request.resources, request.key) == (Resources(cpus=0), WORKER_KEY)
    cluster.dies("a")
    (died,) = cluster.sent("ann", control.Died)
    assert died.obituary.why == "gone"


def test_arrivals_are_assigned_in_order_to_the_first_request(
    cluster: Cluster,
) -> None:
    cluster.arrives("a", "Sim", "Base")
    cluster.arrives("b", "Sim", "Base")
    one = cluster.asks("ann", "Sim")
    assert cluster.given("ann") == {one: "a"}
    two, three = cluster.asks("bob", "Base"), cluster.asks("ann", "Base")
    assert cluster.given("bob") == {two: "b"}
    assert cluster.given("ann") == {}
    cluster.arrives("c", "Other")
    assert cluster.given("ann") == {}
    cluster.arrives("d", "Other", "Base")
    assert cluster.given("ann") == {three: "d"}


def test_the_arrivals_of_an_ended_client_are_assigned_again(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    cluster.asks("ann", "Sim")
    waits = cluster.asks("bob", "Sim")
    assert cluster.given("bob") == {}
    cluster.execute(cluster.core.end_session("ann", 0.0))
    assert cluster.given("bob") == {waits: "a"}


def test_dead_arrivals_are_not_assigned(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    cluster.dies("a")
    cluster.asks("ann", "Sim")
    assert cluster.given("ann") == {}
    cluster.arrives("b", "Sim")
    cluster.asks("ann", "Sim")
    cluster.execute(cluster.core.end_session("ann", 0.0))
    cluster.dies("b")
    cluster.asks("bob", "Sim")
    assert cluster.given("bob") == {}


@pytest.mark.parametrize("name", ["Sim", ""])
def test_a_withdrawn_request_frees_its_arrival(cluster: Cluster, name: str) -> None:
    early = cluster.asks("ann", name)
    cluster.client_says("ann", control.NoArrival(ticket=early))
    cluster.arrives("a", name)
    assert cluster.given("ann") == {}
    late = cluster.asks("ann", name)
    assert cluster.given("ann") == {late: "a"}
    cluster.client_says("ann", control.NoArrival(ticket=late))  # withdrawn while it was assigned
    ticket = cluster.asks("bob", name)
    assert cluster.given("bob") == {ticket: "a"}


def test_a_repeated_request_gets_one_arrival(cluster: Cluster) -> None:
    ask = control.AskArrival(ticket=1, class_name="Sim")
    for _ in range(2):
        cluster.client_says("ann", ask)
    cluster.arrives("a", "Sim")
    cluster.arrives("b", "Sim")
    assert cluster.given("ann") == {1: "a"}
    cluster.client_says("ann", ask)  # the reply was lost
    assert cluster.given("ann") == {1: "a"}


def test_a_restarted_master_respects_the_assignments_of_its_clients(cluster: Cluster) -> None:
    again = Cluster(recovers_until=5.0)
    for nonce in ("a", "b"):
        again.arrives(nonce, "Sim", now=1.0, returns=True)
    again.hello("bob", now=1.0)
    ticket = again.asks("bob", "Sim")
    assert again.given("bob") == {}  # it may be another client's
    again.hello("ann", arrivals=(id_of("a"),), now=2.0)
    again.execute(again.core.expire(6.0))
    assert again.given("bob") == {ticket: "b"}
    again.asks("bob", "Sim")
    assert again.given("bob") == {}


def test_a_guest_with_a_taken_name_is_refused(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.arrives("b", "Sim", name="sim")
    (refused,) = cluster.refused
    assert refused.error == "NameTaken"
    assert "get_actor('sim')" in refused.why
    cluster.arrives("c", "Sim", name="a2")
    assert len(cluster.refused) == 1
    assert cluster.finds("sim") == ["a"]


def test_a_restarted_master_reserves_the_names_of_returning_guests() -> None:
    cluster = Cluster(recovers_until=5.0)
    cluster.hello("ann")
    cluster.arrives("b", "Sim", name="sim", now=1.0)
    assert [refused.error for refused in cluster.refused] == ["MasterLost"]
    cluster.arrives("a", "Sim", name="sim", now=1.0, returns=True)
    assert cluster.finds("sim") == ["a"]


def test_a_reconnected_guest_replaces_only_its_predecessor(
    cluster: Cluster,
) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.asks("ann", "Sim")
    cluster.arrives("b", "Sim", name="sim", before="a")
    (died,) = cluster.sent("ann", control.Died)
    assert (died.obituary.actor, died.obituary.asked) == (id_of("a"), False)
    assert died.obituary.why == guests.AGAIN
    cluster.sent("ann", control.Located)
    assert cluster.finds("sim") == ["b"]
    other = b"another worker's key".ljust(40)
    cluster.execute(cluster.core.set_keys([CLIENT_KEY], [WORKER_KEY, other]))
    cluster.arrives("c", "Sim", name="sim", before="b", key=other)
    assert [refused.error for refused in cluster.refused] == ["NameTaken"]


def test_a_guest_ends_with_its_connection(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.asks("ann", "Sim")
    cluster.execute(
        cluster.core.lose_route(id_of("a"), 0.0)
    )  # its last messages may not be read yet
    assert not cluster.sent("ann", control.Died)
    cluster.execute(cluster.core.remove_worker(id_of("a"), guests.CUT, 0.0))
    assert cluster.given("ann") == {1: "a"}
    (died,) = cluster.sent("ann", control.Died)
    assert (died.obituary.lost, died.obituary.why) == (False, guests.CUT)
    assert cluster.forgotten == [id_of("a")]
    cluster.arrives("a", "Sim", name="sim")  # only the network failed
    assert [refused.error for refused in cluster.refused] == ["WorkerLost"]
    cluster.arrives("b", "Sim", name="sim", before="a")
    assert cluster.finds("sim") == ["b"]


def test_a_guest_ends_when_its_key_is_revoked(cluster: Cluster) -> None:
    cluster.arrives("b", "Sim")
    cluster.execute(cluster.core.set_keys([CLIENT_KEY], [WORKER_KEY]))
    assert not cluster.sent(id_of("b"), control.End)
    cluster.execute(cluster.core.set_keys([CLIENT_KEY], []))
    assert [end.actor for end in cluster.sent(id_of("b"), control.End)] == [id_of("b")]


def test_a_guest_cannot_make_calls_with_its_worker_key(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    delegate = control.Delegate(actor=id_of("a"), key=b"its own key".ljust(40))
    cluster.guest_says("a", delegate)
    assert not cluster.sent(id_of("a"), control.Delegated)


def test_nothing_is_placed_on_a_guest(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    for number in range(3):
        request = control.Request(
            actor=f"x{number}", name=f"x{number}", class_name="C", owner="ann", job="",
            key=CLIENT_KEY, python=PYTHON, resources=Resources(cpus=0),
        )  # fmt: skip
        place = control.Place(ticket=100 + number, request=request, patience_s=0.0)
        cluster.client_says("ann", place)
    assert not cluster.sent(id_of("a"), control.Spawn)
    assert len(cluster.sent("worker", control.Spawn)) == 3
    cluster.hello("eve")
    assert [welcome.pythons for welcome in cluster.sent("eve", control.Welcome)] == [[PYTHON]]


def test_the_relay_is_near_the_master_or_has_the_fewest_actors() -> None:
    cluster = Cluster()
    refused = guests.choose_relay(cluster.core.state)
    assert isinstance(refused, control.Refused)
    assert refused.error == "NoResources"
    cluster.joins("other")
    relay = guests.choose_relay(cluster.core.state)
    assert relay == control.Relay(address="tcp://other:1", token=b"token", is_near=False)
    cluster.joins("near", is_near=True)
    relay = guests.choose_relay(cluster.core.state)
    assert relay == control.Relay(address="tcp://near:1", token=b"token", is_near=True)


def test_a_guest_can_register_only_its_own_actor(cluster: Cluster) -> None:
    """Not that of another, with a stolen worker key and a known actor id."""
    recovering = Cluster(recovers_until=5.0)
    recovering.hello("ann")
    for each in (cluster, recovering):
        each.arrives("thief", "Sim", name="sim", actor=id_of("a"), returns=True)
        assert [end.actor for end in each.sent(id_of("thief"), control.End)] == [id_of("a")]
        assert each.finds("sim") == []
