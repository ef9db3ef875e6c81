"""Replay: experience that is kept, and drawn from again and again."""

from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.ratio import Ratio
from remotely_rl.experience.replay.replay import Draw, Replay

__all__ = ["Replay", "Draw", "Layout", "Ratio"]
