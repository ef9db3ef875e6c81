"""The algorithms, one file each.

Each has a `Config`, its losses, an `update` that reads like the paper, and
`train(config, model, run=..., resume=...)`.  A file of a user's may have another.
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


def train_of(word: str) -> "Train[Any]":
    """The `train` of an algorithm: by its name, or FILE.py:NAME for one in a file of a user's.

    Raises TrainingError for an unknown name, and for what is no algorithm.
    """
    if not user_code.is_in_file(word):
        found: Train[Any] = named(word).train
        return found
    made = checked(user_code.named_in("an algorithm of your own", word), word)
    if made.algorithm in ALGORITHMS:
        raise TrainingError(
            f"{word} calls itself {made.algorithm!r}, as an algorithm of remotely_rl does: give it"
            f' a name of its own, Train("my_{made.algorithm}", ...)'
        )
    return made


def checked(found: Any, name: str) -> "Train[Any]":
    """What is called `name`, if it is an algorithm.  Raises TrainingError if not."""
    from remotely_rl.runs.training import Train  # noqa: PLC0415 - as above

    if isinstance(found, Train):
        return found
    raise TrainingError(
        f"{name} is {_kind_of(found)}, and no algorithm: that is train ="
        ' remotely_rl.Train("my_algorithm", Config, loop), with a Config, a dataclass that inherits'
        " from remotely_rl.Common, and a loop(session), as in examples/reinforce.py"
    )


def _kind_of(found: Any) -> str:
    kind = "class" if isinstance(found, type) else type(found).__name__
    return f"the {kind} {found.__name__}" if hasattr(found, "__name__") else f"of type {kind}"


def of_run(run: str | Path, given: "Train[Any] | None" = None) -> "Train[Any]":
    """The `train` of the algorithm of a run folder: the one given, or the one that it names.

    Raises TrainingError if it names a file that is not there or has no such algorithm, or that is
    in the folder: loading a run executes nothing of the folder's own.
    """
    from remotely_rl.runs import run_folder  # noqa: PLC0415 - as above

    if given is not None:
        return checked(given, "algorithm=")
    kept = run_folder.read(run)
    name, source = kept.algorithm, kept.source
    pass_it = "pass it, algorithm= or --algorithm FILE.py:NAME"
    if source is None and name not in ALGORITHMS:
        raise TrainingError(
            f"{run} was trained by {name}, which is neither remotely_rl's nor of a file: {pass_it}"
        )
    if source is None:
        return train_of(name)
    file, _, called = source.rpartition(":")
    trained_by = f"{run} was trained by {name}, which is called {called} in {file}"
    if not Path(file).is_file():
        raise TrainingError(f"{trained_by}, and that file is not there: {pass_it}")
    if Path(run).resolve() in Path(file).resolve().parents:
        raise TrainingError(f"{trained_by}; code in the folder of a run is not executed: {pass_it}")
    try:
        return checked(user_code.named_in("its algorithm", source), source)
    except TrainingError as error:
        raise TrainingError(f"{trained_by}, and now {error}; if it has moved, {pass_it}") from None
