"""Blocks never overlap, never leave their space, and come back whole."""

import os

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from remotely.values.blocks import GRANULE, Blocks

PAGES = 40


class Play(RuleBasedStateMachine):
    """Against a slow oracle: one flag a page."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(PAGES * GRANULE)
        self.pages = [False] * PAGES

    @rule(target=taken, nbytes=st.integers(1, 12 * GRANULE))
    def take(self, nbytes: int) -> tuple[int, int] | None:
        count = -(-nbytes // GRANULE)
        fits = [i for i in range(PAGES - count + 1) if not any(self.pages[i : i + count])]
        offset = self.blocks.take(nbytes)
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
            self.blocks.give(page * GRANULE)
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
    blocks = Blocks(4 * GRANULE)
    assert blocks.take(5 * GRANULE) is None
    assert blocks.take(4 * GRANULE) == 0
    assert blocks.take(1) is None


def test_the_block_that_was_just_given_back_is_taken_again_because_its_pages_are_warm() -> None:
    blocks = Blocks(100 * GRANULE)
    for _ in range(10):
        offset = blocks.take(3 * GRANULE)
        assert offset == 0
        blocks.give(offset)


def test_giving_back_what_was_not_taken_is_an_error() -> None:
    blocks = Blocks(4 * GRANULE)
    with pytest.raises(KeyError):
        blocks.give(0)


def test_a_block_is_of_whole_pages_so_that_it_can_be_mapped_by_itself() -> None:
    assert os.sysconf("SC_PAGE_SIZE") == GRANULE


def test_the_last_block_of_a_full_space_may_be_given_back() -> None:
    blocks = Blocks(2 * GRANULE)
    blocks.take(GRANULE)
    last = blocks.take(GRANULE)
    assert last is not None
    assert blocks.gaps() == []
    blocks.give(last)
    assert blocks.gaps() == [(GRANULE, 2 * GRANULE)]
