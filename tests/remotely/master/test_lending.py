"""Actors that wait lend their CPUs: first to their own requests, then to everybody."""

from typing import Any

from remotely.master import lending
from remotely.protocol import control
from remotely.protocol.lease import OVERTAKEN_S
from tests.remotely.master.played import Cluster, request_of, workers_in_status


def inside(cluster: Cluster, actor: str) -> str:
    """Connect the client in an actor."""
    who = f"in {actor}"
    cluster.hello(who, actor=actor)
    return who


def nest(cluster: Cluster, levels: int, **options: Any) -> list[str]:
    """Have an actor make one, which makes another, and so on; return the clients in them."""
    clients = ["client"]
    for level in range(levels):
        cluster.has(clients[-1], f"level-{level}", **options)
        clients.append(inside(cluster, f"level-{level}"))
    return clients[1:]


def block(cluster: Cluster, who: str, **fields: Any) -> None:
    cluster.says(who, control.Blocked(wait=1, actor="other", call="f", **fields))


def free(cluster: Cluster) -> float:
    return cluster.state.workers.ledger.free("worker").cpus


def test_nested_requests_are_placed_on_any_number_of_levels(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    nest(cluster, levels=5)
    assert free(cluster) == -4
    for level in reversed(range(5)):
        cluster.kills(f"level-{level}")
    assert free(cluster) == 1


def test_an_actor_lends_its_own_requests_no_more_than_it_has(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    (who,) = nest(cluster, levels=1, cpus=2)
    cluster.has(who, "first", cpus=1.5)
    cluster.asks(who, "second", cpus=1)
    assert cluster.spawns() == []
    cluster.has(who, "third", cpus=0.5)
    cluster.kills("first")
    assert cluster.spawns() == ["second"]


def test_a_gang_that_an_actor_requests_is_placed_on_its_cpus(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    (who,) = nest(cluster, levels=1)
    for name in ("a", "b"):
        cluster.asks(who, name, gang="both", together=2)
    assert cluster.spawns() == ["a", "b"]


def test_own_requests_come_before_those_that_have_waited_longer(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    cluster.asks("client", "waits longer")
    cluster.has(who, "own")


def test_an_own_request_is_placed_on_what_is_back_although_another_has_the_room(
    cluster: Cluster,
) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    cluster.has(who, "first")
    cluster.asks("client", "waits longer")
    cluster.asks(who, "second")
    cluster.asks(who, "third")
    cluster.kills("first")
    assert cluster.spawns() == ["waits longer", "second"]


def test_own_requests_pass_the_room_that_is_reserved_for_others(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    (who,) = nest(cluster, levels=1)
    cluster.asks("client", "large", cpus=2)
    cluster.advance(OVERTAKEN_S)
    assert cluster.state.reservation is not None
    cluster.has(who, "own")


def test_gpus_and_memory_are_not_lent(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4, gpus=1)
    (who,) = nest(cluster, levels=1, gpus=1)
    cluster.asks(who, "own", gpus=1)
    assert cluster.spawns() == []


def test_a_request_that_is_placed_at_once_or_never_borrows_nothing(cluster: Cluster) -> None:
    """The further processes of an executor are requested so."""
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    request = control.Place(ticket=9, patience_s=0, request=request_of("own", who))
    cluster.says(who, request)
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert refused.error == "NoResources"


def test_the_cpus_of_a_waiting_actor_are_free_until_its_wait_ends(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    cluster.asks("client", "another")
    assert cluster.spawns() == []
    block(cluster, who)
    assert cluster.spawns() == ["another"]
    cluster.says(who, control.Unblocked())
    assert free(cluster) == -1  # nothing is preempted
    cluster.kills("another")
    assert free(cluster) == 0


def test_status_shows_who_lends(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    block(cluster, who, has_timeout=True)
    (worker,) = workers_in_status(cluster)
    assert [actor.lends for actor in worker.actors] == [True]
    assert worker.free_cpus == 1


def test_an_actor_whose_own_request_waits_lends_to_others_too(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    cluster.joins("licensed", cpus=0, license=1)
    cluster.has("client", "holder", cpus=0, others={"license": 1})
    cluster.asks("client", "another")
    assert cluster.spawns() == []
    cluster.asks(who, "own", cpus=0, others={"license": 1})
    assert cluster.spawns() == ["another"]


def test_a_wait_that_is_no_longer_reported_has_ended(cluster: Cluster) -> None:
    """The message that ends it may be lost with the connection."""
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    block(cluster, who)
    cluster.advance(lending.STALE_S)
    assert free(cluster) == 1
    cluster.advance(1)
    assert free(cluster) == 0


def test_the_end_of_a_client_inside_an_actor_ends_its_loan(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    block(cluster, who)
    cluster.loses_client(who)
    assert free(cluster) == 0


def test_another_client_in_the_actor_does_not_end_its_wait(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    block(cluster, who)
    cluster.hello("a child process", actor="level-0")
    cluster.says("a child process", control.Unblocked())
    cluster.loses_client("a child process")
    assert free(cluster) == 1


def test_an_actor_that_waits_before_its_worker_registers_lends(cluster: Cluster) -> None:
    cluster.hosts("worker", [request_of("a", "client")])
    cluster.starts_master(recovers_until=10)
    cluster.hello("client")
    who = inside(cluster, "a")
    cluster.asks(who, "own")
    cluster.joins("worker", cpus=1)
    assert cluster.spawns() == ["own"]


def test_a_lender_that_dies_releases_only_what_it_holds(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    (who,) = nest(cluster, levels=1)
    block(cluster, who)
    cluster.kills("level-0")
    assert free(cluster) == 1


def test_a_wait_with_a_timeout_is_in_no_deadlock(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    clients = []
    for actor in ("a", "b"):
        cluster.has("client", actor)
        clients.append(inside(cluster, actor))
    for _ in range(2):
        for who, target in zip(clients, ("b", "a"), strict=True):
            waits = control.Blocked(wait=1, actor=target, call="f", has_timeout=target == "a")
            cluster.says(who, waits)
            cluster.now += 1
    assert cluster.sent(control.Notice) == []
