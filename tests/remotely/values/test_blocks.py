"""Blocks never overlap, never leave their space, and come back whole."""

import os
import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from remotely.values import blocks
from remotely.values.blocks import GRANULE, Blocks
from tests.steps import steps

PAGES = 40


class Play(RuleBasedStateMachine):
    """Against a slow oracle: one flag a page.  Rows of gaps are short, so that there are many."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.row, blocks.ROW = blocks.ROW, 2
        self.blocks = Blocks(PAGES * GRANULE)
        self.pages = [False] * PAGES

    def teardown(self) -> None:
        blocks.ROW = self.row

    @rule(target=taken, nbytes=st.integers(1, 12 * GRANULE))
    def take(self, nbytes: int) -> tuple[int, int] | None:
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
    def give(self, block: tuple[int, int] | None) -> None:
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


def test_what_is_too_large_gets_nothing_and_takes_nothing() -> None:
    space = Blocks(4 * GRANULE)
    assert space.allocate(5 * GRANULE) is None
    assert space.allocate(4 * GRANULE) == 0
    assert space.allocate(1) is None


def test_the_block_that_was_just_given_back_is_taken_again_because_its_pages_are_warm() -> None:
    space = Blocks(100 * GRANULE)
    for _ in range(10):
        offset = space.allocate(3 * GRANULE)
        assert offset == 0
        space.free(offset)


def test_giving_back_what_was_not_taken_is_an_error() -> None:
    space = Blocks(4 * GRANULE)
    with pytest.raises(KeyError):
        space.free(0)


def test_a_block_is_of_whole_pages_so_that_it_can_be_mapped_by_itself() -> None:
    assert os.sysconf("SC_PAGE_SIZE") == GRANULE


def test_the_last_block_of_a_full_space_may_be_given_back() -> None:
    space = Blocks(2 * GRANULE)
    space.allocate(GRANULE)
    last = space.allocate(GRANULE)
    assert last is not None
    assert space.gaps() == []
    space.free(last)
    assert space.gaps() == [(GRANULE, 2 * GRANULE)]


def test_a_block_costs_little_though_thousands_of_gaps_are_too_small_for_it() -> None:
    space = Blocks(1 << 40)
    small = [space.allocate(GRANULE) for _ in range(20_000)]
    for offset in small[::2]:
        assert offset is not None
        space.free(offset)

    def work() -> None:
        for _ in range(100):
            space.free(space.allocate(2 * GRANULE) or 0)

    assert steps(work) < 100_000


def test_thousands_of_gaps_stay_in_order_and_grow_together() -> None:
    space = Blocks(2_000 * GRANULE)
    for _ in range(1_000):
        space.allocate(2 * GRANULE)
    for page in random.Random(0).sample(range(0, 2_000, 2), 1_000):
        space.free(page * GRANULE)
        assert space.gaps() == sorted(space.gaps())
    assert space.gaps() == [(0, 2_000 * GRANULE)]
