"""Each episode has a seed of its own, the first the user's."""

from remotely_rl.supervision.seeds import Seeds


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
