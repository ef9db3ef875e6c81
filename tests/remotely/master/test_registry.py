"""What the master knows stays true in any order of events, and its price does not grow with it.

The peers are played by calls; test_placing.py proves what they are promised on real sockets.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from remotely.master import actors
from remotely.master.state import State
from remotely.master.waiting import Waiter, WaitingList, gang_of
from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.protocol.lease import EXPECTED_S, RESTARTS_WITHIN_S
from remotely.protocol.resources import Resources
from tests.remotely.master.played import KEY, LEASE_S, PYTHON, Cluster, request_of, status_of


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.hello("client")
    return made


# --- any order of events --------------------------------------------------------------------------


class PlainWaiting(WaitingList):
    """Tries everyone who may have room, one by one: the promise, and slow."""

    def turns(self, may_fit: Callable[[Resources, str], bool]) -> Iterator[Waiter]:
        for waiter in list(self):
            still_waits = self.get(waiter.request.actor) is waiter
            if still_waits and may_fit(*needs_of(waiter.request)):
                yield waiter


def happen(cluster: Cluster, event: str, a: int, b: int) -> None:
    """Have one thing happen, of those that a master may meet."""
    who, worker, actor = f"client-{a % 3}", f"worker-{a % 4}", f"actor-{b % 8}"
    match event:
        case "hello":
            modules = [[], ["numpy"], ["numpy", "torch"]][b % 3]
            cluster.hello(who, modules, actor if b % 4 == 0 and a % 3 else "")
        case "join":
            python = [PYTHON, PYTHON, "3.10"][b % 3]
            size, machine = [2, 1, 4, 2.5][a % 4], "ab"[a % 2]
            before = [f"worker-{b % 4}"] if a % 4 != b % 4 and a % 3 == 0 else []
            cluster.joins(worker, size, a % 2, python, machine, before, license=b % 2)
        case "forget" if worker in cluster.living:  # an end that is not told
            cluster.living[worker].pop(actor, None)
        case "lose":
            cluster.loses(worker, may_return=b % 2 == 0)
        case "cut off":
            cluster.cut_off.add(worker)
            if b % 2:
                cluster.loses_route(worker)
        case "spawn":
            cluster.spawns(at_most=1)
        case "die":
            cluster.buries(actor)
        case "wait":
            cluster.now += a % 7
            cluster.expires()
        case "tick":  # nobody is lost
            cluster.passes(3)
        case "end session":
            cluster.loses_client(who)
        case "new master" if a % 5 == 0:
            cluster.starts_master()
        case "delegate":
            key = f"key-{b % 8}".encode().ljust(40)
            for name in cluster.core.workers:  # all but one have no say in it
                cluster.says(name, control.Delegate(actor=actor, key=key))
            if worker in cluster.core.workers:
                cluster.says(worker, control.MayCall(key=key))
        case _ if not (session := cluster.state.sessions.get(who)) or session.hello.actor == actor:
            pass  # a client that lives in an actor does not make that actor
        case "place":
            cluster.asks(
                who,
                actor,
                cpus=[0.5, 1, 2, 4][a % 4],
                gpus=[1, 0, 0.4, 0, 0][b % 5],
                others={"license": 0.5} if a % 5 == 1 else {},
                machine="abc"[b % 3] if a % 7 == 3 else "",
                near=f"actor-{a % 8}" if a % 7 == 4 else "",
                gang=f"gang-{b % 2}" if a % 3 == 2 else "",
                together=2 + b % 2 if a % 3 == 2 else 1,
                owner=who if b % 3 else "",
                max_restarts=[0, 2][a % 2],
                name="store" if a % 2 else actor,
                named=b % 2 == 0,
                life=int(a % 6 == 0),
            )
        case "end":
            cluster.says(who, control.End(actor=actor, grace_s=0))
        case "locate":
            by_id, by_name = (actor, "") if a % 2 else ("", actor)
            locate = control.Locate(ticket=1, actor=by_id, name=by_name, unreached=b % 3 == 0)
            cluster.says(who, locate)
        case "read a log":
            cluster.says(who, control.ReadLog(ticket=1, actor=actor))
        case "goodbye":
            cluster.says(who, control.Goodbye())


EVENTS = [
    *["place"] * 6,
    *["spawn"] * 4,
    *["join", "die", "hello", "tick"] * 3,
    *[
        "forget",
        "lose",
        "cut off",
        "wait",
        "end session",
        "new master",
        "end",
        "locate",
        "read a log",
    ],
    "goodbye",
    "delegate",
]
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 59), st.integers(0, 59)), max_size=80
)


@hypothesis.given(events)
def test_no_order_of_events_parts_an_index_from_the_records(
    events: list[tuple[str, int, int]],
) -> None:
    cluster = Cluster()
    for event in events:
        happen(cluster, *event)
        check(cluster)


@hypothesis.given(events)
def test_who_waits_hears_what_a_search_among_all_who_wait_would_tell_them(
    events: list[tuple[str, int, int]],
) -> None:
    cluster, plain = Cluster(), Cluster(PlainWaiting)
    for event in events:
        happen(cluster, *event)
        happen(plain, *event)
        assert cluster.said == plain.said


def check(cluster: Cluster) -> None:
    """Find everything by search, and compare."""
    state, table = cluster.state, cluster.state.actors
    records, sessions = list(table.records.items()), list(state.sessions)
    assert held_by(table.by_owner) == by((r.request.owner, a) for a, r in records)
    assert held_by(table.by_worker) == by((r.worker, a) for a, r in records)
    assert held_by(table.by_gang) == by((r.request.gang, a) for a, r in records if r.request.gang)
    assert held_by(table.by_watcher) == by((w, a) for a, r in records for w in r.watchers)
    assert held_by(state.sessions.inside) == by(
        (session.hello.actor, session.hello.session) for session in sessions if session.hello.actor
    )
    assert held_by(state.sessions.using) == by(
        ((PYTHON, module), session.hello.session)
        for session in sessions
        for module in session.modules
    )
    assert {r.worker for _, r in records} <= set(cluster.core.workers)
    assert not table.records.keys() & table.deaths.keys()
    for name, actor in table.names.items():
        assert (state.restarts.due.get(actor) or table.records[actor]).request.name == name
    ledger = state.workers.ledger
    for worker, machine in state.workers.records.items():
        here = [r.request.resources for _, r in records if r.worker == worker]
        kept = [asked for placement, asked in ledger.kept if placement.worker == worker]
        free = machine.register.resources - sum([*here, *kept], Resources())
        assert ledger.free(worker).cpus == free.cpus
        assert ledger.free(worker).memory == free.memory
    check_callers(cluster)
    check_waiting(cluster)


def check_callers(cluster: Cluster) -> None:
    admission = cluster.admission
    for actor in admission.delegates:
        record = cluster.state.actors.records[actor]
        assert record.location is not None
        assert admission.is_listed(record.request.key)
    assert {worker for key in admission.told for worker in admission.told.of(key)} <= set(
        cluster.core.workers
    )
    assert set(admission.told) <= set(admission.delegates.values())


def check_waiting(cluster: Cluster) -> None:
    state, waiting = cluster.state, cluster.state.waiting
    waiters = list(waiting)
    assert [w.number for w in waiters] == sorted(w.number for w in waiters)
    assert len(waiting) == len(waiters)
    firsts = [waiter.number for waiter in waiting.firsts()]
    assert firsts == sorted(firsts)
    assert bool(firsts) == bool(waiters)
    for name in {w.request.name for w in waiters}:
        named = {w.number for w in waiters if w.request.named and w.request.name == name}
        assert {w.number for w in waiting.for_name(name)} == named
    assert not {w.request.actor for w in waiters} & state.actors.records.keys()
    for waiter in waiters:
        assert waiter.session in state.sessions
        asked, python = needs_of(waiter.request)
        count = 1
        if gang := gang_of(waiter.request):
            count = sum(gang_of(w.request) == gang for w in waiters)
            assert {w.number for w in waiting.gang(gang)} == {
                w.number for w in waiters if gang_of(w.request) == gang
            }
            if count + state.actors.by_gang.count(gang) < waiter.request.together:
                continue
        ledger, among = state.workers.ledger, state.workers_for(waiter.request)
        assert ledger.copies(asked, python, count, among) < count
        assert not cluster.core.workers or ledger.why_never(asked, python) is None


def needs_of(request: control.Request) -> tuple[Resources, str]:
    return request.resources, request.python


def held_by(index: Index[Any, Any]) -> dict[Any, set[Any]]:
    return {key: set(index.of(key)) for key in index}


def by(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, set[Any]]:
    found: dict[Any, set[Any]] = {}
    for key, item in pairs:
        found.setdefault(key, set()).add(item)
    return found


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


def steps(action: Callable[[], object]) -> int:
    """Return how many instructions of Python an action takes: a time that is the same each time."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # what it would have freed may be another test's, and run instructions
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


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
    steps_of_small = steps(lambda: FLAT[event](small))
    assert steps_of_small > 10
    assert steps(lambda: FLAT[event](large)) == pytest.approx(steps_of_small, rel=0.02)


def test_a_thousand_who_wait_in_vain_for_the_same_are_tried_as_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.joins("worker", cpus=4)
    for n in range(4):
        cluster.has("client", f"a{n}", cpus=1)
    for n in range(1000):
        cluster.asks("client", f"w{n}", cpus=2)
    tried, really_serve = [], actors.serve

    def counted(state: State, waiter: Waiter) -> bool:
        tried.append(waiter.request.actor)
        return really_serve(state, waiter)

    monkeypatch.setattr(actors, "serve", counted)
    cluster.buries("a0")
    assert tried == []
    cluster.buries("a1")
    assert tried == ["w0", "w1"]


# --- who waits ------------------------------------------------------------------------------------


def test_of_those_who_have_room_the_first_to_ask_is_served_first_whatever_they_ask_for(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "all", cpus=4)
    for n, cpus in enumerate([2, 1, 2, 0.5, 1]):
        cluster.asks("client", f"w{n}", cpus=cpus)
    cluster.buries("all")
    assert cluster.spawns() == ["w0", "w1", "w3"]  # the third finds half a CPU, and waits on


def test_where_cpus_are_not_counted_who_names_none_waits_for_none_and_it_is_told_once(
    cluster: Cluster,
) -> None:
    cluster.starts_master(counts_cpus=False)
    cluster.hello("client")
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=2)  # who names some takes them
    cluster.has("client", "b", names_cpus=False)
    cluster.has("client", "c", names_cpus=False)
    assert cluster.told(control.Notice) == []
    cluster.has("client", "d", names_cpus=False)
    ((who, notice),) = cluster.told(control.Notice)
    assert (who, "cores (2), which they share" in notice.text) == ("client", True)
    cluster.has("client", "e", names_cpus=False)
    assert cluster.told(control.Notice) == []
    cluster.asks("client", "f", cpus=1)
    assert cluster.spawns() == []
    cluster.buries("a")
    assert cluster.spawns() == ["f"]


def test_who_waits_for_a_name_is_refused_when_another_gets_it(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "other")
    ticket = cluster.asks("client", "large", cpus=2, name="store", named=True)
    cluster.has("client", "small", cpus=1, name="store", named=True)
    ((who, refusal),) = cluster.told(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "NameTaken")


def test_who_wants_the_name_of_an_actor_that_is_ending_gets_it_as_that_has_ended(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.says("client", control.End(actor="old", grace_s=60))
    cluster.says("client", control.Locate(ticket=7, name="store"))
    assert cluster.told(control.Located) == [("client", control.Located(ticket=7))]
    ticket = cluster.asks("client", "new", name="store", named=True)
    assert [said.ticket for _, said in cluster.told(control.Queued)] == [ticket]
    assert cluster.spawns() == []
    cluster.buries("old")
    assert cluster.spawns() == ["new"]


def test_who_waits_for_a_name_comes_after_who_waits_for_room_already(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    cluster.has("client", "old", name="store", named=True)
    cluster.asks("client", "first")
    cluster.says("client", control.End(actor="old", grace_s=60))
    cluster.asks("client", "second", name="store", named=True)
    cluster.buries("old")
    assert cluster.spawns() == ["first"]


def test_who_has_no_patience_has_a_place_or_is_refused_at_once(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    for ticket, actor in ((1, "first"), (2, "second")):
        request = request_of(actor, "client")
        cluster.says("client", control.Place(ticket=ticket, request=request, patience_s=0))
    ((_, refusal),) = cluster.told(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (2, "NoResources")
    assert "Counter asks for 1 CPU; the most that a machine has free is 0 CPUs" in refusal.why
    assert cluster.spawns() == ["first"]
    cluster.buries("first")
    assert cluster.spawns() == []


def test_who_waits_is_told_of_holders_that_hold_some_of_what_it_asks_for(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1, gpus=1, license=2)
    cluster.has("client", "none", cpus=0)
    cluster.has("client", "a cpu", cpus=1)
    cluster.has("client", "a gpu", cpus=0, gpus=1)
    cluster.has("client", "a license", cpus=0, others={"license": 1})

    def said_of(**wishes: Any) -> str:
        cluster.asks("client", f"a{len(cluster.said)}", **wishes)
        ((_, queued),) = cluster.told(control.Queued)
        return queued.why

    assert "0 CPUs. a cpu (1 CPU) has the rest" in said_of(cpus=1)
    assert "0 CPUs. a gpu (0 CPUs and 1 GPU) has the rest" in said_of(cpus=0, gpus=1)
    assert "CPUs and 1 license. a license (" in said_of(cpus=0, others={"license": 2})


def test_a_cluster_that_has_just_been_started_has_a_moment_to_find_a_machine(
    cluster: Cluster,
) -> None:
    request = request_of("a", "client")
    cluster.says("client", control.Place(ticket=1, request=request, patience_s=0))
    cluster.passes(0.5)
    cluster.joins("worker", cpus=1)
    assert cluster.spawns() == ["a"]


def test_who_waits_for_a_name_is_refused_after_its_patience(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.says("client", control.End(actor="old", grace_s=600))
    wanted = request_of("new", "client", name="store", named=True)
    cluster.says("client", control.Place(ticket=99, request=wanted, patience_s=5))
    cluster.passes(6.0)
    ((_, refusal),) = cluster.told(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (99, "NoResources")
    assert "'store' has been asked to end, and still runs" in refusal.why


def test_an_actor_that_is_ending_does_not_wait_for_its_own_name(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.hello("inside", actor="old")
    cluster.says("client", control.End(actor="old", grace_s=60))
    ticket = cluster.asks("inside", "new", name="store", named=True)
    ((_, refusal),) = cluster.told(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (ticket, "NameTaken")


def test_an_automatic_name_of_an_actor_that_is_ending_is_free(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "Counter-1")
    cluster.says("client", control.End(actor="Counter-1", grace_s=60))
    cluster.has("client", "new", name="Counter-1", named=True)


def test_who_gives_up_a_name_that_is_still_in_use_does_not_get_it_later(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.says("client", control.End(actor="old", grace_s=60))
    ticket = cluster.asks("client", "new", name="store", named=True)
    cluster.asks("client", "newer", name="store", named=True)
    cluster.says("client", control.End(actor="new", grace_s=0))
    ((who, refusal),) = cluster.told(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "ActorDied")
    cluster.buries("old")
    assert cluster.spawns() == ["newer"]


def test_who_waits_for_a_machine_that_leaves_is_refused_if_no_other_is_large_enough(
    cluster: Cluster,
) -> None:
    cluster.joins("large", cpus=4)
    cluster.joins("small", cpus=2)
    cluster.has("client", "a", cpus=3)
    ticket = cluster.asks("client", "b", cpus=3)
    cluster.has("client", "c", cpus=2)
    cluster.asks("client", "d", cpus=2)
    cluster.loses("large")
    ((who, refusal),) = cluster.told(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "NoResources")
    cluster.buries("c")
    assert cluster.spawns() == ["d"]


def test_a_client_that_says_goodbye_asks_for_nothing_any_more(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=1)
    cluster.has("client", "b", cpus=1)
    cluster.asks("client", "c", cpus=1)
    cluster.says("client", control.Goodbye())
    cluster.buries("a")
    assert cluster.spawns() == []
    cluster.buries("b")
    assert cluster.told(control.Farewell)


def test_an_actor_that_its_client_asked_a_new_master_for_before_its_worker_was_back_is_made_once(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a")
    cluster.starts_master()
    cluster.hello("client")
    ticket = cluster.asks("client", "a")  # it was never told that it has it
    assert cluster.told(control.Queued)
    cluster.joins("worker", cpus=2)
    ((who, placed),) = cluster.told(control.Placed)
    assert (who, placed.ticket) == ("client", ticket)
    assert placed.location == cluster.living["worker"]["a"].location
    assert cluster.spawns() == []


# --- who was away ---------------------------------------------------------------------------------


def test_a_beat_that_asks_is_told_which_beat_was_heard(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.says("worker", control.Beat())
    assert cluster.told(control.Tick) == []
    cluster.says("worker", control.Beat(asked=12.5))
    assert cluster.told(control.Tick) == [("worker", control.Tick(asked=12.5))]


def test_a_new_master_says_of_nobody_that_he_is_gone_before_his_worker_may_be_back(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.has("client", "b")
    cluster.starts_master()
    cluster.learns()
    cluster.hello("client")
    for ticket, actor in enumerate("ab"):
        cluster.says("client", control.Locate(ticket=ticket, actor=actor))
    assert cluster.told(control.Located) == []
    cluster.living["worker"].pop("b")
    cluster.joins("worker")
    ((_, located),) = cluster.told(control.Located)
    assert located.location == cluster.living["worker"]["a"].location
    cluster.passes(LEASE_S)
    ((_, located),) = cluster.told(control.Located)
    assert (located.ticket, located.location) == (1, None)


def test_leases_do_not_run_while_their_judge_is_away(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.now += 3 * LEASE_S
    cluster.core.extend_leases(3 * LEASE_S)
    assert cluster.expires() == []
    cluster.now += LEASE_S
    assert "lost the worker on " in cluster.expires()


def test_of_two_lives_the_older_ends_when_its_machine_is_back(cluster: Cluster) -> None:
    cluster.joins("far")
    cluster.has("client", "a")
    cluster.loses("far")
    cluster.joins("near")
    cluster.has("client", "a", life=1)
    cluster.told(control.End)
    cluster.joins("far")
    assert cluster.told(control.End) == [("far", control.End(actor="a", grace_s=0.0, kill=True))]
    assert cluster.state.actors.records["a"].worker == "near"
    assert cluster.state.workers.ledger.free("far").cpus == 2


# --- workers that are away ------------------------------------------------------------------------


def test_nothing_is_placed_on_a_worker_that_cannot_be_reached(cluster: Cluster) -> None:
    cluster.joins("large", cpus=4)
    cluster.joins("small", cpus=2)
    cluster.cut_off.add("large")
    cluster.asks("client", "a", cpus=1)
    assert [(worker, spawn.request.actor) for worker, spawn in cluster.to_spawn] == [("small", "a")]


def test_what_was_about_to_be_born_on_a_worker_that_is_cut_off_is_born_elsewhere_and_once(
    cluster: Cluster,
) -> None:
    cluster.joins("large", cpus=4)
    ticket = cluster.asks("client", "a", cpus=1)
    ((_, spawn),) = cluster.to_spawn
    cluster.joins("small", cpus=2)
    cluster.cut_off.add("large")
    cluster.loses_route("large")
    cluster.spawns()
    ((_, placed),) = cluster.told(control.Placed)
    assert (placed.ticket, "a" in cluster.living["small"]) == (ticket, True)

    cluster.living["large"]["a"] = status_of(spawn.request, seal=spawn.seal)  # it had heard
    cluster.joins("large")
    assert ("large", control.End(actor="a", grace_s=0.0, kill=True)) in cluster.said
    assert ("small", control.End(actor="a", grace_s=0.0)) not in cluster.said


def test_who_asked_for_an_actor_that_was_closed_before_its_birth_is_told_when_its_worker_goes(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    ticket = cluster.asks("client", "a")
    cluster.says("client", control.End(actor="a", grace_s=0.0))
    cluster.loses_route("worker")
    ((_, refused),) = [(w, s) for w, s in cluster.said if isinstance(s, control.NotPlaced)]
    assert (refused.ticket, refused.error) == (ticket, "ActorDied")
    ((who, died),) = cluster.told(control.Died)
    assert (who, died.obituary.asked, died.obituary.lost) == ("client", True, False)


@pytest.mark.parametrize("is_born", [True, False])
def test_a_birth_for_which_no_other_worker_had_room_goes_on_when_its_worker_is_back(
    cluster: Cluster, is_born: bool
) -> None:
    cluster.joins("worker")
    ticket = cluster.asks("client", "a")
    ((_, spawn),) = cluster.to_spawn
    cluster.to_spawn.clear()
    cluster.loses_route("worker")
    assert cluster.told(control.Queued)
    status = status_of(spawn.request, seal=spawn.seal)
    if is_born:
        cluster.living["worker"]["a"] = status
    else:
        cluster.births["worker"] = [spawn]
    cluster.joins("worker")
    if not is_born:
        assert cluster.told(control.Placed) == []
        cluster.says("worker", control.Spawned(location=status.location))
    ((_, placed),) = cluster.told(control.Placed)
    assert placed.ticket == ticket
    assert cluster.to_spawn == []


def test_what_runs_on_a_worker_that_is_cut_off_for_less_than_its_lease_goes_on(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.told(control.Placed)
    cluster.loses_route("worker")
    cluster.says("client", control.Locate(ticket=1, actor="a"))
    ((_, located),) = cluster.told(control.Located)
    assert located.location is not None
    cluster.joins("worker")
    assert cluster.told(control.End) == []
    cluster.has("client", "b")


def test_who_needs_a_machine_that_was_lost_waits_for_it(cluster: Cluster) -> None:
    cluster.joins("head", cpus=0)
    cluster.joins("far", cpus=2)
    assert len(cluster.passes(LEASE_S, but=["far"])) == 1
    cluster.asks("client", "a")
    ((_, waiting),) = cluster.told(control.Queued)
    assert "cannot be reached now, and may come back" in waiting.why
    cluster.joins("far", cpus=2)
    assert cluster.spawns() == ["a"]


def test_of_two_workers_of_one_host_that_were_lost_each_is_expected_until_its_own_next_one_joins(
    cluster: Cluster,
) -> None:
    sizes = {"small": 1.0, "large": 4.0}
    for name, cpus in sizes.items():
        cluster.joins(name, cpus=cpus, machine="m")
    for name in sizes:
        cluster.loses(name, may_return=True)
    cluster.joins("large's next", cpus=4, machine="m")
    assert set(cluster.state.workers.ledger.away) == {"small"}
    cluster.joins("small's next", cpus=1, machine="m")
    assert not cluster.state.workers.ledger.away


def test_a_machine_that_joins_anew_is_not_expected_back_as_well(cluster: Cluster) -> None:
    cluster.joins("far", cpus=2, machine="m")
    cluster.loses("far", may_return=True)
    cluster.joins("far's next", cpus=1, machine="m")
    cluster.asks("client", "a", cpus=2)
    assert cluster.told(control.NotPlaced)


@pytest.mark.parametrize("machine", ["m", "m.example"])
def test_an_actor_that_is_to_be_on_a_machine_or_near_another_there_waits_while_that_is_lost(
    cluster: Cluster, machine: str
) -> None:
    cluster.joins("other", cpus=2)
    cluster.joins("worker", cpus=2, machine="m")
    cluster.has("client", "a", machine=machine, max_restarts=1)
    cluster.has("client", "b", near="a", max_restarts=1)
    cluster.told(control.Placed)

    cluster.loses("worker", may_return=True)
    cluster.living["worker"].clear()

    assert {told.obituary.restarting for _, told in cluster.told(control.Died)} == {True}
    cluster.asks("client", "b", near="a", max_restarts=1, life=1)
    ((_, near),) = cluster.told(control.Queued)
    assert "is to be near another actor, which is between two lives" in near.why
    cluster.asks("client", "a", machine=machine, max_restarts=1, life=1)
    ((_, queued),) = cluster.told(control.Queued)
    assert (
        queued.why == f"Counter is to be on {machine}. m cannot be reached now, and may come back"
    )
    cluster.joins("next", cpus=2, machine="m")
    assert cluster.spawns() + cluster.spawns() == ["a", "b"]
    assert set(cluster.living["next"]) == {"a", "b"}


def test_a_worker_takes_the_place_of_those_that_were_killed_on_its_machine_at_once(
    cluster: Cluster,
) -> None:
    cluster.joins("killed", cpus=1)
    cluster.has("client", "a", max_restarts=1)
    cluster.told(control.Died)

    cluster.joins("next", cpus=1, predecessors=["killed", "nobody"])

    ((_, died),) = cluster.told(control.Died)
    assert (died.obituary.lost, died.obituary.restarting) == (True, True)
    assert cluster.core.workers == ["next"]
    cluster.has("client", "a", max_restarts=1, life=1)
    assert set(cluster.living["next"]) == {"a"}
    cluster.now += LEASE_S / 2
    assert cluster.expires() == []  # no lease of it is left
    cluster.joins("last", cpus=1, predecessors=["killed"])
    assert cluster.core.workers == ["next", "last"]


@pytest.mark.parametrize(
    "wishes", [{"machine": "m"}, {"machine": "m.example"}, {"gpus": 1}, {"cpus": 3}]
)
@pytest.mark.parametrize("was_placed", [True, False])
def test_who_waits_for_a_killed_worker_is_placed_on_the_next_and_not_refused(
    cluster: Cluster, wishes: dict[str, Any], was_placed: bool
) -> None:
    cluster.joins("other", cpus=1)
    cluster.joins("killed", cpus=4, gpus=1, machine="m")
    if not was_placed:
        cluster.loses_route("killed")
    ticket = cluster.asks("client", "a", **wishes)
    cluster.to_spawn.clear()  # it was not born

    cluster.joins("next", cpus=4, gpus=1, machine="m", predecessors=["killed"])

    assert cluster.spawns() == ["a"]
    assert set(cluster.living["next"]) == {"a"}
    assert [placed.ticket for _, placed in cluster.told(control.Placed)] == [ticket]
    assert not cluster.state.workers.ledger.away


def test_the_next_of_a_killed_worker_takes_no_other_place_of_its_machine(cluster: Cluster) -> None:
    for name in ("rebooting", "killed"):
        cluster.joins(name, cpus=2, machine="m")
    cluster.loses("rebooting", may_return=True)
    cluster.joins("next", cpus=2, machine="m", predecessors=["killed"])
    assert cluster.state.workers.ledger.away == {"rebooting"}


def test_a_lost_worker_is_not_expected_when_its_place_is_taken(cluster: Cluster) -> None:
    cluster.joins("killed", cpus=2)
    cluster.loses("killed", may_return=True)
    cluster.joins("next", cpus=1, predecessors=["killed"])
    cluster.asks("client", "a", cpus=2)
    assert cluster.told(control.NotPlaced)


def test_of_a_worker_that_cannot_be_reached_nothing_is_free_and_it_is_told_for_how_long(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", cpus=2, license=1)
    cluster.has("client", "a")
    assert [(w.away_s, w.free_cpus) for w in workers_in_status(cluster)] == [(0, 1)]
    cluster.now += 1
    cluster.loses_route("worker")
    cluster.now += 5
    (away,) = workers_in_status(cluster)
    assert (away.away_s, away.free_cpus, away.free_others) == (6, 0, {"license": 0})
    assert len(away.actors) == 1
    cluster.joins("worker", cpus=2, license=1)
    assert [(w.away_s, w.free_cpus) for w in workers_in_status(cluster)] == [(0, 1)]


def test_a_status_is_answered_at_the_moment_when_several_workers_are_lost(cluster: Cluster) -> None:
    for worker in ("one", "two"):
        cluster.joins(worker)
    cluster.has("client", "a")
    cluster.hello("inside", actor="a")
    cluster.says("two", control.Beat())  # so it is lost after the one with the actor
    for worker in ("one", "two"):
        cluster.cut_off.add(worker)
        cluster.loses_route(worker)
    cluster.now += LEASE_S
    for who in ("client", "inside"):
        cluster.core.renew(who, cluster.now)
    cluster.says("client", control.AskStatus(ticket=1))
    cluster.says("client", control.Unanswered(calls={}))  # only the one inside has yet to answer
    assert len(cluster.expires()) == 2
    assert [status.ticket for _, status in cluster.told(control.Status)] == [1]


def workers_in_status(cluster: Cluster) -> list[control.WorkerStatus]:
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.told(control.Status)
    return status.workers


def test_who_found_nobody_where_an_actor_was_is_answered_when_its_machine_is_back_or_lost(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", cpus=2)
    for actor in ("a", "b"):
        cluster.has("client", actor)
    look = [control.Locate(ticket=i, actor=a, unreached=True) for i, a in enumerate("ab")]
    cluster.says("client", look[0])
    ((_, located),) = cluster.told(control.Located)  # its worker can be reached: so it is there
    assert located.location is not None

    cluster.cut_off.add("worker")
    cluster.says("client", look[0])
    assert cluster.told(control.Located) == []
    cluster.says("client", control.Locate(ticket=7, actor="b"))
    assert [answer.ticket for _, answer in cluster.told(control.Located)] == [7]
    del cluster.living["worker"]["b"]
    cluster.joins("worker", cpus=2)
    assert [answer.ticket for _, answer in cluster.told(control.Located)] == [0]

    cluster.cut_off.add("worker")
    cluster.says("client", look[0])
    cluster.loses("worker", may_return=True)
    ((_, lost),) = cluster.told(control.Located)
    assert lost.location is None
    assert lost.obituary is not None
    assert lost.obituary.lost


def test_who_needs_a_machine_that_was_lost_for_good_is_refused(cluster: Cluster) -> None:
    cluster.joins("head", cpus=0)
    cluster.joins("far", cpus=2)
    cluster.loses("far", may_return=True)
    cluster.asks("client", "a")
    assert cluster.told(control.NotPlaced) == []
    cluster.passes(EXPECTED_S)
    ((_, refusal),) = cluster.told(control.NotPlaced)
    assert refusal.error == "NoResources"
    cluster.asks("client", "b")
    assert cluster.told(control.NotPlaced)


def test_a_new_master_refuses_nothing_before_its_workers_may_be_back(cluster: Cluster) -> None:
    cluster.starts_master()
    cluster.learns()
    cluster.hello("client")
    cluster.joins("head", cpus=0)
    cluster.asks("client", "a", cpus=1)
    cluster.asks("client", "b", cpus=64)
    assert cluster.told(control.NotPlaced) == []
    cluster.joins("far", cpus=2)
    assert cluster.spawns() == ["a"]
    cluster.passes(LEASE_S)
    ((_, refusal),) = cluster.told(control.NotPlaced)
    assert refusal.error == "NoResources"


@pytest.mark.parametrize("away", ["cut off", "new master"])
def test_an_end_of_which_the_word_was_lost_is_told_when_the_worker_is_back(
    cluster: Cluster, away: str
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.cut_off.add("worker")
    if away == "cut off":
        cluster.loses_client("client")
    else:
        cluster.starts_master()
    cluster.told(control.End)
    cluster.joins("worker")
    if away == "new master":  # its owner does not come back
        cluster.passes(LEASE_S)
    assert [who for who, end in cluster.told(control.End) if end.actor == "a"] == ["worker"]


def test_an_actor_that_ended_while_its_end_was_on_the_way_is_not_lost_but_closed(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=3)
    cluster.says("client", control.End(actor="a", grace_s=1))
    cluster.living["worker"].clear()
    cluster.joins("worker")
    ((_, died),) = cluster.told(control.Died)
    assert (died.obituary.asked, died.obituary.lost, died.obituary.restarting) == (
        True,
        False,
        False,
    )


def test_an_end_that_a_new_master_hears_before_the_worker_is_back_is_not_forgotten(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.starts_master()
    cluster.learns()
    cluster.hello("client")
    cluster.says("client", control.End(actor="a", grace_s=1))
    assert cluster.told(control.Died) == []
    cluster.joins("worker")
    assert ("worker", control.End(actor="a", grace_s=1)) in cluster.told(control.End)
    cluster.buries("a")
    assert [died.obituary.actor for _, died in cluster.told(control.Died)] == ["a"]


def test_a_worker_that_joins_while_the_cluster_is_being_stopped_is_told_to_leave(
    cluster: Cluster,
) -> None:
    cluster.do(cluster.core.close())
    cluster.joins("late")
    assert [who for who, _ in cluster.told(control.Leave)] == ["late"]


@pytest.mark.parametrize("heard", [True, False])
def test_who_reads_a_log_is_answered_though_its_worker_was_away(
    cluster: Cluster, heard: bool
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    if not heard:
        cluster.cut_off.add("worker")
    cluster.says("client", control.ReadLog(ticket=7, actor="a"))
    assert len(cluster.told(control.ReadLog)) == heard
    cluster.joins("worker")
    ((_, again),) = cluster.told(control.ReadLog)
    piece = control.LogPiece(ticket=again.ticket, text="x", offset=1, known=True, ended=False)
    for _ in range(2):  # it may have heard both
        cluster.says("worker", piece)
    ((_, answer),) = cluster.told(control.LogPiece)
    assert answer.ticket == 7


@pytest.mark.parametrize("waits_for", ["room", "its name", "room for its next life"])
def test_who_asked_for_an_actor_that_is_closed_before_it_has_room_is_told_so(
    cluster: Cluster, waits_for: str
) -> None:
    cluster.joins("worker")
    match waits_for:
        case "room":
            cluster.has("client", "large", cpus=2)
            ticket = cluster.asks("client", "a")
        case "its name":
            cluster.learns()
            ticket = cluster.asks("client", "a", name="store", named=True)
        case _:
            cluster.has("client", "a", max_restarts=1)
            cluster.asks("client", "large", cpus=2)
            cluster.buries("a")
            cluster.spawns()
            ticket = cluster.asks("client", "a", max_restarts=1, life=1)
    assert cluster.spawns() == []

    cluster.says("client", control.End(actor="a", grace_s=0.0, kill=True))

    ((who, refused),) = cluster.told(control.NotPlaced)
    assert (who, refused.ticket, refused.error) == ("client", ticket, "ActorDied")


def test_who_has_an_actor_ended_that_is_not_there_is_told_so(cluster: Cluster) -> None:
    cluster.says("client", control.End(actor="a", grace_s=1))
    ((who, died),) = cluster.told(control.Died)
    assert (who, died.obituary.actor, died.obituary.asked) == ("client", "a", True)


def test_an_end_that_is_asked_for_again_is_never_put_off(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    for grace_s in (5, 60, 1, 5):
        cluster.says("client", control.End(actor="a", grace_s=grace_s))
    cluster.told(control.End)
    cluster.joins("worker")  # which may not have heard
    assert [end.grace_s for _, end in cluster.told(control.End)] == [1]


def test_a_birth_that_nobody_knows_of_is_ended(cluster: Cluster) -> None:
    cluster.joins("worker")
    stray = status_of(request_of("a", "client"))
    cluster.says("worker", control.Spawned(location=stray.location))
    assert cluster.told(control.End) == [("worker", control.End(actor="a", grace_s=0.0, kill=True))]


def test_a_birth_that_the_master_before_asked_for_is_adopted_and_not_made_twice(
    cluster: Cluster,
) -> None:
    cluster.joins("one")
    cluster.asks("client", "a")
    ((_, spawn),) = cluster.to_spawn
    cluster.to_spawn.clear()
    cluster.starts_master()
    cluster.hello("client")
    cluster.joins("two")
    ticket = cluster.asks("client", "a")  # and another worker is about to make it
    cluster.told(control.Placed)

    cluster.living["one"]["a"] = status_of(spawn.request, seal=spawn.seal)
    cluster.joins("one")

    assert ("two", control.End(actor="a", grace_s=0.0, kill=True)) in cluster.said
    ((_, placed),) = cluster.told(control.Placed)
    assert placed.ticket == ticket
    assert cluster.state.actors.records["a"].worker == "one"


# --- names and a new master -----------------------------------------------------------------------


def test_a_new_master_gives_no_name_away_before_its_holder_may_be_back(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", name="store", named=True)
    cluster.starts_master()
    cluster.learns()
    cluster.hello("client")
    cluster.hello("other")
    cluster.joins("head")
    cluster.said.clear()
    cluster.says("other", control.Locate(ticket=1, name="store"))
    cluster.asks("other", "b", name="store", named=True)
    assert cluster.told(control.Located) == []
    assert cluster.spawns() == []

    cluster.joins("worker")

    kinds: dict[str, Any] = {
        type(said).__name__: said for who, said in cluster.said if who == "other"
    }
    assert kinds["Located"].location == cluster.living["worker"]["a"].location
    assert kinds["NotPlaced"].error == "NameTaken"


def test_a_client_that_has_said_goodbye_is_given_no_actor_for_which_it_was_waiting(
    cluster: Cluster,
) -> None:
    cluster.learns()
    cluster.joins("worker", cpus=4)
    cluster.has("client", "keeps it from going")
    cluster.asks("client", "a", name="store", named=True)
    cluster.says("client", control.Goodbye())
    assert "client" in cluster.state.sessions
    cluster.passes(LEASE_S)
    assert cluster.spawns() == []


def test_what_was_asked_of_a_new_master_is_looked_at_when_there_is_news_of_it_and_not_before(
    cluster: Cluster,
) -> None:
    """Else a thousand workers that come back would each have all who ask looked at again."""

    def steps_of_a_return(asked: int) -> int:
        cluster.starts_master()
        cluster.learns()
        cluster.hello("client")
        for n in range(asked):
            cluster.says("client", control.Locate(ticket=n, actor=f"elsewhere-{n}"))
            cluster.says("client", control.Locate(ticket=n, name=f"name-{n}"))
            cluster.asks("client", f"new-{n}", name=f"other-{n}", named=True)
            cluster.says("client", control.End(actor=f"ends-{n}", grace_s=1))
        return steps(lambda: cluster.joins("worker"))

    assert steps_of_a_return(200) == pytest.approx(steps_of_a_return(10), rel=0.02)


def test_an_automatic_name_is_no_news_of_an_actor_that_was_named_so(cluster: Cluster) -> None:
    cluster.learns()
    cluster.hello("other")
    cluster.joins("head")
    cluster.says("other", control.Locate(ticket=1, name="store"))
    cluster.asks("other", "early", name="store", named=True)
    cluster.has("client", "automatic", name="store")
    cluster.asks("other", "late", name="store", named=True)
    assert cluster.told(control.Located) == []
    assert cluster.spawns() == []
    cluster.houses("worker", [request_of("a", "client", name="store", named=True)])
    cluster.joins("worker")
    ((_, located),) = [(w, s) for w, s in cluster.said if isinstance(s, control.Located)]
    assert located.location is not None
    assert located.location.actor == "a"
    assert [said.error for _, said in cluster.told(control.NotPlaced)] == ["NameTaken"] * 2


def test_a_name_whose_holder_does_not_come_back_is_given_away(cluster: Cluster) -> None:
    cluster.learns()
    cluster.joins("worker")
    cluster.asks("client", "taken back", name="store", named=True)
    cluster.asks("client", "b", name="store", named=True)
    cluster.says("client", control.End(actor="taken back", grace_s=0))
    assert cluster.spawns() == []
    cluster.passes(LEASE_S)
    assert cluster.spawns() == ["b"]


# --- the next life --------------------------------------------------------------------------------


def test_everybody_is_told_that_a_life_follows_and_is_answered_when_it_has_a_place(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=1)
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    cluster.told(control.Located)

    cluster.buries("a")

    told = cluster.told(control.Died)
    assert {who for who, _ in told} == {"client", "borrower"}
    assert all(died.obituary.restarting for _, died in told)
    cluster.says("borrower", control.Locate(ticket=2, actor="a"))
    cluster.says("borrower", control.Locate(ticket=3, name="a"))
    cluster.asks("client", "a", max_restarts=1, life=1)
    assert cluster.told(control.Located) == []
    cluster.spawns()
    told_where = cluster.told(control.Located)
    assert [where.ticket for _, where in told_where] == [2, 3]
    assert all(where.location and where.location.life == 1 for _, where in told_where)

    cluster.buries("a")
    assert not any(died.obituary.restarting for _, died in cluster.told(control.Died))


def test_an_actor_that_was_to_end_has_no_next_life_however_it_died(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=5)
    cluster.says("client", control.End(actor="a", grace_s=60))
    cluster.buries("a")  # by itself, before its worker had heard that it was to end
    (_, died), *_ = cluster.told(control.Died)
    assert (died.obituary.restarting, died.obituary.asked) == (False, True)


@pytest.mark.parametrize("end", ["refused", "taken back", "maker goes", "maker is lost"])
def test_who_waits_for_a_next_life_that_does_not_come_is_told_how_the_last_one_ended(
    cluster: Cluster, end: str
) -> None:
    cluster.joins("worker")
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=1, named=True)
    cluster.buries("a")
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    assert cluster.told(control.Located) == []
    match end:
        case "refused":
            cluster.asks("client", "a", max_restarts=1, life=1, named=True, cpus=64)
        case "taken back":
            cluster.says("client", control.End(actor="a", grace_s=0))
        case "maker goes":
            cluster.says("client", control.Goodbye())
        case "maker is lost":
            cluster.loses_client("client")
    ((_, located),) = cluster.told(control.Located)
    assert located.location is None
    assert located.obituary is not None
    assert not located.obituary.restarting
    cluster.has("borrower", "b", name="a", named=True)  # the name is free


def test_the_name_of_an_actor_between_two_lives_is_not_free(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1, named=True)
    cluster.buries("a")
    cluster.asks("client", "b", name="a", named=True)
    ((_, refusal),) = cluster.told(control.NotPlaced)
    assert refusal.error == "NameTaken"
    cluster.has("client", "a", max_restarts=1, named=True, life=1)


def test_lives_are_counted_within_ten_minutes(cluster: Cluster) -> None:
    cluster.joins("worker")
    for life in range(5):
        cluster.has("client", "a", max_restarts=2, life=life)
        cluster.buries("a")
        told = [died.obituary.restarting for _, died in cluster.told(control.Died)]
        assert told == [life != 4]
        if life == 1:
            cluster.passes(RESTARTS_WITHIN_S)


def test_a_detached_actor_begins_its_next_life_where_it_died(cluster: Cluster) -> None:
    cluster.joins("worker", gpus=2)
    cluster.has("client", "a", max_restarts=1, owner="", gpus=2, cpus=2)
    cluster.loses_client("client")
    cluster.hello("finder")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    cluster.told(control.Located)

    cluster.buries("a")

    assert [died.obituary.restarting for _, died in cluster.told(control.Died)] == [True]
    ((worker, spawn),) = cluster.to_spawn
    assert (worker, spawn.again, spawn.request.life, spawn.gpu_ids) == ("worker", True, 1, [0, 1])
    assert cluster.state.workers.ledger.free("worker").cpus == 0
    cluster.says("finder", control.Locate(ticket=2, actor="a"))
    cluster.spawns()
    ((_, located),) = cluster.told(control.Located)
    assert located.location == cluster.living["worker"]["a"].location

    cluster.buries("a")
    assert [died.obituary.restarting for _, died in cluster.told(control.Died)] == [False]
    assert cluster.state.workers.ledger.free("worker").cpus == 2


@pytest.mark.parametrize("maker", ["there", "gone"])
def test_a_detached_actor_is_lost_with_its_machine_unless_its_maker_is_there(
    cluster: Cluster, maker: str
) -> None:
    cluster.joins("worker")
    cluster.hello("finder")
    cluster.has("client", "a", max_restarts=1, owner="")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    if maker == "gone":
        cluster.loses_client("client")
    cluster.told(control.Died)
    cluster.loses("worker")
    told = cluster.told(control.Died)
    assert {died.obituary.restarting for _, died in told} == {maker == "there"}
    assert {died.obituary.lost for _, died in told} == {True}


@pytest.mark.parametrize("owner", ["client", ""])
def test_an_actor_that_died_while_there_was_no_master_has_its_next_life(
    cluster: Cluster, owner: str
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1, owner=owner)
    lived = cluster.living["worker"].pop("a")
    cluster.starts_master()
    cluster.learns()
    cluster.hello("finder")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    cluster.joins("worker")
    obituary = control.Obituary(actor="a", life=0)
    cluster.says("worker", control.Died(obituary=obituary, lived=lived))
    if owner:
        cluster.hello("client")
        assert cluster.told(control.Died)[-1][1].obituary.restarting
        cluster.asks("client", "a", max_restarts=1, life=1)
    cluster.spawns()
    ((_, located),) = cluster.told(control.Located)
    assert located.location is not None
    assert located.location.life == 1


def test_a_maker_whose_connection_was_broken_is_told_again_of_what_it_is_to_make(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1)
    cluster.buries("a")
    cluster.told(control.Died)
    cluster.hello("client")
    ((who, died),) = cluster.told(control.Died)
    assert (who, died.obituary.restarting) == ("client", True)
    cluster.has("client", "a", max_restarts=1, life=1)
    cluster.hello("client")
    assert cluster.told(control.Died) == []


# --- what has ended is gone -----------------------------------------------------------------------


def test_an_actors_next_life_takes_the_room_of_one_whose_end_was_not_told(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=2)
    cluster.has("client", "a", cpus=2, life=1)
    assert cluster.state.workers.ledger.free("worker").cpus == 0
    cluster.buries("a")
    assert cluster.state.workers.ledger.free("worker").cpus == 2


def test_an_earlier_life_whose_end_was_not_told_is_ended_when_the_next_is_asked_for(
    cluster: Cluster,
) -> None:
    cluster.joins("one")
    cluster.has("client", "a")
    cluster.joins("two", cpus=4)
    cluster.asks("client", "a", life=1)
    assert cluster.told(control.End) == [("one", control.End(actor="a", grace_s=0.0, kill=True))]
    assert cluster.spawns() == ["a"]
    assert cluster.state.actors.records["a"].worker == "two"


@pytest.mark.parametrize("how", ["asked for", "brought along"])
def test_an_earlier_life_whose_end_was_not_told_has_ended_to_begin_again(
    cluster: Cluster, how: str
) -> None:
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
    assert not list(cluster.state.restarts.due_by("client"))


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


def test_modules_are_told_once_and_not_after_the_last_who_uses_them_has_gone(
    cluster: Cluster,
) -> None:
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


def test_nothing_is_left_of_those_who_came_and_went(cluster: Cluster) -> None:
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
    assert not state.workers.ledger.kept
    assert not state.workers.ledger.cpus
    assert not state.questions.held
    assert not state.restarts.due
    assert not state.restarts.begun
    assert not state.log_queries.asks


# --- a worker and a client that lie ---------------------------------------------------------------


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
    cluster.do(cluster.core.list_keys([], []))
    cluster.passes(LEASE_S)
    cluster.asks("client", "a")
    cluster.joins("worker")
    assert {refusal.error for _, refusal in cluster.told(control.NotPlaced)} == {"NotAllowed"}
    assert cluster.to_spawn == []


def test_who_let_a_delegate_in_is_told_when_its_client_is_taken_off_the_list(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.joins("other", cpus=0)
    cluster.says("worker", control.Delegate(actor="a", key=b"d" * 40))
    cluster.says("other", control.MayCall(key=b"d" * 40))
    assert cluster.told(control.Caller)[-1][1].admitted
    cluster.do(cluster.core.list_keys([], []))
    taken_back = control.Caller(key=b"d" * 40, admitted=False)
    assert cluster.told(control.Caller) == [("other", taken_back)]


def test_nothing_is_kept_of_workers_that_asked_about_keys_and_went(cluster: Cluster) -> None:
    cluster.learns()
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.says("worker", control.Delegate(actor="a", key=b"d" * 40))
    for n in range(5):
        cluster.joins(f"guest-{n}", cpus=0)
        cluster.says(f"guest-{n}", control.MayCall(key=b"d" * 40))
        cluster.says(f"guest-{n}", control.MayCall(key=b"unknown".ljust(40)))
        cluster.loses(f"guest-{n}")
    assert held_by(cluster.admission.told) == {}
    assert held_by(cluster.state.delegates.askers) == {}


def test_no_delegate_comes_back_after_its_clients_key_was_revoked(cluster: Cluster) -> None:
    cluster.joins("liar")
    cluster.has("client", "a")
    cluster.says("liar", control.Delegate(actor="a", key=b"l" * 40))
    assert cluster.admission.role_of(b"l" * 40) == "client"
    cluster.do(cluster.core.list_keys([], []))
    cluster.says("liar", control.Delegate(actor="a", key=b"l" * 40))
    assert cluster.admission.role_of(b"l" * 40) is None


def test_a_cancellation_is_passed_on_to_the_worker_of_the_actor_and_no_other(
    cluster: Cluster,
) -> None:
    cluster.joins("other")
    cluster.joins("worker")
    cluster.has("client", "actor", cpus=2)
    home = cluster.state.actors.records["actor"].worker
    cluster.told(object)
    cancel = control.Cancel(actor="actor", route=b"route", call=1, answer=2)
    cluster.says("client", cancel)
    cluster.says("client", msgspec.structs.replace(cancel, actor="nobody"))
    assert cluster.told(control.Cancel) == [(home, cancel)]
