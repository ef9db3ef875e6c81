"""Presets: tuned settings for environments, with measured results.

A preset is named after the environment that it was measured on, and applies to every version of it;
one with arguments of the environment, in which versions differ, to its own only.  A Config takes
one if its field `preset` asks for it; fields and arguments that you give take precedence.
"""

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from remotely_rl import settings
from remotely_rl.environments import additions, name_of
from remotely_rl.errors import TrainingError, nearest

AUTO, NONE, PAPER = "auto", "none", "paper"


class Measured(NamedTuple):
    """The results of `remotely-rl train ALGORITHM --env ENV --seed SEED`."""

    returns: tuple[float, ...]  # greedy evaluation of the last checkpoint, for seeds 1, 2, ...
    minutes: float  # training time, the median, on one core beside other programs
    commit: str

    def __str__(self) -> str:
        mean = statistics.fmean(self.returns)
        low, high = _shown(min(self.returns)), _shown(max(self.returns))
        return _shown(mean) + (f" ({low} to {high})" if low != high else "")


class Preset(NamedTuple):
    """A row of the table."""

    env: str
    algorithm: str
    settings: Mapping[str, Any]  # including `total_steps`, the end of the run
    measured: Measured

    @property
    def options(self) -> str:
        """The settings as command line options."""
        return " ".join(settings.option(name, value) for name, value in self.settings.items())

    def __str__(self) -> str:
        seeds = len(self.measured.returns)
        return (
            f"return {self.measured}, {seeds} seed{'s' if seeds > 1 else ''},"
            f" {self.settings['total_steps']:,} steps, {self.measured.minutes:g} minutes"
        )


# Small optimizer steps on large rounds, as in RL Baselines3 Zoo.  In rounds of 2,048 rows
# LunarLander's return was 223 with a steered learning rate, and 127 with an annealed one.
SMALL_STEPS: dict[str, Any] = {
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "batch_rows": 16_384,
    "minibatches": 256,
    "epochs": 4,
    "learning_rate": 3e-4,
    "learning_rate_end": 5e-5,
}
# On tables of a few hundred states a steered rate rose to 0.004, and Taxi's policy collapsed.
# Taxi's policy also settled on detours of two or four steps, unless entropy is worth 30 times the
# default at first: 7.39 on average without, 7.60 with 10 times, of 7.93.
FALLING_RATE: dict[str, Any] = {"learning_rate": 1e-3, "learning_rate_end": 1e-4}

# Tianshou's settings for all of MuJoCo.
MUJOCO: dict[str, Any] = {
    "actors": 1,
    "minibatches": 32,
    "epochs": 10,
    "learning_rate": 3e-4,
    "learning_rate_end": 1e-5,
    "entropy_coef": 0.0,
    "entropy_coef_end": 0.0,
    "value_coef": 0.25,
    "log_std_start": -0.5,
}

# Walkers want tianshou's deviations and advantages too: without, BipedalWalker's return was 272 and
# Walker2d's 3,168.  HalfCheetah's falls with them, from 5,190 to 4,632 (docs/lab/results.md).
WALKER: dict[str, Any] = {**MUJOCO, "free_log_std": True, "normalize_advantage": False}

# fmt: off
ROWS: tuple[Preset, ...] = (
    Preset(
        "CartPole-v1", "ppo",
        {"total_steps": 200_000, "minibatches": 32, "epochs": 10, "learning_rate": 0.0003,
         "learning_rate_end": 1e-05, "entropy_coef": 0.0, "entropy_coef_end": 0.0},
        Measured((500, 500, 500, 500, 500), 1.1, "6b86804"),
    ),
    Preset(
        "CartPole-v1", "pqn",
        {"total_steps": 100_000, "envs_per_actor": 16, "rollout_steps": 64, "minibatches": 16,
         "epochs": 4, "gae_lambda": 0.95, "learning_rate": 0.001, "explore_steps": 50_000},
        Measured((500, 500), 3.6, "716bc19"),
    ),
    Preset(
        "Acrobot-v1", "ppo",
        {"total_steps": 1_000_000},
        Measured((-68.6, -69.8, -73.3, -75.8, -70.6), 1.6, "108362d"),
    ),
    Preset(
        "MountainCar-v0", "dqn",
        {"total_steps": 120_000, "gamma": 0.98, "envs_per_actor": 8, "learn_from": 1_000,
         "replay_rows": 120_000, "replay_ratio": 32.0, "explore_steps": 24_000, "epsilon":
         0.07, "learning_rate": 0.001},
        Measured((-103.66, -102, -103.31, -104.42, -105.9), 2.0, "6b86804"),
    ),
    Preset(
        "MountainCarContinuous-v0", "ppo",
        {"total_steps": 300_000, "gamma": 0.9999, "log_std_start": 1.0, "entropy_coef": 0.0,
         "entropy_coef_end": 0.0},
        Measured((92.697, 91.228, 92.195, 93.774, 93.138), 0.3, "1fc3aa0"),
    ),
    Preset(
        "Pendulum-v1", "sac",
        {"total_steps": 15_000, "hidden": "64,64", "batch_size": 128, "replay_ratio": 128.0,
         "learning_rate": 0.001},
        Measured((-140.52, -140.54, -139.56, -142.02, -144.2), 1.2, "6b86804"),
    ),
    Preset(
        "Pendulum-v1", "td3",
        {"total_steps": 10_000, "gamma": 0.98, "hidden": "64,64", "batch_size": 128,
         "replay_ratio": 128.0, "learning_rate": 0.001},
        Measured((-136.30, -137.50, -144.20), 8.7, "77cc425"),
    ),
    Preset(
        "LunarLander-v3", "ppo",
        {"total_steps": 1_000_000, **SMALL_STEPS},
        Measured((280.92, 281.4, 277.8, 279.2, 263.41), 3.3, "6b86804"),
    ),
    Preset(
        "LunarLanderContinuous-v3", "ppo",
        {"total_steps": 2_000_000, **SMALL_STEPS},
        Measured((274.8, 286.1, 287.7, 251.0, 286.0), 9.1, "108362d"),
    ),
    Preset(
        "BipedalWalker-v3", "ppo",
        {"total_steps": 2_000_000, **WALKER},
        Measured((300.3, 276.7), 25.6, "8a21805"),
    ),
    Preset(
        "FrozenLake-v1", "ppo",
        {"total_steps": 300_000, **FALLING_RATE},
        Measured((0.7402, 0.7298, 0.7298, 0.7298, 0.7298), 0.4, "6b86804"),
    ),
    Preset(
        "Taxi-v4", "ppo",
        {"total_steps": 700_000, **FALLING_RATE, "entropy_coef": 0.3, "entropy_coef_end": 0.0},
        Measured((7.89, 7.8833, 7.8633, 7.8967, 7.8233), 1.9, "6f07c94"),
    ),
    Preset(
        "CliffWalking-v1", "dqn",
        {"total_steps": 60_000, "envs_per_actor": 4, "learn_from": 1_000, "explore_steps":
         40_000, "n_step": 1, "target_update_interval": 200, "learning_rate": 0.001},
        Measured((-13, -13, -13, -13, -13), 0.6, "6b86804"),
    ),
    Preset(
        "Blackjack-v1", "ppo",
        {"total_steps": 1_500_000, "batch_rows": 4_096, "learning_rate": 0.001,
         "learning_rate_end": 1e-05},
        Measured((-0.0443, -0.0448, -0.0449, -0.0438, -0.0448), 4.7, "108362d"),
    ),
    Preset(
        "HalfCheetah-v5", "ppo",
        {"total_steps": 1_000_000, **MUJOCO},
        Measured((5902.1, 5189.5, 6172.6), 5.3, "963cbb0"),
    ),
    Preset(
        "Hopper-v5", "ppo",
        {"total_steps": 1_000_000, **MUJOCO},
        Measured((2834.3, 3026.4, 3484.9), 18.5, "1f8e1eb"),
    ),
    Preset(
        "Walker2d-v5", "ppo",
        {"total_steps": 1_000_000, **WALKER},
        Measured((4046.9, 4447.6, 3424.2), 11.5, "8a21805"),
    ),
    Preset(
        "Ant-v5", "ppo",
        {"total_steps": 1_000_000, **WALKER,
         "env_kwargs": {"include_cfrc_ext_in_observation": False}},
        Measured((3281.6, 3218.7, 3276.4), 15.9, "8a21805"),
    ),
    Preset(
        "HalfCheetah-v5", "sac",
        {"total_steps": 1_000_000},
        Measured((8030, 10545), 121.0, "7b96ac9"),
    ),
    # Seeds 1, 14, 15, 16 and 18 until a target of 18; 15 was cut before.  Values, whose loss is
    # small beside that of normalized advantages, and entropy, which is spent early, decide how long
    # play stays at one level (docs/lab/results.md).
    Preset(
        "ALE/Pong-v5", "ppo",
        {"total_steps": 1_000_000, "anneal_steps": 700_000, "gamma": 0.98, "gae_lambda": 0.9,
         "value_coef": 2.0, "entropy_coef": 0.02},
        Measured((13.4, 19.4, 15.1, 20.3, 20.4), 6.7, "2c29a0a6"),
    ),
    # Until a target of 18.  Epsilon that falls over the default 100,000 steps is too quick.
    Preset(
        "ALE/Pong-v5", "pqn",
        {"total_steps": 1_000_000, "explore_steps": 200_000},
        Measured((20.0, 20.1), 15.5, "b578ad0d"),
    ),
)
# fmt: on


def find(algorithm: str, env: str) -> Preset | None:
    """Return the preset of an algorithm for an environment, in any version, or None."""
    rows = (row for row in ROWS if row.algorithm == algorithm)
    return next((row for row in rows if _fits(row, env)), None)


def algorithms_for(env: str) -> list[str]:
    """Return the algorithms that have a preset for an environment."""
    return [row.algorithm for row in ROWS if _fits(row, env)]


def named(algorithm: str, name: str) -> Preset:
    """Return an algorithm's preset by its name.  Raises TrainingError for an unknown name."""
    if found := find(algorithm, name):
        return found
    if others := algorithms_for(name):
        raise TrainingError(f"{algorithm} has no preset {name!r}, but {_have(others)}")
    known = [AUTO, NONE, PAPER, *(row.env for row in ROWS if row.algorithm == algorithm)]
    hint = nearest(name, known) or f": there is {', '.join(known)}"
    raise TrainingError(f"{algorithm} has no preset {name!r}{hint}")


def completed(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields to make a config of: those given, and those of its preset beside them.

    NONE, and AUTO without a preset for the environment, add nothing.  Raises TrainingError for an
    unknown preset, or a setting that the config's class does not have.
    """
    name, env = given.get("preset", kind.preset), given.get("env", kind.env)
    if name == NONE or len(given) == len(dataclasses.fields(kind)):
        return dict(given)  # with all fields given, it is a copy, which has the preset already
    if name == PAPER:
        chosen = kind.form_of_paper(env)
    else:
        algorithm = algorithm_of(kind)
        found = find(algorithm, name_of(env)) if name == AUTO else named(algorithm, name)
        if found is None:
            return dict(given)
        given = {**given, "preset": found.env}
        chosen = _for(found, env)
    settings.check_names(kind, chosen)
    whole = {**chosen, **given}
    if arguments := chosen.get("env_kwargs"):
        whole["env_kwargs"] = {
            **arguments,
            **additions.checked_arguments(given.get("env_kwargs", {})),
        }
    return whole


def remarks(config: Any) -> list[str]:
    """Return remarks on the preset that a run prints: its settings, and which are changed."""
    algorithm, name = algorithm_of(type(config)), config.preset
    if name == AUTO:
        env = name_of(config.env)
        others = algorithms_for(env) if "." not in algorithm else ()
        return [f"no preset of {algorithm} for {env}, but {_have(others)}"] if others else []
    if name in (NONE, PAPER) or (found := find(algorithm, name)) is None:
        return []
    kept: list[str] = []
    changed: list[str] = []
    for field, value in _for(found, config.env).items():
        now = getattr(config, field)
        (kept if now == value else changed).append(settings.option(field, now))
    difference = f"; changed: {' '.join(changed)}" if changed else ""
    return [f"preset {name}: {' '.join(kept)}{difference}"]


def algorithm_of(kind: type) -> str:
    """Return the name of the algorithm of a Config class.

    For a class in a file of your own, which has no presets, it is `my_algorithm.Config`.
    """
    package, _, name = kind.__module__.rpartition(".")
    own = f"{kind.__module__}.{kind.__qualname__}"
    return name if package == "remotely_rl.algorithms" else own


def _have(algorithms: Sequence[str]) -> str:
    return f"{' and '.join(algorithms)} {'has' if len(algorithms) == 1 else 'have'} one"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _fits(row: Preset, env: str) -> bool:
    if "env_kwargs" in row.settings:
        return row.env == env
    return _unversioned(row.env) == _unversioned(env)


def _for(row: Preset, env: Any) -> dict[str, Any]:
    """Return the settings of a preset: its arguments of the environment are for its own alone."""
    is_own = row.env == name_of(env)
    return {k: value for k, value in row.settings.items() if is_own or k != "env_kwargs"}


def _unversioned(env: str) -> str:
    """Return the name of an environment without its module and version."""
    return re.sub(r"-v\d+$", "", env.rpartition(":")[2])
