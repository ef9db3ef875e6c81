"""Gangs are placed whole or not at all; requests may name a machine or an actor to be near."""

from functools import partial
from random import Random

import hypothesis
import hypothesis.strategies as st
import pytest

from remotely.protocol import control
from tests.remotely.master.played import Cluster, check, request_of
from tests.steps import steps

GANG = "gang"


def ask_all(cluster: Cluster, names: list[str], gang: str = GANG, **options: object) -> list[int]:
    return [
        cluster.asks("client", name, gang=gang, together=len(names), **options) for name in names
    ]


def test_a_gang_is_placed_once_it_is_complete(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2)
    cluster.has("client", "in the way")
    cluster.asks("client", "a", gang=GANG, together=2)
    assert cluster.sent(control.Queued) == []  # it is incomplete
    cluster.kills("in the way")
    assert cluster.spawns() == []
    cluster.asks("client", "b", gang=GANG, together=2)
    assert cluster.spawns() == ["a", "b"]
    check(cluster)


def test_a_waiting_gang_takes_nothing_from_others(cluster: Cluster) -> None:
    cluster.joins("w", cpus=4)
    cluster.has("client", "in the way", cpus=2)
    tickets = ask_all(cluster, ["a", "b", "c"])
    queued = cluster.sent(control.Queued)
    assert [(who, q.ticket) for who, q in queued] == [("client", ticket) for ticket in tickets]
    assert "3 actors of Counter, placed together, ask for 1 CPU each" in queued[0][1].why
    cluster.has("client", "single", cpus=2)  # others may use what the gang cannot
    cluster.kills("single")
    assert cluster.spawns() == []
    cluster.kills("in the way")
    queued = cluster.sent(control.Queued)  # there is room now
    assert [(who, q.ticket, q.why) for who, q in queued] == [("client", t, "") for t in tickets]
    assert cluster.spawns() == ["a", "b", "c"]
    check(cluster)


def test_a_gang_is_refused_after_its_patience(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2)
    cluster.has("client", "in the way")
    tickets = ask_all(cluster, ["a", "b"])
    cluster.advance(59.0)
    assert cluster.sent(control.NotPlaced) == []
    cluster.advance(1.0)
    refused = cluster.sent(control.NotPlaced)
    assert [(who, r.ticket, r.error) for who, r in refused] == [
        ("client", ticket, "NoResources") for ticket in tickets
    ]
    assert "no room for 60 s: 2 actors of Counter" in refused[0][1].why


def test_a_gang_without_patience_still_waits_for_its_members(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2)
    for actor in ("a", "b"):
        request = request_of(actor, "client", gang=GANG, together=2)
        cluster.says("client", control.Place(ticket=1, request=request, patience_s=0))
        cluster.advance(0.25)
    assert cluster.spawns() == ["a", "b"]


def test_a_member_on_an_unreachable_worker_waits_alone(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=1)
    cluster.joins("w2", cpus=1)
    cluster.cut_off.add("w2")
    ask_all(cluster, ["a", "b"])
    assert cluster.spawns() == ["a"]
    check(cluster)
    cluster.joins("w2", cpus=1)
    assert cluster.spawns() == ["b"]
    check(cluster)


def test_two_large_gangs_do_not_block_each_other(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=2)
    cluster.joins("w2", cpus=2)
    for number in range(3):  # interleaved, as by two clients
        for gang in "xy":
            cluster.asks("client", f"{gang}{number}", gang=gang, together=3)
    assert cluster.spawns() == ["x0", "x1", "x2"]
    for number in range(3):
        cluster.kills(f"x{number}")
    assert cluster.spawns() == ["y0", "y1", "y2"]


def test_a_gang_that_can_never_fit_is_refused_as_a_whole(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=2)
    cluster.joins("w2", cpus=3)
    cluster.has("client", "in the way", cpus=2)
    cluster.sent(object)
    tickets = ask_all(cluster, [f"a{n}" for n in range(6)])
    refused = cluster.sent(control.NotPlaced)
    assert [(who, r.ticket) for who, r in refused] == [("client", ticket) for ticket in tickets]
    assert {r.error for _, r in refused} == {"NoResources"}
    assert "all machines together have room for 5" in refused[0][1].why
    assert not len(cluster.state.waiting)
    ask_all(cluster, [f"b{n}" for n in range(5)])
    assert len(cluster.sent(control.Queued)) == 5


def test_a_gang_whose_members_fit_nowhere_is_refused(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2)
    ask_all(cluster, ["a", "b"], cpus=3)
    assert "3 CPUs where the largest worker has 2" in cluster.sent(control.NotPlaced)[0][1].why
    ask_all(cluster, ["c", "d"], python="3.9")
    assert {r.error for _, r in cluster.sent(control.NotPlaced)} == {"VersionMismatch"}


def test_a_gang_waits_for_new_and_for_lost_machines(cluster: Cluster) -> None:
    ask_all(cluster, ["a", "b"])
    assert "no machine has joined" in cluster.sent(control.Queued)[0][1].why
    cluster.joins("w", cpus=2, machine="m1")
    assert cluster.spawns() == ["a", "b"]
    cluster.loses("w", may_return=True)
    cluster.joins("small", cpus=1, machine="m2")
    ask_all(cluster, ["c", "d"], gang="other")
    assert cluster.sent(control.NotPlaced) == []  # the lost worker is large enough
    cluster.living["w"].clear()
    cluster.joins("w", cpus=2, machine="m1")
    assert cluster.spawns() == ["c", "d"]


def test_a_gang_with_a_withdrawn_member_is_not_placed(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2)
    cluster.has("client", "in the way")
    ask_all(cluster, ["a", "b"])
    cluster.says("client", control.End(actor="a", grace_s=0, kill=True))
    cluster.kills("in the way")
    assert cluster.spawns() == []
    cluster.says("client", control.End(actor="b", grace_s=0, kill=True))
    assert not len(cluster.state.waiting)
    check(cluster)


def test_a_member_whose_worker_is_lost_before_it_started_is_placed_alone(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=1)
    cluster.joins("w2", cpus=1)
    ask_all(cluster, ["a", "b"])
    assert cluster.spawns(at_most=1) == ["a"]
    cluster.loses("w2")
    cluster.to_spawn.clear()
    cluster.joins("w3", cpus=1)
    assert cluster.spawns() == ["b"]
    check(cluster)


def test_a_later_life_of_a_member_is_placed_alone(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2)
    ask_all(cluster, ["a", "b"], max_restarts=1)
    cluster.spawns()
    cluster.kills("a")
    cluster.asks("client", "a", gang=GANG, together=2, max_restarts=1, life=1)
    assert cluster.spawns() == ["a"]


def test_a_restarted_master_counts_the_placed_members(cluster: Cluster) -> None:
    cluster.joins("w", cpus=4)
    ask_all(cluster, ["a", "b", "c"])
    assert cluster.spawns(at_most=2) == ["a", "b"]
    cluster.to_spawn.clear()  # the worker never received the third
    cluster.starts_master()
    cluster.hello("client")
    cluster.asks("client", "c", gang=GANG, together=3)  # unanswered requests are repeated
    assert cluster.spawns() == []
    cluster.joins("w", cpus=4)
    assert cluster.spawns() == ["c"]
    check(cluster)


def test_a_gang_is_limited_by_the_gpus_and_resources_of_each_machine(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=9, gpus=1, license=1)
    cluster.joins("w2", cpus=9, gpus=2, license=2)
    ask_all(cluster, [f"a{n}" for n in range(4)], gpus=0.7)
    assert "room for 3" in cluster.sent(control.NotPlaced)[0][1].why
    ask_all(cluster, [f"b{n}" for n in range(3)], gang="b", gpus=0.7, others={"license": 1})
    assert cluster.spawns() == ["b0", "b1", "b2"]
    cluster.asks("client", "late", others={"license": 1})
    assert "0 license" in cluster.sent(control.Queued)[0][1].why


@hypothesis.given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_a_gang_is_placed_whole_or_not_at_all(
    machines: list[int], sizes: list[int], random: Random
) -> None:
    cluster = Cluster()
    cluster.hello("client")
    for number, cpus in enumerate(machines):
        cluster.joins(f"w{number}", cpus=cpus)
    asks = [(gang, n) for gang, size in enumerate(sizes) for n in range(size)]
    random.shuffle(asks)
    for gang, n in asks:
        cluster.asks("client", f"{gang}.{n}", gang=f"g{gang}", together=sizes[gang])
        _are_whole(cluster, sizes)
    while any(cluster.living.values()):
        first = next(a for living in cluster.living.values() for a in living)
        gang = int(first.partition(".")[0])
        for n in range(sizes[gang]):
            cluster.kills(f"{gang}.{n}")
        _are_whole(cluster, sizes)
    refused = [message for _, message in cluster.outbox if isinstance(message, control.NotPlaced)]
    assert len(refused) == sum(size for size in sizes if size > sum(machines) and size > 1)
    assert not len(cluster.state.waiting)  # no request waits forever


def _are_whole(cluster: Cluster, sizes: list[int]) -> None:
    cluster.spawns()
    living = [a.partition(".")[0] for here in cluster.living.values() for a in here]
    for gang, size in enumerate(sizes):
        assert living.count(str(gang)) in (0, size)
    check(cluster)


# --- machines and neighbors -----------------------------------------------------------------------


def test_a_request_for_a_machine_is_placed_there_or_waits_for_it(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=1, machine="small")
    cluster.joins("w2", cpus=8, machine="large")
    cluster.has("client", "a", machine="small")
    assert "a" in cluster.living["w1"]
    cluster.asks("client", "b", machine="small")
    assert "It must be on small" in cluster.sent(control.Queued)[0][1].why
    cluster.has("client", "c")
    assert "c" in cluster.living["w2"]
    cluster.kills("a")
    assert cluster.spawns() == ["b"]
    assert "b" in cluster.living["w1"]
    cluster.asks("client", "d", machine="small", cpus=2)
    refused = cluster.sent(control.NotPlaced)[0][1]
    assert (refused.error, "2 CPUs where the largest worker has 1" in refused.why) == (
        "NoResources",
        True,
    )
    check(cluster)


def test_an_unknown_machine_is_refused_with_a_list_of_machines(cluster: Cluster) -> None:
    cluster.joins("w1", machine="m1")
    cluster.asks("client", "a", machine="m3")
    why = cluster.sent(control.NotPlaced)[0][1].why
    assert why == "no machine of this cluster is named 'm3': there is m1"
    cluster.joins("w2", machine="m2")
    cluster.asks("client", "a", machine="m3")
    why = cluster.sent(control.NotPlaced)[0][1].why
    assert why == "no machine of this cluster is named 'm3': there are m1 and m2"
    cluster.has("client", "by address", machine="m2.example")
    assert "by address" in cluster.living["w2"]
    cluster.loses("w2", may_return=True)
    cluster.asks("client", "b", machine="m2")
    assert cluster.sent(control.NotPlaced) == []  # it may come back
    cluster.joins("w2", machine="m2")
    assert cluster.spawns() == ["b"]


def test_a_request_near_an_actor_is_placed_on_its_machine(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=2, machine="m1")
    cluster.joins("w2", cpus=8, machine="m2")
    cluster.has("client", "a", machine="m1")
    cluster.has("client", "b", near="a")
    assert "b" in cluster.living["w1"]
    cluster.asks("client", "c", near="a")
    assert "It must be near another actor" in cluster.sent(control.Queued)[0][1].why
    cluster.kills("b")
    assert cluster.spawns() == ["c"]
    cluster.asks("client", "d", near="a", machine="m2")
    assert "another machine than 'm2'" in cluster.sent(control.NotPlaced)[0][1].why
    cluster.asks("client", "e", near="nobody")
    why = cluster.sent(control.NotPlaced)[0][1].why
    assert why == "the actor that it must be near has ended, or is not placed yet"


def test_a_gang_may_be_near_an_actor(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=3, machine="m1")
    cluster.joins("w2", cpus=8, machine="m2")
    cluster.has("client", "a", machine="m1")
    ask_all(cluster, ["b", "c"], near="a")
    assert cluster.spawns() == ["b", "c"]
    assert {"b", "c"} < cluster.living["w1"].keys()
    ask_all(cluster, ["d", "e", "f", "g"], gang="other", near="a")
    assert "room for 3" in cluster.sent(control.NotPlaced)[0][1].why
    ask_all(cluster, ["h", "i"], gang="waits", near="a")
    assert len(cluster.sent(control.Queued)) == 2
    assert cluster.spawns() == []  # there is room elsewhere
    cluster.kills("b")
    assert cluster.spawns() == []
    cluster.kills("c")
    assert cluster.spawns() == ["h", "i"]
    ask_all(cluster, ["j", "k"], gang="large", near="a", cpus=4)
    refused = cluster.sent(control.NotPlaced)[0][1]
    assert refused.why == "it asks for 4 CPUs where the largest worker has 3"
    ask_all(cluster, ["l", "m"], gang="lonely", near="nobody")
    assert {r.error for _, r in cluster.sent(control.NotPlaced)} == {"NoResources"}


def test_a_request_near_a_restarting_actor_waits(cluster: Cluster) -> None:
    cluster.joins("w1", cpus=4, machine="m1")
    cluster.joins("w2", cpus=4, machine="m2")
    cluster.has("client", "a", machine="m1", max_restarts=1)
    cluster.kills("a")
    cluster.asks("client", "b", near="a")
    assert cluster.sent(control.NotPlaced) == []
    assert len(cluster.state.waiting) == 1
    ask_all(cluster, ["c", "d"], near="a")
    assert cluster.sent(control.NotPlaced) == []
    cluster.asks("client", "a", machine="m1", max_restarts=1, life=1)
    assert cluster.spawns() == ["a"]
    assert cluster.spawns() == ["b", "c", "d"]
    check(cluster)


def test_a_named_machine_without_the_python_is_refused(cluster: Cluster) -> None:
    cluster.joins("w1", python="3.9", machine="m1")
    cluster.joins("w2", machine="m2")
    cluster.asks("client", "a", machine="m1")
    why = cluster.sent(control.NotPlaced)[0][1].why
    assert why == "no worker at the requested place runs Python 3.11"


@pytest.mark.parametrize("cpus", [1000, 1], ids=["with room", "without room"])
def test_the_cost_of_a_gang_grows_linearly(cpus: int) -> None:
    def place(members: int) -> None:
        cluster = Cluster()
        cluster.hello("client")
        cluster.joins("worker", cpus=1000)
        if cpus == 1:
            cluster.has("client", "in the way", cpus=999)
        for number in range(members):
            cluster.asks("client", f"a{number}", gang="g", together=members)
        assert len(cluster.to_spawn) == (0 if cpus == 1 else members)

    place(2)  # fills caches
    none, few, many = (steps(partial(place, count)) for count in (2, 102, 402))
    assert many - none == pytest.approx(4 * (few - none), rel=0.05)
