"""The queue of placement requests: which are placed, refused or kept waiting, in which order."""

from typing import Any

import pytest

from remotely.master import shortage
from remotely.master.state import State
from remotely.master.waiting import WaitingList
from remotely.protocol import control
from tests.remotely.master.played import (
    Cluster,
    request_of,
)
from tests.steps import steps


def test_requests_that_fit_are_placed_oldest_first(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "all", cpus=4)
    for n, cpus in enumerate([2, 1, 2, 0.5, 1]):
        cluster.asks("client", f"w{n}", cpus=cpus)
    cluster.kills("all")
    assert cluster.spawns() == ["w0", "w1", "w3"]  # the third finds half a CPU, and keeps waiting


def test_withdrawing_a_request_does_not_advance_its_line(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    cluster.has("client", "in the way")
    cluster.asks("client", "withdrawn")
    cluster.asks("client", "other line", memory=1)
    cluster.asks("client", "same line")
    cluster.says("client", control.End(actor="withdrawn", grace_s=0))
    cluster.kills("in the way")
    assert cluster.spawns() == ["other line"]


def test_uncounted_actors_do_not_wait_and_oversubscription_is_reported_once(
    cluster: Cluster,
) -> None:
    cluster.starts_master(counts_cpus=False)
    cluster.hello("client")
    cluster.joins("worker", cpus=2)
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    assert not status.counts_cpus
    cluster.has("client", "a", cpus=2)  # named CPUs are allocated
    cluster.has("client", "b", names_cpus=False)
    cluster.has("client", "c", names_cpus=False)
    assert cluster.sent(control.Notice) == []
    cluster.has("client", "d", names_cpus=False)
    ((who, notice),) = cluster.sent(control.Notice)
    assert (who, "cores (2), which they share" in notice.text) == ("client", True)
    cluster.has("client", "e", names_cpus=False)
    assert cluster.sent(control.Notice) == []
    cluster.asks("client", "f", cpus=1)
    assert cluster.spawns() == []
    cluster.kills("a")
    assert cluster.spawns() == ["f"]


def test_a_request_is_refused_when_another_gets_its_name(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "other")
    ticket = cluster.asks("client", "large", cpus=2, name="store", named=True)
    cluster.has("client", "small", cpus=1, name="store", named=True)
    ((who, refusal),) = cluster.sent(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "NameTaken")


def test_a_request_for_the_name_of_an_ending_actor_waits_for_it(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.says("client", control.End(actor="old", grace_s=60))
    cluster.says("client", control.Locate(ticket=7, name="store"))
    assert cluster.sent(control.Located) == [("client", control.Located(ticket=7))]
    ticket = cluster.asks("client", "new", name="store", named=True)
    assert [message.ticket for _, message in cluster.sent(control.Queued)] == [ticket]
    assert cluster.spawns() == []
    cluster.kills("old")
    assert cluster.spawns() == ["new"]


def test_a_request_for_a_name_does_not_overtake_an_earlier_request(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    cluster.has("client", "old", name="store", named=True)
    cluster.asks("client", "first")
    cluster.says("client", control.End(actor="old", grace_s=60))
    cluster.asks("client", "second", name="store", named=True)
    cluster.kills("old")
    assert cluster.spawns() == ["first"]


def test_a_request_without_patience_is_placed_or_refused_immediately(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    for ticket, actor in ((1, "first"), (2, "second")):
        request = request_of(actor, "client")
        cluster.says("client", control.Place(ticket=ticket, request=request, patience_s=0))
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (2, "NoResources")
    assert "Counter asks for 1 CPU; the most free on one machine is 0 CPUs" in refusal.why
    assert cluster.spawns() == ["first"]
    cluster.kills("first")
    assert cluster.spawns() == []


def test_a_waiting_request_names_the_holders_of_its_resources(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1, gpus=1, license=2)
    cluster.has("client", "none", cpus=0)
    cluster.has("client", "a cpu", cpus=1)
    cluster.has("client", "a gpu", cpus=0, gpus=1)
    cluster.has("client", "a license", cpus=0, others={"license": 1})

    def why_of(**options: Any) -> str:
        cluster.asks("client", f"a{len(cluster.outbox)}", **options)
        ((_, queued),) = cluster.sent(control.Queued)
        return queued.why

    assert "0 CPUs. a cpu (1 CPU) has the rest" in why_of(cpus=1)
    assert "0 CPUs. a gpu (0 CPUs and 1 GPU) has the rest" in why_of(cpus=0, gpus=1)
    assert "CPUs and 1 license. a license (" in why_of(cpus=0, others={"license": 2})


def test_the_first_request_waits_for_a_machine_to_join(cluster: Cluster) -> None:
    request = request_of("a", "client")
    cluster.says("client", control.Place(ticket=1, request=request, patience_s=0))
    cluster.advance(0.5)
    cluster.joins("worker", cpus=1)
    assert cluster.spawns() == ["a"]


def test_a_request_for_a_name_is_refused_after_its_patience(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.says("client", control.End(actor="old", grace_s=600))
    wanted = request_of("new", "client", name="store", named=True)
    cluster.says("client", control.Place(ticket=99, request=wanted, patience_s=5))
    cluster.advance(6.0)
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (99, "NoResources")
    assert "'store' has been asked to end, and still runs" in refusal.why


def test_an_actor_that_is_ending_does_not_wait_for_its_own_name(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.hello("inside", actor="old")
    cluster.says("client", control.End(actor="old", grace_s=60))
    ticket = cluster.asks("inside", "new", name="store", named=True)
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (ticket, "NameTaken")


def test_the_automatic_name_of_an_ending_actor_is_free(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "Counter-1")
    cluster.says("client", control.End(actor="Counter-1", grace_s=60))
    cluster.has("client", "new", name="Counter-1", named=True)


def test_a_withdrawn_request_for_a_name_does_not_get_it_later(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=4)
    cluster.has("client", "old", name="store", named=True)
    cluster.says("client", control.End(actor="old", grace_s=60))
    ticket = cluster.asks("client", "new", name="store", named=True)
    cluster.asks("client", "newer", name="store", named=True)
    cluster.says("client", control.End(actor="new", grace_s=0))
    ((who, refusal),) = cluster.sent(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "ActorDied")
    cluster.kills("old")
    assert cluster.spawns() == ["newer"]


def test_a_request_is_refused_when_the_only_large_machine_leaves(cluster: Cluster) -> None:
    cluster.joins("large", cpus=4)
    cluster.joins("small", cpus=2)
    cluster.has("client", "a", cpus=3)
    ticket = cluster.asks("client", "b", cpus=3)
    cluster.has("client", "c", cpus=2)
    cluster.asks("client", "d", cpus=2)
    cluster.loses("large")
    ((who, refusal),) = cluster.sent(control.NotPlaced)
    assert (who, refusal.ticket, refusal.error) == ("client", ticket, "NoResources")
    cluster.kills("c")
    assert cluster.spawns() == ["d"]


def test_a_goodbye_withdraws_the_requests_of_the_client(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a", cpus=1)
    cluster.has("client", "b", cpus=1)
    cluster.asks("client", "c", cpus=1)
    cluster.says("client", control.Goodbye())
    cluster.kills("a")
    assert cluster.spawns() == []
    cluster.kills("b")
    assert cluster.sent(control.Farewell)


def test_an_actor_requested_before_its_worker_is_back_is_made_once(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=2)
    cluster.has("client", "a")
    cluster.starts_master()
    cluster.hello("client")
    ticket = cluster.asks("client", "a")  # it never received Placed
    assert cluster.sent(control.Queued)
    cluster.joins("worker", cpus=2)
    ((who, placed),) = cluster.sent(control.Placed)
    assert (who, placed.ticket) == ("client", ticket)
    assert placed.location == cluster.living["worker"]["a"].location
    assert cluster.spawns() == []


def place(actor: str) -> control.Place:
    request = control.Request(
        actor=actor, name=actor, class_name="Counter", owner="s", job="s", python="3"
    )
    return control.Place(ticket=1, request=request, patience_s=1.0)


def test_a_request_that_is_replaced_during_its_turn_keeps_waiting() -> None:
    """A reply during a turn may cause that."""
    waiting = WaitingList()
    waiting.add("s", place("a"), since=0.0, deadline=1.0)

    for waiter in waiting.turns(lambda *_: True):
        if waiter.deadline != 2.0:
            waiting.remove("a")
            waiting.add("s", place("a"), since=0.0, deadline=2.0)

    left = waiting.get("a")
    assert left is not None
    assert left.deadline == 2.0


def test_owners_of_spare_actors_are_told_once_when_others_wait_for_room(cluster: Cluster) -> None:
    cluster.hello("pool")
    cluster.joins("worker", cpus=2)
    cluster.has("pool", "spare", is_spare=True)
    cluster.has("client", "another")
    for actor in ("first", "second"):
        cluster.asks("client", actor)
    assert cluster.sent(control.RoomWanted) == [("pool", control.RoomWanted())]
    cluster.advance(1)
    assert cluster.sent(control.RoomWanted) == [("pool", control.RoomWanted())]
    cluster.kills("spare")
    cluster.kills("another")
    cluster.spawns()
    cluster.outbox.clear()
    cluster.advance(1)
    assert cluster.sent(control.RoomWanted) == []


# --- names ----------------------------------------------------------------------------------------


@pytest.fixture
def ending(cluster: Cluster) -> Cluster:
    """An actor named "store" that has been asked to end, on a machine with room for two."""
    cluster.joins("worker", cpus=2)
    cluster.has("client", "old", name="store", named=True)
    cluster.says("client", control.End(actor="old", grace_s=60))
    return cluster


def test_a_request_that_waits_for_a_name_delays_none_of_its_line(ending: Cluster) -> None:
    ending.has("client", "other")
    ending.asks("client", "new", name="store", named=True)
    ending.asks("client", "next")
    ending.kills("other")
    assert ending.spawns() == ["next"]
    ending.kills("old")
    assert ending.spawns() == ["new"]


def test_a_request_whose_name_is_freed_takes_its_place_in_the_line(ending: Cluster) -> None:
    ending.has("client", "other")
    for actor in ("before", "new", "after"):
        ending.asks("client", actor, name="store" if actor == "new" else actor, named=True)
    ending.kills("old")
    assert ending.spawns() == ["before"]
    ending.kills("other")
    assert ending.spawns() == ["new"]
    ending.kills("new")
    assert ending.spawns() == ["after"]


def test_of_two_requests_for_a_freed_name_the_older_gets_it(ending: Cluster) -> None:
    ending.asks("client", "first", name="store", named=True)
    second = ending.asks("client", "second", name="store", named=True)
    ending.sent(object)
    ending.kills("old")
    assert ending.spawns() == ["first"]
    ((_, refusal),) = ending.sent(control.NotPlaced)
    assert (refusal.ticket, refusal.error) == (second, "NameTaken")


# --- cost -----------------------------------------------------------------------------------------


def test_a_death_costs_the_same_however_many_named_requests_wait() -> None:
    def with_waiting(count: int) -> Cluster:
        cluster = Cluster()
        cluster.hello("client")
        cluster.joins("worker", cpus=2)
        for actor in "ab":
            cluster.has("client", actor)
        for number in range(count):
            cluster.asks("client", f"a{number}", cpus=2, named=True)
        return cluster

    few, many = with_waiting(10), with_waiting(200)
    cost = steps(lambda: few.kills("a"))
    assert steps(lambda: many.kills("a")) == pytest.approx(cost, rel=0.02)


def test_requests_that_are_refused_together_share_the_reason(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.joins("worker", cpus=1)
    cluster.has("client", "a")
    for number in range(100):
        cluster.asks("client", f"b{number}", class_name="Counter" if number % 2 else "Other")
    asked: list[str] = []
    why_it_waits = shortage.why_it_waits

    def counted(request: control.Request, state: State) -> str:
        asked.append(request.class_name)
        return why_it_waits(request, state)

    monkeypatch.setattr(shortage, "why_it_waits", counted)
    cluster.advance(60)
    assert asked == ["Other", "Counter"]
    refusals = [refused.why for _, refused in cluster.sent(control.NotPlaced)]
    assert [why.split()[5] for why in refusals] == ["Other", "Counter"] * 50
