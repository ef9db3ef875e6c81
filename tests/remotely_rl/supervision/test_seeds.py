"""Tests of the seeds of episodes."""

import numpy as np
import pytest

from remotely_rl.supervision.seeds import Seeds, of_each


def test_the_users_seed_is_the_first_and_determines_the_others() -> None:
    first, second = Seeds(7), Seeds(7)
    seeds = [first.next() for _ in range(5)]
    assert seeds[0] == 7
    assert seeds == [second.next() for _ in range(5)]
    assert Seeds().next() != Seeds().next()  # random without a seed


def test_neighboring_seeds_share_no_episode() -> None:
    drawn = [(seeds := Seeds(first), [seeds.next() for _ in range(100)])[1] for first in range(50)]
    assert len({seed for episode in drawn for seed in episode}) == 5_000


def test_the_seeds_of_environments_are_derived_as_in_gymnasium() -> None:
    assert of_each(None, 2) == [None, None]
    assert of_each(5, 3) == of_each(np.int64(5), 3) == [5, 6, 7]
    assert of_each((3, None), 2) == [3, None]
    with pytest.raises(ValueError, match="2 seeds for 3 environments"):
        of_each([1, 2], 3)
