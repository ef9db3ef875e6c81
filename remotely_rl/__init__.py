"""Distributed reinforcement learning on `remotely`.

    from remotely_rl import ppo

    ppo.train(ppo.Config(env="ALE/Pong-v5", actors=2, minutes=15))

An algorithm's file in `algorithms/` reads from top to bottom: settings, losses, update, training
loop.  The shared parts are packages:

    functions      returns, losses, distributions: pure functions of tensors
    networks       models that map observations to policy and value
    environments   one interface for Gymnasium, Atari and your own environments
    experience     trajectories, batches and replay
    acting         actors, and sampling in rounds or in a stream; evaluations
    learning       the learner, the inference server, the parameter server
    sync           sync rules, by which workers share parameters
    runs           a training run: folder, metrics, checkpoints, resuming
    agents         loading, evaluating and filming trained agents

An algorithm in a file of your own imports its parts from here (docs/own_algorithm.md):

    from remotely_rl import Common, Session, Train, fields, sampling

For a trainer of your own there are fault-tolerant environments, local or on a cluster:

    supervision    crash detection, crash reports and their replay
    vector         VectorEnv, a Gymnasium vector environment
    sb3            the same for Stable-Baselines3
"""

import importlib
from typing import TYPE_CHECKING, Any

import remotely_rl.learning.threads  # noqa: F401 - sets OpenMP's variables, so before torch
from remotely_rl import other_names
from remotely_rl.algorithms import ALGORITHMS
from remotely_rl.errors import TrainingError, check_is_of_extra

if TYPE_CHECKING:
    import remotely_rl.algorithms.a2c as a2c
    import remotely_rl.algorithms.a3c as a3c
    import remotely_rl.algorithms.appo as appo
    import remotely_rl.algorithms.c51 as c51
    import remotely_rl.algorithms.crossq as crossq
    import remotely_rl.algorithms.dqn as dqn
    import remotely_rl.algorithms.ga3c as ga3c
    import remotely_rl.algorithms.impala as impala
    import remotely_rl.algorithms.n_step_q as n_step_q
    import remotely_rl.algorithms.ppo as ppo
    import remotely_rl.algorithms.pqn as pqn
    import remotely_rl.algorithms.qr_dqn as qr_dqn
    import remotely_rl.algorithms.rainbow as rainbow
    import remotely_rl.algorithms.sac as sac
    import remotely_rl.algorithms.td3 as td3
    from remotely_rl.acting.actor import Actor
    from remotely_rl.acting.dial_in import dial_in
    from remotely_rl.agents.agent import Agent, load
    from remotely_rl.agents.self_play import SelfPlay
    from remotely_rl.config import Common, fields
    from remotely_rl.environments import MultiAgent, check
    from remotely_rl.experience.trajectory import Trajectory
    from remotely_rl.functions import losses, returns
    from remotely_rl.learning.learner import (
        Learner,
        Losses,
        TargetLearner,
        actor_critic_losses,
        make_batch,
        to_device,
    )
    from remotely_rl.runs import replaying, sampling
    from remotely_rl.runs.hooks import Hook
    from remotely_rl.runs.result import Result
    from remotely_rl.runs.session import Session
    from remotely_rl.runs.training import Train
    from remotely_rl.supervision import CrashReport
    from remotely_rl.vector import VectorEnv

__all__ = [
    "Agent",
    "CrashReport",
    "Hook",
    "MultiAgent",
    "Result",
    "SelfPlay",
    "TrainingError",
    "VectorEnv",
    "a2c",
    "a3c",
    "appo",
    "c51",
    "check",
    "crossq",
    "dial_in",
    "dqn",
    "ga3c",
    "impala",
    "load",
    "n_step_q",
    "ppo",
    "pqn",
    "qr_dqn",
    "rainbow",
    "sac",
    "td3",
    # for an algorithm in a file of your own
    "Actor",
    "Common",
    "Learner",
    "Losses",
    "Session",
    "TargetLearner",
    "Train",
    "Trajectory",
    "actor_critic_losses",
    "fields",
    "losses",
    "make_batch",
    "replaying",
    "returns",
    "sampling",
    "to_device",
]

_HOMES = {
    "Agent": "agents.agent",
    "CrashReport": "supervision",
    "Hook": "runs.hooks",
    "MultiAgent": "environments",
    "Result": "runs.result",
    "SelfPlay": "agents.self_play",
    "VectorEnv": "vector",
    "check": "environments",
    "dial_in": "acting.dial_in",
    "load": "agents.agent",
    "Actor": "acting.actor",
    "Common": "config",
    "Learner": "learning.learner",
    "Losses": "learning.learner",
    "Session": "runs.session",
    "TargetLearner": "learning.learner",
    "Train": "runs.training",
    "Trajectory": "experience.trajectory",
    "actor_critic_losses": "learning.learner",
    "fields": "config",
    "losses": "functions",
    "make_batch": "learning.learner",
    "replaying": "runs",
    "returns": "functions",
    "sampling": "runs",
    "to_device": "learning.learner",
}


if not TYPE_CHECKING:  # or type checkers accept any name

    def __getattr__(name: str) -> Any:
        """Import a name on first use: nearly all import torch, which takes two seconds."""
        home = "algorithms" if name in ALGORITHMS else _HOMES.get(name)
        if home is None:
            raise other_names.no_such_name(name, ALGORITHMS, __all__)
        try:
            module = importlib.import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return getattr(module, name)
            return importlib.import_module(f"{module.__name__}.{name}")
        except ModuleNotFoundError as error:
            check_is_of_extra(error)
            raise

    def __dir__() -> list[str]:
        """List the public names before their first use, for completion."""
        return sorted({*globals(), *__all__})
