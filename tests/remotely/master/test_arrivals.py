"""Objects whose processes dial in: how they become actors, and to whom each is given."""

from typing import Any

import msgspec
import pytest

from remotely.master.admission import Admission
from remotely.master.core import Core
from remotely.master.state import Instruction, LetGo, Tell
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources

CLIENT_KEY, WORKER_KEY = b"a client's key".ljust(40), b"a worker's key".ljust(40)
LEASE_S = 10.0
PYTHON = "3.11"


class Cluster:
    """A core with a worker and two clients, which say what a test has them say."""

    def __init__(self, learns_until: float = 0.0) -> None:
        self.said: list[tuple[str, msgspec.Struct]] = []
        self.gone: list[str] = []
        self.here: dict[str, control.ActorStatus] = {}
        self.names: dict[str, str] = {}  # for this test, by the id
        self.tickets = 0
        admission = Admission([CLIENT_KEY], [WORKER_KEY], b"secret")
        self.core = Core(admission, LEASE_S, learns_until)

    def do(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Tell):
                self.said.append((each.who, each.message))
            elif isinstance(each, LetGo):
                self.gone.append(each.who)
            if isinstance(each, Tell) and isinstance(hosted := each.message, control.Hosted):
                self.here[hosted.actor] = msgspec.structs.replace(
                    self.here[hosted.actor], request=hosted.request, seal=hosted.seal
                )

    def client_says(self, who: str, message: msgspec.Struct) -> None:
        self.do(self.core.hear_client(who, message, 0.0))

    def worker_says(self, who: str, message: msgspec.Struct) -> None:
        self.do(self.core.hear_worker(who, message, 0.0))

    def told(self, who: str, kind: type) -> list[Any]:
        """Return what this peer was told of a kind since the last time."""
        found = [said for to, said in self.said if to == who and isinstance(said, kind)]
        self.said = [one for one in self.said if one[1] not in found]
        return found

    def hello(self, who: str, arrivals: tuple[str, ...] = (), now: float = 0.0) -> None:
        hello = control.Hello(
            session=who, python=PYTHON, pid=1, host="", machine="", arrivals=[*arrivals]
        )
        self.do(self.core.greet(hello, CLIENT_KEY, now))

    def joins(self, worker: str = "worker", is_near: bool = False, now: float = 0.0) -> None:
        register = control.Register(
            worker=worker, python=PYTHON, host="", machine="", address="", pid=1,
            resources=Resources(2, 0, 1 << 30), actors=[*self.here.values()],
            guests=f"tcp://{worker}:1", guests_key=b"public",
        )  # fmt: skip
        self.do(self.core.enlist(register, now, is_near))
        self.do(self.core.settle(register))

    def dials(
        self, nonce: str, key: bytes = WORKER_KEY, before: str = "", worker: str = ""
    ) -> None:
        """A process says to the master what it serves; its test calls it by its nonce."""
        self.names[id_of(nonce, key)] = nonce
        ask = control.AskHost(nonce=nonce, before=before, worker=worker)
        self.do(self.core.greet_guest(f"guest {nonce}", key, ask, 0.0))

    def arrives(
        self,
        nonce: str,
        *classes: str,
        name: str = "",
        key: bytes = WORKER_KEY,
        before: str = "",
    ) -> None:
        """The same, and it dials in at "worker"."""
        self.dials(nonce, key, before)
        self.reports("worker", id_of(nonce, key), *classes, name=name)

    def reports(self, worker: str, actor: str, *classes: str, name: str = "") -> None:
        """A worker says that an object has dialled in there."""
        request = control.Request(
            actor=actor, name=name or f"{classes[0]}-{actor}", named=bool(name),
            class_name=classes[0], owner="somebody", job="job", resources=Resources(cpus=50),
            max_restarts=7, python=PYTHON, classes=[*classes],
        )  # fmt: skip
        location = control.Location(
            actor=actor, name=request.name, class_name=classes[0], life=0, pid=2, host="far",
            machine="robot", ipc="ipc://x", tcp="tcp://worker:2", public_key=b"its",
        )  # fmt: skip
        self.here[actor] = control.ActorStatus(location=location, request=request)
        arrived = control.Arrived(request=request, location=location, since=1.0)
        self.worker_says(worker, arrived)

    def dies(self, nonce: str) -> None:
        obituary = control.Obituary(actor=id_of(nonce), life=0, why="gone")
        self.worker_says("worker", control.Died(obituary=obituary))

    def asks(self, who: str, class_name: str) -> int:
        self.tickets += 1
        ask = control.AskArrival(ticket=self.tickets, class_name=class_name)
        self.client_says(who, ask)
        return self.tickets

    def given(self, who: str) -> dict[int, str]:
        """Return the actors that a client was given since the last time, by its tickets."""
        located = self.told(who, control.Located)
        return {one.ticket: self.names[one.location.actor] for one in located}


def id_of(nonce: str, key: bytes = WORKER_KEY) -> str:
    """Return the id of the actor that an object becomes."""
    return bound_id("guest", key, nonce)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.joins()
    made.hello("ann")
    made.hello("bob")
    return made


def test_one_that_arrives_is_an_actor_without_an_owner_that_takes_nothing(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim", name="sim")
    (hosted,) = cluster.told("worker", control.Hosted)
    request = hosted.request
    assert (request.owner, request.job, request.max_restarts) == ("", "", 0)
    assert (request.resources, request.key) == (Resources(cpus=0), WORKER_KEY)
    cluster.client_says("ann", control.Locate(ticket=9, name="sim"))
    assert cluster.given("ann") == {9: "a"}
    cluster.dies("a")
    (died,) = cluster.told("ann", control.Died)
    assert died.obituary.why == "gone"


def test_each_goes_to_the_first_that_asks_and_the_first_to_come_goes_first(
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


def test_what_a_client_had_is_given_away_again_when_it_has_ended(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    cluster.asks("ann", "Sim")
    waits = cluster.asks("bob", "Sim")
    assert cluster.given("bob") == {}
    cluster.do(cluster.core.end_session("ann", 0.0))
    assert cluster.given("bob") == {waits: "a"}


def test_the_dead_are_not_given_away(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    cluster.dies("a")
    cluster.asks("ann", "Sim")
    assert cluster.given("ann") == {}
    cluster.arrives("b", "Sim")
    cluster.asks("ann", "Sim")
    cluster.do(cluster.core.end_session("ann", 0.0))
    cluster.dies("b")
    cluster.asks("bob", "Sim")
    assert cluster.given("bob") == {}


@pytest.mark.parametrize("name", ["Sim", ""])
def test_what_is_not_wanted_any_more_goes_to_another(cluster: Cluster, name: str) -> None:
    early = cluster.asks("ann", name)
    cluster.client_says("ann", control.NoArrival(ticket=early))
    cluster.arrives("a", name)
    assert cluster.given("ann") == {}
    late = cluster.asks("ann", name)
    assert cluster.given("ann") == {late: "a"}
    cluster.client_says("ann", control.NoArrival(ticket=late))  # while it came
    ticket = cluster.asks("bob", name)
    assert cluster.given("bob") == {ticket: "a"}


def test_a_question_that_is_asked_again_is_one_question(cluster: Cluster) -> None:
    ask = control.AskArrival(ticket=1, class_name="Sim")
    for _ in range(2):
        cluster.client_says("ann", ask)
    cluster.arrives("a", "Sim")
    cluster.arrives("b", "Sim")
    assert cluster.given("ann") == {1: "a"}
    cluster.client_says("ann", ask)  # the answer was lost
    assert cluster.given("ann") == {1: "a"}


def test_a_new_master_gives_nobody_what_another_has(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    cluster.arrives("b", "Sim")
    cluster.asks("ann", "Sim")
    again = Cluster(learns_until=5.0)
    again.here, again.names = cluster.here, cluster.names
    again.joins(now=1.0)
    again.hello("bob", now=1.0)
    ticket = again.asks("bob", "Sim")
    assert again.given("bob") == {}  # whose is it?
    again.hello("ann", arrivals=(id_of("a"),), now=2.0)
    again.do(again.core.expire(6.0))
    assert again.given("bob") == {ticket: "b"}
    again.asks("bob", "Sim")
    assert again.given("bob") == {}


def test_a_name_that_is_taken_is_refused(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.arrives("b", "Sim", name="sim")
    (refused,) = cluster.told("worker", control.NotHosted)
    assert (refused.actor, refused.error) == (id_of("b"), "NameTaken")
    assert "get_actor('sim')" in refused.why
    cluster.arrives("c", "Sim", name="a2")
    assert not cluster.told("worker", control.NotHosted)


def test_one_that_dials_in_again_takes_the_place_of_what_it_was_and_of_nothing_else(
    cluster: Cluster,
) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.asks("ann", "Sim")
    cluster.told("worker", control.Hosted)
    cluster.arrives("b", "Sim", name="sim", before="a")
    (hosted,) = cluster.told("worker", control.Hosted)
    assert hosted.actor == id_of("b")
    (died,) = cluster.told("ann", control.Died)
    assert (died.obituary.actor, died.obituary.asked) == (id_of("a"), False)
    assert "dialled in again" in died.obituary.why
    other = b"another worker's key".ljust(40)
    cluster.do(cluster.core.list_keys([CLIENT_KEY], [WORKER_KEY, other]))
    cluster.arrives("c", "Sim", name="sim", before="b", key=other)
    (refused,) = cluster.told("worker", control.NotHosted)
    assert refused.error == "NameTaken"


def test_a_key_that_is_revoked_ends_its_actors(cluster: Cluster) -> None:
    cluster.arrives("b", "Sim")
    cluster.do(cluster.core.list_keys([CLIENT_KEY], [WORKER_KEY]))
    assert not cluster.told("worker", control.End)
    cluster.do(cluster.core.list_keys([CLIENT_KEY], []))
    assert [end.actor for end in cluster.told("worker", control.End)] == [id_of("b")]


def test_one_that_has_arrived_makes_no_calls_by_its_workers_key(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    delegate = control.Delegate(actor=id_of("a"), key=b"its own key".ljust(40))
    cluster.worker_says("worker", delegate)
    assert not cluster.told("worker", control.Delegated)


def test_processes_dial_in_near_the_master_or_where_the_fewest_are(cluster: Cluster) -> None:
    def host(cluster: Cluster) -> Any:
        cluster.dials("x")
        return cluster.told("guest x", control.Host) or cluster.told("guest x", control.Refused)

    cluster.arrives("a", "Sim")  # at "worker"
    cluster.joins("other")
    (far,) = host(cluster)
    assert far == control.Host(
        worker="other", address="tcp://other:1", public_key=b"public", is_near=False
    )
    cluster.joins("near", is_near=True)
    cluster.joins("the next")
    (near,) = host(cluster)
    assert near == control.Host(
        worker="near", address="tcp://near:1", public_key=b"public", is_near=True
    )
    (nowhere,) = host(Cluster())
    assert nowhere.error == "NoResources"


def test_who_may_call_it_is_told_to_a_process_itself_and_again_when_that_changes(
    cluster: Cluster,
) -> None:
    cluster.arrives("a", "Sim")
    (keys,) = cluster.told("guest a", control.Registered)
    assert keys.client_keys == [CLIENT_KEY]
    other = b"another client's key".ljust(40)
    cluster.do(cluster.core.list_keys([other], [WORKER_KEY]))
    (keys,) = cluster.told("guest a", control.Registered)
    assert keys.client_keys == [other]
    for key, is_admitted in ((other, True), (CLIENT_KEY, False)):
        cluster.worker_says("guest a", control.MayCall(key=key))
        (answer,) = cluster.told("guest a", control.Caller)
        assert (answer.key, answer.admitted) == (key, is_admitted)
    cluster.do(cluster.core.lose_route("guest a", 0.0))
    assert cluster.gone == ["guest a"]
    cluster.do(cluster.core.list_keys([CLIENT_KEY], [WORKER_KEY]))
    assert not cluster.told("guest a", control.Registered)


def test_a_process_hears_of_the_end_of_a_key_that_it_asked_about_as_long_as_it_is_there(
    cluster: Cluster,
) -> None:
    cluster.joins("other")
    for name in ("a", "b"):
        cluster.arrives(name, "Sim")
    for number, caller in enumerate(("one", "two")):
        request = control.Request(
            actor=caller, name=caller, class_name="C", owner="ann", job="", python=PYTHON,
            resources=Resources(cpus=1), key=CLIENT_KEY,
        )  # fmt: skip
        place = control.Place(ticket=100 + number, request=request, patience_s=0.0)
        cluster.client_says("ann", place)
        (worker,) = {to for to, said in cluster.said if isinstance(said, control.Spawn)}
        cluster.told(worker, control.Spawn)
        location = control.Location(
            actor=caller, name=caller, class_name="C", life=0, pid=3, host="", machine="",
            ipc="", tcp="", public_key=b"",
        )  # fmt: skip
        cluster.worker_says(worker, control.Spawned(location=location))
        key = caller.encode().ljust(40)
        cluster.worker_says(worker, control.Delegate(actor=caller, key=key))
        for guest in ("guest a", "guest b"):
            cluster.worker_says(guest, control.MayCall(key=key))
            (answer,) = cluster.told(guest, control.Caller)
            assert answer.admitted
        if number:
            cluster.do(cluster.core.lose_route("guest b", 0.0))
        obituary = control.Obituary(actor=caller, life=0, why="gone")
        cluster.worker_says(worker, control.Died(obituary=obituary))
        told = {to: said.admitted for to, said in cluster.said if isinstance(said, control.Caller)}
        assert told == {"guest a": False} | ({} if number else {"guest b": False})
        cluster.said.clear()


def test_a_process_that_is_not_heard_any_more_is_forgotten(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    cluster.core.renew("worker", LEASE_S)
    cluster.do(cluster.core.expire(LEASE_S))
    cluster.do(cluster.core.lose_route("guest a", LEASE_S))
    assert cluster.gone.count("guest a") == 1


def test_a_worker_hosts_nobody_who_has_not_said_so_to_the_master(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.do(cluster.core.lose_route("guest a", 0.0))
    cluster.reports("worker", id_of("b"), "Sim")
    (refused,) = cluster.told("worker", control.NotHosted)
    assert (refused.actor, refused.error) == (id_of("b"), "MasterLost")


@pytest.mark.parametrize("its_state", ["waits", "is unknown to a new master"])
def test_an_actor_that_was_placed_is_never_taken_for_an_object_that_has_dialled_in(
    its_state: str,
) -> None:
    """As would a thief with a worker's key who has heard of its id."""
    cluster = Cluster(learns_until=5.0)
    cluster.hello("ann")
    if its_state == "waits":
        request = control.Request(
            actor="placed", name="placed", class_name="C", owner="ann", job="", python=PYTHON,
            resources=Resources(cpus=50),
        )  # fmt: skip
        place = control.Place(ticket=1, request=request, patience_s=60.0)
        cluster.client_says("ann", place)
    cluster.joins()
    cluster.dials("placed")
    cluster.reports("worker", "placed", "C")
    (refused,) = cluster.told("worker", control.NotHosted)
    assert (refused.actor, refused.error) == ("placed", "MasterLost")
    cluster.client_says("ann", control.Locate(ticket=2, actor="placed"))
    assert not cluster.told("ann", control.Located)


@pytest.mark.parametrize("is_master_new", [True, False])
def test_an_object_is_hosted_at_the_worker_to_which_its_process_was_sent_and_at_no_other(
    cluster: Cluster, is_master_new: bool
) -> None:
    cluster.dials("a")
    if is_master_new:
        cluster = Cluster(learns_until=5.0)
        cluster.joins("another")
        cluster.dials("a", worker="worker")
        assert not cluster.told("guest a", control.Host)
        cluster.joins()
    else:
        cluster.joins("another")
    cluster.reports("another", id_of("a"), "Sim")
    assert cluster.told("another", control.NotHosted)
    cluster.reports("worker", id_of("a"), "Sim")
    assert cluster.told("worker", control.Hosted)


def test_of_a_process_that_serves_something_else_by_now_what_it_served_does_not_arrive(
    cluster: Cluster,
) -> None:
    cluster.dials("a")
    cluster.do(cluster.core.greet_guest("guest a", WORKER_KEY, control.AskHost(nonce="b"), 0.0))
    cluster.reports("worker", id_of("a"), "Sim")
    assert cluster.told("worker", control.NotHosted)
    cluster.reports("worker", id_of("b"), "Sim")
    assert cluster.told("worker", control.Hosted)


def test_an_object_that_has_ended_does_not_arrive_again(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim")
    cluster.dies("a")
    cluster.told("worker", control.Hosted)
    cluster.reports("worker", id_of("a"), "Sim")
    assert cluster.told("worker", control.NotHosted)
    assert not cluster.told("worker", control.Hosted)


def test_an_object_takes_the_place_of_another_only_by_the_nonce_of_that(cluster: Cluster) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.arrives("b", "Sim", name="sim", before=id_of("a"))
    (refused,) = cluster.told("worker", control.NotHosted)
    assert (refused.actor, refused.error) == (id_of("b"), "NameTaken")


def test_a_process_that_serves_says_no_more_to_the_master_than_whom_it_asks_about(
    cluster: Cluster,
) -> None:
    cluster.arrives("a", "Sim", name="sim")
    cluster.said.clear()
    lies = [
        control.Died(obituary=control.Obituary(actor=id_of("a"), life=0)),
        control.Report(actors=[control.Figures(actor=id_of("a"))]),
        control.Spawned(location=cluster.here[id_of("a")].location),
        control.Left(),
    ]
    for lie in lies:
        cluster.worker_says("guest a", lie)
    assert cluster.said == []
    cluster.client_says("ann", control.Locate(ticket=9, name="sim"))
    assert cluster.given("ann") == {9: "a"}
