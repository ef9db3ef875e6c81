"""The algorithms, one file each.

Each has a `Config`, its losses, an `update` that reads like the paper, and
`train(config, model, run=..., resume=...)`.
"""

import importlib
from types import ModuleType
from typing import NamedTuple

from remotely_rl.errors import TrainingError, nearest


class Algorithm(NamedTuple):
    """What the command line says about an algorithm."""

    summary: str
    description: str


ALGORITHMS = {
    "a2c": Algorithm(
        "Short synchronous rounds, one update each.",
        "All actors step in lock-step, and the learner takes one step on what they sampled.",
    ),
    "ppo": Algorithm(
        "Synchronous rounds, several epochs of clipped updates each.",
        "All actors sample with the same parameters; several epochs over the round improve the"
        " policy without moving it far.",
    ),
    "impala": Algorithm(
        "Actors that never wait, off-policy correction by V-trace.",
        "Actors keep sampling while the learner learns; V-trace corrects for their older policies.",
    ),
    "appo": Algorithm(
        "PPO's loss with IMPALA's actors.",
        "Actors keep sampling while the learner learns; values and advantages are V-trace's, the"
        " loss is PPO's.",
    ),
    "ga3c": Algorithm(
        "Agents without a model, an inference server that batches their requests.",
        "Agents ask an inference server what to do; it answers many requests at once, and trainer"
        " threads learn from the agents' experience.",
    ),
    "a3c": Algorithm(
        "Workers that push gradients to shared parameters by a sync rule.",
        "Workers compute gradients of their own segments; a rule, --sync, turns these into one set"
        " of parameters: asynchronous, semi_async, fasgd and more.",
    ),
    "sac": Algorithm(
        "Continuous actions, learnt from a replay by a policy that stays random.",
        "Actors fill a replay; two critics learn values from it, and the policy learns to collect"
        " rewards while its entropy is held at a target.",
    ),
    "td3": Algorithm(
        "Continuous actions, learnt from a replay by a policy without chance.",
        "Actors fill a replay with noise on their actions; two critics learn values from it, and"
        " the policy follows the gradient of one of them, half as often.",
    ),
    "n_step_q": Algorithm(
        "Asynchronous n-step Q-learning, one-step Q, SARSA.",
        "Epsilon-greedy workers learn action values; a rule, --sync, turns their gradients into one"
        " set of parameters.",
    ),
    "dqn": Algorithm(
        "Action values from a replay: double, dueling, n-step, prioritized.",
        "Epsilon-greedy actors fill a replay in rounds; the learner draws each step from it several"
        " times.",
    ),
    "c51": Algorithm(
        "DQN that learns distributions of returns.",
        "DQN with the probabilities of 51 returns for each action in place of their mean.",
    ),
    "qr_dqn": Algorithm(
        "DQN that learns quantiles of returns.",
        "DQN with 200 quantiles of the returns of each action in place of their mean.",
    ),
    "rainbow": Algorithm(
        "DQN with all of it: distributions, priorities, noisy layers.",
        "DQN with C51's distributions, prioritized draws and weights that explore; with --no-noisy"
        " it explores by epsilon.",
    ),
}


def named(name: str) -> ModuleType:
    """The module of an algorithm.  Raises TrainingError for an unknown name."""
    if name not in ALGORITHMS:
        hint = nearest(name, ALGORITHMS) or f"; there is {', '.join(ALGORITHMS)}"
        raise TrainingError(f"no algorithm is called {name!r}{hint}")
    return importlib.import_module(f"remotely_rl.algorithms.{name}")
