"""Rewards that the learner clips: how many they are, and when a run tells of them.

A clipped reward says only that it was good or bad.  Where its size matters the agent learns
another task than it is scored by, and its returns may fall while all losses look well: so a run
tells as soon as it happens, and at its end.
"""

import numpy as np
from numpy.typing import NDArray


def share(reward: NDArray[np.float32], valid: NDArray[np.bool_], bound: float) -> float:
    """Which part of the rewards [T, B] that are experience is beyond the bound, 0 if that is 0."""
    if not bound or not valid.any():
        return 0.0
    return float((np.abs(reward[valid]) > bound).mean())


class Clipped:
    """Counts the shares of a run's updates."""

    def __init__(self, bound: float):
        self._bound = bound
        self._sum = 0.0
        self._updates = 0
        self._is_told = False

    def count(self, numbers: dict[str, float]) -> None:
        """Counts an update in, of which a metrics row has these numbers."""
        if "train/rewards_clipped" in numbers:
            self._sum += numbers["train/rewards_clipped"]
            self._updates += 1

    def news(self) -> str:
        """A sentence, once there is something to tell; later on none."""
        if self._is_told:
            return ""
        self._is_told = self._sum > 0
        return self.in_all()

    def in_all(self) -> str:
        """The sentence, or nothing if no reward was clipped."""
        if not self._sum:
            return ""
        percent = f"{100 * self._sum / self._updates:.2g}"
        return (
            f"{percent} % of rewards were clipped to {self._bound:g} for the learner, returns are"
            " told in full; with reward_clip=0 it learns from their size"
        )
