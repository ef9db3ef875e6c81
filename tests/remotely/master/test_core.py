"""The core of the master: its invariants in any order of events, and the cost of events.

The peers are simulated by calls; test_placing.py tests a master on real sockets.
"""

from collections.abc import Callable, Iterator

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from remotely.master import actors
from remotely.master.admission import LIST
from remotely.master.queries import SPANS_WAIT_S, Timelines
from remotely.master.state import State
from remotely.master.waiting import Waiter, WaitingList
from remotely.protocol import control
from remotely.protocol.lease import OWNER_GRACE_S
from remotely.protocol.resources import Resources
from tests.remotely.master.played import (
    EVENTS,
    KEY,
    LEASE_S,
    WORKER_KEY,
    Cluster,
    check,
    held_by,
    needs_of,
    play_event,
    request_of,
    status_of,
    workers_in_status,
)
from tests.steps import steps


class PlainWaiting(WaitingList):
    """Retries every request for which there may be room: the slow reference."""

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
        play_event(cluster, *event)
        check(cluster)


@hypothesis.given(events)
def test_the_queue_places_the_same_requests_as_a_linear_search(
    events: list[tuple[str, int, int]],
) -> None:
    cluster, plain = Cluster(), Cluster(PlainWaiting)
    for event in events:
        play_event(cluster, *event)
        play_event(plain, *event)
        assert cluster.outbox == plain.outbox


# --- cost -----------------------------------------------------------------------------------------


def cluster_of(workers: int) -> Cluster:
    """Return a cluster whose workers have twenty actors each, of one client per worker."""
    cluster = Cluster()
    for number in range(workers):
        requests = [request_of(f"{number}.{n}", f"client-{number}") for n in range(20)]
        cluster.hosts(f"worker-{number}", requests)
        cluster.joins(f"worker-{number}", cpus=21)
        cluster.hello(f"client-{number}", ["numpy"])
    for number in range(10 * workers):
        cluster.asks(f"client-{number % workers}", f"waits-{number}", cpus=15)
    assert len(cluster.state.waiting) == 10 * workers
    cluster.outbox.clear()
    return cluster


def _goodbye(cluster: Cluster) -> None:
    cluster.says("client-1", control.Goodbye())
    for number in range(20):
        cluster.kills(f"1.{number}")
    assert cluster.sent(control.Farewell)


def _reconnect(cluster: Cluster) -> None:
    cluster.living["worker-1"].pop("1.7")
    cluster.joins("worker-1", cpus=21)
    assert len(cluster.sent(control.Died)) == 1


def _new_worker(cluster: Cluster) -> None:
    requests = [request_of(f"new.{n}", "client-1") for n in range(20)]
    cluster.hosts("new", requests)
    cluster.joins("new", cpus=21)


FLAT: dict[str, Callable[[Cluster], object]] = {
    "a placement": lambda c: c.has("client-1", "a", cpus=0.5),
    "the end of an actor that helps no waiting request": lambda c: c.kills("1.3"),
    "closing an actor": lambda c: c.says("client-1", control.End(actor="1.3", grace_s=0)),
    "a request that has to wait": lambda c: c.asks("client-1", "a", cpus=15),
    "a request that can never fit": lambda c: c.asks("client-1", "a", cpus=99),
    "a withdrawn request": lambda c: c.says("client-1", control.End(actor="waits-9", grace_s=0)),
    "a beat": lambda c: c.says("worker-1", control.Beat()),
    "a report": lambda c: c.says(
        "worker-1", control.Report(actors=[control.Figures(actor=a) for a in c.living["worker-1"]])
    ),
    "a look-up": lambda c: c.says("client-2", control.Locate(ticket=1, name="1.3")),
    "the log of a living actor": lambda c: c.says(
        "client-2", control.ReadLog(ticket=1, actor="1.3")
    ),
    "a new client": lambda c: c.hello("client-new", ["numpy"]),
    "a client reconnects": lambda c: c.hello("client-1", ["numpy"]),
    "a goodbye with the end of the actors": _goodbye,
    "a lost client": lambda c: c.loses_client("client-1"),
    "a lost worker with its actors": lambda c: c.loses("worker-1"),
    "a worker is back without one actor": _reconnect,
    "a new worker with actors": _new_worker,
}


@pytest.mark.parametrize("event", FLAT)
def test_the_cost_of_an_event_does_not_grow_with_the_cluster(event: str) -> None:
    small, large = cluster_of(5), cluster_of(50)
    for each in (small, large):
        each.asks("client-1", "warm-up", cpus=99)  # fills caches
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
    cluster.kills("a0")
    assert tried == []
    cluster.kills("a1")
    assert tried == ["w0", "w1"]


# --- ended lives and peers ------------------------------------------------------------------------


def test_a_next_life_replaces_its_unreported_predecessor(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=2)
    cluster.has("client", "a", cpus=2, life=1)
    assert cluster.sent(control.End) == [("worker", control.End(actor="a", grace_s=0.0, kill=True))]
    assert cluster.state.workers.ledger.free("worker").cpus == 0
    cluster.kills("a")
    assert cluster.state.workers.ledger.free("worker").cpus == 2


@pytest.mark.parametrize("how", ["asked for", "brought along"])
def test_watchers_are_notified_that_an_unreported_life_restarts(cluster: Cluster, how: str) -> None:
    cluster.joins("one", cpus=1)
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=2, name="store", named=True)
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    cluster.outbox.clear()
    if how == "asked for":
        cluster.asks("client", "a", max_restarts=2, name="store", named=True, life=1)
    else:
        later = request_of("a", "client", max_restarts=2, name="store", named=True, life=1)
        cluster.hosts("two", [later])
        cluster.joins("two", cpus=1)
    deaths = [(who, m) for who, m in cluster.outbox if isinstance(m, control.Died)]
    assert {who for who, _ in deaths} == {"client", "borrower"}
    assert all(died.obituary.restarting for _, died in deaths)
    cluster.says("borrower", control.Locate(ticket=2, actor="a"))
    cluster.spawns()
    ((_, located),) = cluster.sent(control.Located)
    assert located.location is not None
    assert located.location.life == 1
    assert not list(cluster.state.restarts.pending_of("client"))


def test_a_request_for_an_ended_life_is_refused(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1)
    cluster.kills("a")
    cluster.outbox.clear()
    cluster.asks("client", "a", max_restarts=1)
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert (refused.error, cluster.spawns()) == ("ActorDied", [])
    cluster.has("client", "a", max_restarts=1, life=1)


@pytest.mark.parametrize("later", ["lives", "waits"])
def test_a_request_for_an_earlier_life_is_refused(cluster: Cluster, later: str) -> None:
    if later == "lives":
        cluster.joins("worker")
    cluster.asks("client", "a", life=2)
    cluster.spawns()
    cluster.outbox.clear()
    ticket = cluster.asks("client", "a", life=1)
    ((who, refusal),) = cluster.sent(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "ActorDied")
    if later == "waits":
        cluster.joins("worker")
        cluster.spawns()
    assert cluster.state.actors.records["a"].request.life == 2
    assert cluster.sent(control.End) == []


def test_modules_are_preloaded_once_while_a_client_uses_them(cluster: Cluster) -> None:
    def preloads() -> list[tuple[str, list[str]]]:
        return [(who, message.modules) for who, message in cluster.sent(control.Preload)]

    cluster.joins("w1")
    cluster.joins("other python", python="3.10")
    cluster.hello("c1", ["numpy"])
    assert preloads() == [("w1", ["numpy"])]
    cluster.hello("c2", ["numpy", "torch"])
    assert preloads() == [("w1", ["torch"])]
    cluster.hello("c1", ["numpy", "torch"])
    assert preloads() == []
    cluster.joins("w2")
    assert preloads() == [("w2", ["numpy", "torch"])]
    cluster.loses_client("c1")
    cluster.loses_client("c2")
    cluster.joins("w3")
    assert preloads() == []


def test_nothing_is_left_of_peers_that_have_ended(cluster: Cluster) -> None:
    for n in range(3):
        cluster.joins(f"worker-{n}", cpus=2)
        cluster.hello(f"client-{n}", ["numpy"])
    for n in range(9):
        cluster.asks(
            f"client-{n % 3}", f"actor-{n}", name=f"name-{n}", named=True, max_restarts=n % 2
        )
    cluster.spawns()
    cluster.kills("actor-1")
    cluster.kills("actor-3")
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


# --- malicious peers ------------------------------------------------------------------------------


def lies_of_a_worker(about: control.ActorStatus) -> list[msgspec.Struct]:
    """Return messages of a worker about an actor on another worker."""
    actor = about.request.actor
    elsewhere = msgspec.structs.replace(about.location, public_key=b"a liar's")
    names = {"actor": actor, "name": about.request.name, "job": about.request.job}
    return [
        control.Died(obituary=control.Obituary(actor=actor, life=0)),
        control.Died(obituary=control.Obituary(actor=actor, life=0), lived=about),
        control.Spawned(location=elsewhere),
        control.Report(actors=[control.Figures(actor=actor, calls=99)]),
        control.OutputBatch(items=[control.Printed(**names, error=False, text="a lie")]),
        control.LogPiece(ticket=1, text="a lie", offset=0, known=True, ended=True),
        control.Delegate(actor=actor, key=b"l" * 40),
        control.MayCall(key=b"l" * 40),
        control.OutputBatch(items=[msgspec.structs.replace(A_RECORD, **names)]),
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
def test_a_worker_cannot_report_on_another_workers_actor(choices: list[int]) -> None:
    cluster = Cluster()
    cluster.hello("client")
    cluster.joins("honest")
    cluster.has("client", "a")
    cluster.joins("liar", cpus=0)
    victim = cluster.living["honest"]["a"]
    cluster.says("client", control.ReadLog(ticket=5, actor="a"))
    cluster.outbox.clear()
    for choice in choices:
        cluster.says("liar", lies_of_a_worker(victim)[choice])
    assert [message for who, message in cluster.outbox if who != "liar"] == []
    cluster.says("client", control.Locate(ticket=6, actor="a"))
    ((_, located),) = cluster.sent(control.Located)
    assert located.location == victim.location
    cluster.says("client", control.AskStatus(ticket=7))
    for worker in ("honest", "liar"):
        cluster.says(worker, control.Report(actors=[]))
    cluster.says("client", control.Unanswered(calls={}))
    ((_, status),) = cluster.sent(control.Status)
    assert [(worker.worker, len(worker.actors)) for worker in status.workers] == [
        ("honest", 1),
        ("liar", 0),
    ]


def test_false_call_counts_do_not_break_the_status(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.says("client", control.Unanswered(calls={"a": 2}))
    for liar in ("one", "two", "three"):
        cluster.hello(liar)
        cluster.says(liar, control.Unanswered(calls={"a": control.MOST}))
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    ((actor,),) = [worker.actors for worker in status.workers]
    assert actor.queue == control.MOST


def test_a_client_cannot_request_as_another_client(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.hello("liar")
    cluster.asks("liar", "a", life=7)
    ((who, refused),) = cluster.sent(control.NotPlaced)
    assert (who, refused.error) == ("liar", "NotAllowed")
    cluster.asks("liar", "b", owner="client", job="client", maker="client", key=b"another's")
    ((_, spawn),) = cluster.to_spawn
    placed = spawn.request
    assert (placed.owner, placed.job, placed.maker, placed.key) == ("liar", "liar", "liar", KEY)


def test_no_delegate_is_admitted_for_an_actor_that_has_not_started(cluster: Cluster) -> None:
    cluster.joins("liar")
    cluster.asks("client", "a")
    cluster.says("liar", control.Delegate(actor="a", key=b"l" * 40))
    assert cluster.admission.role_of(b"l" * 40) is None


def test_a_client_with_a_revoked_key_gets_no_actor(cluster: Cluster) -> None:
    cluster.recovers()
    cluster.asks("client", "held", name="store", named=True)
    cluster.execute(cluster.core.set_keys([], []))
    cluster.advance(LEASE_S)
    cluster.asks("client", "a")
    cluster.joins("worker")
    assert {refusal.error for _, refusal in cluster.sent(control.NotPlaced)} == {"NotAllowed"}
    assert cluster.to_spawn == []


def test_a_key_that_is_not_listed_any_more_is_told_to_every_worker_and_closes_its_actors(
    cluster: Cluster,
) -> None:
    viewer = b"a viewer's key, listed".ljust(40)
    for worker in "ab":
        cluster.joins(worker)
    cluster.has("client", "actor")
    cluster.sent(object)
    cluster.execute(cluster.core.set_keys([viewer[::-1]], [WORKER_KEY], [viewer]))
    assert cluster.admission.role_of(viewer) == "viewer"
    told = list(cluster.outbox)
    ended = control.Caller(key=KEY, admitted=False)
    assert [(who, each) for who, each in told if each == ended] == [("a", ended), ("b", ended)]
    assert control.End(actor="actor", grace_s=OWNER_GRACE_S) in [each for _, each in told]
    cluster.sent(object)
    cluster.execute(cluster.core.set_keys([viewer[::-1], KEY], [WORKER_KEY], [viewer]))
    assert not cluster.sent(object)  # who is new is asked about


def unheard(cluster: Cluster, key: bytes = KEY) -> list[str]:
    """Return the machines that have not confirmed that this key is refused."""
    cluster.outbox.clear()
    cluster.says("client", control.AskKey(ticket=1, key=key))
    ((_, state),) = cluster.sent(control.KeyState)
    assert state.role == ""
    return state.unheard


def test_the_machines_that_have_not_confirmed_a_revocation_are_named_and_told_again(
    cluster: Cluster,
) -> None:
    for worker in "abc":
        cluster.joins(worker, machine=f"machine of {worker}")
    cluster.says("client", control.AskKey(ticket=7, key=KEY))
    told = [(state.ticket, state.role) for _, state in cluster.sent(control.KeyState)]
    assert told == [(7, "client")]
    cluster.execute(cluster.core.set_keys([], [WORKER_KEY]))
    heard = control.CallerHeard(key=KEY)
    cluster.says("a", heard)
    assert unheard(cluster) == ["machine of b", "machine of c"]
    cluster.joins("b", machine="machine of b")  # its connection was broken
    assert control.Caller(key=KEY, admitted=False) in [
        each for who, each in cluster.sent(control.Caller) if who == "b"
    ]
    cluster.says("b", heard)
    cluster.execute(cluster.core.remove_worker("c", "it was stopped", cluster.now))
    assert unheard(cluster) == []


def test_a_restarted_master_knows_no_revocation_as_confirmed_before_each_machine_says_so(
    cluster: Cluster,
) -> None:
    revoked, delegate = b"of a client".ljust(40), b"of an actor".ljust(40)
    cluster.starts_master(recovers_until=cluster.now + LEASE_S)  # nothing is left of the end
    cluster.hello("client")
    for worker in "ab":
        cluster.joins(worker, machine=f"machine of {worker}", confirms=False)
    cluster.says("a", control.MayCall(key=delegate, again=True))
    cluster.says("b", control.CallerHeard(key=LIST))
    unknown = "what an earlier master has left and has not come back yet"
    assert unheard(cluster, revoked) == ["machine of a", unknown]
    cluster.says("a", control.CallerHeard(key=LIST))
    cluster.advance(LEASE_S + 1)  # the actor of the delegate has not come back
    assert control.Caller(key=delegate, admitted=False) in [m for _, m in cluster.outbox]
    assert unheard(cluster, revoked) == ["machine of a"]
    cluster.says("a", control.CallerHeard(key=delegate))
    assert unheard(cluster, revoked) == []
    cluster.joins("b", machine="machine of b", confirms=False)
    assert unheard(cluster, revoked) == ["machine of b"]


def test_a_key_that_has_its_right_again_is_not_ended_at_a_worker_that_was_away(
    cluster: Cluster,
) -> None:
    client, delegate = b"of a client".ljust(40), b"of an actor".ljust(40)
    cluster.joins("w", machine="m")
    cluster.joins("away", cpus=0, machine="away")
    cluster.execute(cluster.core.set_keys([KEY, client], [WORKER_KEY]))
    for life in range(2):  # the key of an actor has it again with an actor that has the same one
        cluster.has("client", f"actor-{life}")
        cluster.says("w", control.Delegate(actor=f"actor-{life}", key=delegate))
        if not life:
            cluster.says("away", control.MayCall(key=delegate))
            cluster.cut_off.add("away")
            cluster.kills("actor-0")
            cluster.execute(cluster.core.set_keys([KEY], [WORKER_KEY]))
            cluster.says("w", control.CallerHeard(key=client))
            assert unheard(cluster, client) == ["away"]
    cluster.execute(cluster.core.set_keys([KEY, client], [WORKER_KEY]))
    cluster.sent(object)
    cluster.joins("away", cpus=0, machine="away")
    assert not cluster.sent(control.Caller)
    assert unheard(cluster, b"another's".ljust(40)) == []


def test_a_closing_master_tells_every_worker_to_leave(cluster: Cluster) -> None:
    for worker in "ab":
        cluster.joins(worker)
    cluster.execute(cluster.core.close())
    assert cluster.sent(control.Leave) == [("a", control.Leave()), ("b", control.Leave())]


def test_a_status_does_not_wait_for_a_worker_whose_route_is_lost(cluster: Cluster) -> None:
    for worker in "ab":
        cluster.joins(worker)
    cluster.says("client", control.AskStatus(ticket=1))
    cluster.says("client", control.Unanswered(calls={}))
    cluster.says("a", control.Report(actors=[]))
    assert not cluster.sent(control.Status)
    cluster.loses_route("b")
    assert len(cluster.sent(control.Status)) == 1


def test_revoking_a_client_revokes_its_delegates_for_good(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.joins("other", cpus=0)
    cluster.says("worker", control.Delegate(actor="a", key=b"d" * 40))
    cluster.says("other", control.MayCall(key=b"d" * 40))
    assert cluster.sent(control.Caller)[-1][1].admitted
    cluster.execute(cluster.core.set_keys([], []))
    revoked = control.Caller(key=b"d" * 40, admitted=False)
    assert [who for who, each in cluster.sent(control.Caller) if each == revoked] == ["other"]
    cluster.says("worker", control.Delegate(actor="a", key=b"d" * 40))  # again
    assert cluster.admission.role_of(b"d" * 40) is None


def test_queries_of_removed_workers_are_forgotten(cluster: Cluster) -> None:
    cluster.recovers()
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


def test_a_cancellation_is_sent_to_the_actors_worker(cluster: Cluster) -> None:
    cluster.joins("other")
    cluster.joins("worker")
    cluster.has("client", "actor", cpus=2)
    home = cluster.state.actors.records["actor"].worker
    cluster.sent(object)
    cancel = control.Cancel(actor="actor", route=b"route", call=1, answer=2)
    cluster.says("client", cancel)
    cluster.says("client", msgspec.structs.replace(cancel, actor="nobody"))
    assert cluster.sent(control.Cancel) == [(home, cancel)]


def test_a_status_lists_waiting_requests_and_unexpected_ends(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=1)
    cluster.has("client", "b", cpus=1)
    for actor in ("c", "d"):
        cluster.asks("client", actor, cpus=1)
    cluster.now += 5.0
    obituary = control.Obituary(
        actor="a", life=0, exit="SIGKILL", stderr="its last words", why="out of memory"
    )
    cluster.says("worker", control.Died(obituary=obituary))
    cluster.now += 2.0
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    ((wait,), (end,)) = status.waits, status.ends
    assert (wait.count, wait.waits_s) == (1, 7.0)
    assert "1 CPU" in wait.why
    assert (end.name, end.exit, end.stderr, end.ago_s) == ("a", "SIGKILL", "its last words", 2.0)
    assert not end.restarting
    assert end.why == "out of memory"


def test_a_status_has_nothing_that_may_be_secret(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", env={"TOKEN": "x"}, packages=["p @ https://user:x@index"])
    cluster.has("client", "b", packages=["p @ https://user:x@index"])
    for worker in workers_in_status(cluster):
        assert [(a.request.env, a.request.packages) for a in worker.actors] == [({}, [])] * 2


def test_an_unexpected_end_names_the_machine_of_the_ended_life(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", machine="m")
    detached = request_of("a", "client", owner="", max_restarts=1)
    cluster.says("client", control.Place(ticket=1, request=detached, patience_s=60))
    cluster.spawns()
    cluster.kills("a")  # its worker begins the next life, which is not placed yet
    cluster.says("client", control.AskStatus(ticket=2, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    assert [(end.machine, end.restarting) for end in status.ends] == [("m", True)]
    cluster.spawns()  # and now it is
    cluster.says("client", control.AskStatus(ticket=3, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    assert [(end.restarting, end.restarted) for end in status.ends] == [(False, True)]


def test_a_wait_says_for_how_long_the_client_of_a_holder_has_been_silent(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    cluster.hello("gone")
    cluster.has("gone", "a")

    def why() -> str:
        cluster.says("client", control.AskStatus(ticket=1, fresh=False))
        ((_, status),) = cluster.sent(control.Status)
        return status.waits[0].why

    cluster.asks("client", "b")
    assert "a (1 CPU, of pid 1 on ) has the rest" in why()
    cluster.sent(object)
    cluster.advance(6.0, but=["gone"])
    silent = "a (1 CPU, of pid 1 on , which has been silent for 6 s of 10) has the rest"
    ((who, queued),) = cluster.sent(control.Queued)
    assert (who, queued.again) == ("client", True)
    assert silent in queued.why
    assert silent in why()
    cluster.advance(1.0, but=["gone"])
    assert cluster.sent(control.Queued) == []  # it is told once


def test_an_unknown_machine_is_refused_with_the_names_of_all_even_lost_ones(
    cluster: Cluster,
) -> None:
    for number in (1, 2):
        cluster.joins(f"w{number}", machine=f"m{number}")
    cluster.loses("w2", may_return=True)
    cluster.asks("client", "a", machine="m9")
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert refusal.error == "NoResources"
    assert refusal.why == "no machine of this cluster is named 'm9': there are m1 and m2"


def test_an_embedded_cluster_that_is_too_small_is_told_how_to_grow(cluster: Cluster) -> None:
    cluster.state.is_embedded = True
    cluster.joins("worker", cpus=2)
    cluster.asks("client", "a", cpus=5)
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert refusal.error == "NoResources"
    assert "remotely.connect(cpus=5)" in refusal.why


def test_near_an_actor_on_a_lost_machine_nothing_is_placed(cluster: Cluster) -> None:
    cluster.joins("w", machine="m")
    cluster.has("client", "a", max_restarts=1)
    cluster.joins("other", machine="n")
    cluster.loses_route("w")
    cluster.loses_route("w")  # known already
    cluster.asks("client", "b", near="a")
    assert cluster.spawns() == []
    cluster.joins("w", machine="m")
    assert cluster.spawns() == ["b"]


def test_a_silent_worker_and_a_silent_client_are_removed_with_their_actors(
    cluster: Cluster,
) -> None:
    cluster.joins("w", machine="m")
    cluster.joins("other", cpus=0)
    cluster.has("client", "a")
    cluster.hello("gone")
    cluster.has("gone", "b")
    cluster.sent(object)
    logged = cluster.advance(LEASE_S + 1, but=["gone"])
    assert logged == ["lost the client with pid 1 on "]
    assert [end.actor for _, end in cluster.sent(control.End)] == ["b"]
    assert "gone" not in cluster.state.sessions
    logged = cluster.advance(LEASE_S + 1, but=["w"])
    assert logged == ["lost the worker on m"]
    ((who, died),) = cluster.sent(control.Died)
    assert (who, died.obituary.actor) == ("client", "a")
    assert "m was last heard from 10 s ago" in died.obituary.why


def test_any_message_of_a_peer_renews_its_lease(cluster: Cluster) -> None:
    cluster.joins("w")
    cluster.now += 0.6 * LEASE_S
    cluster.says("w", control.Beat())
    cluster.says("client", control.Unblocked())
    cluster.now += 0.6 * LEASE_S
    assert cluster.expire() == []
    cluster.hello("client")
    cluster.joins("w")
    cluster.now += 0.6 * LEASE_S
    assert cluster.expire() == []


def test_the_log_of_an_actor_is_requested_by_its_name_or_id(cluster: Cluster) -> None:
    cluster.joins("w")
    cluster.has("client", "a", name="store", named=True)
    cluster.joins("other")
    cluster.sent(object)
    for wanted in ("store", "a"):
        cluster.says("client", control.ReadLog(ticket=1, actor=wanted))
        assert [(who, each.actor) for who, each in cluster.sent(control.ReadLog)] == [("w", "a")]
        cluster.says("w", control.LogPiece(ticket=1, text="", offset=0, known=True, ended=False))


def test_a_worker_that_was_stopped_is_not_expected_back(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.joins(f"w{number}", machine=f"m{number}")
    cluster.says("client", control.AskStatus(ticket=1))
    cluster.says("client", control.Unanswered(calls={}))
    cluster.says("w1", control.Report(actors=[]))
    cluster.has("client", "b", machine="m2")
    cluster.says("w2", control.Left())
    ((_, died),) = [each for each in cluster.outbox if isinstance(each[1], control.Died)]
    assert died.obituary.why == "its worker was stopped"
    ((_, status),) = cluster.sent(control.Status)  # which does not wait for it
    assert status.ticket == 1
    cluster.asks("client", "a", machine="m2")
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert refusal.why.endswith("there is m1")
    cluster.execute(cluster.core.remove_worker("w1", "it was stopped", cluster.now))
    assert "w1" not in cluster.state.leases
    assert cluster.state.workers.machines() == []


def test_output_of_an_actor_is_sent_to_its_script_with_its_name(cluster: Cluster) -> None:
    cluster.joins("w")
    cluster.has("client", "a", name="store", named=True)
    printed = control.Printed(actor="a", name="?", job="?", error=False, text="hello")
    logged = msgspec.structs.replace(A_RECORD, actor="a", name="?")
    cluster.sent(object)
    cluster.says("w", control.OutputBatch(items=[printed, logged]))
    told = [msgspec.structs.replace(each, name="store") for each in (printed, logged)]
    assert cluster.outbox == [
        ("client", control.OutputBatch(items=told)),
        ("w", control.OutputHeard()),
    ]


def test_a_worker_is_told_whose_output_nobody_shows(cluster: Cluster) -> None:
    cluster.joins("w")
    cluster.hello("gone")
    cluster.has("gone", "a", owner="")
    cluster.loses_client("gone")
    cluster.sent(object)
    printed = control.Printed(actor="a", name="a", job="gone", error=False, text="hello")
    cluster.says("w", control.OutputBatch(items=[printed]))
    assert cluster.outbox == [("w", control.OutputHeard(unshown=["gone"]))]


def test_a_recovering_master_answers_about_an_unknown_key_once_it_has_recovered(
    cluster: Cluster,
) -> None:
    cluster.recovers()
    cluster.joins("w")
    cluster.sent(object)
    cluster.says("w", control.MayCall(key=b"d" * 40))
    assert not cluster.sent(control.Caller)
    cluster.advance(LEASE_S)
    assert cluster.sent(control.Caller) == [("w", control.Caller(key=b"d" * 40, admitted=False))]


def test_a_status_has_its_ticket_and_the_starts_of_actors(cluster: Cluster) -> None:
    cluster.joins("w")
    cluster.asks("client", "a")
    ((_, spawn),) = cluster.to_spawn
    location = status_of(spawn.request).location
    cluster.says("w", control.Spawned(location=location, since=12.5))
    cluster.says("client", control.AskStatus(ticket=3, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    assert status.ticket == 3
    assert [each.since for worker in status.workers for each in worker.actors] == [12.5]


def test_a_kill_names_the_actor_or_the_script_that_asked_for_it(cluster: Cluster) -> None:
    cluster.joins("w")
    for actor in ("a", "b"):
        cluster.has("client", actor)
    cluster.hello("in a", actor="a")
    cluster.sent(object)
    for who, by in (("in a", "a"), ("client", "pid 1 on ")):
        cluster.says(who, control.End(actor="b", grace_s=0, kill=True))
        assert [end.by for _, end in cluster.sent(control.End)] == [by]


def test_an_actor_that_is_closed_before_it_has_room_is_reported_as_closed(
    cluster: Cluster,
) -> None:
    cluster.joins("w", cpus=1)
    cluster.has("client", "a")
    ticket = cluster.asks("client", "b")
    cluster.sent(object)
    cluster.says("client", control.End(actor="b", grace_s=0))
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (ticket, "ActorDied")
    assert refusal.why == "it was closed while it waited for room"


# --- timelines ------------------------------------------------------------------------------------


def recorded(timeline: str, host: str) -> control.ProcessTimeline:
    return control.ProcessTimeline(timeline=timeline, host=host, machine=host, pid=1, clock=5.0)


def begun(cluster: Cluster, asker: str = "client", ticket: int = 7) -> str:
    """Return the id of a timeline of ten seconds."""
    cluster.says(asker, control.AskTimeline(ticket=ticket, seconds=10.0))
    _, asked = cluster.sent(control.RecordTimeline)[-1]
    cluster.outbox.clear()
    return asked.timeline


def test_a_timeline_is_passed_on_with_what_is_known_of_each_clock(cluster: Cluster) -> None:
    cluster.joins("worker")
    host = cluster.state.workers.records["worker"].register.host
    cluster.state.timelines = Timelines("the master's", cluster.state.send)
    cluster.hello("viewing")
    cluster.says("client", control.AskTimeline(ticket=7, seconds=10.0))
    asked = cluster.sent(control.RecordTimeline)
    assert {who for who, _ in asked} == {"worker", "client", "viewing"}
    timeline = asked[0][1].timeline
    cluster.advance(0.2)
    clock = cluster.now - 100.0  # theirs is behind
    cluster.says("worker", control.TimelineClock(timeline=timeline, clock=clock))
    cluster.outbox.clear()
    cluster.says("worker", recorded(timeline, host))
    cluster.says("worker", recorded("another", host))
    ((who, passed),) = cluster.sent(control.ProcessTimeline)
    assert (who, passed.ticket) == ("client", 7)
    assert passed.error_s == pytest.approx(0.1)
    assert passed.offset_s == pytest.approx(100.0 - 0.1)
    for peer in ("worker", "client"):
        cluster.says(peer, control.TimelineEnd(timeline=timeline))
    assert cluster.sent(control.TimelineEnd) == []
    cluster.loses_client("viewing")
    end = control.TimelineEnd(timeline=timeline, ticket=7)
    assert cluster.sent(control.TimelineEnd) == [("client", end)]


def test_a_silent_process_does_not_hold_up_a_timeline(cluster: Cluster) -> None:
    cluster.joins("worker")
    timeline = begun(cluster)
    cluster.says("client", control.AskTimeline(ticket=8, seconds=1.0))
    ((_, refused),) = cluster.sent(control.TimelineEnd)
    assert (refused.ticket, refused.why[:16]) == (8, "another timeline")
    cluster.outbox.clear()
    cluster.advance(10.0 + SPANS_WAIT_S)
    cluster.expire()
    end = control.TimelineEnd(timeline=timeline, ticket=7)
    assert cluster.sent(control.TimelineEnd) == [("client", end)]


def test_a_timeline_ends_with_its_asker_and_the_next_one_begins_at_once(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.hello("asker")
    timeline = begun(cluster, "asker")
    cluster.loses_client("asker")
    told = cluster.sent(control.RecordTimeline)
    nothing = control.RecordTimeline(timeline="", seconds=0)
    assert sorted(told) == [("client", nothing), ("worker", nothing)]
    for each in (timeline, ""):
        cluster.says("worker", recorded(each, "host"))
    assert cluster.outbox == []
    after = begun(cluster)
    cluster.says("worker", recorded(timeline, "host"))
    cluster.says("worker", control.TimelineEnd(timeline=timeline))
    assert cluster.outbox == []
    assert after != timeline


def test_a_timeline_that_is_asked_for_again_after_its_connection_broke_goes_on(
    cluster: Cluster,
) -> None:
    timeline = begun(cluster)
    cluster.says("client", control.AskTimeline(ticket=7, seconds=10.0))
    assert cluster.outbox == []
    cluster.says("client", control.TimelineEnd(timeline=timeline))
    end = control.TimelineEnd(timeline=timeline, ticket=7)
    assert cluster.sent(control.TimelineEnd) == [("client", end)]


def test_a_question_that_is_asked_again_after_a_restart_is_for_another_timeline(
    cluster: Cluster,
) -> None:
    before = begun(cluster)
    cluster.state.timelines = Timelines("", cluster.state.send)  # of the restarted master
    cluster.advance(1.0)
    assert begun(cluster) != before
