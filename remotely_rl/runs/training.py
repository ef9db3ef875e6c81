"""Training by an algorithm: a new run, or one that is resumed from its folder.

    train = Train("ppo", Config, loop)
    train(Config(env="CartPole-v1"))

An algorithm in a file of a user's is the same three lines (docs/own_algorithm.md); its run folders
name the file, from which `evaluate` and the like take it again.

The model and the learner of a run are made from a probe of its environment.  The probe runs in an
actor, as all play does: an environment may crash or hang when it is made, or in its first steps,
and then only the actor is lost.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, overload

import gymnasium
import numpy as np
import torch
from torch import nn

import remotely
from remotely_rl import environments, networks, settings, trees
from remotely_rl.acting import cluster, player
from remotely_rl.acting.policy import one_thread
from remotely_rl.config import Common, device_of, learners_of
from remotely_rl.environments import additions, checks, name_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.learning.learner import Learner
from remotely_rl.runs import hooks as hook
from remotely_rl.runs import progress, ranks, replaying, run_folder
from remotely_rl.runs.hooks import Hook
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.session import Process, Result, Session, limit_reached
from remotely_rl.supervision import failures
from remotely_rl.supervision.vector import is_registered
from remotely_rl.trees import Tree

__all__ = ["Result", "Session", "Train", "begin", "config_of", "make_learner"]

C = TypeVar("C", bound=Common)
L = TypeVar("L", bound=Learner[Any])

ATTEMPTS = 12
IMPORTED_LATE = "torch._dynamo"  # by torch, with its first optimizer: a second or two

# Networks are made one at a time: their initial weights come from the global generator.
MODEL_LOCK = threading.Lock()


class Train(Generic[C]):
    """The `train` of an algorithm: its name, its Config, and its loop.

    The Config is a frozen dataclass that inherits from `Common`; the learner is a `learner`.
    Raises TrainingError for another Config.
    """

    def __init__(
        self,
        algorithm: str,
        config: type[C],
        loop: Callable[[Session[C]], None],
        *,
        learner: type[Learner[C]] = Learner,
    ):
        check_config(algorithm, config)
        self.algorithm = algorithm
        self.Config = config
        self._loop = loop
        self._learner = learner
        # Where it is made, as namedtuple does it: Config and loop may be imported from elsewhere.
        self.__module__ = sys._getframe(1).f_globals["__name__"]
        said = (inspect.getdoc(part) for part in (type(self).__call__, loop))
        self.__doc__ = "\n\n".join(filter(None, said))

    def __call__(
        self,
        config: C | None = None,
        model: networks.ModelSource | None = None,
        *,
        run: str | Path | None = None,
        resume: str | Path | None = None,
        initial: str | Path | None = None,
        hooks: Sequence[Hook] = (),
    ) -> Result:
        """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

        Without a config, a new run has the default one, and a resumed run its own; a run that is
        resumed with another config keeps that one.  A run that has reached a limit of it already
        stays as it is.  `model` is a network of yours, in place of the
        one that fits the observations.  `run` is the folder of a new run, by default one in runs/;
        `resume` that of an earlier run.  `initial` is a run whose model a new run begins with, in
        the same environment or another one of the same spaces.  `hooks` are called at moments of
        the run (`hooks.py`).

        Raises TrainingError if `run` exists, if `resume` is not a run of this algorithm and
        environment or has no checkpoint, if the model does not fit, and the like.
        """
        if resume is not None and run is None:
            config = config or config_of(self.Config, self.algorithm, resume)
            if (result := already_over(self.algorithm, config, resume)) is not None:
                return result
        begun = begin(
            self.algorithm, self.Config, config, model, run, resume, self._learner, hooks, initial,
            self.source,
        )  # fmt: skip
        with begun as session, ranks.beside(session, self._loop, self._learner):
            self._loop(session)
        return session.result

    @functools.cached_property
    def source(self) -> str | None:
        """FILE.py:NAME of an algorithm of a user's; None of the library's, or in a notebook."""
        module = sys.modules.get(self.__module__)
        if module is None or self.__module__.partition(".")[0] == "remotely_rl":
            return None
        file = getattr(module, "__file__", None)
        names = [name for name, value in vars(module).items() if value is self]
        return f"{Path(file).resolve()}:{names[0]}" if file and names else None

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring of its file, or its name."""
        said = getattr(sys.modules.get(self.__module__), "__doc__", None) or self.algorithm
        return inspect.cleandoc(said).split("\n\n")[0]

    def __getstate__(self) -> dict[str, Any]:
        """Take along where it is from: elsewhere it is a copy, which no module names."""
        return {**self.__dict__, "source": self.source}


def check_config(algorithm: str, config: Any) -> None:
    """Raises TrainingError for what is no Config of an algorithm."""
    told = f"the Config of {algorithm}, {getattr(config, '__qualname__', repr(config))},"
    if not (isinstance(config, type) and issubclass(config, Common)):
        raise TrainingError(
            f"{told} must be a dataclass that inherits from remotely_rl.Common:"
            " @dataclasses.dataclass(frozen=True) above class Config(Common)"
        )
    if "__dataclass_params__" not in vars(config):
        raise TrainingError(
            f"{told} is no dataclass, so that its fields are none: write"
            " @dataclasses.dataclass(frozen=True) above the class"
        )


def begin(
    algorithm: str,
    kind: type[C],
    config: C | None,
    model: networks.ModelSource | None = None,
    run: str | Path | None = None,
    resume: str | Path | None = None,
    learner: type[Learner[C]] = Learner,
    hooks: Sequence[Hook] = (),
    initial: str | Path | None = None,
    source: str | None = None,
) -> Session[C]:
    """Makes the session of a run; see `Train`, and its `source`."""
    process = Process()
    try:
        if config is None:
            config = kind() if resume is None else config_of(kind, algorithm, resume)
        hooks = hook.checked([*getattr(config.env, "run_hooks", ()), *hooks])
        if resume is None and run is not None:
            run_folder.check_is_free(Path(run))
        earlier = None if resume is None else _reopened(algorithm, config, run, resume)
        if initial is not None and resume is not None:
            raise TrainingError("a resumed run has its own model: use --resume without --initial")
        start = None if initial is None else RunFolder(Path(initial)).checkpoint
        if start is not None and not start.exists():
            raise TrainingError(f"{initial} is no run to begin with: it has no checkpoint.pt")
        if model is None and (begins_with := resume or initial) is not None:
            model = model_of(begins_with)
        config.check_run()
        ranks.check(config)
        seen = probe(config)
        made = make_learner(config, model, seen, kind=learner, initial=start)
        config.check_fits(made.model, made.actions)
        sources = source, run_folder.source_of(model)
        session = _session(algorithm, config, made.model, run, earlier, process, hooks, sources)
    except BaseException:
        process.restore()
        raise
    session.learner = made
    session.opening = [
        *progress.summary(made.model, seen), f"learning rate: {made.learning_rate}", *seen.odd,
        *config.remarks(is_own_model=model is not None), *run_folder.remarks(config),
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
    saved = run_folder.load_checkpoint(folder.checkpoint)
    if saved["env"] != name_of(config.env):
        raise TrainingError(f"{resume} is a run on {saved['env']}, not on {name_of(config.env)}")
    if saved.get("replay") and learners_of(config) == 1:
        of_replay: Any = config
        replaying.check_saved(of_replay, folder.path)
    return folder, saved


def _session(
    algorithm: str, config: C, model: nn.Module, run: str | Path | None,
    earlier: tuple[RunFolder, dict[str, Any]] | None, process: Process, hooks: Sequence[Hook],
    sources: tuple[str | None, str | None],
) -> Session[C]:  # fmt: skip
    if earlier is None:
        path = None if run is None else Path(run)
        folder = run_folder.create(path, algorithm, config, *sources)
        return Session(algorithm, config, folder, process=process, hooks=hooks)
    folder, saved = earlier
    run_folder.check_fits(folder.checkpoint, saved["learner"]["model"], model)
    run_folder.write(folder, algorithm, config, *sources)
    return Session(algorithm, config, folder, saved, process=process, hooks=hooks)


def config_of(
    kind: type[C], algorithm: str, run: str | Path, given: dict[str, Any] | None = None
) -> C:
    """The config of the run in this folder, with the fields in `given` changed.

    `env_kwargs` in `given` are beside those of the run.  Raises TrainingError if it is not a run of
    this algorithm, if it has an unknown option, or if its environment is a callable of yours that
    is not where it was, or that only your script knows: pass it.  So it does for other things that
    are not given and that the folder could not keep.
    """
    _, ran = run_folder.reopen(Path(run), algorithm)
    kept, given = ran.config, given or {}
    for name, what in ran.not_kept.items():
        if name not in given:
            raise TrainingError(
                f"{run} was trained with {name} that a run folder cannot keep: {what}; pass them"
                f" again, {name}= or {run_folder.AGAIN[name]}"
            )
    known = [field.name for field in dataclasses.fields(kind)]
    for name in kept:
        if name not in known:
            raise TrainingError(f"{algorithm} has no option {name!r}{nearest(name, known)}")
    if "wrappers" not in given:
        additions.check_is_elsewhere(kept.get("wrappers", ()), run)
    if "env_kwargs" in given:
        given = given | {"env_kwargs": {**kept.get("env_kwargs", {}), **given["env_kwargs"]}}
    if "preset" in given:
        raise TrainingError("a resumed run has its settings: use --resume without --preset")
    usual = {one.name: one.default for one in settings.settings(kind)}
    fields = {**usual, **kept, **given}  # every one, so that no preset begins anew
    if fields["env"] == ran.env:
        fields["env"] = _environments_of(run, ran)
    config = kind(**fields)
    object.__setattr__(config, "overridden", frozenset(given))
    return config


def _environments_of(run: str | Path, ran: run_folder.RunConfig) -> environments.Source:
    """What a run was trained on: an id, or what the folder names."""
    env, word = ran.env, ran.env_source
    is_id = re.fullmatch(r"[\w.]+:[\w./-]+", env) is not None  # of a module
    if word is None and (is_id or is_registered(env)):
        return env
    again = "env= or --env FILE.py:NAME"
    if word is None:
        raise TrainingError(
            f"{run} was trained on {env}, which Gymnasium does not know; if it is a callable of"
            f" your own, pass it, {again}"
        )
    return _named_by(run, word, "environment", again)  # type: ignore[no-any-return]


def model_of(run: str | Path) -> networks.ModelSource | None:
    """The user's own model with which a run was trained, if its folder names one.

    Raises TrainingError if that is not where it was, or if it is in the folder itself.
    """
    word = run_folder.read(run).model_source
    if word is None:
        return None
    again = "model= or --model FILE.py:NAME"
    return _named_by(run, word, "model", again)  # type: ignore[no-any-return]


def _named_by(run: str | Path, word: str, what: str, again: str) -> Any:
    additions.check_is_elsewhere([word], run, what, again)
    try:
        return additions.named(word, what)
    except TrainingError as error:
        raise TrainingError(
            f"{run} was trained with the {what} {word}, and {error}; pass it, {again}"
        ) from error


# --- the model and the learner, from a probe ------------------------------------------------------


class EnvironmentInfo(NamedTuple):
    """What an environment is, and a sample of its observations."""

    space: gymnasium.Space[Any]
    spec: Tree  # of the leaves of an observation
    actions: Actions
    obs: Tree  # of arrays [probe_steps or less, ...], of random play
    odd: list[str]  # what should be told of it


@remotely.remote_class
class Probe:
    """Plays an environment at random before anything is made for it."""

    def __init__(self, config: Common, is_replacement: bool):
        if is_replacement:
            failures.disable_stack_dumps()
        self.config = config

    def run(self, steps: int, seed: int) -> EnvironmentInfo:
        """Makes an environment and plays it at random.

        Raises TrainingError if no policy fits it, if it cannot do what the config asks, or if it
        crashes too often.
        """
        config = self.config
        envs = config.make_environments(1, player.watch(config, 1))
        try:
            if config.random_start:  # needs more of an environment than random play does
                envs.reset(seed)
                envs.decorrelate(0, [np.random.default_rng(seed)])
            obs, odd = checks.look(envs, steps, seed, config.max_crash_rate)
            return EnvironmentInfo(envs.space, envs.spec, envs.actions, obs, odd)
        finally:
            envs.close()


@overload
def make_learner(
    config: C, model: networks.ModelSource | None = None, seen: EnvironmentInfo | None = None
) -> Learner[C]: ...
@overload
def make_learner(
    config: C,
    model: networks.ModelSource | None = None,
    seen: EnvironmentInfo | None = None,
    *,
    kind: type[L],
    initial: Path | None = None,
) -> L: ...
def make_learner(
    config: C,
    model: networks.ModelSource | None = None,
    seen: EnvironmentInfo | None = None,
    *,
    kind: Any = Learner,
    initial: Path | None = None,
) -> Any:
    """Makes the model that fits a config's environment, or a model of yours, and its learner.

    The input statistics begin with those of a little random play: an update without any kills
    units for good.  With `initial`, a checkpoint, they and the weights are those of its model, and
    the units of values are as they were there.
    """
    seen = seen or probe(config)
    with MODEL_LOCK, one_thread():
        torch.manual_seed(config.seed)
        network = config.make_model(model, seen.spec, seen.actions)
        if networks.has_normalizer(network):
            networks.update_normalizers(network, trees.map_tree(torch.from_numpy, seen.obs))
        if initial is None:
            return kind(config, network, seen.actions)
        saved = run_folder.load_checkpoint(initial)["learner"]
        run_folder.check_fits(initial, saved["model"], network)
        network.load_state_dict(saved["model"])
        made = kind(config, network, seen.actions)
        if "scale" in saved:
            made.value_scale = type(made.value_scale)(*saved["scale"])
        return made


def beside(work: Callable[[], object]) -> threading.Thread:
    """Do on a thread what only learning needs, while this one waits for actors.

    Otherwise the first update waits for it.  Whatever goes wrong, goes wrong again there.
    """

    def tried() -> None:
        with contextlib.suppress(Exception):
            work()

    # No daemon: an interpreter that ends would end it within torch's C++, which aborts the process.
    working = threading.Thread(target=tried)
    working.start()
    return working


def import_late() -> threading.Thread:
    """Import what torch imports with its first optimizer.

    Not before users' code has run in this process: its imports, at the same time as these, could
    meet modules that are half imported.
    """
    return beside(lambda: importlib.import_module(IMPORTED_LATE))


def probe(config: Common) -> EnvironmentInfo:
    """Probes the environment; if its process dies or hangs, tries again with half as many steps.

    Raises TrainingError if all attempts fail, or if the config's minutes are over first.
    """
    environments.check_is_known(config.env, config.env_kwargs)  # needs no cluster
    if (device := device_of(config)).type == "cuda":
        beside(lambda: torch.zeros(1, device=device))  # makes CUDA's context
    cluster.connect(config.processes)
    until = time.monotonic() + config.minutes * 60 if config.minutes else None
    for attempt in range(ATTEMPTS):
        try:
            return _attempt(config, attempt, until)
        except Exception as error:
            if not failures.is_failure(error):
                raise
            last = error
    report = failures.report_of(last)
    raise TrainingError(
        f"no attempt of {ATTEMPTS} to play the environment at random has succeeded; in the last,"
        f" {report}\n{report.details}"
    ) from last


def _attempt(config: Common, attempt: int, until: float | None) -> EnvironmentInfo:
    actor = Probe(config, attempt > 0)
    steps = max(2, config.probe_steps >> attempt)  # a reset and a step at least
    call: Any = remotely.submit(actor.run, steps, config.seed + attempt)
    try:
        seen: EnvironmentInfo = call.result(
            None if until is None else max(0.0, until - time.monotonic())
        )
        return seen
    except FutureTimeout:
        raise TrainingError(
            f"the environment has not played {steps} random steps in {config.minutes:g}"
            " minutes: does it hang?"
        ) from None
    finally:
        cluster.discard(call)
        with contextlib.suppress(remotely.RemotelyError):
            remotely.kill(actor)
