"""The folder of one training run.

config.json     the config of the last time that the run was started or resumed
metrics.csv     a row each interval; tensorboard/ has the same
checkpoint.pt   the last state, to resume from
best.pt         the state at the best mean return
curve.png       the learning curve
"""

import dataclasses
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from remotely_rl.environments import name_of
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import logbook


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def best(self) -> Path:
        return self.path / "best.pt"

    @property
    def crashes(self) -> Path:
        return self.path / logbook.NAME

    @property
    def curve(self) -> Path:
        return self.path / "curve.png"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"


def create(path: Path | None, algorithm: str, config: Any) -> RunFolder:
    """Makes the folder, `runs/<algorithm>-<env>-<date-time>` if no path is given.

    Raises TrainingError if the path exists already.
    """
    if path is None:
        path = _unused(Path("runs") / _default_name(algorithm, config.env))
    check_is_free(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"cannot make {path}: {error.strerror}") from error
    folder = RunFolder(path)
    write(folder, algorithm, config)
    return folder


def check_is_free(path: Path) -> None:
    """Raises TrainingError if `path` exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise TrainingError(
            f"{path} exists already; resume it with --resume {path}, or choose another --run"
        )


def write(folder: RunFolder, algorithm: str, config: Any) -> None:
    """Writes config.json, whole or not at all."""
    fields = dataclasses.asdict(config) | {"env": name_of(config.env)}
    text = json.dumps({"algorithm": algorithm, "config": fields}, indent=2)
    beside = folder.config.with_suffix(".json.tmp")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(folder.config)


class RunConfig(NamedTuple):
    """What config.json says of a run.  The fields of `config` are not checked."""

    algorithm: str
    env: str
    config: dict[str, Any]


def read(run: str | Path) -> RunConfig:
    """Reads the config.json of a run folder, whatever the algorithm.

    Raises TrainingError if there is no such folder, or no valid config.json in it.
    """
    folder = RunFolder(Path(run))
    if not folder.path.is_dir():
        raise TrainingError(f"there is no run folder {run}")
    try:
        content = json.loads(folder.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainingError(f"{run} is not a run folder: it has no config.json") from None
    except (ValueError, OSError) as error:
        raise TrainingError(f"{folder.config} cannot be read: {error}") from error
    match content:
        case {"algorithm": str(algorithm), "config": {"env": str(env)}}:
            return RunConfig(algorithm, env, content["config"])
    raise TrainingError(f"{folder.config} does not name the algorithm and the environment of a run")


def reopen(path: Path, algorithm: str) -> tuple[RunFolder, dict[str, Any]]:
    """Opens the folder of an earlier run.  Returns it and its config as a dictionary.

    Raises TrainingError if it is not a run folder, or one of another algorithm.
    """
    ran, _, config = read(path)
    if ran != algorithm:
        raise TrainingError(f"{path} is a run of {ran}; resume it with {ran}, not {algorithm}")
    return RunFolder(path), config


def _default_name(algorithm: str, env: Any) -> str:
    game = re.sub(r"[^\w.-]+", "-", name_of(env).removeprefix("ALE/")).strip("-")
    return f"{algorithm}-{game[:100]}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _unused(path: Path) -> Path:
    """The path with a number appended if it exists: two runs may begin in the same second."""
    candidate, n = path, 2
    while candidate.exists():
        candidate, n = path.with_name(f"{path.name}-{n}"), n + 1
    return candidate
