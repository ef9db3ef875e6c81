"""Training by an algorithm: a new run, or one that is resumed from its folder.

train = Train("ppo", Config, loop)
train(Config(env="CartPole-v1"))
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from remotely_rl import networks
from remotely_rl.config import Common, learners_of
from remotely_rl.environments import name_of
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.learning.learner import Learner
from remotely_rl.runs import (
    checkpoint,
    earlier_names,
    model_summary,
    ranks,
    replaying,
    run_folder,
)
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.process import Process
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.session import Result, Session
from remotely_rl.runs.setup import import_late, make_learner, probe
from remotely_rl.runs.stopping import limit_reached
from remotely_rl.supervision.vector import is_registered

__all__ = ["Result", "Session", "Train", "begin", "config_of"]

C = TypeVar("C", bound=Common)


class Train(Generic[C]):
    """The `train` of an algorithm: its name, its Config, and its loop.

    The learner is a `learner`.
    """

    def __init__(
        self,
        algorithm: str,
        config: type[C],
        loop: Callable[[Session[C]], None],
        *,
        learner: type[Learner[C]] = Learner,
    ):
        self._algorithm = algorithm
        self._config = config
        self._loop = loop
        self._learner = learner
        said = (inspect.getdoc(part) for part in (type(self).__call__, loop))
        self.__doc__ = "\n\n".join(filter(None, said))

    def __call__(
        self,
        config: C | None = None,
        model: networks.ModelSource | None = None,
        *,
        run: str | Path | None = None,
        resume: str | Path | None = None,
    ) -> Result:
        """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

        Without a config, a new run has the default one, and a resumed run its own; a run that is
        resumed with another config keeps that one.  A run that has reached a limit of it already
        stays as it is.  `model` is a network of yours, in place of the
        one that fits the observations.  `run` is the folder of a new run, by default one in runs/;
        `resume` that of an earlier run.

        Raises TrainingError if `run` exists, if `resume` is not a run of this algorithm and
        environment or has no checkpoint, if the model does not fit, and the like.
        """
        if resume is not None and run is None:
            config = config or config_of(self._config, self._algorithm, resume)
            if (result := already_over(self._algorithm, config, resume)) is not None:
                return result
        begun = begin(
            self._algorithm, self._config, config, model, run, resume, learner=self._learner
        )
        with begun as session, ranks.beside(session, self._loop, self._learner):
            self._loop(session)
        return session.result


def begin(
    algorithm: str,
    kind: type[C],
    config: C | None,
    model: networks.ModelSource | None = None,
    run: str | Path | None = None,
    resume: str | Path | None = None,
    learner: type[Learner[C]] = Learner,
) -> Session[C]:
    """Makes the session of a run; see `Train`."""
    process = Process()
    try:
        if config is None:
            config = kind() if resume is None else config_of(kind, algorithm, resume)
        if resume is None and run is not None:
            run_folder.check_is_free(Path(run))
        earlier = None if resume is None else _reopened(algorithm, config, run, resume)
        config.check_run()
        ranks.check(config)
        seen = probe(config)
        made = make_learner(config, model, seen, kind=learner)
        config.check_fits(made.model, made.actions)
        session = _session(algorithm, config, made.model, run, earlier, process)
    except BaseException:
        process.restore()
        raise
    session.learner = made
    session.opening = [
        *model_summary.lines(made.model, seen), f"learning rate: {made.learning_rate}", *seen.odd,
        *config.remarks(),
    ]  # fmt: skip
    if os.environ.get("REMOTELY_LOCAL") != "1":  # there nobody waits for actors
        import_late()
    return session


def already_over(algorithm: str, config: Common, resume: str | Path) -> Result | None:
    """The result of a run that has reached a limit of the config already, which is said; or None.

    Its folder is left as it is.
    """
    folder, saved = _reopened(algorithm, config, None, resume)
    tally = Tally.of(saved)
    ended = limit_reached(config, tally, tally.counters.seconds)
    if not ended:
        return None
    print(f"nothing to do: {ended}; the run is in {folder.path}")
    return Result.of(folder.path, ended, tally)


def _reopened(
    algorithm: str, config: Common, run: str | Path | None, resume: str | Path
) -> tuple[RunFolder, dict[str, Any]]:
    """An earlier run's folder and checkpoint, if both fit the config."""
    if run is not None:
        raise TrainingError("a resumed run stays in its own folder: use --resume without --run")
    folder, _ = run_folder.reopen(Path(resume), algorithm)
    saved = checkpoint.load(folder.checkpoint)
    if saved["env"] not in (name_of(config.env), earlier_names.of_environment(config.env)):
        raise TrainingError(f"{resume} is a run on {saved['env']}, not on {name_of(config.env)}")
    if saved.get("replay") and learners_of(config) == 1:
        of_replay: Any = config
        replaying.check_saved(of_replay, folder.path)
    return folder, saved


def _session(
    algorithm: str, config: C, model: nn.Module, run: str | Path | None,
    earlier: tuple[RunFolder, dict[str, Any]] | None, process: Process,
) -> Session[C]:  # fmt: skip
    if earlier is None:
        path = None if run is None else Path(run)
        folder = run_folder.create(path, algorithm, config)
        return Session(algorithm, config, folder, process=process)
    folder, saved = earlier
    state = earlier_names.renamed_state(saved["learner"]["model"], model.state_dict())
    checkpoint.check_fits(folder.checkpoint, state, model)
    saved["learner"]["model"] = state
    run_folder.write(folder, algorithm, config)
    return Session(algorithm, config, folder, saved, process=process)


def config_of(
    kind: type[C], algorithm: str, run: str | Path, given: dict[str, Any] | None = None
) -> C:
    """The config of the run in this folder, with the fields in `given` changed.

    Raises TrainingError if it is not a run of this algorithm, if it has an unknown option, or if
    its environment is a callable of yours, which you must pass: the folder has only its name.
    """
    _, kept = run_folder.reopen(Path(run), algorithm)
    known = [field.name for field in dataclasses.fields(kind)]
    for name in kept:
        if name in earlier_names.ONLY.get(algorithm, {}):
            raise TrainingError(
                f"{run} was trained with {name}={kept[name]}, as {algorithm} no longer is: use"
                " the version that made it, or train anew"
            )
        if name not in known:
            raise TrainingError(f"{algorithm} has no option {name!r}{nearest(name, known)}")
    given = given or {}
    config = kind(**{**kept, **given})
    object.__setattr__(config, "overridden", frozenset(given))
    env = config.env
    is_id = re.fullmatch(r"[\w.]+:[\w./-]+", str(env)) is not None  # of a module
    if env == kept["env"] and not is_id and not is_registered(str(env)):
        raise TrainingError(
            f"{run} was trained on {env}, which Gymnasium does not know; if it is a callable of"
            " your own, pass it: env=, or --env FILE.py:NAME"
        )
    return config
