"""Room that is reserved for a request that others overtake."""

import itertools
from random import Random
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from remotely.protocol import control
from remotely.protocol.lease import OVERTAKEN_S, RESERVED_S
from tests.remotely.master.played import Cluster, check, play_event, workers_in_status

TICK_S = 2.0


class Busy(Cluster):
    """A cluster on which small actors come and go whenever there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.hello("client")
        self._names = (f"small-{n}" for n in itertools.count())
        self._waiting = 0

    def fill(self, count: int, **options: Any) -> None:
        """Request `count` small actors."""
        for _ in range(count):
            self.asks("client", next(self._names), **{"cpus": 1, **options})
        self.spawns()

    def small(self) -> list[str]:
        """Return the living small actors, oldest first."""
        found = [a for living in self.living.values() for a in living if a.startswith("small")]
        return sorted(found, key=lambda actor: int(actor.removeprefix("small-")))

    def pass_time(self, seconds: float, ends: int = 1, new: int = 1, **options: Any) -> None:
        """At each tick, end the oldest small actors and request others."""
        for _ in range(int(seconds / TICK_S)):
            self.now += TICK_S
            for who in ("client", *self.core.workers):
                self.core.renew(who, self.now)
            for actor in self.small()[:ends]:
                self.kills(actor)
                self.spawns()
            self.fill(new, **options)
            self.expire()
            self.spawns()

    def lives(self, actor: str) -> bool:
        return any(actor in living for living in self.living.values())


@pytest.fixture
def busy() -> Busy:
    return Busy()


def test_a_large_request_is_not_overtaken_forever(busy: Busy) -> None:
    busy.joins("w", cpus=4)
    busy.fill(6)
    busy.asks("client", "large", cpus=4)
    busy.pass_time(TICK_S)
    assert not busy.state.workers.ledger.reserved
    busy.pass_time(OVERTAKEN_S)
    assert not busy.lives("large")
    busy.pass_time(TICK_S)
    (worker,) = workers_in_status(busy)
    held = sum(actor.request.resources.cpus for actor in worker.actors)
    assert worker.free_cpus == 0
    assert worker.kept_cpus == 4 - held > 0
    busy.pass_time(3 * TICK_S)  # one small actor ends per tick
    assert busy.lives("large")
    busy.kills("large")
    assert len(busy.spawns()) == 4  # small ones that waited


def test_room_is_reserved_for_a_gang_on_the_machines_that_it_needs(busy: Busy) -> None:
    for worker in ("w1", "w2", "w3"):
        busy.joins(worker, cpus=2)
    busy.fill(9)
    for member in ("a", "b", "c", "d"):
        busy.asks("client", member, gang="gang", together=4)
    busy.pass_time(OVERTAKEN_S + TICK_S)
    for _ in range(4):
        placed = len(busy.spawns())
        busy.pass_time(TICK_S, ends=2)
        assert placed == 0
        assert len(busy.small()) >= 2  # the third machine is not reserved
    assert all(map(busy.lives, "abcd"))


@pytest.mark.parametrize("wish", [{"machine": "m1"}, {"near": "neighbor"}])
def test_room_is_reserved_only_where_the_request_must_be_placed(
    busy: Busy, wish: dict[str, str]
) -> None:
    busy.joins("w1", cpus=3, machine="m1")
    busy.has("client", "neighbor", cpus=1)
    busy.joins("w2", cpus=2, machine="m2")
    busy.fill(8)
    busy.asks("client", "large", cpus=2, **wish)
    busy.pass_time(OVERTAKEN_S + 4 * TICK_S, ends=2, new=2)
    assert "large" in busy.living["w1"]


def test_gpus_are_reserved_as_they_are_released(busy: Busy) -> None:
    busy.joins("w", cpus=16, gpus=4)
    busy.fill(6, gpus=1)
    busy.asks("client", "large", gpus=3)
    busy.pass_time(OVERTAKEN_S + TICK_S, gpus=1)
    busy.has("client", "without")  # the CPUs suffice for both
    busy.pass_time(4 * TICK_S, gpus=1)
    assert busy.lives("large")


def test_a_request_without_resources_ignores_a_reservation(busy: Busy) -> None:
    busy.joins("w", cpus=2)
    busy.fill(4)
    busy.asks("client", "large", cpus=2)
    busy.pass_time(OVERTAKEN_S + TICK_S, ends=0, new=0)
    busy.has("client", "nothing", cpus=0)


def test_a_reservation_that_fails_backs_off(busy: Busy) -> None:
    busy.joins("w", cpus=4)
    busy.has("client", "stays", cpus=1)
    busy.asks("client", "large", cpus=4)
    placed = []
    for _ in range(40):
        busy.pass_time(TICK_S, ends=3)
        placed.append(bool(busy.small()))
    shut = [len(list(run)) for kept, run in itertools.groupby(placed) if not kept]
    between = [len(list(run)) for kept, run in itertools.groupby(placed) if kept]
    assert max(shut) <= (RESERVED_S + OVERTAKEN_S) / TICK_S
    assert between[1:-1] == sorted(between[1:-1])
    assert len(between) > 2


def test_a_failed_reservation_moves_to_another_machine(busy: Busy) -> None:
    busy.joins("w1", cpus=4)
    busy.has("client", "stays", cpus=1)
    busy.joins("w2", cpus=4)
    busy.fill(9)
    busy.asks("client", "large", cpus=4)
    busy.pass_time(54)  # its patience is 60 s
    assert "large" in busy.living["w2"]


def test_a_request_that_waits_for_more_than_room_gets_no_reservation(busy: Busy) -> None:
    busy.joins("w", cpus=2)
    busy.has("client", "holder", name="store", named=True, cpus=0)
    busy.says("client", control.End(actor="holder", grace_s=60))
    busy.asks("client", "named", name="store", named=True, cpus=2)
    busy.asks("client", "alone", gang="gang", together=2, cpus=1)
    busy.pass_time(OVERTAKEN_S + 2 * TICK_S, ends=0, new=0)
    busy.has("client", "another", cpus=2)


def test_a_reservation_is_released_when_its_request_is_withdrawn(busy: Busy) -> None:
    busy.joins("w", cpus=2)
    busy.fill(1)
    busy.asks("client", "large", cpus=2)
    busy.pass_time(OVERTAKEN_S + TICK_S, ends=0, new=0)
    busy.asks("client", "next", cpus=1)
    ((_, queued),) = busy.sent(control.Queued)[-1:]
    assert "Room is reserved for Counter, which has waited longer" in queued.why
    assert [w.free_cpus for w in workers_in_status(busy)] == [0]
    busy.says("client", control.End(actor="large", grace_s=0))
    busy.pass_time(TICK_S, ends=0, new=0)
    assert busy.lives("next")


def test_a_reservation_is_released_when_its_request_is_placed_elsewhere(busy: Busy) -> None:
    for worker in ("w1", "w2"):
        busy.joins(worker, cpus=2, machine=worker)
    busy.fill(4)
    busy.asks("client", "large", cpus=2)
    busy.pass_time(OVERTAKEN_S + TICK_S, ends=0, new=0)
    (kept,) = busy.state.workers.ledger.reserved_on
    on_kept, elsewhere = busy.living[kept], busy.living[{"w1": "w2", "w2": "w1"}[kept]]
    busy.kills(next(iter(on_kept)))
    busy.asks("client", "next", cpus=1, machine=kept)
    assert busy.spawns() == []
    for actor in list(elsewhere):
        busy.kills(actor)
    assert busy.spawns() == ["large", "next"]


def test_a_reservation_on_a_lost_machine_moves_to_another(busy: Busy) -> None:
    for worker in ("w1", "w2"):
        busy.joins(worker, cpus=2, machine=worker)
    busy.fill(6)
    busy.asks("client", "large", cpus=2)
    busy.pass_time(OVERTAKEN_S + TICK_S, ends=0)
    (kept,) = busy.state.workers.ledger.reserved_on
    busy.loses(kept, may_return=True)
    busy.living[kept].clear()
    busy.joins(kept, cpus=2, machine=kept)
    busy.pass_time(4 * TICK_S, ends=2)
    assert busy.lives("large")


EVENTS = [*["place"] * 6, *["spawn"] * 4, *["tick", "die"] * 3, *["join"] * 2, "lose", "end"]


@hypothesis.given(st.integers(0, 2**32))
def test_the_ledger_adds_up_with_reservations(seed: int) -> None:
    draw, cluster = Random(seed), Cluster()
    for number in range(3):
        cluster.hello(f"client-{number}")
    for _ in range(60):
        event, a, b = draw.choice(EVENTS), draw.randrange(60), draw.randrange(60)
        if event == "place" and a % 3 == 2:  # the members of a gang are alike
            gang, cpus = f"gang-{b}", 1 + b % 2
            for number in range(2):
                cluster.asks("client-2", f"{gang}.{number}", cpus=cpus, gang=gang, together=2)
        elif event == "place":
            gpus = [1, 0, 0.4, 0, 0][b % 5]
            actor = f"actor-{a % 3}.{b}"
            cluster.asks(f"client-{a % 3}", actor, cpus=[0, 0.5, 1, 2, 4][a % 5], gpus=gpus)
        else:
            play_event(cluster, event, a, b)
        check(cluster)
