"""The folder of one training run.

config.json     the config with which the run was last started or resumed, its algorithm, and the
                file of the algorithm if it is a user's; versions, commit, machine and command of
                that start, and how it ended (`status.py`)
run.lock        held while the run trains
metrics.csv     a row per interval; tensorboard/ has the same
checkpoint.pt   the latest state, to resume from
best.pt         the state at the best evaluation; without evaluations, at the best mean return
curve.png       the learning curve
spaces.json     the spaces of the environment, by which an agent acts without it
crashes.jsonl   the crashes of environments
media/          images and histograms of hooks (`media.py`)
notes.json      notes and tags of the user (`notes.py`)

A checkpoint holds all that a run needs to continue as if it had not stopped.  It is a dictionary of
tensors and plain values, so loading it runs no code (`weights_only`).
"""

import contextlib
import dataclasses
import functools
import io
import json
import math
import pickle
import re
import types
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from remotely_rl import durable, settings, user_code
from remotely_rl.errors import TrainingError

if TYPE_CHECKING:  # the dashboard reads run folders without torch
    from torch import Tensor, nn

    from remotely_rl.environments.spaces import Spaces

# Incremented when the content of a checkpoint changes, or the meaning of its numbers to a network.
FORMAT = 3
# If one of these settings has changed, saved environments are of no use.  `env` cannot change.
OF_ENVIRONMENTS = (
    "env_kwargs",
    "wrappers",
    "env_python",
    "env_packages",
    "image_size",
    "gray",
    "frame_stack",
    "sticky_actions",
    "life_loss_is_terminal",
)
MAX_NAMED = 5  # runs of a folder that an error message names
CHECKPOINT, LOCK = "checkpoint.pt", "run.lock"


class RunFolder:
    """The files of a run."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.json"
        self.checkpoint = path / CHECKPOINT
        self.best = path / "best.pt"
        self.curve = path / "curve.png"
        self.metrics = path / "metrics.csv"
        self.spaces = path / "spaces.json"
        self.lock = path / LOCK

    @property
    def crashes(self) -> Path:
        from remotely_rl.supervision import logbook  # noqa: PLC0415 - imports torch

        return self.path / logbook.NAME

    def saved(self, which: str = "last") -> Path:
        """Return the "last" or the "best" checkpoint.  Raises TrainingError if there is none."""
        path = {"last": self.checkpoint, "best": self.best}.get(which)
        if path is None:
            raise TrainingError(f"the checkpoint is last or best, not {which!r}")
        if path.exists():
            return path
        if which == "last":
            raise TrainingError(f"{self.path} has no checkpoint.pt: the run has not saved one yet")
        raise TrainingError(
            f"{self.path} has no best.pt: too few episodes have ended to tell which is best; use"
            " the last checkpoint"
        )


def create(
    path: Path | None,
    algorithm: str,
    config: Any,
    source: str | None = None,
    model_source: str | None = None,
) -> RunFolder:
    """Make the folder, by default `runs/<algorithm>-<env>-<date-time>`, and its config.json.

    `source` is the FILE.py:NAME of a user's algorithm, `model_source` that of a user's model.
    Raises TrainingError if the path exists.
    """
    try:
        if path is None:
            path = make_new(Path("runs") / default_name(algorithm, config.env))
        else:
            check_is_free(path)
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"cannot make {error.filename}: {error.strerror}") from error
    folder = RunFolder(path)
    write(folder, algorithm, config, source, model_source)
    return folder


def check_is_free(path: Path) -> None:
    """Raise TrainingError if `path` exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        if RunFolder(path).config.exists() and not RunFolder(path).checkpoint.exists():
            raise without_checkpoint(path)
        raise TrainingError(
            f"{path} exists already; resume it with --resume {path}, or choose another --run"
        )


def without_checkpoint(path: Path) -> TrainingError:
    """Return the error of a run that is to continue, or is in the way, and has no checkpoint."""
    return TrainingError(
        f"{path} exists already and has no checkpoint to resume from: if its run has ended, remove"
        " it; otherwise choose another --run"
    )


def write(
    folder: RunFolder,
    algorithm: str,
    config: Any,
    source: str | None = None,
    model_source: str | None = None,
) -> None:
    """Write config.json atomically."""
    content = {
        "algorithm": algorithm,
        "source": source,
        "env_source": source_of(config.env),
        "evaluate_env_source": source_of(config.evaluate_env),
        "model_source": model_source,
        "config": fields_of(config),
        "asked": dict(config.asked),
        "not_kept": not_kept(config),
        "env_is_own": not isinstance(config.env, str),
    }
    replace(folder, content)


def replace(folder: RunFolder, content: Mapping[str, Any]) -> None:
    """Write the content of config.json atomically, without what is empty."""
    text = json.dumps({name: value for name, value in content.items() if value}, indent=2)
    temporary = folder.config.with_suffix(".json.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(folder.config)


def write_spaces(folder: RunFolder, spaces: "Spaces") -> None:
    """Write spaces.json."""
    from remotely_rl.environments import spaces as of_environments  # noqa: PLC0415 - imports torch

    text = json.dumps(of_environments.plain(spaces))
    with contextlib.suppress(OSError):  # without it, the environment is needed
        durable.write(folder.spaces, [text.encode()])


def spaces_of(run: str | Path) -> "Spaces | None":
    """Return the spaces in a run folder; None if an earlier version has written it."""
    from remotely_rl.environments import spaces as of_environments  # noqa: PLC0415 - imports torch

    try:
        return of_environments.parsed(json.loads(RunFolder(Path(run)).spaces.read_bytes()))
    except (OSError, ValueError):
        return None


def fields_of(config: Any) -> dict[str, Any]:
    """Return the fields of a config as config.json stores them."""
    from remotely_rl.environments import additions, name_of  # noqa: PLC0415 - imports torch

    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    words = [additions.reference_to(one) for one in config.wrappers]
    kept = {"env": name_of(config.env), "env_kwargs": _kept(config.env_kwargs), "wrappers": words}
    kept["evaluate_env_kwargs"] = _kept(config.evaluate_env_kwargs)
    if config.evaluate_env is not None:
        kept["evaluate_env"] = name_of(config.evaluate_env)
    return fields | kept


def _kept(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an environment that JSON or the command line's text can hold."""
    texts = {name: settings.text_of(value) for name, value in given.items()}
    return {name: _json_of(given[name], text) for name, text in texts.items() if text is not None}


def source_of(thing: Any) -> str | None:
    """Return the FILE.py:NAME or module:NAME of a user's own environment or model.

    None if there is none: for a Gymnasium id, an instance, and what only the training script has.
    """
    from remotely_rl.environments import additions  # noqa: PLC0415 - imports torch

    if thing is None or isinstance(thing, str):
        return None
    has_name = isinstance(thing, type | types.FunctionType | functools.partial)
    return user_code.word_for(thing) or (additions.reference_to(thing) if has_name else None)


# How to pass again, on the command line, what a folder could not keep.
AGAIN = {
    "env": "--env FILE.py:NAME",
    "env_kwargs": "--env-arg NAME=VALUE",
    "wrappers": "--wrapper FILE.py:NAME",
    "evaluate_env": "--evaluate-env FILE.py:NAME",
    "evaluate_env_kwargs": "--evaluate-env-arg NAME=VALUE",
}
OF_EVALUATIONS = ("evaluate_env", "evaluate_env_kwargs")  # only a run that goes on needs them


def not_kept(config: Any) -> dict[str, str]:
    """Return what config.json cannot store, by field."""
    from remotely_rl.environments import additions, name_of  # noqa: PLC0415 - imports torch

    def arguments(given: Mapping[str, Any]) -> str:
        return ", ".join(f"{k}={v!r}" for k, v in given.items() if settings.text_of(v) is None)

    wrappers = [
        additions.display_name(one)
        for one in config.wrappers
        if additions.reference_to(one) is None
    ]
    lost = {"env_kwargs": arguments(config.env_kwargs), "wrappers": ", ".join(wrappers)}
    lost["evaluate_env_kwargs"] = arguments(config.evaluate_env_kwargs)
    env = config.evaluate_env
    if env is not None and not isinstance(env, str) and source_of(env) is None:
        lost["evaluate_env"] = name_of(env)
    return {name: what for name, what in lost.items() if what}


def remarks(config: Any) -> list[str]:
    """Return lines for the user about what the folder cannot keep."""
    return [
        f"the run folder cannot keep {what}, of {name}: pass it again to resume"
        f"{'' if name in OF_EVALUATIONS else ', evaluate or play'}"
        for name, what in not_kept(config).items()
    ]


def _json_of(value: Any, text: str) -> Any:
    """Return a value that JSON can hold; otherwise, and for a string, the command line's text."""
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, str) and repr(json.loads(json.dumps(value))) == repr(value):
            return value
    return text


class RunConfig(NamedTuple):
    """The content of config.json.  The fields of `config` are not checked."""

    algorithm: str
    env: str
    config: dict[str, Any]
    source: str | None = None  # FILE.py:NAME of a user's algorithm
    env_source: str | None = None  # FILE.py:NAME or module:NAME of a user's environments
    model_source: str | None = None  # the same of a user's model
    evaluate_env_source: str | None = None  # the same of environments that evaluations play
    not_kept: Mapping[str, str] = MappingProxyType({})  # what it could not store, by field
    env_is_own: bool = False  # a callable of the user, not an id
    asked: Mapping[str, Any] = MappingProxyType({})  # what `config` has the machine's numbers for
    started: Mapping[str, Any] = MappingProxyType({})  # see status.py
    ended: Mapping[str, Any] = MappingProxyType({})

    @property
    def as_asked(self) -> dict[str, Any]:
        """The config as it was asked for: "auto" in place of the machine's numbers."""
        return {**self.config, **self.asked}


def read(run: str | Path) -> RunConfig:
    """Read the config.json of a run folder, whatever the algorithm.

    Raises TrainingError if there is no such folder or no valid config.json in it.  For a folder
    of --seeds, the error names its runs.
    """
    folder = RunFolder(Path(run))
    if folder.path.is_file():
        raise TrainingError(f"{run} is a file: give the folder of its run, {folder.path.parent}")
    if not folder.path.is_dir():
        raise TrainingError(f"there is no run folder {run}")
    try:
        content = folder.config.read_bytes()
    except FileNotFoundError:
        if inside := _inside(folder.path):
            names = ", ".join(each.name for each in inside[:MAX_NAMED])
            more = ", ..." if len(inside) > MAX_NAMED else ""
            raise TrainingError(f"{run} holds several runs: name one of {names}{more}") from None
        raise TrainingError(f"{run} is not a run folder: it has no config.json") from None
    except OSError as error:
        raise TrainingError(f"{folder.config} cannot be read: {error}") from error
    return parsed(content, folder.config)


def runs_of(path: Path) -> list[Path]:
    """Return the runs in a folder of --seeds; for any other path, the path itself."""
    return [path] if RunFolder(path).config.exists() else _inside(path) or [path]


def _inside(path: Path) -> list[Path]:
    return sorted((config.parent for config in path.glob("*/config.json")), key=_numbered)


def _numbered(path: Path) -> list[tuple[str, int]]:
    """Return a sort key that puts seed-2 before seed-10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", path.name)]


def parsed(content: bytes, path: Path) -> RunConfig:
    """Parse the content of the config.json at `path`.  Raises TrainingError as `read` does."""
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
    match parsed:
        case {"algorithm": str(algorithm), "config": {"env": str(env)}}:
            sources = {
                name: str(parsed[name])
                for name in ("source", "env_source", "model_source", "evaluate_env_source")
                if parsed.get(name) is not None
            }
            return RunConfig(
                algorithm,
                env,
                upgrade(parsed["config"]),
                **sources,
                not_kept=_mapping(parsed.get("not_kept")),
                env_is_own=parsed.get("env_is_own") is True,
                asked=_mapping(parsed.get("asked")),
                started=_mapping(parsed.get("started")),
                ended=_mapping(parsed.get("ended")),
            )
    raise TrainingError(f"{path} does not name the algorithm and the environment of a run")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def upgrade(config: dict[str, Any]) -> dict[str, Any]:
    """Parse the arguments in a config.json, and rename fields of earlier versions."""
    for field in ("env_kwargs", "evaluate_env_kwargs"):
        for name, value in (config.get(field) or {}).items():
            if isinstance(value, str):
                config[field][name] = settings.literal(value)
    if "hidden_units" in config:  # an earlier version: the width of each of two layers
        config["hidden"] = "{0},{0}".format(config.pop("hidden_units"))
    if "recovery_updates" in config:
        config["anneal_updates"] = config.pop("recovery_updates")
    return config


class Removed(NamedTuple):
    """A setting that earlier versions had."""

    idle: Any  # the value with which it had no effect
    why: str  # there is none any more


# Those that have no effect without another one of these have IDLE.
IDLE = object()
NO_REPLAYS = "impala learns from each batch once it has it, and not again"
NO_TUNER = "ga3c keeps its numbers of agents, predictors and trainers"
REMOVED = {
    "reset_interval": Removed(0, "dqn and its kin do not reset their networks: returns were lower"),
    "replay_batches": Removed(0, NO_REPLAYS),
    "replays": Removed(IDLE, NO_REPLAYS),
    "adjust_s": Removed(0, NO_TUNER),
    "most_agents": Removed(IDLE, NO_TUNER),
}


def without_removed(
    config: Mapping[str, Any], known: Collection[str], run: str | Path, *, to_act: bool
) -> dict[str, Any]:
    """Return the settings of a run without those that are not `known` any more.

    Raises TrainingError if such a setting had an effect on training; it has none on an agent that
    is only `to_act`.
    """
    kept = dict(config)
    for name in config.keys() & REMOVED.keys() - set(known):
        value, (idle, why) = kept.pop(name), REMOVED[name]
        if not to_act and idle is not IDLE and value != idle:
            raise TrainingError(
                f"{run} was trained with {name}={value}, and {why}: a new run can begin with its"
                f" model, by --initial {run}"
            )
    return kept


def reopen(path: Path, algorithm: str) -> tuple[RunFolder, RunConfig]:
    """Return the folder of an earlier run and its config.json.

    Raises TrainingError if it is not a run folder, or if the run is of another algorithm.
    """
    ran = read(path)
    if (by := ran.algorithm) != algorithm:
        raise TrainingError(f"{path} is a run of {by}; resume it with {by}, not {algorithm}")
    return RunFolder(path), ran


def has_other_environments(ran: RunConfig, config: Any) -> bool:
    """Return whether a config makes environments with other settings than an earlier run."""
    now = upgrade(json.loads(json.dumps(fields_of(config))))
    return any(name in ran.config and ran.config[name] != now[name] for name in OF_ENVIRONMENTS)


def default_name(algorithm: str, env: Any) -> str:
    """Return the default name of a run's folder in runs/."""
    from remotely_rl.environments import name_of  # noqa: PLC0415 - imports torch

    game = re.sub(r"[^\w.-]+", "-", name_of(env).removeprefix("ALE/")).strip("-")
    return f"{algorithm}-{game[:100]}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def make_new(path: Path) -> Path:
    """Make a folder with this name, with a number appended if it exists.  Returns its path.

    Creation decides: two processes may start a run in the same second.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    candidate, n = path, 2
    while True:
        try:
            candidate.mkdir()
        except FileExistsError:
            candidate, n = path.with_name(f"{path.name}-{n}"), n + 1
        else:
            return candidate


# --- checkpoints ----------------------------------------------------------------------------------


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint: after any crash, the file holds either the old or the new one."""
    import torch  # noqa: PLC0415 - see above

    # Serialize to memory first: torch would wrap the OSError of a full disk in its own error.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    durable.write(path, [buffer.getbuffer()])


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint.  Raises TrainingError if the file is missing or not a checkpoint."""
    import torch  # noqa: PLC0415 - see above

    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainingError(
            f"{path.parent} has no checkpoint ({path.name}) to resume from"
        ) from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise TrainingError(f"{path} cannot be read as a checkpoint: {error}") from error
    written_as = content.get("format") if isinstance(content, dict) else None
    if not isinstance(written_as, int):
        raise TrainingError(f"{path} is not a checkpoint of remotely_rl")
    if written_as != FORMAT:
        age = "an earlier" if written_as < FORMAT else "a later"
        raise TrainingError(
            f"{path} was written by {age} version of remotely_rl: it has format {written_as}, and"
            f" this version reads only format {FORMAT}.  Use the version that wrote it, or start a"
            " new run"
        )
    found: dict[str, Any] = content
    return found


class Best(NamedTuple):
    """The best numbers of a checkpoint, -inf where it has none."""

    best_return: float = -math.inf  # the best mean return
    best_metric: float = -math.inf  # of the metric `best_by`
    evaluated: float = -math.inf  # the best evaluation, by `best_by` too


def best_of(path: Path, by: str | None) -> Best:
    """Return the best numbers of the checkpoint at `path`, by the metric of `Common.best_by`."""
    try:
        content = load_checkpoint(path)
        counters, evaluations = content["counters"], content.get("evaluations", {})
        best = Best(float(counters["best_return"]))
        if counters.get("best_by", "") == (by or ""):
            best = best._replace(best_metric=float(counters.get("best_metric", -math.inf)))
        if evaluations.get("by") == by:
            best = best._replace(evaluated=float(evaluations.get("best", -math.inf)))
    except (TrainingError, KeyError, TypeError):
        return Best()
    return best


def asks_about_spaces(env: str, trained_in: str) -> str:
    """Return a hint for `check_fits` if `env` is not the environment that a run was trained in."""
    if env == trained_in:
        return ""
    return f"are the observations and actions of {env} those of {trained_in}? "


def check_outputs(
    path: Path, content: Mapping[str, Any], outputs: str, algorithm: str, hint: str
) -> None:
    """Raise TrainingError if the outputs of a checkpoint's model do not mean what they should.

    `outputs` is the `outputs_are` of a config of the algorithm.  The error begins with `hint`.
    """
    was = content.get("outputs", outputs)  # earlier versions do not say
    if was != outputs:
        raise TrainingError(
            f"{hint}{path} is a checkpoint of another model: it returns {was}, for"
            f" {content['algorithm']}, and {algorithm} needs {outputs}"
        )


def check_fits(path: Path, state: "dict[str, Tensor]", model: "nn.Module", hint: str = "") -> None:
    """Raise TrainingError, naming the first difference, if `state` is of another model.

    The error begins with `hint`.
    """
    own = model.state_dict()
    for name in [*own, *state]:
        here = list(own[name].shape) if name in own else "nothing"
        there = list(state[name].shape) if name in state else "nothing"
        if here != there:
            raise TrainingError(
                f"{hint}{path} is a checkpoint of another model: it holds {there} as {name!r},"
                f" {type(model).__name__} has {here}"
            )
