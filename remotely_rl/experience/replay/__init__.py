"""Replay buffer: stored experience, and draws from it."""

from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.ratio import Ratio
from remotely_rl.experience.replay.replay import Draw, Replay

__all__ = ["Replay", "Draw", "Layout", "Ratio"]
