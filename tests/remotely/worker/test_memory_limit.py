"""What counts against an actor's memory is its own: not what others lend it."""

import os

import numpy as np
import pytest

import remotely
from remotely.worker.memory_limit import own, resident

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
        """Return what is resident and what is its own, in MiB."""
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
    """Return a reader that has opened our memory; what it is sent before comes by socket."""
    reader = Reader()
    before = reader.sizes()
    while reader.keep(array()) and growth(reader, before)[1] > HALF:
        reader.kept = []
    return reader


def growth(reader: Reader, before: tuple[int, int]) -> tuple[int, int]:
    now = reader.sizes()
    return now[0] - before[0], now[1] - before[1]


def test_what_is_borrowed_is_the_lenders(here: None) -> None:
    reader = partner()
    before = reader.sizes()
    reader.keep(array())
    all_of_it, own_part = growth(reader, before)
    assert all_of_it > HALF > own_part


def test_what_is_borrowed_and_written_to_is_its_own(here: None) -> None:
    reader, value = partner(), remotely.put(array())
    reader.kept = []
    before = reader.sizes()
    reader.keep(value)
    assert growth(reader, before)[1] < HALF
    reader.write()
    assert growth(reader, before)[1] > HALF


def test_what_it_makes_and_what_it_lends_is_its_own(here: None) -> None:
    reader = Reader()
    before = reader.sizes()
    reader.make()
    assert growth(reader, before)[1] > HALF
    reader.kept = []
    before = reader.sizes()
    reader.put()
    assert growth(reader, before)[1] > HALF


@pytest.mark.parametrize("pid", [1 << 22])
def test_of_a_process_that_is_gone_nothing_can_be_said(pid: int) -> None:
    with pytest.raises(OSError):
        resident(pid)
    with pytest.raises(OSError):
        own(pid)


def test_a_reader_of_more_than_its_memory_lives_and_is_ended_for_its_own(here: None) -> None:
    reader = remotely.options(Reader, memory=f"{3 * ALL}MiB")()
    for _ in range(4):
        assert reader.keep(array()) > 0
    why = f"out of memory: .* its limit is {3 * ALL} MiB"
    with pytest.raises(remotely.ActorDied, match=why):
        reader.make_many()
