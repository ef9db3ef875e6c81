"""Replay buffer: stored experience, and draws from it."""

from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.ratio import Ratio
from remotely_rl.experience.replay.replay import Draw, Replay
from remotely_rl.experience.replay.sequences import SequenceInput, Sequences

__all__ = ["Draw", "Layout", "Ratio", "Replay", "SequenceInput", "Sequences"]
