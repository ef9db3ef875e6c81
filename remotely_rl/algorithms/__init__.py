"""The algorithms, one file each.

Each has a `Config`, an `update` or more that reads top to bottom, and
`train(config, model, run=..., resume=...)`.
"""

import importlib
from types import ModuleType
from typing import NamedTuple

from remotely_rl.errors import TrainingError, nearest


class Algorithm(NamedTuple):
    """What the command line says of one."""

    summary: str
    description: str


ALGORITHMS = {
    "a2c": Algorithm(
        "Rounds of a few steps, one update each.",
        "All actors step in lock-step, and the learner takes one step on what they bring.",
    ),
    "ppo": Algorithm(
        "Rounds, gone over several times within bounds.",
        "All actors sample with the same parameters; several passes over what they bring move"
        " the policy, but never far.",
    ),
    "impala": Algorithm(
        "Actors that run free, a learner that corrects for it.",
        "Actors that run free, and a learner that corrects by V-trace for their being behind.",
    ),
    "appo": Algorithm(
        "PPO's loss on IMPALA's stream.",
        "Actors that run free; values and advantages are V-trace's, the loss is PPO's.",
    ),
    "ga3c": Algorithm(
        "Agents without a model, predictors that batch their requests.",
        "Agents ask a predictor what to do; it answers many at once, and trainers learn from"
        " what the agents saw.",
    ),
    "a3c": Algorithm(
        "Workers that share parameters by a sync rule.",
        "Workers compute gradients of their own segments; a rule, --sync, says how these become"
        " one set of parameters: asynchronous, semi_async, fasgd and more.",
    ),
    "n_step_q": Algorithm(
        "Asynchronous n-step Q-learning, one-step Q, SARSA.",
        "Epsilon-greedy workers learn values of actions; a rule, --sync, says how their"
        " gradients become one set of parameters.",
    ),
}


def named(name: str) -> ModuleType:
    """The module of an algorithm.  Raises TrainingError for an unknown name."""
    if name not in ALGORITHMS:
        hint = nearest(name, ALGORITHMS) or f"; there is {', '.join(ALGORITHMS)}"
        raise TrainingError(f"no algorithm is called {name!r}{hint}")
    return importlib.import_module(f"remotely_rl.algorithms.{name}")
