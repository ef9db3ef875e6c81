"""The settings of training runs; each algorithm's Config adds its own.

`settings.py` says what a field is made of.  Its prose is the help of `remotely-rl train`; its
bounds are checked when a Config is made.

    Common                every algorithm                                  common.py
    OnPolicy              targets from trajectories and their values       on_policy.py
      PolicyGradient, SeveralEpochs, Streaming, CentralInference
      Shared              workers that share parameters by a sync rule     shared.py
    OffPolicy             a replay of past experience                      off_policy.py
"""

from remotely_rl.config.common import Arrivals, Common, device_of
from remotely_rl.config.off_policy import OffPolicy
from remotely_rl.config.on_policy import (
    CentralInference,
    OnPolicy,
    PolicyGradient,
    SeveralEpochs,
    Streaming,
)
from remotely_rl.config.shared import Shared

__all__ = [
    "GROUPS",
    "Arrivals",
    "CentralInference",
    "Common",
    "OffPolicy",
    "OnPolicy",
    "PolicyGradient",
    "SeveralEpochs",
    "Shared",
    "Streaming",
    "device_of",
]

# How `remotely-rl train ALGORITHM --help` groups the fields; the others are under Learning.
GROUPS: dict[str, tuple[str, ...]] = {
    "Start here": ("env", "actors", "minutes", "total_steps", "learning_rate", "seed"),
    "Environment": (
        "random_start", "image_size", "gray", "frame_stack", "sticky_actions",
        "life_loss_is_terminal", "reward_clip", "step_timeout_s", "max_crash_rate",
    ),
    "Sampling": (
        "arrivals", "envs_per_actor", "rollout_steps", "overlap", "batch_trajectories", "ahead",
        "max_staleness", "predictors", "adjust_s", "most_agents", "predict_requests",
        "predict_wait_ms", "explore_steps", "epsilon", "epsilon_spread",
    ),
    "Replay": (
        "replay_rows", "learn_from", "replay_ratio", "batch_size", "n_step", "prioritized_alpha",
        "prioritized_beta", "save_replay",
    ),
    "Learning": (),
    "Run": ("target", "log_interval_s", "checkpoint_interval_s", "play_epsilon"),
    "Machine": ("device", "precision", "compile", "learner_threads"),
}  # fmt: skip
