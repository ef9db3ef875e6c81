"""Each episode has a seed of its own, the first the user's."""

import numpy as np
import pytest

from remotely_rl.supervision.seeds import Seeds, of_each


def test_the_first_seed_is_the_users() -> None:
    assert Seeds(7).next() == 7


def test_the_same_seed_gives_the_same_episodes() -> None:
    first, second = Seeds(7), Seeds(7)
    assert [first.next() for _ in range(5)] == [second.next() for _ in range(5)]


def test_seeds_beside_each_other_share_no_episode() -> None:
    drawn = [(seeds := Seeds(first), [seeds.next() for _ in range(100)])[1] for first in range(50)]
    assert len({seed for episode in drawn for seed in episode}) == 5_000


def test_without_a_seed_one_is_drawn() -> None:
    assert Seeds().next() != Seeds().next()


def test_the_seeds_of_a_batch_are_those_that_gymnasium_derives() -> None:
    assert of_each(None, 2) == [None, None]
    assert of_each(5, 3) == of_each(np.int64(5), 3) == [5, 6, 7]
    assert of_each((3, None), 2) == [3, None]
    with pytest.raises(ValueError, match="2 seeds for 3 environments"):
        of_each([1, 2], 3)
