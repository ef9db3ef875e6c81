"""Tests of SumTree: it finds by mass, never a zero, and its sums stay exact."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely_rl.experience.replay.choices import SumTree


def tree_of(numbers: list[float]) -> SumTree:
    tree = SumTree(len(numbers))
    tree.set(np.arange(len(numbers)), np.array(numbers, np.float64))
    return tree


@pytest.mark.parametrize(
    ("share", "leaf"),
    [(0, 0), (0.05, 0), (0.1, 1), (0.25, 1), (0.3, 2), (0.5, 2), (0.6, 3), (0.99, 3)],
)
def test_the_range_of_a_number_is_half_open(share: float, leaf: int) -> None:
    tree = tree_of([1, 2, 3, 4])
    assert tree.total == 10
    assert tree.find(np.array([share * tree.total])).tolist() == [leaf]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1_024, 1_025, 40_000])
def test_every_number_is_found_at_its_running_sum(size: int) -> None:
    numbers = np.random.default_rng(size).integers(1, 9, size).astype(np.float64)
    tree = tree_of(numbers.tolist())
    ends = numbers.cumsum()  # whole numbers: sums are exact in any order
    assert tree.total == ends[-1]
    assert np.array_equal(tree.find(ends - numbers), np.arange(size))
    assert np.array_equal(tree.find(ends - 0.5), np.arange(size))


def test_a_million_updates_leave_the_sums_exact() -> None:
    random = np.random.default_rng(1)
    tree = SumTree(5_000)
    expected = np.zeros(5_000)
    for _ in range(1_000):
        at = random.integers(0, 5_000, 1_000)
        numbers = random.random(1_000) ** 9
        tree.set(at, numbers)
        expected[at] = numbers
    fresh = tree_of(expected.tolist())
    assert np.array_equal(tree.leaves, fresh.leaves)
    assert tree.total == fresh.total
    mass = random.random(10_000) * tree.total
    assert np.array_equal(tree.find(mass), fresh.find(mass))


def test_rebuild_updates_the_sums() -> None:
    tree = SumTree(3_000)
    tree.leaves[:3_000] = 2
    tree.rebuild()
    assert tree.total == 6_000
    assert tree.find(np.array([5_999.0])).tolist() == [2_999]


@given(st.lists(st.sampled_from([0.0, 1e-300, 1e-6, 1 / 3, 1.0, 1e9]), min_size=1, max_size=80))
def test_a_zero_is_never_drawn(numbers: list[float]) -> None:
    tree = tree_of(numbers)
    if tree.total:
        edge = np.nextafter(tree.total, 0)
        mass = np.append(np.linspace(0, edge, 200), edge)
        assert (np.array(numbers)[tree.find(mass)] > 0).all()


def test_numbers_are_found_in_proportion() -> None:
    numbers = np.array([0.0, 5.0, 1.0, 0.0, 2.5] * 20)
    tree = tree_of(numbers.tolist())
    drawn = tree.find((np.arange(17_000) + 0.5) / 17_000 * tree.total)
    counts = np.bincount(drawn, minlength=100)
    assert np.abs(counts - numbers / numbers.sum() * 17_000).max() <= 1
