"""Guests: how their objects become actors, and to which client each is assigned."""

from typing import Any

import pytest

from remotely.master import guests
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources
from tests.remotely.master.played import KEY, LEASE_S, PYTHON, WORKER_KEY, Cluster


class WithGuests(Cluster):
    """A cluster with guests, which tests name by their nonce."""

    def __init__(self, recovers_until: float = 0.0) -> None:
        super().__init__()
        self.starts_master(recovers_until=recovers_until)
        self.refused: list[control.Refused] = []
        self.names: dict[str, str] = {}  # id -> nonce

    def received(self, who: str, kind: type) -> list[Any]:
        """Remove and return the messages of this kind to a peer."""
        found = [message for to, message in self.outbox if to == who and isinstance(message, kind)]
        self.outbox = [one for one in self.outbox if one[1] not in found]
        return found

    def arrives(self, nonce: str, *classes: str, **more: Any) -> None:
        """Register a guest."""
        self.registers(guest(nonce, *classes, **more), **more)

    def registers(
        self,
        register: control.Register,
        key: bytes = WORKER_KEY,
        is_near: bool = False,
        before: str = "",
        **_: Any,
    ) -> None:
        """Register a worker like the shell of the master."""
        self.names[register.worker] = register.nonce
        self.living.setdefault(register.worker, {})
        register = guests.vet(register, key, self.admission.seals)
        predecessors = [id_of(before, key)] if before else []
        if guests.is_guest(register):
            for each in predecessors:
                self.execute(self.core.remove_worker(each, guests.AGAIN, self.now))
            if refusal := self.core.refusal_of(register, self.now):
                self.refused.append(refusal)
                return
        self.execute(self.core.register_worker(register, self.now, is_near, predecessors))
        self.execute(self.core.reconcile_worker(register))

    def dies(self, nonce: str) -> None:
        obituary = control.Obituary(actor=id_of(nonce), life=0, why="gone")
        self.says(id_of(nonce), control.Died(obituary=obituary))
        self.says(id_of(nonce), control.Left())

    def requests(self, who: str, class_name: str) -> int:
        """Request a guest's actor; return the ticket."""
        ticket = next(self.tickets)
        self.says(who, control.AskArrival(ticket=ticket, class_name=class_name))
        return ticket

    def given(self, who: str) -> dict[int, str]:
        """Return the actors that were newly assigned to a client, by ticket."""
        located = self.received(who, control.Located)
        return {one.ticket: self.names[one.location.actor] for one in located}

    def finds(self, name: str) -> list[str]:
        """Return the guest that is found by a name."""
        self.says("ann", control.Locate(ticket=9, name=name))
        located = self.received("ann", control.Located)
        return [self.names[one.location.actor] for one in located if one.location]


def guest(
    nonce: str,
    *classes: str,
    name: str = "",
    actor: str = "",
    key: bytes = WORKER_KEY,
    seal: bytes = b"",
    **_: Any,
) -> control.Register:
    """Return the registration of a guest; many of its fields are not for it to set."""
    worker = id_of(nonce, key)
    request = control.Request(
        actor=actor or worker,
        name=name or f"{classes[0]}-{nonce}",
        named=bool(name),
        class_name=classes[0],
        owner="somebody",
        job="job",
        resources=Resources(cpus=50),
        max_restarts=7,
        python=PYTHON,
        classes=[*classes],
    )
    location = control.Location(
        actor=request.actor,
        name=request.name,
        class_name=classes[0],
        life=0,
        pid=2,
        host="far",
        machine="robot",
        ipc="ipc://x",
        tcp="tcp://worker:2",
        public_key=b"its",
    )
    return control.Register(
        worker=worker,
        nonce=nonce,
        python="",
        host="far",
        machine="robot",
        address="",
        pid=2,
        resources=Resources(),
        actors=[control.ActorStatus(location=location, request=request, seal=seal)],
    )


def id_of(nonce: str, key: bytes = WORKER_KEY) -> str:
    """Return the id of a guest, which is that of its actor."""
    return bound_id("worker", key, nonce)


def seal_of(nonce: str, **more: Any) -> bytes:
    """Return the seal that an earlier master has given to a guest."""
    before = WithGuests()
    before.arrives(nonce, "Sim", **more)
    seal: bytes = before.received(id_of(nonce), control.Registered)[-1].seal
    assert seal
    return seal


@pytest.fixture
def cluster() -> WithGuests:
    made = WithGuests()
    made.joins("worker")
    made.hello("ann")
    made.hello("bob")
    return made


def test_a_guest_becomes_an_actor_without_owner_or_resources(cluster: WithGuests) -> None:
    cluster.arrives("a", "Sim", name="sim")
    assert cluster.finds("sim") == ["a"]
    cluster.says("ann", control.AskStatus(ticket=1, fresh=False))
    (status,) = cluster.received("ann", control.Status)
    (request,) = [actor.request for worker in status.workers for actor in worker.actors]
    assert (request.owner, request.job, request.max_restarts) == ("", "", 0)
    assert (request.resources, request.key) == (Resources(cpus=0), WORKER_KEY)
    cluster.dies("a")
    (died,) = cluster.received("ann", control.Died)
    assert died.obituary.why == "gone"


def test_arrivals_are_assigned_in_order_to_the_first_request(
    cluster: WithGuests,
) -> None:
    cluster.arrives("a", "Sim", "Base")
    cluster.arrives("b", "Sim", "Base")
    one = cluster.requests("ann", "Sim")
    assert cluster.given("ann") == {one: "a"}
    two, three = cluster.requests("bob", "Base"), cluster.requests("ann", "Base")
    assert cluster.given("bob") == {two: "b"}
    assert cluster.given("ann") == {}
    cluster.arrives("c", "Other")
    assert cluster.given("ann") == {}
    cluster.arrives("d", "Other", "Base")
    assert cluster.given("ann") == {three: "d"}


def test_the_arrivals_of_an_ended_client_are_assigned_again(cluster: WithGuests) -> None:
    cluster.arrives("a", "Sim")
    cluster.requests("ann", "Sim")
    waits = cluster.requests("bob", "Sim")
    assert cluster.given("bob") == {}
    cluster.loses_client("ann")
    assert cluster.given("bob") == {waits: "a"}


def test_dead_arrivals_are_not_assigned(cluster: WithGuests) -> None:
    cluster.arrives("a", "Sim")
    cluster.dies("a")
    cluster.requests("ann", "Sim")
    assert cluster.given("ann") == {}
    cluster.arrives("b", "Sim")
    cluster.requests("ann", "Sim")
    cluster.loses_client("ann")
    cluster.dies("b")
    cluster.requests("bob", "Sim")
    assert cluster.given("bob") == {}


@pytest.mark.parametrize("name", ["Sim", ""])
def test_a_withdrawn_request_frees_its_arrival(cluster: WithGuests, name: str) -> None:
    early = cluster.requests("ann", name)
    cluster.says("ann", control.NoArrival(ticket=early))
    cluster.arrives("a", name)
    assert cluster.given("ann") == {}
    late = cluster.requests("ann", name)
    assert cluster.given("ann") == {late: "a"}
    cluster.says("ann", control.NoArrival(ticket=late))  # withdrawn while it was assigned
    ticket = cluster.requests("bob", name)
    assert cluster.given("bob") == {ticket: "a"}


def test_a_repeated_request_gets_one_arrival(cluster: WithGuests) -> None:
    ask = control.AskArrival(ticket=1, class_name="Sim")
    for _ in range(2):
        cluster.says("ann", ask)
    cluster.arrives("a", "Sim")
    cluster.arrives("b", "Sim")
    assert cluster.given("ann") == {1: "a"}
    cluster.says("ann", ask)  # the reply was lost
    assert cluster.given("ann") == {1: "a"}


def test_a_restarted_master_respects_the_assignments_of_its_clients() -> None:
    cluster = WithGuests(recovers_until=5.0)
    for nonce in ("a", "b"):
        cluster.arrives(nonce, "Sim")
    cluster.hello("bob")
    ticket = cluster.requests("bob", "Sim")
    assert cluster.given("bob") == {}  # it may be another client's
    cluster.hello("ann", arrivals=[id_of("a")])
    cluster.advance(6.0)
    assert cluster.given("bob") == {ticket: "b"}
    cluster.requests("bob", "Sim")
    assert cluster.given("bob") == {}


def test_a_guest_with_a_taken_name_is_refused(cluster: WithGuests) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.arrives("b", "Sim", name="sim")
    (refused,) = cluster.refused
    assert refused.error == "NameTaken"
    assert "get_actor('sim')" in refused.why
    cluster.arrives("c", "Sim", name="a2")
    assert len(cluster.refused) == 1
    assert cluster.finds("sim") == ["a"]


def test_a_restarted_master_reserves_the_names_of_returning_guests() -> None:
    cluster = WithGuests(recovers_until=5.0)
    cluster.hello("ann")
    cluster.arrives("b", "Sim", name="sim")
    assert [refused.error for refused in cluster.refused] == ["MasterLost"]
    cluster.arrives("a", "Sim", name="sim", seal=seal_of("a", name="sim"))
    assert cluster.finds("sim") == ["a"]


@pytest.mark.parametrize(
    "seal",
    [b"a lie", seal_of("b", name="other"), seal_of("a", name="sim")],
    ids=["no seal", "for another name", "of another"],
)
def test_a_restarted_master_does_not_believe_that_a_guest_returns(seal: bytes) -> None:
    cluster = WithGuests(recovers_until=5.0)
    cluster.hello("ann")
    cluster.arrives("b", "Sim", name="sim", seal=seal)
    assert [refused.error for refused in cluster.refused] == ["MasterLost"]


def test_a_reconnected_guest_replaces_only_its_predecessor(
    cluster: WithGuests,
) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.requests("ann", "Sim")
    cluster.arrives("b", "Sim", name="sim", before="a")
    (died,) = cluster.received("ann", control.Died)
    assert (died.obituary.actor, died.obituary.asked) == (id_of("a"), False)
    assert died.obituary.why == guests.AGAIN
    cluster.received("ann", control.Located)
    assert cluster.finds("sim") == ["b"]
    other = b"another worker's key".ljust(40)
    cluster.execute(cluster.core.set_keys([KEY], [WORKER_KEY, other]))
    cluster.arrives("c", "Sim", name="sim", before="b", key=other)
    assert [refused.error for refused in cluster.refused] == ["NameTaken"]


def test_a_guest_ends_with_its_connection(cluster: WithGuests) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.requests("ann", "Sim")
    cluster.loses_route(id_of("a"))  # its last messages may not be read yet
    assert id_of("a") not in cluster.state.workers.ledger.away
    assert not cluster.received("ann", control.Died)
    cluster.execute(cluster.core.remove_worker(id_of("a"), guests.CUT, cluster.now))
    assert cluster.given("ann") == {1: "a"}
    (died,) = cluster.received("ann", control.Died)
    assert (died.obituary.lost, died.obituary.why) == (False, guests.CUT)
    assert cluster.forgotten == [id_of("a")]
    cluster.arrives("a", "Sim", name="sim")  # only the network failed
    assert [refused.error for refused in cluster.refused] == ["WorkerLost"]
    cluster.arrives("b", "Sim", name="sim", before="a")
    assert cluster.finds("sim") == ["b"]


def test_a_silent_guest_is_not_expected_back(cluster: WithGuests) -> None:
    before = cluster.state.workers.machines()
    cluster.arrives("a", "Sim")
    assert cluster.state.workers.machines() != before
    cluster.now += 2 * LEASE_S
    cluster.expire()
    assert id_of("a") not in cluster.core.workers
    assert set(cluster.state.workers.machines()) <= set(before)


def test_a_guest_ends_when_its_key_is_revoked(cluster: WithGuests) -> None:
    cluster.arrives("b", "Sim")
    cluster.execute(cluster.core.set_keys([KEY], [WORKER_KEY]))
    assert not cluster.received(id_of("b"), control.End)
    cluster.execute(cluster.core.set_keys([KEY], []))
    assert [end.actor for end in cluster.received(id_of("b"), control.End)] == [id_of("b")]


def test_a_guest_cannot_make_calls_with_its_worker_key(cluster: WithGuests) -> None:
    cluster.arrives("a", "Sim")
    delegate = control.Delegate(actor=id_of("a"), key=b"its own key".ljust(40))
    cluster.says(id_of("a"), delegate)
    assert not cluster.received(id_of("a"), control.Delegated)


def test_nothing_is_placed_on_a_guest(cluster: WithGuests) -> None:
    cluster.arrives("a", "Sim")
    for actor in "xyz":
        cluster.asks("ann", actor, cpus=0)
    assert not cluster.received(id_of("a"), control.Spawn)
    assert len(cluster.received("worker", control.Spawn)) == 3
    cluster.hello("eve")
    assert [welcome.pythons for welcome in cluster.received("eve", control.Welcome)] == [[PYTHON]]


def test_the_relay_is_near_the_master_or_has_the_fewest_actors() -> None:
    def joins(worker: str, is_near: bool) -> None:
        register = control.Register(
            worker=worker,
            python=PYTHON,
            host="",
            machine="",
            address="",
            pid=1,
            actors=[],
            resources=Resources(2),
            relay=f"tcp://{worker}:1",
            relay_token=b"token",
        )
        cluster.registers(register, is_near=is_near)

    cluster = WithGuests()
    refused = guests.choose_relay(cluster.core.state)
    assert isinstance(refused, control.Refused)
    assert refused.error == "NoResources"
    joins("other", is_near=False)
    relay = guests.choose_relay(cluster.core.state)
    assert relay == control.Relay(address="tcp://other:1", token=b"token", is_near=False)
    joins("near", is_near=True)
    relay = guests.choose_relay(cluster.core.state)
    assert relay == control.Relay(address="tcp://near:1", token=b"token", is_near=True)


def test_a_guest_can_register_only_its_own_actor(cluster: WithGuests) -> None:
    """Not that of another, with a stolen worker key and a known actor id."""
    recovering = WithGuests(recovers_until=5.0)
    recovering.hello("ann")
    for each in (cluster, recovering):
        each.arrives("thief", "Sim", name="sim", actor=id_of("a"))
        assert [end.actor for end in each.received(id_of("thief"), control.End)] == [id_of("a")]
        assert each.finds("sim") == []
