"""The settings of training runs.

    Common    fields of every algorithm: run, environment, machine    common.py
    fields    fields that several algorithms share                    fields.py
    presets   tuned settings for environments, with their results     presets.py
    hardware  the numbers that fit it, where "auto" is asked          hardware.py

An algorithm's Config, in its own file, adds its fields to Common.  `settings.py` defines what a
field consists of.  Its description is the help of `remotely-rl train`; its bounds are checked when
a Config is made.
"""

from remotely_rl.config import fields, hardware, presets
from remotely_rl.config.common import (
    Common,
    device_named,
    device_of,
    joint_learners_of,
    learners_of,
    measures_norms,
    rate_factor,
    resets_in_pause,
    sampling_of,
    shares_store,
    target_kl_of,
)

__all__ = [
    "GROUPS",
    "Common",
    "device_named",
    "device_of",
    "fields",
    "hardware",
    "joint_learners_of",
    "learners_of",
    "measures_norms",
    "presets",
    "rate_factor",
    "resets_in_pause",
    "sampling_of",
    "shares_store",
    "target_kl_of",
]

# The groups of fields in `remotely-rl train ALGORITHM --help`; all other fields are in Learning.
GROUPS: dict[str, tuple[str, ...]] = {
    "Start here": ("env", "preset", "actors", "minutes", "total_steps", "learning_rate", "seed"),
    "Environment": (
        "env_kwargs",
        "wrappers",
        "env_python",
        "env_packages",
        "random_start",
        "probe_steps",
        "image_size",
        "gray",
        "frame_stack",
        "sticky_actions",
        "life_loss_is_terminal",
        "reward_clip",
        "step_timeout_s",
        "max_crash_rate",
    ),
    "Sampling": (
        "sampling",
        "resets",
        "arrivals",
        "envs_per_actor",
        "batch_rows",
        "rollout_steps",
        "overlap",
        "batch_trajectories",
        "ahead",
        "max_staleness",
        "predictors",
        "predict_requests",
        "predict_wait_ms",
        "explore_steps",
        "epsilon",
        "epsilon_spread",
        "exploration_noise",
    ),
    "Replay": (
        "replay_rows",
        "learn_from",
        "replay_ratio",
        "batch_size",
        "n_step",
        "sequence_length",
        "burn_in",
        "prioritized_alpha",
        "prioritized_beta",
        "hindsight",
        "save_replay",
    ),
    "Learning": (),
    "Network": (
        "hidden",
        "activation",
        "network",
        "lstm",
        "normalize_observations",
        "log_std_start",
        "free_log_std",
    ),
    "Run": (
        "target",
        "evaluate_every",
        "evaluate_episodes",
        "evaluate_greedy",
        "evaluate_env",
        "evaluate_env_kwargs",
        "best_by",
        "log_interval_s",
        "metrics",
        "checkpoint_interval_s",
        "play_epsilon",
    ),
    "Machine": (
        "learners",
        "learners_share",
        "steps_per_push",
        "device",
        "precision",
        "compile",
        "learner_threads",
    ),
}
