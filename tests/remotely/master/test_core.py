"""What the master knows stays true in any order of events, and its price does not grow with it.

The peers are played by calls; test_placing.py proves what they are promised on real sockets.
"""

from collections.abc import Callable, Iterator

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from remotely.master import actors
from remotely.master.state import State
from remotely.master.waiting import Waiter, WaitingList
from remotely.protocol import control
from remotely.protocol.resources import Resources
from tests.remotely.master.played import (
    EVENTS,
    KEY,
    LEASE_S,
    Cluster,
    check,
    happen,
    held_by,
    needs_of,
    request_of,
)
from tests.steps import steps


class PlainWaiting(WaitingList):
    """Tries everyone who may have room, one by one: the promise, and slow."""

    def turns(self, may_fit: Callable[[Resources, str], bool]) -> Iterator[Waiter]:
        for waiter in list(self):
            still_waits = self.get(waiter.request.actor) is waiter
            if still_waits and may_fit(*needs_of(waiter.request)):
                yield waiter


events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 59), st.integers(0, 59)), max_size=80
)


@hypothesis.given(events)
def test_indexes_match_the_records_in_any_order_of_events(
    events: list[tuple[str, int, int]],
) -> None:
    cluster = Cluster()
    for event in events:
        happen(cluster, *event)
        check(cluster)


@hypothesis.given(events)
def test_the_queue_serves_what_a_search_among_all_requests_would(
    events: list[tuple[str, int, int]],
) -> None:
    cluster, plain = Cluster(), Cluster(PlainWaiting)
    for event in events:
        happen(cluster, *event)
        happen(plain, *event)
        assert cluster.said == plain.said


# --- the price ------------------------------------------------------------------------------------


def cluster_of(workers: int) -> Cluster:
    """Return one whose workers have twenty actors each, which belong to a client each."""
    cluster = Cluster()
    for number in range(workers):
        requests = [request_of(f"{number}.{n}", f"client-{number}") for n in range(20)]
        cluster.houses(f"worker-{number}", requests)
        cluster.joins(f"worker-{number}", cpus=21)
        cluster.hello(f"client-{number}", ["numpy"])
    for number in range(10 * workers):
        cluster.asks(f"client-{number % workers}", f"waits-{number}", cpus=15)
    assert len(cluster.state.waiting) == 10 * workers
    cluster.said.clear()
    return cluster


def _goes(cluster: Cluster) -> None:
    cluster.says("client-1", control.Goodbye())
    for number in range(20):
        cluster.buries(f"1.{number}")
    assert cluster.told(control.Farewell)


def _comes_back(cluster: Cluster) -> None:
    cluster.living["worker-1"].pop("1.7")
    cluster.joins("worker-1", cpus=21)
    assert len(cluster.told(control.Died)) == 1


def _is_new(cluster: Cluster) -> None:
    requests = [request_of(f"new.{n}", "client-1") for n in range(20)]
    cluster.houses("new", requests)
    cluster.joins("new", cpus=21)


FLAT: dict[str, Callable[[Cluster], object]] = {
    "a placement": lambda c: c.has("client-1", "a", cpus=0.5),
    "the end of an actor, in vain for all who wait": lambda c: c.buries("1.3"),
    "an actor is to end": lambda c: c.says("client-1", control.End(actor="1.3", grace_s=0)),
    "a request that has to wait": lambda c: c.asks("client-1", "a", cpus=15),
    "a request that nobody can serve": lambda c: c.asks("client-1", "a", cpus=99),
    "a request that is taken back": lambda c: c.says(
        "client-1", control.End(actor="waits-9", grace_s=0)
    ),
    "a beat": lambda c: c.says("worker-1", control.Beat()),
    "a report": lambda c: c.says(
        "worker-1", control.Report(actors=[control.Figures(actor=a) for a in c.living["worker-1"]])
    ),
    "a look-up": lambda c: c.says("client-2", control.Locate(ticket=1, name="1.3")),
    "the log of one that lives": lambda c: c.says(
        "client-2", control.ReadLog(ticket=1, actor="1.3")
    ),
    "a client comes": lambda c: c.hello("client-new", ["numpy"]),
    "a client is back": lambda c: c.hello("client-1", ["numpy"]),
    "a client goes with its actors": _goes,
    "a client is lost": lambda c: c.loses_client("client-1"),
    "a worker is lost with its actors": lambda c: c.loses("worker-1"),
    "a worker is back and has lost one": _comes_back,
    "a worker comes with its actors": _is_new,
}


@pytest.mark.parametrize("event", FLAT)
def test_an_event_takes_as_many_steps_on_a_large_cluster_as_on_a_small_one(event: str) -> None:
    small, large = cluster_of(5), cluster_of(50)
    for each in (small, large):
        each.asks("client-1", "warm-up", cpus=99)  # what is computed once, for the same request
    steps_of_small = steps(lambda: FLAT[event](small))
    assert steps_of_small > 10
    assert steps(lambda: FLAT[event](large)) == pytest.approx(steps_of_small, rel=0.02)


def test_a_thousand_equal_requests_are_retried_as_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.joins("worker", cpus=4)
    for n in range(4):
        cluster.has("client", f"a{n}", cpus=1)
    for n in range(1000):
        cluster.asks("client", f"w{n}", cpus=2)
    tried, try_place = [], actors.try_place

    def counted(state: State, waiter: Waiter) -> bool:
        tried.append(waiter.request.actor)
        return try_place(state, waiter)

    monkeypatch.setattr(actors, "try_place", counted)
    cluster.buries("a0")
    assert tried == []
    cluster.buries("a1")
    assert tried == ["w0", "w1"]


# --- what has ended is gone -----------------------------------------------------------------------


def test_a_next_life_takes_the_room_of_an_unreported_last_one(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=2)
    cluster.has("client", "a", cpus=2, life=1)
    assert cluster.state.workers.ledger.free("worker").cpus == 0
    cluster.buries("a")
    assert cluster.state.workers.ledger.free("worker").cpus == 2


def test_an_unreported_earlier_life_is_killed_when_the_next_is_asked_for(cluster: Cluster) -> None:
    cluster.joins("one")
    cluster.has("client", "a")
    cluster.joins("two", cpus=4)
    cluster.asks("client", "a", life=1)
    assert cluster.told(control.End) == [("one", control.End(actor="a", grace_s=0.0, kill=True))]
    assert cluster.spawns() == ["a"]
    assert cluster.state.actors.records["a"].worker == "two"


@pytest.mark.parametrize("how", ["asked for", "brought along"])
def test_an_unreported_earlier_life_is_said_to_restart(cluster: Cluster, how: str) -> None:
    cluster.joins("one", cpus=1)
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=2, name="store", named=True)
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    cluster.said.clear()
    if how == "asked for":
        cluster.asks("client", "a", max_restarts=2, name="store", named=True, life=1)
    else:
        later = request_of("a", "client", max_restarts=2, name="store", named=True, life=1)
        cluster.houses("two", [later])
        cluster.joins("two", cpus=1)
    told = [(who, said) for who, said in cluster.said if isinstance(said, control.Died)]
    assert {who for who, _ in told} == {"client", "borrower"}
    assert all(died.obituary.restarting for _, died in told)
    cluster.says("borrower", control.Locate(ticket=2, actor="a"))
    cluster.spawns()
    ((_, located),) = cluster.told(control.Located)
    assert located.location is not None
    assert located.location.life == 1
    assert not list(cluster.state.restarts.pending_of("client"))


def test_the_place_of_a_life_that_is_over_is_not_asked_for_again(cluster: Cluster) -> None:
    """By a maker whose connection broke, and that never heard of the birth."""
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1)
    cluster.buries("a")
    cluster.said.clear()
    cluster.asks("client", "a", max_restarts=1)
    ((_, refused),) = cluster.told(control.NotPlaced)
    assert (refused.error, cluster.spawns()) == ("ActorDied", [])
    cluster.has("client", "a", max_restarts=1, life=1)


@pytest.mark.parametrize("later", ["lives", "waits"])
def test_a_life_that_is_over_is_not_placed_again(cluster: Cluster, later: str) -> None:
    if later == "lives":
        cluster.joins("worker")
    cluster.asks("client", "a", life=2)
    cluster.spawns()
    cluster.said.clear()
    ticket = cluster.asks("client", "a", life=1)
    ((who, refusal),) = cluster.told(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "ActorDied")
    if later == "waits":
        cluster.joins("worker")
        cluster.spawns()
    assert cluster.state.actors.records["a"].request.life == 2
    assert cluster.told(control.End) == []


def test_modules_are_announced_once_while_a_client_uses_them(cluster: Cluster) -> None:
    def told() -> list[tuple[str, list[str]]]:
        return [(who, said.modules) for who, said in cluster.told(control.Preload)]

    cluster.joins("w1")
    cluster.joins("other python", python="3.10")
    cluster.hello("c1", ["numpy"])
    assert told() == [("w1", ["numpy"])]
    cluster.hello("c2", ["numpy", "torch"])
    assert told() == [("w1", ["torch"])]
    cluster.hello("c1", ["numpy", "torch"])
    assert told() == []
    cluster.joins("w2")
    assert told() == [("w2", ["numpy", "torch"])]
    cluster.loses_client("c1")
    cluster.loses_client("c2")
    cluster.joins("w3")
    assert told() == []


def test_nothing_is_left_of_peers_that_came_and_went(cluster: Cluster) -> None:
    for n in range(3):
        cluster.joins(f"worker-{n}", cpus=2)
        cluster.hello(f"client-{n}", ["numpy"])
    for n in range(9):
        cluster.asks(
            f"client-{n % 3}", f"actor-{n}", name=f"name-{n}", named=True, max_restarts=n % 2
        )
    cluster.spawns()
    cluster.buries("actor-1")
    cluster.buries("actor-3")
    cluster.says("client-0", control.ReadLog(ticket=1, actor="unknown"))
    for n in range(3):
        cluster.loses_client(f"client-{n}")
        cluster.loses(f"worker-{n}")
    cluster.loses_client("client")
    state = cluster.state
    for index in (
        state.actors.by_owner,
        state.actors.by_worker,
        state.actors.by_watcher,
        state.sessions.inside,
        state.sessions.using,
    ):
        assert held_by(index) == {}
    assert not state.actors.records
    assert not state.actors.names
    assert not list(state.sessions)
    assert not list(state.waiting)
    assert not state.waiting.firsts()
    assert not state.workers.ledger.pythons
    assert not state.workers.ledger.reserved
    assert not state.workers.ledger.cpus
    assert not state.deferred.by_topic
    assert not state.restarts.pending
    assert not state.restarts.begun
    assert not state.log_queries.queries


# --- peers that lie -------------------------------------------------------------------------------


def lies_of_a_worker(about: control.ActorStatus) -> list[msgspec.Struct]:
    """Return what a worker may say of an actor that another worker houses."""
    actor = about.request.actor
    elsewhere = msgspec.structs.replace(about.location, public_key=b"a liar's")
    names = {"actor": actor, "name": about.request.name, "job": about.request.job}
    return [
        control.Died(obituary=control.Obituary(actor=actor, life=0)),
        control.Died(obituary=control.Obituary(actor=actor, life=0), lived=about),
        control.Spawned(location=elsewhere),
        control.Report(actors=[control.Figures(actor=actor, calls=99)]),
        control.Printed(**names, error=False, text="a lie"),
        control.LogPiece(ticket=1, text="a lie", offset=0, known=True, ended=True),
        control.Delegate(actor=actor, key=b"l" * 40),
        control.MayCall(key=b"l" * 40),
        msgspec.structs.replace(A_RECORD, **names),
    ]


A_RECORD = control.Logged(
    logger="root",
    level=50,
    level_name="CRITICAL",
    message="a lie",
    created=1.0,
    path="/x.py",
    line=1,
    function="f",
    process=1,
    process_name="p",
    thread=1,
    thread_name="t",
)


@hypothesis.given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_a_worker_that_lies_of_anothers_actor_changes_nothing(choices: list[int]) -> None:
    cluster = Cluster()
    cluster.hello("client")
    cluster.joins("honest")
    cluster.has("client", "a")
    cluster.joins("liar", cpus=0)
    victim = cluster.living["honest"]["a"]
    cluster.says("client", control.ReadLog(ticket=5, actor="a"))
    cluster.said.clear()
    for choice in choices:
        cluster.says("liar", lies_of_a_worker(victim)[choice])
    assert [said for who, said in cluster.said if who != "liar"] == []
    cluster.says("client", control.Locate(ticket=6, actor="a"))
    ((_, located),) = cluster.told(control.Located)
    assert located.location == victim.location
    cluster.says("client", control.AskStatus(ticket=7))
    for worker in ("honest", "liar"):
        cluster.says(worker, control.Report(actors=[]))
    cluster.says("client", control.Unanswered(calls={}))
    ((_, status),) = cluster.told(control.Status)
    assert [(told.worker, len(told.actors)) for told in status.workers] == [
        ("honest", 1),
        ("liar", 0),
    ]


def test_a_client_that_lies_about_its_calls_spoils_no_status(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.says("client", control.Unanswered(calls={"a": 2}))
    for liar in ("one", "two", "three"):
        cluster.hello(liar)
        cluster.says(liar, control.Unanswered(calls={"a": control.MOST}))
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.told(control.Status)
    ((actor,),) = [worker.actors for worker in status.workers]
    assert actor.queue == control.MOST


def test_a_client_cannot_place_in_the_name_or_the_place_of_another(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.hello("liar")
    cluster.asks("liar", "a", life=7)
    ((who, refused),) = cluster.told(control.NotPlaced)
    assert (who, refused.error) == ("liar", "NotAllowed")
    cluster.asks("liar", "b", owner="client", job="client", maker="client", key=b"another's")
    ((_, spawn),) = cluster.to_spawn
    placed = spawn.request
    assert (placed.owner, placed.job, placed.maker, placed.key) == ("liar", "liar", "liar", KEY)


def test_nobody_is_admitted_as_an_actor_that_is_not_born(cluster: Cluster) -> None:
    cluster.joins("liar")
    cluster.asks("client", "a")
    cluster.says("liar", control.Delegate(actor="a", key=b"l" * 40))
    assert cluster.admission.role_of(b"l" * 40) is None


def test_a_client_whose_key_was_revoked_is_given_no_actor(cluster: Cluster) -> None:
    cluster.learns()
    cluster.asks("client", "held", name="store", named=True)
    cluster.do(cluster.core.set_keys([], []))
    cluster.passes(LEASE_S)
    cluster.asks("client", "a")
    cluster.joins("worker")
    assert {refusal.error for _, refusal in cluster.told(control.NotPlaced)} == {"NotAllowed"}
    assert cluster.to_spawn == []


def test_a_revoked_clients_delegates_are_taken_back(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.joins("other", cpus=0)
    cluster.says("worker", control.Delegate(actor="a", key=b"d" * 40))
    cluster.says("other", control.MayCall(key=b"d" * 40))
    assert cluster.told(control.Caller)[-1][1].admitted
    cluster.do(cluster.core.set_keys([], []))
    taken_back = control.Caller(key=b"d" * 40, admitted=False)
    assert cluster.told(control.Caller) == [("other", taken_back)]


def test_nothing_is_kept_of_workers_that_asked_about_keys_and_left(cluster: Cluster) -> None:
    cluster.learns()
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.says("worker", control.Delegate(actor="a", key=b"d" * 40))
    for n in range(5):
        cluster.joins(f"guest-{n}", cpus=0)
        cluster.says(f"guest-{n}", control.MayCall(key=b"d" * 40))
        cluster.says(f"guest-{n}", control.MayCall(key=b"unknown".ljust(40)))
        cluster.loses(f"guest-{n}")
    assert held_by(cluster.admission.informed) == {}
    assert held_by(cluster.state.delegates.askers) == {}


def test_no_delegate_comes_back_after_its_clients_key_was_revoked(cluster: Cluster) -> None:
    cluster.joins("liar")
    cluster.has("client", "a")
    cluster.says("liar", control.Delegate(actor="a", key=b"l" * 40))
    assert cluster.admission.role_of(b"l" * 40) == "client"
    cluster.do(cluster.core.set_keys([], []))
    cluster.says("liar", control.Delegate(actor="a", key=b"l" * 40))
    assert cluster.admission.role_of(b"l" * 40) is None


def test_a_cancellation_is_passed_on_to_the_worker_of_the_actor_alone(cluster: Cluster) -> None:
    cluster.joins("other")
    cluster.joins("worker")
    cluster.has("client", "actor", cpus=2)
    home = cluster.state.actors.records["actor"].worker
    cluster.told(object)
    cancel = control.Cancel(actor="actor", route=b"route", call=1, answer=2)
    cluster.says("client", cancel)
    cluster.says("client", msgspec.structs.replace(cancel, actor="nobody"))
    assert cluster.told(control.Cancel) == [(home, cancel)]


def test_a_status_says_what_waits_and_how_the_last_actors_ended_unasked(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=1)
    cluster.has("client", "b", cpus=1)
    for actor in ("c", "d"):
        cluster.asks("client", actor, cpus=1)
    cluster.now += 5.0
    obituary = control.Obituary(actor="a", life=0, exit="SIGKILL", stderr="its last words")
    cluster.says("worker", control.Died(obituary=obituary))
    cluster.now += 2.0
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.told(control.Status)
    ((wait,), (end,)) = status.waits, status.ends
    assert (wait.count, wait.waits_s) == (1, 7.0)
    assert "1 CPU" in wait.why
    assert (end.name, end.exit, end.stderr, end.ago_s) == ("a", "SIGKILL", "its last words", 2.0)
    assert not end.restarting


def test_a_status_says_where_the_life_was_that_ended_and_not_where_the_next_one_is(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", machine="m")
    detached = request_of("a", "client", owner="", max_restarts=1)
    cluster.says("client", control.Place(ticket=1, request=detached, patience_s=60))
    cluster.spawns()
    cluster.buries("a")  # its worker begins the next life, which is not placed yet
    cluster.says("client", control.AskStatus(ticket=2, fresh=False))
    ((_, status),) = cluster.told(control.Status)
    assert [(end.machine, end.restarting) for end in status.ends] == [("m", True)]
