"""Seeds of single episodes, so that every episode can be replayed on its own.

An environment draws all its episodes from one random stream: to replay the hundredth, you must play
the 99 before it.  So each episode gets its own seed: the first is the user's, others are derived
from it and the number of the episode.  The generator is SplitMix64 (Steele et al. 2014,
https://doi.org/10.1145/2660193.2660195), because numpy's SeedSequence takes as long as a step.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

_GAMMA, _ONE, _TWO, _BITS = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    (1 << 64) - 1,
)


def derive(seed: int, number: int) -> int:
    """Return a 32-bit seed, a hash of `seed` and `number`.

    It is output `number` of the generator that starts at the hash of `seed`, so that neighboring
    seeds share no part of their sequences.
    """
    return _mix((_mix(seed & _BITS) + number * _GAMMA) & _BITS) >> 32


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _ONE) & _BITS
    z = ((z ^ (z >> 27)) * _TWO) & _BITS
    return z ^ (z >> 31)


def draw() -> int:
    """Return a random seed."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def of_each(
    seed: int | np.integer[Any] | Sequence[int | None] | None, count: int
) -> list[int | None]:
    """Return a seed for each environment, derived from a single one as in Gymnasium.

    Raises ValueError for a wrong number of seeds.
    """
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(count)]
    if len(seed) != count:
        raise ValueError(f"{len(seed)} seeds for {count} environments")
    return list(seed)


class Seeds:
    """The seeds of an environment's episodes; the first is `seed`."""

    def __init__(self, seed: int | None = None):
        self.seed = draw() if seed is None else seed
        self._count = 0

    def next(self) -> int:
        """Return the seed of the next episode."""
        count, self._count = self._count, self._count + 1
        return derive(self.seed, count) if count else self.seed
