"""Tests of a replay in an actor."""

import numpy as np
import pytest

import remotely
from remotely_rl import trees
from remotely_rl.errors import ReplayError
from remotely_rl.experience.replay import Replay
from tests.remotely_rl.experience.replay.worlds import World


@remotely.remote_class
class Shard(Replay):
    """A replay in an actor."""


@pytest.mark.parametrize("as_tree", [False, True])
def test_a_replay_in_an_actor_draws_the_same(cluster: str, as_tree: bool) -> None:
    world = World(4, as_tree=as_tree)
    example = world.play(3)
    here = Replay(400, 4, example, alpha=0.6, seed=5)
    shard = Shard(400, 4, example, alpha=0.6, seed=5)
    for _ in range(3):
        trajectory = world.play(20)
        here.append(trajectory)
        shard.append(trajectory)
        mine, theirs = here.draw(64), shard.draw.submit(64).result(timeout=40)
        for ours, others in zip(
            trees.leaves(tuple(mine)), trees.leaves(tuple(theirs)), strict=True
        ):
            assert np.array_equal(ours, others)
        here.update(mine.rows, np.abs(mine.reward))
        shard.update(theirs.rows, np.abs(theirs.reward))
        assert len(shard) == len(here)
    shard.n_step = here.n_step = 5
    assert len(shard) == len(here)


def test_errors_of_a_replay_in_an_actor_are_raised_here(cluster: str) -> None:
    shard = Shard(400, 4, World(4).play(3))
    with pytest.raises(ReplayError, match="no row to draw yet"):
        shard.draw(8)
