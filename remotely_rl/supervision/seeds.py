"""The seed of each episode, so that every episode can be replayed by itself.

Environments draw from one random stream for all their episodes.  To replay the hundredth, one has
to play the 99 before.  So each episode gets a seed of its own: the first is the user's seed, those
after it are derived from it and the number of the episode.
"""

import numpy as np


def derive(seed: int, *path: int) -> int:
    """Return a seed of 32 bits that is determined by `seed` and `path`, and looks like neither."""
    return int(np.random.SeedSequence((seed, *path)).generate_state(1)[0])


def draw() -> int:
    """Return a seed that nothing determines."""
    return int(np.random.SeedSequence().generate_state(1)[0])


class Seeds:
    """The seeds of an environment's episodes; the first is `seed`."""

    def __init__(self, seed: int | None = None):
        self.seed = draw() if seed is None else seed
        self._count = 0

    def next(self) -> int:
        """Return the seed of the next episode."""
        count, self._count = self._count, self._count + 1
        return derive(self.seed, count) if count else self.seed
