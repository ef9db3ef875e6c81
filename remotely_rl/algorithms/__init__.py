"""The algorithms, one file each.

Each file has a `Config`, the losses, an `update` that reads like the paper, and
`train(config, model, run=..., resume=...)`.  You can add an algorithm in a file of your own.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from remotely_rl import user_code
from remotely_rl.errors import TrainingError, nearest

if TYPE_CHECKING:  # imports torch
    from remotely_rl.runs.training import Train


class Algorithm(NamedTuple):
    """Help texts of an algorithm on the command line."""

    summary: str
    description: str


ALGORITHMS = {
    "a2c": Algorithm(
        "Short synchronous rounds, one update each.",
        "All actors step in lock-step, and the learner takes one step on each rollout.",
    ),
    "ppo": Algorithm(
        "Synchronous rounds, several epochs of clipped updates each.",
        "All actors sample with the same parameters; the learner improves the policy in several"
        " epochs over the round, and the clip limits how far it moves.",
    ),
    "impala": Algorithm(
        "Asynchronous actors, off-policy correction by V-trace.",
        "Actors keep sampling while the learner learns; V-trace corrects for their older policies.",
    ),
    "appo": Algorithm(
        "PPO's loss with IMPALA's actors.",
        "Actors keep sampling while the learner learns; V-trace computes the value targets and"
        " advantages, and the loss is PPO's.",
    ),
    "ga3c": Algorithm(
        "Agents without a model, an inference server that batches their requests.",
        "Agents query an inference server, which answers many requests in one batch; its trainer"
        " threads learn from the agents' experience.",
    ),
    "a3c": Algorithm(
        "Workers that push gradients to shared parameters under a sync rule.",
        "Workers compute gradients on their own rollouts; a sync rule (--sync) applies them to one"
        " set of parameters: asynchronous, semi_async, fasgd and more.",
    ),
    "sac": Algorithm(
        "Soft actor-critic: replay, a policy that stays random.",
        "Actors fill a replay; two critics learn action values from it, and the policy maximizes"
        " rewards while its entropy is held at a target.",
    ),
    "td3": Algorithm(
        "Twin delayed DDPG: continuous actions, replay, a deterministic policy.",
        "Actors fill a replay, with noise on their actions; two critics learn action values from"
        " it, and the policy follows the gradient of the first one, half as often.",
    ),
    "crossq": Algorithm(
        "SAC without target networks: critics normalized over batches.",
        "Soft actor-critic whose critics are normalized over batches of taken and of next actions,"
        " which replaces target networks and takes fewer steps.",
    ),
    "pqn": Algorithm(
        "Action values from many environments, without a replay.",
        "All environments play epsilon-greedily; the learner makes several epochs over the round"
        " towards lambda returns, with layer norm in place of a replay and a target network.",
    ),
    "n_step_q": Algorithm(
        "Asynchronous n-step Q-learning, one-step Q, SARSA.",
        "Epsilon-greedy workers learn action values; a sync rule (--sync) applies their gradients"
        " to one set of parameters.",
    ),
    "dqn": Algorithm(
        "Action values from a replay: double, dueling, n-step, prioritized.",
        "Epsilon-greedy actors fill a replay in rounds; the learner draws each step several times.",
    ),
    "c51": Algorithm(
        "DQN that learns distributions of returns.",
        "DQN that learns, for each action, the probabilities of 51 returns instead of their mean.",
    ),
    "qr_dqn": Algorithm(
        "DQN that learns quantiles of returns.",
        "DQN that learns, for each action, 200 quantiles of its return instead of the mean.",
    ),
    "rainbow": Algorithm(
        "DQN with all its extensions: distributions, priorities, noisy layers.",
        "DQN with C51's distributions, prioritized replay and noisy layers; with --no-noisy it"
        " explores epsilon-greedily.",
    ),
}


def named(name: str) -> ModuleType:
    """Return the module of an algorithm.  Raises TrainingError for an unknown name."""
    if name not in ALGORITHMS:
        hint = nearest(name, ALGORITHMS) or f"; there is {', '.join(ALGORITHMS)}"
        raise TrainingError(f"no algorithm is called {name!r}{hint}")
    return importlib.import_module(f"remotely_rl.algorithms.{name}")


def train_of(word: str) -> "Train[Any]":
    """Return the `train` of an algorithm, given its name, or FILE.py:NAME for one of your own.

    Raises TrainingError for an unknown name, or if FILE.py:NAME is not an algorithm.
    """
    if not user_code.is_in_file(word):
        found: Train[Any] = named(word).train
        return found
    made = checked(user_code.named_in("an algorithm of your own", word), word)
    if made.algorithm in ALGORITHMS:
        raise TrainingError(
            f"{word} is called {made.algorithm!r}, which is an algorithm of remotely_rl: choose"
            f' another name, Train("my_{made.algorithm}", ...)'
        )
    return made


def checked(found: Any, name: str) -> "Train[Any]":
    """Return `found` if it is an algorithm; `name` is for the error.

    Raises TrainingError if it is not.
    """
    from remotely_rl.runs.training import Train  # noqa: PLC0415 - as above

    if isinstance(found, Train):
        return found
    raise TrainingError(
        f"{name} is {_kind_of(found)}, not an algorithm.  Write train ="
        ' remotely_rl.Train("my_algorithm", Config, loop), with a Config, a dataclass that inherits'
        " from remotely_rl.Common, and a loop(session), as in examples/reinforce.py"
    )


def _kind_of(found: Any) -> str:
    kind = "class" if isinstance(found, type) else type(found).__name__
    return f"the {kind} {found.__name__}" if hasattr(found, "__name__") else f"of type {kind}"


def of_run(run: str | Path, given: "Train[Any] | None" = None) -> "Train[Any]":
    """Return the `train` of a run's algorithm: `given`, or the one named in the run folder.

    Raises TrainingError if the named file does not exist, has no such algorithm, or is inside the
    run folder: loading a run never executes code from its folder.
    """
    from remotely_rl.runs import run_folder  # noqa: PLC0415 - as above

    if given is not None:
        return checked(given, "algorithm=")
    kept = run_folder.read(run)
    name, source = kept.algorithm, kept.source
    pass_it = "pass it with algorithm= or --algorithm FILE.py:NAME"
    if source is None and name not in ALGORITHMS:
        raise TrainingError(
            f"{run} was trained by {name}, which is not in remotely_rl or in a known file:"
            f" {pass_it}"
        )
    if source is None:
        return train_of(name)
    file, _, called = source.rpartition(":")
    trained_by = f"{run} was trained by {name}, which is {called} in {file}"
    if not Path(file).is_file():
        raise TrainingError(f"{trained_by}, but that file does not exist: {pass_it}")
    if Path(run).resolve() in Path(file).resolve().parents:
        raise TrainingError(f"{trained_by}; code in the folder of a run is not executed: {pass_it}")
    try:
        return checked(user_code.named_in("its algorithm", source), source)
    except TrainingError as error:
        raise TrainingError(f"{trained_by}, but {error}; if it has moved, {pass_it}") from None
