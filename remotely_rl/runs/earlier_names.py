"""Names in run folders of earlier versions, and what they are called now.

Older folders can be read, plotted, evaluated and resumed: the readers of their files rename what
they find by these tables.
"""

import functools
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from remotely_rl.environments import name_of

Value = TypeVar("Value")

FIELDS = {  # of config.json
    "trajectory_steps": "rollout_steps",
    "steps": "total_steps",
    "trace_decay": "gae_lambda",
    "standardise": "normalize_advantage",
    "scale_values": "normalize_values",
    "kl_target": "target_kl",
    "entropy": "entropy_coef",
    "entropy_end": "entropy_coef_end",
    "decay_steps": "anneal_steps",
    "value_weight": "value_coef",
    "passes": "epochs",
    "clip": "clip_range",
    "interval_s": "log_interval_s",
    "checkpoint_s": "checkpoint_interval_s",
    "scale_rate": "rate_rule",
}

# Values of fields of config.json that were True or False, by the fields' names of today.
VALUES = {"rate_rule": {True: "sqrt", False: "none"}}

# Fields of config.json that an algorithm had and did not use, by their names of today.
REMOVED = {
    "a2c": ("target_kl",),
    "a3c": ("target_kl", "device", "learner_threads"),
    "n_step_q": (
        "target_kl", "device", "learner_threads", "normalize_advantage", "entropy_coef",
        "entropy_coef_end", "value_coef",
    ),
}  # fmt: skip

# Fields of config.json that an algorithm had, with the one value by which it learns today as then.
ONLY = {
    **{name: {"lstm": 0} for name in ("ga3c", "dqn", "c51", "rainbow")},
    "sac": {"lstm": 0, "n_step": 1},
    "n_step_q": {"lstm": 0, "normalize_values": False},
}

# What config.json said where nothing was given, when a rate was steered whether given or not.
STEERED = {"target_kl": 0.01, "learning_rate": 1e-3}

# Fields of config.json that every algorithm had, with their default in all environments, and that
# meant something in Atari games alone.
ATARI_DEFAULTS = {"image_size": 42}

COLUMNS = {  # of metrics.csv
    "seconds": "time/seconds",
    "env_steps": "time/env_steps",
    "updates": "time/updates",
    "steps_per_second": "time/steps_per_second",
    "episodes": "rollout/episodes",
    "return_mean": "rollout/return_mean",
    "return_max": "rollout/return_max",
    "episode_length_mean": "rollout/episode_length_mean",
    "loss_policy": "train/policy_loss",
    "loss_value": "train/value_loss",
    "entropy": "train/entropy",
    "staleness_mean": "train/staleness_mean",
    "staleness_max": "train/staleness_max",
    "environment_s": "time/environment_s",
    "inference_s": "time/inference_s",
    "learning_s": "time/learning_s",
    "waiting_s": "time/waiting_s",
    "idle_s": "time/idle_s",
    "staleness_min": "train/staleness_min",
    "return_interval": "rollout/return_interval",
    "learning_rate": "train/learning_rate",
    "kl": "train/approx_kl",
    "gradient_norm": "train/grad_norm",
    "rewards_clipped": "train/rewards_clipped",
}


def of_environment(source: Any) -> str:
    """Return what an environment was called: every functools.partial the same."""
    return "partial" if isinstance(source, functools.partial) else name_of(source)


def renamed(named: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    """Return the same values under the current names."""
    return {names.get(name, name): value for name, value in named.items()}


def renamed_state(state: Mapping[str, Value], own: Collection[str]) -> dict[str, Value]:
    """Return the tensors of a model's checkpoint under the names of today.

    `own` are the names in the model: a model of the user's keeps the names that it has.
    """
    return {
        name if name in own else name.replace("normaliser", "normalizer"): tensor
        for name, tensor in state.items()
    }
