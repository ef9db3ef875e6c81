"""Only memory of its own counts against the limit of an actor, not what others lend it."""

import os
from collections.abc import Callable

import numpy as np
import pytest

import remotely
from remotely.worker.memory_limit import OwnMemory, own, resident
from tests.clusters import wait_until

MIB = 1 << 20
ALL = 64  # MiB, of each value
HALF = ALL // 2


def array() -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return np.ones(ALL * MIB, np.uint8)


@remotely.remote_class
class Reader:
    def __init__(self) -> None:
        self.kept: list[object] = []

    def sizes(self) -> tuple[int, int]:
        """Return the resident memory and the memory of its own, in MiB."""
        return resident(os.getpid()) // MIB, own(os.getpid()) // MIB

    def keep(self, value: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> int:
        """Read all of a value, and keep it."""
        self.kept.append(value)
        return int(value[:: os.sysconf("SC_PAGE_SIZE")].sum())

    def write(self) -> None:
        value = self.kept[0]
        assert isinstance(value, np.ndarray)
        value[:] = 2

    def make(self) -> None:
        self.kept.append(array())

    def make_many(self) -> None:
        for _ in range(40):
            self.make()

    def put(self) -> None:
        self.kept.append(remotely.put(array()))


def partner() -> Reader:
    """Return a reader that has opened this process's memory; earlier values are copied to it."""
    reader = Reader()
    before = reader.sizes()
    while reader.keep(array()) and growth(reader, before)[1] > HALF:
        reader.kept = []
    return reader


def growth(reader: Reader, before: tuple[int, int]) -> tuple[int, int]:
    now = reader.sizes()
    return now[0] - before[0], now[1] - before[1]


def test_borrowed_memory_counts_only_once_it_is_written_to(here: None) -> None:
    reader, value = partner(), remotely.put(array())
    reader.kept = []
    before = reader.sizes()
    reader.keep(value)
    all_of_it, own_part = growth(reader, before)
    assert all_of_it > HALF > own_part
    reader.write()
    assert growth(reader, before)[1] > HALF


def test_allocated_and_lent_memory_counts(here: None) -> None:
    reader = Reader()
    before = reader.sizes()
    reader.make()
    assert growth(reader, before)[1] > HALF
    reader.kept = []
    before = reader.sizes()
    reader.put()
    assert growth(reader, before)[1] > HALF


@pytest.mark.parametrize("measure", [resident, own])
def test_measuring_a_process_that_is_gone_raises(measure: Callable[[int], int]) -> None:
    with pytest.raises(OSError):
        measure(1 << 22)


def test_an_actor_may_borrow_more_than_its_limit_but_not_allocate_it(here: None) -> None:
    reader = remotely.options(Reader, memory=f"{3 * ALL}MiB")()
    for _ in range(4):
        assert reader.keep(array()) > 0
    why = f"out of memory: .* its limit is {3 * ALL} MiB"
    with pytest.raises(remotely.ActorDied, match=why):
        reader.make_many()


# --- what a status shows --------------------------------------------------------------------------


def test_a_status_shows_memory_of_its_own(here: None) -> None:
    reader = partner()
    reader.keep(array())
    reader.make()

    def seen() -> tuple[int, int, int]:
        (actor,) = remotely.status().actors
        return actor.rss // MIB, actor.memory // MIB, reader.sizes()[1]

    def is_own() -> bool:
        resident, shown, counted = seen()
        return abs(shown - counted) < HALF / 4 and shown < resident - HALF

    wait_until(is_own, f"the status shows what the limit counts: {seen()}")


def test_what_a_process_allocates_is_known_without_another_walk() -> None:
    memory, pid = OwnMemory(), os.getpid()
    before = memory.walk(pid)
    kept = array()
    assert abs(memory.of(pid) - before - ALL * MIB) < 8 * MIB
    del kept
    assert abs(memory.of(pid) - before) < 8 * MIB


def test_walks_for_those_who_ask_take_a_twentieth_of_the_time() -> None:
    memory, pid = OwnMemory(), os.getpid()
    memory.walk_oldest([pid], 1.0)
    first = memory.of(pid)
    kept = np.full(2 * ALL * MIB, 1, np.uint8)
    memory.walk_oldest([pid], 1.0)  # too soon
    assert memory.of(pid) > first + ALL * MIB
    del kept


def test_of_a_process_that_is_gone_nothing_is_shown() -> None:
    assert OwnMemory().of(1 << 30) == 0
