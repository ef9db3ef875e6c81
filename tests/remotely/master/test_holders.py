"""Clients that hold an actor whose handle was returned: one of them is its next owner."""

import pytest

from remotely.protocol import control
from tests.remotely.master.played import LEASE_S, Cluster, request_of

HOLD, LET_GO = control.Hold(actor="a", giver="maker"), control.LetGo(actor="a")


@pytest.fixture
def held(cluster: Cluster) -> Cluster:
    """The actor `a` of `maker`, which `client` holds."""
    cluster.joins("worker")
    cluster.hello("maker")
    cluster.has("maker", "a", max_restarts=2)
    cluster.says("client", HOLD)
    return cluster


def is_asked_to_end(cluster: Cluster) -> bool:
    return cluster.state.actors.records["a"].ends_within_s is not None


def owner_of(cluster: Cluster) -> str:
    return cluster.state.actors.records["a"].request.owner


def test_the_giver_is_told_of_each_arrival_and_nobody_else(held: Cluster) -> None:
    """It keeps the actor until then.  With many holders, to tell all would be a flood."""
    held.hello("other")
    held.says("other", HOLD)
    held.says("client", HOLD)
    assert held.sent(control.Held) == [("maker", control.Held(actor="a"))] * 3


def test_the_holder_becomes_the_owner_when_the_owner_lets_go(held: Cluster) -> None:
    held.says("maker", LET_GO)
    assert not is_asked_to_end(held)
    assert owner_of(held) == "client"
    held.says("client", LET_GO)
    assert is_asked_to_end(held)


@pytest.mark.parametrize("how", ["ends", "says goodbye"])
def test_the_holder_becomes_the_owner_when_the_owner_ends(held: Cluster, how: str) -> None:
    if how == "ends":
        held.loses_client("maker")
    else:
        held.says("maker", control.Goodbye())
        assert ("maker", control.Farewell()) in held.outbox
    assert owner_of(held) == "client"
    held.loses_client("client")
    assert is_asked_to_end(held)


def test_a_holder_that_lets_go_or_ends_changes_nothing_for_the_owner(held: Cluster) -> None:
    held.hello("other")
    held.says("other", HOLD)
    held.says("other", LET_GO)
    held.loses_client("client")
    assert owner_of(held) == "maker"
    assert not is_asked_to_end(held)
    held.says("maker", LET_GO)
    assert is_asked_to_end(held)


def test_a_holder_is_told_of_the_end_and_is_forgotten_as_it_lets_go(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.hello("maker")
    for actor in "ab":
        cluster.has("maker", actor)
        cluster.says("client", control.Hold(actor=actor))
    cluster.says("client", control.LetGo(actor="a"))
    assert cluster.state.actors.held_by.of("client") == ["b"]
    cluster.kills("b")
    assert {who for who, _ in cluster.sent(control.Died)} == {"maker", "client"}


def test_a_detached_actor_has_no_holders(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.hello("maker")
    cluster.has("maker", "a", owner="")
    cluster.says("client", HOLD)
    assert not cluster.state.actors.holders.of("a")


def test_the_one_that_has_held_longest_is_next(held: Cluster) -> None:
    held.hello("other")
    held.says("other", HOLD)
    held.says("maker", LET_GO)
    held.says("client", LET_GO)
    assert owner_of(held) == "other"


def test_an_actor_is_held_between_its_lives_and_not_restarted_for_its_next_owner(
    held: Cluster,
) -> None:
    held.kills("a")
    held.says("client", LET_GO)  # it still has an owner, which restarts it
    held.says("client", HOLD)
    held.has("maker", "a", max_restarts=2, life=1)
    held.says("maker", LET_GO)
    assert owner_of(held) == "client"
    held.sent(control.Died)
    held.kills("a")
    obituaries = [died.obituary for who, died in held.sent(control.Died) if who == "client"]
    assert [obituary.restarting for obituary in obituaries] == [False]


def test_who_lets_go_of_an_actor_that_others_have_need_not_repeat_it(held: Cluster) -> None:
    held.says("maker", LET_GO)
    assert held.sent(control.LetGoHeard) == [("maker", control.LetGoHeard(actor="a"))]


def test_an_end_is_told_to_a_holder_that_lets_go_too_late(held: Cluster) -> None:
    held.says("maker", control.End(actor="a", grace_s=0))
    held.kills("a")
    held.outbox.clear()
    held.says("client", LET_GO)
    ((who, died),) = held.sent(control.Died)
    assert (who, died.obituary.actor) == ("client", "a")


def test_holders_are_told_to_a_new_master_before_the_owners_lease_ends(cluster: Cluster) -> None:
    cluster.hosts("worker", [request_of("a", "maker"), request_of("b", "maker")])
    cluster.starts_master(recovers_until=LEASE_S)
    cluster.hello("client")
    cluster.says("client", HOLD)
    cluster.says("client", control.LetGo(actor="b"))  # that of a holder, not of the owner
    cluster.joins("worker")
    cluster.advance(LEASE_S + 1, but=["maker"])
    assert owner_of(cluster) == "client"
    assert not is_asked_to_end(cluster)


@pytest.mark.parametrize("worker_first", [True, False])
def test_a_new_master_waits_for_holders_before_an_owner_lets_go(
    cluster: Cluster, worker_first: bool
) -> None:
    cluster.hosts("worker", [request_of("a", "maker")])
    cluster.starts_master(recovers_until=LEASE_S)
    for who in ("maker", "client"):
        cluster.hello(who)
    if worker_first:
        cluster.joins("worker")
    cluster.says("maker", LET_GO)
    cluster.says("client", control.Hold(actor="a"))
    if not worker_first:
        cluster.joins("worker")
    cluster.advance(LEASE_S + 1)
    assert owner_of(cluster) == "client"
    assert not is_asked_to_end(cluster)


def test_a_new_master_ends_what_nobody_holds_at_the_end_of_its_recovery(cluster: Cluster) -> None:
    cluster.hosts("worker", [request_of("a", "maker")])
    cluster.starts_master(recovers_until=LEASE_S)
    cluster.hello("maker")
    cluster.joins("worker")
    cluster.says("maker", LET_GO)
    assert not is_asked_to_end(cluster)
    cluster.advance(LEASE_S + 1)
    assert is_asked_to_end(cluster)
