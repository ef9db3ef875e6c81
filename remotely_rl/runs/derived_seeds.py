"""The seeds of a run's parts, derived from the seed of its config."""

import numpy as np


def seed_from(*words: int) -> int:
    """Return a seed derived from all of these numbers; missing ones count as zeros."""
    return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1


# Of seed_from's words, each of these has its own that is not zero, so that no two are equal.


def seed_of_actor(seed: int, times_resumed: int, number: int) -> int:
    """Return the seed of an actor."""
    return seed_from(seed, times_resumed, number)


def seed_of_evaluation(seed: int, env_steps: int) -> int:
    """Return the seed of an evaluation."""
    return seed_from(seed, 0, 0, env_steps)


def seed_of_learner(seed: int, rank: int) -> int:
    """Return the seed of a learner other than rank 0, which has the run's."""
    return seed_from(seed, 0, 0, 0, rank)
