"""Environments from any source under one contract (`contract.py`).

from remotely_rl import environments

envs = environments.make("ALE/Pong-v5", 16)     # or your own callable: see `sources.py`
obs = envs.reset(seed=1)
obs, reward, terminated, truncated, valid, begins = envs.step(action)
"""

from remotely_rl.environments.additions import Wrapper
from remotely_rl.environments.atari import Atari
from remotely_rl.environments.checks import check
from remotely_rl.environments.contract import Environments, Step
from remotely_rl.environments.episodes import Episode
from remotely_rl.environments.images import Images
from remotely_rl.environments.multi_agent import MultiAgent
from remotely_rl.environments.names import name_of
from remotely_rl.environments.sources import (
    Plan,
    Source,
    agents_of,
    check_is_known,
    is_atari,
    make,
    makes_vector,
    plan,
)
from remotely_rl.supervision.watchdog import Watch

__all__ = [
    "Atari",
    "Environments",
    "Episode",
    "Images",
    "MultiAgent",
    "Plan",
    "Source",
    "Step",
    "Watch",
    "Wrapper",
    "agents_of",
    "check",
    "check_is_known",
    "is_atari",
    "make",
    "makes_vector",
    "name_of",
    "plan",
]
