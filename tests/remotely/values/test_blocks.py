"""Blocks never overlap, stay within their space, and merge when they are freed."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from remotely.values import blocks
from remotely.values.blocks import GRANULE, Blocks
from tests.steps import steps

PAGES = 40


class Play(RuleBasedStateMachine):
    """Compares with a slow oracle, one flag per page.  Rows are short, so that there are many."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.row, blocks.ROW = blocks.ROW, 2
        self.blocks = Blocks(PAGES * GRANULE)
        self.pages = [False] * PAGES

    def teardown(self) -> None:
        blocks.ROW = self.row

    @rule(target=taken, nbytes=st.integers(1, 12 * GRANULE))
    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        count = -(-nbytes // GRANULE)
        fits = [i for i in range(PAGES - count + 1) if not any(self.pages[i : i + count])]
        offset = self.blocks.allocate(nbytes)
        assert offset == (fits[0] * GRANULE if fits else None)
        if offset is None:
            return None
        page = offset // GRANULE
        self.pages[page : page + count] = [True] * count
        return page, count

    @rule(block=consumes(taken))
    def free(self, block: tuple[int, int] | None) -> None:
        if block is not None:
            page, count = block
            self.blocks.free(page * GRANULE)
            self.pages[page : page + count] = [False] * count

    @invariant()
    def the_gaps_are_the_free_pages(self) -> None:
        free = [False] * PAGES
        last = -1
        for start, end in self.blocks.gaps():
            assert start > last, "gaps are in order and do not touch"
            last = end
            free[start // GRANULE : end // GRANULE] = [True] * ((end - start) // GRANULE)
        assert free == [not page for page in self.pages]
        assert self.blocks.taken_bytes == sum(self.pages) * GRANULE


TestPlay = Play.TestCase


def test_freeing_an_unallocated_block_raises() -> None:
    space = Blocks(4 * GRANULE)
    with pytest.raises(KeyError):
        space.free(0)


def test_a_full_space_has_no_room_and_its_last_block_can_be_freed() -> None:
    space = Blocks(2 * GRANULE)
    assert space.allocate(3 * GRANULE) is None
    space.allocate(GRANULE)
    last = space.allocate(GRANULE)
    assert last is not None
    assert space.gaps() == []
    assert space.allocate(1) is None
    space.free(last)
    assert space.gaps() == [(GRANULE, 2 * GRANULE)]


def test_allocating_is_cheap_among_thousands_of_gaps_that_are_too_small() -> None:
    space = Blocks(1 << 40)
    small = [space.allocate(GRANULE) for _ in range(20_000)]
    for offset in small[::2]:
        assert offset is not None
        space.free(offset)

    def work() -> None:
        for _ in range(100):
            space.free(space.allocate(2 * GRANULE) or 0)

    assert steps(work) < 100_000


def test_thousands_of_gaps_stay_in_order_and_merge() -> None:
    space = Blocks(2_000 * GRANULE)
    for _ in range(1_000):
        space.allocate(2 * GRANULE)
    for page in random.Random(0).sample(range(0, 2_000, 2), 1_000):
        space.free(page * GRANULE)
        assert space.gaps() == sorted(space.gaps())
    assert space.gaps() == [(0, 2_000 * GRANULE)]
