"""Rewards that the learner clips: how many they are, and when a run reports them.

A clipped reward says only that it was good or bad.  Where its size matters, the agent learns
another task than the one it is scored by, and its returns may fall while all losses look fine.
So a run reports clipping as soon as it happens, and again at its end.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from remotely_rl.experience.trajectory import Trajectory


def clipped_share(reward: NDArray[np.float32], valid: NDArray[np.bool_], bound: float) -> float:
    """The share of valid rewards [T, B] that are beyond the bound; 0 if the bound is 0."""
    if not bound or not valid.any():
        return 0.0
    return float((np.abs(reward[valid]) > bound).mean())


class RewardClipper:
    """Clips rewards to [-bound, bound] and counts how many that changes; 0 clips nothing."""

    def __init__(self, bound: float):
        self.bound = bound
        self._shares: list[float] = []  # one for each trajectory

    def clip(self, reward: Tensor, trajectory: Trajectory) -> Tensor:
        """Clips the rewards of a trajectory, which are on the learner's device already."""
        if not self.bound:
            return reward
        self.count(trajectory)
        return reward.clamp(-self.bound, self.bound)

    def count(self, trajectory: Trajectory) -> None:
        """Counts a trajectory whose rewards are clipped elsewhere."""
        if self.bound:
            self._shares.append(clipped_share(trajectory.reward, trajectory.valid, self.bound))

    def pop_metrics(self) -> dict[str, float]:
        """The share of rewards clipped since the last call; nothing if none could be."""
        shares, self._shares = self._shares, []
        return {"train/rewards_clipped": sum(shares) / len(shares)} if shares else {}


class ClippingReport:
    """Adds up what the updates of a run clipped, and says so in a sentence."""

    def __init__(self, bound: float):
        self._bound = bound
        self._sum = 0.0
        self._updates = 0
        self._is_told = False

    def count(self, metrics: dict[str, float]) -> None:
        """Counts an update with these metrics."""
        if "train/rewards_clipped" in metrics:
            self._sum += metrics["train/rewards_clipped"]
            self._updates += 1

    def news(self) -> str:
        """The sentence, the first time that there is something to tell; else nothing."""
        if self._is_told:
            return ""
        self._is_told = self._sum > 0
        return self.summary()

    def summary(self) -> str:
        """The sentence, or nothing if no reward was clipped."""
        if not self._sum:
            return ""
        percent = f"{100 * self._sum / self._updates:.2g}"
        return (
            f"{percent} % of rewards were clipped to {self._bound:g} for the learner; reported"
            " returns are not clipped.  Set reward_clip=0 to learn from the size of rewards"
        )
