"""Training with an algorithm: a new run, or one resumed from its folder.

    train = Train("ppo", Config, loop)
    train(Config(env="CartPole-v1"))

A user's own algorithm does the same (docs/own_algorithm.md); its run folders name its file, from
which `evaluate` and other commands load it.

The model and the learner of a run are made from a probe of its environment.  The probe runs in an
actor, like all play: if the environment crashes or hangs while it is made or in its first steps,
only the actor is lost.
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
from remotely_rl import cluster, environments, networks, settings, trees
from remotely_rl.acting import player
from remotely_rl.acting.policy import one_thread
from remotely_rl.config import GROUPS, Common, device_of, learners_of, presets
from remotely_rl.config.hardware import Hardware
from remotely_rl.environments import additions, checks, name_of
from remotely_rl.environments.spaces import Spaces
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.learning.learner import Learner, loaded_scale
from remotely_rl.runs import hooks as hook
from remotely_rl.runs import progress, ranks, replaying, run_folder, status
from remotely_rl.runs.ending import limit_reached
from remotely_rl.runs.hooks import Hook
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.phases import Phases
from remotely_rl.runs.process import Process
from remotely_rl.runs.result import Result
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.session import Session
from remotely_rl.supervision import env_ranks, failures
from remotely_rl.supervision.supervisor import Consequence, ProcessRole, consequence_of
from remotely_rl.supervision.vector import is_registered
from remotely_rl.trees import Tree

__all__ = ["Result", "Session", "Train", "begin", "config_of", "make_learner"]

C = TypeVar("C", bound=Common)
L = TypeVar("L", bound=Learner[Any])

ATTEMPTS = 12
LATE_IMPORT = "torch._dynamo"  # torch imports it with the first optimizer, in a second or two

# Networks are made one at a time: they draw initial weights from the global generator.
MODEL_LOCK = threading.Lock()


class Train(Generic[C]):
    """The `train` function of an algorithm, from its name, Config, loop and class of learner.

    The Config must be a frozen dataclass that inherits from `Common`, or TrainingError is raised.
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
        # The caller's module, as for namedtuple: Config and loop may be imported from elsewhere.
        self.__module__ = sys._getframe(1).f_globals["__name__"]
        docs = (inspect.getdoc(part) for part in (type(self).__call__, loop))
        self.__doc__ = "\n\n".join(filter(None, docs))

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
        """Train until a limit of the config is reached, or Ctrl-C.  Returns the result.

        `config` defaults to `Config()` for a new run, and to the run's own for a resumed one; a
        config given on resume replaces it.  A run that has already reached a limit is left as it
        is.  `model` is your own network, instead of one that fits the observations.  `run` is the
        folder of a new run, by default one in runs/; `resume` is the folder of an earlier run.
        `initial` is a run whose model a new run starts with, in the same environment or another
        one with the same spaces.  `hooks` are called at certain moments of the run (`hooks.py`).

        Raises TrainingError if `run` exists, if `resume` is not a run of this algorithm and
        environment or has no checkpoint, if the model does not fit, and so on.
        """
        if resume is not None and run is None:
            config = config or config_of(self.Config, self.algorithm, resume)
            if (result := already_over(self.algorithm, config, resume)) is not None:
                return result
        begun = begin(
            self.algorithm,
            self.Config,
            config,
            model,
            run,
            resume,
            self._learner,
            hooks,
            initial,
            self.source,
        )
        with begun as session, ranks.beside(session, self._loop, self._learner):
            self._loop(session)
        return session.result

    @functools.cached_property
    def source(self) -> str | None:
        """FILE.py:NAME of a user's algorithm; None for the library's, and in a notebook."""
        module = sys.modules.get(self.__module__)
        if module is None or self.__module__.partition(".")[0] == "remotely_rl":
            return None
        file = getattr(module, "__file__", None)
        names = [name for name, value in vars(module).items() if value is self]
        return f"{Path(file).resolve()}:{names[0]}" if file and names else None

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring of its file, or its name."""
        doc = getattr(sys.modules.get(self.__module__), "__doc__", None) or self.algorithm
        return inspect.cleandoc(doc).split("\n\n")[0]

    def __getstate__(self) -> dict[str, Any]:
        """Include `source`, which cannot be found from a copy in another process."""
        return {**self.__dict__, "source": self.source}


def check_config(algorithm: str, config: Any) -> None:
    """Raise TrainingError unless this is a dataclass that inherits from Common."""
    name = f"the Config of {algorithm}, {getattr(config, '__qualname__', repr(config))},"
    if not (isinstance(config, type) and issubclass(config, Common)):
        raise TrainingError(
            f"{name} must be a dataclass that inherits from remotely_rl.Common:"
            " @dataclasses.dataclass(frozen=True) above class Config(Common)"
        )
    if "__dataclass_params__" not in vars(config):
        raise TrainingError(
            f"{name} is not a dataclass, so it has no fields: write"
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
    """Make the session of a run, and its learner; see `Train` for the arguments."""
    process, phase = Process(), Phases(functools.partial(print, flush=True))
    claim: status.TrainingLock | None = None
    try:
        if config is None:
            config = kind() if resume is None else config_of(kind, algorithm, resume)
        hooks = hook.checked([*getattr(config.env, "run_hooks", ()), *hooks])
        if resume is None and run is not None:
            run_folder.check_is_free(Path(run))
        earlier = None if resume is None else _reopened(algorithm, config, run, resume)
        if initial is not None and resume is not None:
            raise TrainingError("a resumed run has its own model: use --resume without --initial")
        start = None
        if initial is not None:
            run_folder.read(initial)  # raises if it is no run
            start = RunFolder(Path(initial)).saved()
        if model is None and (source_run := resume or initial) is not None:
            model = model_of(source_run)
        environments.check_is_known(  # needs no cluster
            config.env, config.env_kwargs, config.interpreter
        )
        if config.interpreter.is_another:
            cluster.check_interpreter(*config.interpreter)
        phase.enter("a cluster starts on this machine, or is connected to")
        config = config.fitted(hardware_of(config))
        config.check_run()
        ranks.check(config)
        steps = f"{config.probe_steps:,} random steps" if config.probe_steps else "random steps"
        phase.enter(f"an actor starts, makes the environment, and plays {steps} in it")
        info = probe(config)
        phase.enter("the model and its optimizer are made")
        made = make_learner(config, model, info, kind=learner, initial=start)
        config.check_fits(made.model, made.actions)
        sources = source, run_folder.source_of(model)
        folder, saved = _folder(algorithm, config, made.model, run, earlier, sources)
        claim = status.TrainingLock(folder)  # another process may have resumed it meanwhile
        if earlier is not None:
            run_folder.write(folder, algorithm, config, *sources)
        origin = []
        if initial is not None:
            origin = [f"begins with the model of {initial}"]
        elif saved is not None:
            origin = [f"continues at {saved['counters']['env_steps']:,} steps"]
        opening = [
            *origin,
            *progress.summary(made.model, info.spaces),
            f"learning rate: {made.learning_rate}",
            *info.warnings,
            *config.remarks(model is not None, made.actions),
            *run_folder.remarks(config),
        ]
        session = Session(
            algorithm,
            config,
            folder,
            saved,
            learner=made,
            spaces=info.spaces,
            opening=opening,
            process=process,
            hooks=hooks,
            claim=claim,
        )
    except BaseException:
        if claim is not None:
            claim.release()
        process.restore()
        raise
    finally:
        phase.end()
    run_folder.write_spaces(session.folder, info.spaces)
    if os.environ.get("REMOTELY_LOCAL") != "1":  # in local mode there is no wait to use
        import_late()
    return session


def hardware_of(config: Common) -> Hardware:
    """Return what each learner of a run may use of the cluster.  Connects to it."""
    cluster.connect(config.processes)
    cores = max(1, cluster.cores() // learners_of(config))
    return Hardware(cores, device_of(config).type == "cuda")


def already_over(algorithm: str, config: Common, resume: str | Path) -> Result | None:
    """Return the result of a run that has already reached a limit of the config, and say so.

    It also says how to go on.  Its folder is not changed.  Returns None if the run can continue.
    Raises TrainingError if the run has failed at that limit.
    """
    folder, saved = _reopened(algorithm, config, None, resume)
    tally = Tally.of(saved)
    ended = limit_reached(config, tally, tally.counters.seconds)
    if not ended:
        return None
    ran = run_folder.read(folder.path)
    found = status.of(folder.path, lambda: ran)
    has_failed = found.how is status.How.FAILED
    failed = f", and it has failed: {found.why}" if has_failed else ""
    said = f"the run is over: {ended.why}{failed}; it is in {folder.path}"
    if go_on := status.go_on(folder.path, ran, ended.limits):
        said += f"\nit goes on with: {go_on}"
    if has_failed:
        raise TrainingError(said)
    print(said)
    return Result.of(folder.path, ended.why, tally)


def _reopened(
    algorithm: str, config: Common, run: str | Path | None, resume: str | Path
) -> tuple[RunFolder, dict[str, Any]]:
    """Return an earlier run's folder and checkpoint, if both fit the config."""
    if run is not None:
        raise TrainingError("a resumed run stays in its own folder: use --resume without --run")
    folder, ran = run_folder.reopen(Path(resume), algorithm)
    status.check_is_over(folder)
    if config.seed != ran.config.get("seed", config.seed):
        raise TrainingError(
            f"{resume} goes on with the random numbers of seed {ran.config['seed']}: resume it with"
            " that seed, or without one"
        )
    saved = run_folder.load_checkpoint(folder.checkpoint)
    if run_folder.has_other_environments(ran, config):
        saved["actors"] = None  # these hold environments with the earlier settings
    if saved["env"] != name_of(config.env):
        raise TrainingError(f"{resume} is a run on {saved['env']}, not on {name_of(config.env)}")
    if saved.get("replay") and learners_of(config) == 1:
        of_replay: Any = config
        replaying.check_saved(of_replay, folder.path)
    return folder, saved


def _folder(
    algorithm: str,
    config: Common,
    model: nn.Module,
    run: str | Path | None,
    earlier: tuple[RunFolder, dict[str, Any]] | None,
    sources: tuple[str | None, str | None],
) -> tuple[RunFolder, dict[str, Any] | None]:
    """Return the folder of a run, new or as it is, and the checkpoint that it resumes from."""
    if earlier is None:
        path = None if run is None else Path(run)
        return run_folder.create(path, algorithm, config, *sources), None
    folder, saved = earlier
    run_folder.check_outputs(
        folder.checkpoint, saved, config.outputs_are, algorithm, "leave its settings as they are: "
    )
    changed = [name for name in GROUPS["Network"] if name in config.overridden]
    options = " ".join(settings.option(name, getattr(config, name)) for name in changed)
    hint = f"leave out {options}: " if changed else ""
    run_folder.check_fits(folder.checkpoint, saved["learner"]["model"], model, hint)
    return folder, saved


def config_of(
    kind: type[C],
    algorithm: str,
    run: str | Path,
    given: dict[str, Any] | None = None,
    *,
    to_act: bool = False,
    needs_env: bool = True,
) -> C:
    """Return the config of the run in this folder, with the fields in `given` changed.

    `env_kwargs` in `given` are added to those of the run; with another environment in `given`,
    those of the run do not apply.  Raises TrainingError if it is a run of another algorithm, if it
    has an unknown option, or if its environment or another argument cannot be loaded from what the
    folder says and is not in `given`.

    With `to_act`, the environment of evaluations is left out.  Without `needs_env`, an environment
    that cannot be loaded is one that raises the error when it is made.
    """
    _, ran = run_folder.reopen(Path(run), algorithm)
    kept, given = ran.as_asked, given or {}
    if to_act:
        given = {**given, "evaluate_env": None, "evaluate_env_kwargs": {}}
    if not needs_env:
        try:
            return config_of(kind, algorithm, run, given, to_act=to_act)
        except TrainingError as error:
            given = {**given, "env": Missing(ran.env, str(error)), "env_kwargs": {}, "wrappers": ()}
    is_other = "env" in given and name_of(given["env"]) != ran.env
    if is_other:
        kept = {**kept, "env_kwargs": {}}
    for name, what in ran.not_kept.items():
        if name not in given and not (is_other and name == "env_kwargs"):
            raise TrainingError(
                f"{run} was trained with {name} that a run folder cannot keep: {what}; pass them"
                f" again, with {name}= or {run_folder.AGAIN[name]}"
            )
    known = [field.name for field in dataclasses.fields(kind)]
    kept = run_folder.without_removed(kept, known, run, to_act=to_act)
    for name in kept:
        if name not in known:
            raise TrainingError(f"{algorithm} has no option {name!r}{nearest(name, known)}")
    if "wrappers" not in given:
        additions.check_is_outside(kept.get("wrappers", ()), run)
    if "env_kwargs" in given:
        given = given | {"env_kwargs": {**kept.get("env_kwargs", {}), **given["env_kwargs"]}}
    if given.get("evaluate_env_kwargs") and "evaluate_env" not in given:
        ours = {**kept.get("evaluate_env_kwargs", {}), **given["evaluate_env_kwargs"]}
        given = given | {"evaluate_env_kwargs": ours}
    if "preset" in given:
        raise TrainingError("a resumed run has its settings: use --resume without --preset")
    defaults = {field.name: field.default for field in settings.settings(kind)}
    fields = {**defaults, **kept, **given}  # all of them, so that no preset is applied again
    if fields["env"] == ran.env:
        fields["env"] = _environments_of(run, ran)
    if "evaluate_env" not in given and (word := ran.evaluate_env_source) is not None:
        again = "evaluate_env= or --evaluate-env FILE.py:NAME"
        fields["evaluate_env"] = _resolve(run, word, "environment of evaluations", again)
    config = kind(**fields)
    object.__setattr__(config, "overridden", frozenset(given))
    return config


class Missing:
    """An environment that a run folder names and that cannot be loaded here."""

    def __init__(self, name: str, why: str):
        self.__qualname__, self._why = name, why

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Raise TrainingError: an agent acts without it, and nothing else does."""
        raise TrainingError(self._why)


def _environments_of(run: str | Path, ran: run_folder.RunConfig) -> environments.Source:
    """Return the environments of a run: an id, or the callable that its folder names."""
    env, word = ran.env, ran.env_source
    is_id = re.fullmatch(r"[\w.]+:[\w./-]+", env) is not None  # module:id
    if word is None and (is_id or is_registered(env)):
        return env
    again = "env= or --env FILE.py:NAME"
    if word is None:
        raise TrainingError(
            f"{run} was trained on {env}, which Gymnasium does not know; if it is your own"
            f" callable, pass it with {again}"
        )
    return _resolve(run, word, "environment", again)  # type: ignore[no-any-return]


def model_of(run: str | Path) -> networks.ModelSource | None:
    """Return the user's own model that a run was trained with, if its folder names one.

    Raises TrainingError if it cannot be imported from there, or if it is in the folder itself.
    """
    word = run_folder.read(run).model_source
    if word is None:
        return None
    again = "model= or --model FILE.py:NAME"
    return _resolve(run, word, "model", again)  # type: ignore[no-any-return]


def _resolve(run: str | Path, word: str, what: str, again: str) -> Any:
    additions.check_is_outside([word], run, what, again)
    try:
        return additions.resolve(word, what)
    except TrainingError as error:
        raise TrainingError(
            f"{run} was trained with the {what} {word}, and {error}; pass it with {again}"
        ) from error


# --- the model and the learner, from a probe ------------------------------------------------------


class EnvironmentInfo(NamedTuple):
    """The spaces of an environment, and a sample of its observations."""

    spaces: Spaces
    obs: Tree  # of arrays [probe_steps or less, ...], from random play
    warnings: list[str]  # for the user


@remotely.remote_class
class Probe:
    """An actor that plays an environment at random before the run is set up."""

    def __init__(self, config: Common, is_replacement: bool):
        if is_replacement:
            failures.disable_stack_dumps()
        self.config = config

    def run(self, steps: int, seed: int) -> EnvironmentInfo:
        """Make an environment and play it at random.

        Raises TrainingError if no policy fits it, if it cannot do what the config requires, or
        if it crashes too often.
        """
        config = self.config.ranked(env_ranks.EVALUATION)
        envs = config.make_environments(1, player.watch(config, 1))
        try:
            if config.random_start:  # not every environment supports it
                envs.reset(seed)
                envs.decorrelate(0, [np.random.default_rng(seed)])
            obs, warnings = checks.play(envs, steps, seed, config.max_crash_rate)
            return EnvironmentInfo(envs.spaces, obs, warnings)
        finally:
            envs.close()


@overload
def make_learner(
    config: C, model: networks.ModelSource | None = None, info: EnvironmentInfo | None = None
) -> Learner[C]: ...
@overload
def make_learner(
    config: C,
    model: networks.ModelSource | None = None,
    info: EnvironmentInfo | None = None,
    *,
    kind: type[L],
    initial: Path | None = None,
) -> L: ...
def make_learner(
    config: C,
    model: networks.ModelSource | None = None,
    info: EnvironmentInfo | None = None,
    *,
    kind: Any = Learner,
    initial: Path | None = None,
) -> Any:
    """Make the model for a config's environment, or your own model, and its learner.

    Input statistics start from a little random play, because an update without any kills units
    for good.  With `initial`, a checkpoint, statistics, weights and the units of values are those
    of its model.
    """
    info = info or probe(config)
    with MODEL_LOCK, one_thread():
        torch.manual_seed(config.seed)
        actions = info.spaces.actions
        network = config.make_model(model, info.spaces.spec, actions)
        if networks.has_normalizer(network):
            networks.update_normalizers(network, trees.map_tree(torch.from_numpy, info.obs))
        if initial is None:
            return kind(config, network, actions)
        earlier = run_folder.load_checkpoint(initial)
        saved = earlier["learner"]
        name = presets.algorithm_of(type(config))
        run_folder.check_outputs(initial, earlier, config.outputs_are, name, "choose another run: ")
        hint = run_folder.asks_about_spaces(name_of(config.env), earlier["env"])
        run_folder.check_fits(initial, saved["model"], network, hint)
        network.load_state_dict(saved["model"])
        made = kind(config, network, actions)
        if "scale" in saved:
            made.value_scale = loaded_scale(saved["scale"], config)
        return made


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Run in a thread what only the first update needs, while this thread waits for actors.

    Errors are ignored: the first update raises them again.
    """

    def run() -> None:
        with contextlib.suppress(Exception):
            work()

    # Not a daemon: an interpreter that exits would end it within torch's C++, and abort.
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def import_late() -> threading.Thread:
    """Import the module that torch imports with its first optimizer.

    Call this after users' code has been imported: at the same time, either could see modules that
    the other has only half imported.
    """
    return in_thread(lambda: importlib.import_module(LATE_IMPORT))


def probe(config: Common) -> EnvironmentInfo:
    """Probe the environment; if its process dies or hangs, retry with half as many steps.

    Raises TrainingError if all attempts fail, or if the config's minutes are over first.
    """
    if (device := device_of(config)).type == "cuda":
        in_thread(lambda: torch.zeros(1, device=device))  # makes CUDA's context
    cluster.connect(config.processes)
    deadline = time.monotonic() + config.minutes * 60 if config.minutes else None
    for attempt in range(ATTEMPTS):
        try:
            return _attempt(config, attempt, deadline)
        except Exception as error:
            if consequence_of(ProcessRole.PROBE, error) is Consequence.END:
                raise
            last = error
    report = failures.report_of(last)
    raise TrainingError(
        f"all {ATTEMPTS} attempts to play the environment at random have failed; in the last,"
        f" {report}\n{report.details}"
    ) from last


def _attempt(config: Common, attempt: int, deadline: float | None) -> EnvironmentInfo:
    actor = Probe(config, attempt > 0)
    steps = max(2, config.probe_steps >> attempt)  # a reset and a step at least
    call: Any = remotely.submit(actor.run, steps, config.seed + attempt)
    try:
        info: EnvironmentInfo = call.result(
            None if deadline is None else max(0.0, deadline - time.monotonic())
        )
        return info
    except FutureTimeout:
        raise TrainingError(
            f"the environment has not played {steps} random steps in {config.minutes:g}"
            " minutes: does it hang?"
        ) from None
    finally:
        cluster.discard(call)
        with contextlib.suppress(remotely.RemotelyError):
            remotely.kill(actor)
