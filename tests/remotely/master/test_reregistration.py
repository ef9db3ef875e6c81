"""Workers and masters that were away: what they reconcile when they are back."""

from typing import Any

import msgspec
import pytest

from remotely.master import guests
from remotely.protocol import control
from remotely.protocol.lease import EXPECTED_S
from remotely.protocol.resources import Resources
from tests.remotely.master.played import (
    LEASE_S,
    PYTHON,
    WORKER_KEY,
    Cluster,
    check,
    request_of,
    status_of,
    workers_in_status,
)
from tests.steps import steps

# --- leases ---------------------------------------------------------------------------------------


def test_a_tick_names_the_beat_to_which_it_replies(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.says("worker", control.Beat())
    assert cluster.sent(control.Tick) == []
    cluster.says("worker", control.Beat(asked=12.5))
    assert cluster.sent(control.Tick) == [("worker", control.Tick(asked=12.5))]


def test_a_restarted_master_reports_no_actor_gone_during_recovery(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.has("client", "b")
    cluster.starts_master()
    cluster.recovers()
    cluster.hello("client")
    for ticket, actor in enumerate("ab"):
        cluster.says("client", control.Locate(ticket=ticket, actor=actor))
    assert cluster.sent(control.Located) == []
    cluster.living["worker"].pop("b")
    cluster.joins("worker")
    ((_, located),) = cluster.sent(control.Located)
    assert located.location == cluster.living["worker"]["a"].location
    cluster.advance(LEASE_S)
    ((_, located),) = cluster.sent(control.Located)
    assert (located.ticket, located.location) == (1, None)


def test_a_deferred_request_is_answered_though_an_earlier_client_has_ended(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.asks("client", "a")
    for who in ("goes", "stays"):
        cluster.hello(who)
        cluster.says(who, control.Locate(ticket=1, actor="a"))
    cluster.loses_client("goes")
    cluster.spawns()
    assert [who for who, _ in cluster.sent(control.Located)] == ["stays"]


def test_the_death_of_an_unknown_actor_is_ignored(cluster: Cluster) -> None:
    cluster.recovers()
    cluster.joins("worker")
    cluster.outbox.clear()
    cluster.says("worker", control.Died(obituary=control.Obituary(actor="a", life=0)))
    assert cluster.outbox == []
    assert not cluster.state.actors.deaths


def test_leases_are_extended_while_the_master_is_suspended(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.now += 3 * LEASE_S
    cluster.core.extend_leases(3 * LEASE_S)
    assert cluster.expire() == []
    cluster.now += LEASE_S
    assert "lost the worker on " in cluster.expire()


def test_a_removed_worker_that_returns_must_end_its_actors(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.loses("worker")
    cluster.joins("worker")
    assert cluster.sent(control.End) == [("worker", control.End(actor="a", grace_s=0.0, kill=True))]
    assert not cluster.state.actors.records


def test_an_older_life_is_ended_when_its_worker_is_back(cluster: Cluster) -> None:
    cluster.joins("far")
    cluster.has("client", "a")
    cluster.loses("far")
    cluster.joins("near")
    cluster.has("client", "a", life=1)
    cluster.sent(control.End)
    cluster.joins("far")
    assert cluster.sent(control.End) == [("far", control.End(actor="a", grace_s=0.0, kill=True))]
    assert cluster.state.actors.records["a"].worker == "near"
    assert cluster.state.workers.ledger.free("far").cpus == 2


# --- unreachable and lost workers -----------------------------------------------------------------


def test_nothing_is_placed_on_an_unreachable_worker(cluster: Cluster) -> None:
    cluster.joins("large", cpus=4)
    cluster.joins("small", cpus=2)
    cluster.cut_off.add("large")
    cluster.asks("client", "a", cpus=1)
    assert [(worker, spawn.request.actor) for worker, spawn in cluster.to_spawn] == [("small", "a")]


def test_a_starting_actor_on_an_unreachable_worker_moves_to_another(cluster: Cluster) -> None:
    cluster.joins("large", cpus=4)
    ticket = cluster.asks("client", "a", cpus=1)
    ((_, spawn),) = cluster.to_spawn
    cluster.joins("small", cpus=2)
    cluster.cut_off.add("large")
    cluster.loses_route("large")
    cluster.spawns()
    ((_, placed),) = cluster.sent(control.Placed)
    assert (placed.ticket, "a" in cluster.living["small"]) == (ticket, True)

    # It received the Spawn.
    cluster.living["large"]["a"] = status_of(spawn.request, seal=spawn.seal)
    cluster.joins("large")
    assert ("large", control.End(actor="a", grace_s=0.0, kill=True)) in cluster.outbox
    assert ("small", control.End(actor="a", grace_s=0.0)) not in cluster.outbox


def test_a_cancelled_actor_is_refused_when_its_worker_is_unreachable(cluster: Cluster) -> None:
    cluster.joins("worker")
    ticket = cluster.asks("client", "a")
    cluster.says("client", control.End(actor="a", grace_s=0.0))
    cluster.loses_route("worker")
    ((_, refused),) = [(w, s) for w, s in cluster.outbox if isinstance(s, control.NotPlaced)]
    assert (refused.ticket, refused.error) == (ticket, "ActorDied")
    ((who, died),) = cluster.sent(control.Died)
    assert (who, died.obituary.asked, died.obituary.lost) == ("client", True, False)


@pytest.mark.parametrize("has_started", [True, False])
def test_a_waiting_actor_starts_when_its_worker_is_back(
    cluster: Cluster, has_started: bool
) -> None:
    cluster.joins("worker")
    ticket = cluster.asks("client", "a")
    ((_, spawn),) = cluster.to_spawn
    cluster.to_spawn.clear()
    cluster.loses_route("worker")
    assert cluster.sent(control.Queued)
    status = status_of(spawn.request, seal=spawn.seal)
    if has_started:
        cluster.living["worker"]["a"] = status
    else:
        cluster.births["worker"] = [spawn]
    cluster.joins("worker")
    if not has_started:
        assert cluster.sent(control.Placed) == []
        cluster.says("worker", control.Spawned(location=status.location))
    ((_, placed),) = cluster.sent(control.Placed)
    assert placed.ticket == ticket
    assert cluster.to_spawn == []


def test_actors_survive_if_their_worker_is_back_within_its_lease(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.sent(control.Placed)
    cluster.loses_route("worker")
    cluster.says("client", control.Locate(ticket=1, actor="a"))
    ((_, located),) = cluster.sent(control.Located)
    assert located.location is not None
    cluster.joins("worker")
    assert cluster.sent(control.End) == []
    cluster.has("client", "b")


def test_a_request_that_needs_a_lost_machine_waits_for_it(cluster: Cluster) -> None:
    cluster.joins("head", cpus=0)
    cluster.joins("far", cpus=2)
    assert len(cluster.advance(LEASE_S, but=["far"])) == 1
    cluster.asks("client", "a")
    ((_, waiting),) = cluster.sent(control.Queued)
    assert "cannot be reached now, and may come back" in waiting.why
    cluster.joins("far", cpus=2)
    assert cluster.spawns() == ["a"]


def test_each_lost_worker_of_a_host_is_replaced_by_one_of_its_size(cluster: Cluster) -> None:
    sizes = {"small": 1.0, "large": 4.0}
    for name, cpus in sizes.items():
        cluster.joins(name, cpus=cpus, machine="m")
    for name in sizes:
        cluster.loses(name, may_return=True)
    cluster.joins("large's next", cpus=4, machine="m")
    assert set(cluster.state.workers.ledger.away) == {"small"}
    cluster.joins("small's next", cpus=1, machine="m")
    assert not cluster.state.workers.ledger.away


@pytest.mark.parametrize(("machine", "predecessors"), [("m", []), ("other", ["far"])])
def test_a_replaced_worker_is_not_expected_back(
    cluster: Cluster, machine: str, predecessors: list[str]
) -> None:
    cluster.joins("far", cpus=2, machine="m")
    cluster.loses("far", may_return=True)
    cluster.joins("next", cpus=1, machine=machine, predecessors=predecessors)
    cluster.asks("client", "a", cpus=2)
    assert cluster.sent(control.NotPlaced)


@pytest.mark.parametrize("machine", ["m", "m.example"])
def test_a_request_for_a_lost_machine_or_neighbor_waits_for_it(
    cluster: Cluster, machine: str
) -> None:
    cluster.joins("other", cpus=2)
    cluster.joins("worker", cpus=2, machine="m")
    cluster.has("client", "a", machine=machine, max_restarts=1)
    cluster.has("client", "b", near="a", max_restarts=1)
    cluster.sent(control.Placed)

    cluster.loses("worker", may_return=True)
    cluster.living["worker"].clear()

    assert {died.obituary.restarting for _, died in cluster.sent(control.Died)} == {True}
    cluster.asks("client", "b", near="a", max_restarts=1, life=1)
    ((_, near),) = cluster.sent(control.Queued)
    assert "must be near another actor, which is being restarted" in near.why
    cluster.asks("client", "a", machine=machine, max_restarts=1, life=1)
    ((_, queued),) = cluster.sent(control.Queued)
    assert queued.why == f"Counter must be on {machine}. m cannot be reached now, and may come back"
    cluster.joins("next", cpus=2, machine="m")
    assert cluster.spawns() + cluster.spawns() == ["a", "b"]
    assert set(cluster.living["next"]) == {"a", "b"}


def test_a_worker_replaces_its_killed_predecessors(cluster: Cluster) -> None:
    cluster.joins("killed", cpus=1)
    cluster.has("client", "a", max_restarts=1)
    cluster.sent(control.Died)

    cluster.joins("next", cpus=1, predecessors=["killed", "nobody"])

    ((_, died),) = cluster.sent(control.Died)
    assert (died.obituary.lost, died.obituary.restarting) == (True, True)
    assert cluster.core.workers == ["next"]
    assert cluster.forgotten == ["killed"]
    cluster.has("client", "a", max_restarts=1, life=1)
    assert set(cluster.living["next"]) == {"a"}
    cluster.now += LEASE_S / 2
    assert cluster.expire() == []  # its lease is gone
    cluster.joins("last", cpus=1, predecessors=["killed"])
    assert cluster.core.workers == ["next", "last"]


@pytest.mark.parametrize(
    "options", [{"machine": "m"}, {"machine": "m.example"}, {"gpus": 1}, {"cpus": 3}]
)
@pytest.mark.parametrize("was_placed", [True, False])
def test_a_request_that_needs_a_killed_worker_is_placed_on_its_successor(
    cluster: Cluster, options: dict[str, Any], was_placed: bool
) -> None:
    cluster.joins("other", cpus=1)
    cluster.joins("killed", cpus=4, gpus=1, machine="m")
    if not was_placed:
        cluster.loses_route("killed")
    ticket = cluster.asks("client", "a", **options)
    cluster.to_spawn.clear()  # it has not started

    cluster.joins("next", cpus=4, gpus=1, machine="m", predecessors=["killed"])

    assert cluster.spawns() == ["a"]
    assert set(cluster.living["next"]) == {"a"}
    assert [placed.ticket for _, placed in cluster.sent(control.Placed)] == [ticket]
    assert not cluster.state.workers.ledger.away


def test_a_successor_replaces_no_other_lost_worker(cluster: Cluster) -> None:
    for name in ("rebooting", "killed"):
        cluster.joins(name, cpus=2, machine="m")
    cluster.loses("rebooting", may_return=True)
    cluster.joins("next", cpus=2, machine="m", predecessors=["killed"])
    assert cluster.state.workers.ledger.away == {"rebooting"}


def test_of_two_workers_that_a_machine_lost_one_of_another_size_replaces_neither(
    cluster: Cluster,
) -> None:
    cluster.joins("small", cpus=1, machine="m")
    cluster.joins("large", cpus=4, machine="m")
    cluster.loses("small", may_return=True)
    cluster.loses("large", may_return=True)
    cluster.joins("next", cpus=2, machine="m")
    assert cluster.state.workers.ledger.away == {"small", "large"}


def test_an_actor_that_has_become_a_client_while_its_worker_was_away_may_call(
    cluster: Cluster,
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.loses_route("worker")
    status = cluster.living["worker"]["a"]
    key = b"the key of the actor".ljust(40)
    cluster.living["worker"]["a"] = msgspec.structs.replace(status, delegate=key)
    cluster.joins("worker")
    assert cluster.admission.delegates["a"] == key


def test_an_unreachable_worker_has_nothing_free_in_the_status(cluster: Cluster) -> None:
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


def test_a_status_is_sent_when_several_workers_are_lost(cluster: Cluster) -> None:
    for worker in ("one", "two"):
        cluster.joins(worker)
    cluster.has("client", "a")
    cluster.hello("inside", actor="a")
    cluster.says("two", control.Beat())  # it is lost after the one with the actor
    for worker in ("one", "two"):
        cluster.cut_off.add(worker)
        cluster.loses_route(worker)
    cluster.now += LEASE_S
    for who in ("client", "inside"):
        cluster.core.renew(who, cluster.now)
    cluster.says("client", control.AskStatus(ticket=1))
    cluster.says("client", control.Unanswered(calls={}))  # only the one inside has not answered
    assert len(cluster.expire()) == 2
    assert [status.ticket for _, status in cluster.sent(control.Status)] == [1]


def test_a_lookup_after_a_failed_connection_waits_for_the_machine(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    for actor in ("a", "b"):
        cluster.has("client", actor)
    look = [control.Locate(ticket=i, actor=a, unreached=True) for i, a in enumerate("ab")]
    cluster.says("client", look[0])
    ((_, located),) = cluster.sent(control.Located)  # its worker is reachable
    assert located.location is not None

    cluster.cut_off.add("worker")
    cluster.says("client", look[0])
    assert cluster.sent(control.Located) == []
    cluster.says("client", control.Locate(ticket=7, actor="b"))
    assert [answer.ticket for _, answer in cluster.sent(control.Located)] == [7]
    del cluster.living["worker"]["b"]
    cluster.joins("worker", cpus=2)
    assert [answer.ticket for _, answer in cluster.sent(control.Located)] == [0]

    cluster.cut_off.add("worker")
    cluster.says("client", look[0])
    cluster.loses("worker", may_return=True)
    ((_, lost),) = cluster.sent(control.Located)
    assert lost.location is None
    assert lost.obituary is not None
    assert lost.obituary.lost


def test_a_request_for_a_machine_that_does_not_return_is_refused(cluster: Cluster) -> None:
    cluster.joins("head", cpus=0)
    cluster.joins("far", cpus=2)
    cluster.loses("far", may_return=True)
    cluster.asks("client", "a")
    assert cluster.sent(control.NotPlaced) == []
    cluster.advance(EXPECTED_S)
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert refusal.error == "NoResources"
    cluster.asks("client", "b")
    assert cluster.sent(control.NotPlaced)


def test_a_restarted_master_refuses_nothing_during_recovery(cluster: Cluster) -> None:
    cluster.starts_master()
    cluster.recovers()
    cluster.hello("client")
    cluster.joins("head", cpus=0)
    cluster.asks("client", "a", cpus=1)
    cluster.asks("client", "b", cpus=64)
    assert cluster.sent(control.NotPlaced) == []
    cluster.joins("far", cpus=2)
    assert cluster.spawns() == ["a"]
    cluster.advance(LEASE_S)
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert refusal.error == "NoResources"


@pytest.mark.parametrize("away", ["cut off", "new master"])
def test_a_lost_end_is_repeated_when_the_worker_is_back(cluster: Cluster, away: str) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.cut_off.add("worker")
    if away == "cut off":
        cluster.loses_client("client")
    else:
        cluster.starts_master()
    cluster.sent(control.End)
    cluster.joins("worker")
    if away == "new master":  # its owner does not reconnect
        cluster.advance(LEASE_S)
    assert [who for who, end in cluster.sent(control.End) if end.actor == "a"] == ["worker"]


def test_an_actor_that_vanished_while_ending_is_closed(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=3)
    cluster.says("client", control.End(actor="a", grace_s=1))
    cluster.living["worker"].clear()
    cluster.joins("worker")
    ((_, died),) = cluster.sent(control.Died)
    assert (died.obituary.asked, died.obituary.lost, died.obituary.restarting) == (
        True,
        False,
        False,
    )


def test_an_end_is_deferred_until_the_worker_is_back(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.starts_master()
    cluster.recovers()
    cluster.hello("client")
    cluster.says("client", control.End(actor="a", grace_s=1))
    assert cluster.sent(control.Died) == []
    cluster.joins("worker")
    assert ("worker", control.End(actor="a", grace_s=1)) in cluster.sent(control.End)
    cluster.kills("a")
    assert [died.obituary.actor for _, died in cluster.sent(control.Died)] == ["a"]


def test_a_worker_that_joins_a_stopping_cluster_must_leave(cluster: Cluster) -> None:
    cluster.execute(cluster.core.close())
    cluster.joins("late")
    assert [who for who, _ in cluster.sent(control.Leave)] == ["late"]


@pytest.mark.parametrize("received", [True, False])
def test_a_log_request_is_repeated_when_its_worker_is_back(
    cluster: Cluster, received: bool
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    if not received:
        cluster.cut_off.add("worker")
    cluster.says("client", control.ReadLog(ticket=7, actor="a"))
    assert len(cluster.sent(control.ReadLog)) == received
    cluster.joins("worker")
    ((_, again),) = cluster.sent(control.ReadLog)
    piece = control.LogPiece(ticket=again.ticket, text="x", offset=1, known=True, ended=False)
    for _ in range(2):  # it may have received both requests
        cluster.says("worker", piece)
    ((_, answer),) = cluster.sent(control.LogPiece)
    assert answer.ticket == 7


@pytest.mark.parametrize("waits_for", ["room", "its name", "room for its next life"])
def test_closing_a_waiting_actor_refuses_its_request(cluster: Cluster, waits_for: str) -> None:
    cluster.joins("worker")
    match waits_for:
        case "room":
            cluster.has("client", "large", cpus=2)
            ticket = cluster.asks("client", "a")
        case "its name":
            cluster.recovers()
            ticket = cluster.asks("client", "a", name="store", named=True)
        case _:
            cluster.has("client", "a", max_restarts=1)
            cluster.asks("client", "large", cpus=2)
            cluster.kills("a")
            cluster.spawns()
            ticket = cluster.asks("client", "a", max_restarts=1, life=1)
    assert cluster.spawns() == []

    cluster.says("client", control.End(actor="a", grace_s=0.0, kill=True))

    ((who, refused),) = cluster.sent(control.NotPlaced)
    assert (who, refused.ticket, refused.error) == ("client", ticket, "ActorDied")


def test_ending_an_unknown_actor_gets_a_reply(cluster: Cluster) -> None:
    cluster.says("client", control.End(actor="a", grace_s=1))
    ((who, died),) = cluster.sent(control.Died)
    assert (who, died.obituary.actor, died.obituary.asked) == ("client", "a", True)


def test_the_shortest_grace_period_counts(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    for grace_s in (5, 60, 1, 5):
        cluster.says("client", control.End(actor="a", grace_s=grace_s))
    cluster.sent(control.End)
    cluster.joins("worker")  # it may have missed them
    assert [end.grace_s for _, end in cluster.sent(control.End)] == [1]


def test_an_unknown_actor_that_starts_is_killed(cluster: Cluster) -> None:
    cluster.joins("worker")
    stray = status_of(request_of("a", "client"))
    cluster.says("worker", control.Spawned(location=stray.location))
    assert cluster.sent(control.End) == [("worker", control.End(actor="a", grace_s=0.0, kill=True))]


def test_a_start_ordered_by_the_previous_master_is_adopted(cluster: Cluster) -> None:
    cluster.joins("one")
    cluster.asks("client", "a")
    ((_, spawn),) = cluster.to_spawn
    cluster.to_spawn.clear()
    cluster.starts_master()
    cluster.hello("client")
    cluster.joins("two")
    ticket = cluster.asks("client", "a")  # another worker starts it
    cluster.sent(control.Placed)

    cluster.living["one"]["a"] = status_of(spawn.request, seal=spawn.seal)
    cluster.joins("one")

    assert ("two", control.End(actor="a", grace_s=0.0, kill=True)) in cluster.outbox
    ((_, placed),) = cluster.sent(control.Placed)
    assert placed.ticket == ticket
    assert cluster.state.actors.records["a"].worker == "one"


# --- names and a restarted master -----------------------------------------------------------------


def test_a_restarted_master_gives_no_name_away_during_recovery(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", name="store", named=True)
    cluster.starts_master()
    cluster.recovers()
    cluster.hello("client")
    cluster.hello("other")
    cluster.joins("head")
    cluster.outbox.clear()
    cluster.says("other", control.Locate(ticket=1, name="store"))
    cluster.asks("other", "b", name="store", named=True)
    assert cluster.sent(control.Located) == []
    assert cluster.spawns() == []

    cluster.joins("worker")

    kinds: dict[str, Any] = {
        type(message).__name__: message for who, message in cluster.outbox if who == "other"
    }
    assert kinds["Located"].location == cluster.living["worker"]["a"].location
    assert kinds["NotPlaced"].error == "NameTaken"


def test_a_client_gets_no_actor_after_its_goodbye(cluster: Cluster) -> None:
    cluster.recovers()
    cluster.joins("worker", cpus=4)
    cluster.has("client", "keeps the session open")
    cluster.asks("client", "a", name="store", named=True)
    cluster.says("client", control.Goodbye())
    assert "client" in cluster.state.sessions
    cluster.advance(LEASE_S)
    assert cluster.spawns() == []


def test_deferred_requests_are_retried_only_for_their_topic(cluster: Cluster) -> None:
    """Otherwise each of a thousand returning workers would retry all requests."""

    def steps_of_a_return(asked: int) -> int:
        cluster.starts_master()
        cluster.recovers()
        cluster.hello("client")
        for n in range(asked):
            cluster.says("client", control.Locate(ticket=n, actor=f"elsewhere-{n}"))
            cluster.says("client", control.Locate(ticket=n, name=f"name-{n}"))
            cluster.asks("client", f"new-{n}", name=f"other-{n}", named=True)
            cluster.says("client", control.End(actor=f"ends-{n}", grace_s=1))
        return steps(lambda: cluster.joins("worker"))

    steps_of_a_return(1)  # fills caches
    assert steps_of_a_return(200) == steps_of_a_return(10)


def test_an_automatic_name_does_not_match_a_user_name(cluster: Cluster) -> None:
    cluster.recovers()
    cluster.hello("other")
    cluster.joins("head")
    cluster.says("other", control.Locate(ticket=1, name="store"))
    cluster.asks("other", "early", name="store", named=True)
    cluster.has("client", "automatic", name="store")
    cluster.asks("other", "late", name="store", named=True)
    assert cluster.sent(control.Located) == []
    assert cluster.spawns() == []
    cluster.hosts("worker", [request_of("a", "client", name="store", named=True)])
    cluster.joins("worker")
    ((_, located),) = [(w, s) for w, s in cluster.outbox if isinstance(s, control.Located)]
    assert located.location is not None
    assert located.location is not None
    assert located.location.actor == "a"
    assert [message.error for _, message in cluster.sent(control.NotPlaced)] == ["NameTaken"] * 2


def test_a_name_is_free_if_its_holder_does_not_come_back(cluster: Cluster) -> None:
    cluster.recovers()
    cluster.joins("worker")
    cluster.asks("client", "withdrawn", name="store", named=True)
    cluster.asks("client", "b", name="store", named=True)
    cluster.says("client", control.End(actor="withdrawn", grace_s=0))
    assert cluster.spawns() == []
    cluster.advance(LEASE_S)
    assert cluster.spawns() == ["b"]


# --- names ----------------------------------------------------------------------------------------


def register(worker: str, *actors: control.ActorStatus) -> control.Register:
    """Return the registration of a worker that names a Python and has these actors."""
    return control.Register(
        worker=worker,
        python=PYTHON,
        host="h",
        machine="m",
        address="m.example",
        pid=1,
        resources=Resources(2),
        actors=list(actors),
    )


@pytest.mark.parametrize("actor", ["evil", "other"])
def test_a_worker_cannot_register_an_actor_that_the_master_has_not_placed(
    cluster: Cluster, actor: str
) -> None:
    """Not even one with its own id, as a guest does."""
    cluster.joins("worker")
    cluster.has("client", "victim", name="store", named=True)
    cluster.living["evil"] = {}
    thief = request_of(actor, "", name="store", named=True, key=WORKER_KEY, classes=["Thief"])
    registered = guests.vet(register("evil", status_of(thief)), WORKER_KEY, cluster.admission.seals)
    cluster.execute(cluster.core.register_worker(registered, cluster.now))
    cluster.execute(cluster.core.reconcile_worker(registered))
    assert [(who, end.actor) for who, end in cluster.sent(control.End)] == [("evil", actor)]
    cluster.says("client", control.Locate(ticket=1, name="store"))
    ((_, located),) = cluster.sent(control.Located)
    assert located.location is not None
    assert located.location.actor == "victim"


def named_actor(cluster: Cluster, worker: str, actor: str, since: float) -> None:
    """Give a worker an actor named "store" that an earlier master has placed there."""
    request = request_of(actor, "", name="store", named=True)
    cluster.hosts(worker, [request])
    living = cluster.living[worker]
    living[actor] = msgspec.structs.replace(living[actor], since=since)


def test_an_actor_whose_name_was_given_away_meanwhile_is_ended(cluster: Cluster) -> None:
    named_actor(cluster, "away", "old", since=1.0)
    cluster.joins("worker")
    cluster.has("client", "new", name="store", named=True)
    cluster.joins("away")
    assert [(who, end.actor) for who, end in cluster.sent(control.End)] == [("away", "old")]
    assert cluster.state.actors.names["store"] == "new"


@pytest.mark.parametrize("first", ["old", "new"])
def test_of_two_actors_with_a_name_a_restarted_master_keeps_the_older(
    cluster: Cluster, first: str
) -> None:
    cluster.recovers()
    since = {"old": 1.0, "new": 2.0}
    for actor in (first, *(since.keys() - {first})):
        named_actor(cluster, f"worker of {actor}", actor, since[actor])
        cluster.joins(f"worker of {actor}")
    ends = [(who, end.actor, end.kill) for who, end in cluster.sent(control.End)]
    assert ends == [("worker of new", "new", True)]
    cluster.kills("new")
    check(cluster)
    cluster.says("client", control.Locate(ticket=1, name="store"))
    ((_, located),) = cluster.sent(control.Located)
    assert located.location is not None
    assert located.location.actor == "old"


# --- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("patience_s", [60.0, 0.0])
def test_the_next_life_of_an_actor_waits_as_long_as_its_machine_is_expected(
    cluster: Cluster, patience_s: float
) -> None:
    cluster.joins("full", cpus=1)
    cluster.has("client", "other")
    cluster.joins("away", cpus=1)
    cluster.has("client", "a", max_restarts=1)
    cluster.loses("away", may_return=True)
    cluster.sent(object)
    request = request_of("a", "client", max_restarts=1, life=1)
    cluster.says("client", control.Place(ticket=7, request=request, patience_s=patience_s))
    cluster.asks("client", "b")
    for _ in range(9):
        cluster.advance(10.0)
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert refused.ticket != 7  # a first life waits for its patience
    cluster.joins("away", cpus=1)
    assert cluster.spawns() == ["a"]


def test_the_next_life_of_an_actor_is_given_up_with_its_machine(cluster: Cluster) -> None:
    cluster.joins("full", cpus=1)
    cluster.has("client", "other")
    cluster.joins("away", cpus=1)
    cluster.has("client", "a", max_restarts=1)
    cluster.loses("away", may_return=True)
    ticket = cluster.asks("client", "a", max_restarts=1, life=1)
    cluster.sent(object)
    cluster.advance(EXPECTED_S - 1.0)
    assert cluster.sent(control.NotPlaced) == []
    cluster.advance(1.0)
    cluster.advance(1.0)
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert refused.ticket == ticket
