"""Loading of a trained agent from its run folder, for playing, not for training.

The agent is made in this process from config.json and the model in a checkpoint, without a cluster.
Loading runs only the code that config.json names: the algorithm, the environment, wrappers and the
model.  It does not read the pickled state of actors in a checkpoint.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from remotely_rl import algorithms, networks
from remotely_rl.acting.policy import Trained
from remotely_rl.environments import Source, Wrapper, name_of
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder, training
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.training import Train
from remotely_rl.supervision import env_ranks


def load(
    run: str | Path,
    which: str = "last",
    model: networks.ModelSource | None = None,
    env: Source | None = None,
    algorithm: Train[Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
) -> Trained:
    """Load the agent of a run folder; see `agent.load` for the arguments and errors.

    Its spaces are those that the folder keeps, so that no environment is made.  A folder of an
    earlier version has none, and another environment, or other arguments, may change them: then
    one is made.
    """
    trained_in = run_folder.read(run).env
    by = algorithms.of_run(run, algorithm)
    given = {"env": env, "env_kwargs": env_kwargs, "wrappers": wrappers}
    given = {name: value for name, value in given.items() if value is not None}
    spaces = None if given else run_folder.spaces_of(run)
    config = training.config_of(
        by.Config, by.algorithm, run, given, to_act=True, needs_env=spaces is None
    )
    config = config.ranked(env_ranks.ALONE)
    path = RunFolder(Path(run)).saved(which)
    try:
        saved = run_folder.load_checkpoint(path)
        state, steps = saved["learner"]["model"], saved["counters"]["env_steps"]
    except (KeyError, TypeError):
        raise TrainingError(f"{path} holds no model") from None
    model = training.model_of(run) if model is None else model
    if spaces is None:
        with closing(config.make_environments(1)) as probe:
            probe.reset(config.seed)  # shows whether actions are masked
            spaces = probe.spaces
    network = config.make_model(model, spaces.spec, spaces.actions)
    hint = run_folder.asks_about_spaces(name_of(config.env), trained_in)
    if not hint and model is None:
        hint = "was it trained with a model of your own? Pass model=, or --model FILE.py:NAME: "
    run_folder.check_fits(path, state, network, hint)
    network.load_state_dict(state)
    by_whom = f"{by.algorithm} on {trained_in}, {steps:,} steps"
    return Trained(config, network.eval(), by_whom, spaces, steps)
