"""Replay buffer: stored experience, and draws from it."""

from remotely_rl.experience.replay.hindsight import Hindsight
from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.ratio import Ratio
from remotely_rl.experience.replay.replay import Draw, Replay
from remotely_rl.experience.replay.sequences import SequenceInput, Sequences

__all__ = [
    "Draw",
    "Hindsight",
    "Layout",
    "Ratio",
    "Replay",
    "SequenceInput",
    "Sequences",
]
