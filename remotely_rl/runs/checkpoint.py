"""Checkpoints: all that a run needs to continue as if it had not stopped.

A checkpoint is a dictionary of tensors and plain values, so that loading it runs no code
(`weights_only`).  It is written to a temporary file, synced and renamed: after any crash, the
file is either the old checkpoint or the new one, whole.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remotely_rl import durable
from remotely_rl.errors import TrainingError

# Increased whenever the content of a checkpoint changes, or what its numbers mean to a network.
FORMAT = 3


def save(path: Path, content: dict[str, Any]) -> None:
    """Writes `content` at `path`, atomically and durably."""
    # Into memory first: torch would hide the OSError of a full disk in an error of its own.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    durable.write(path, [buffer.getbuffer()])


def load(path: Path) -> dict[str, Any]:
    """Reads what `save` wrote.  Raises TrainingError if the file is missing or something else."""
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


def best_return(path: Path) -> float:
    """The mean return of the checkpoint at `path`; -inf if it cannot be read."""
    try:
        return float(load(path)["counters"]["best_return"])
    except (TrainingError, KeyError, TypeError):
        return -math.inf


def check_fits(path: Path, state: dict[str, Tensor], model: nn.Module) -> None:
    """Raises TrainingError, naming the first difference, if `state` is of another model."""
    own = model.state_dict()
    for name in [*own, *state]:
        here = list(own[name].shape) if name in own else "nothing"
        there = list(state[name].shape) if name in state else "nothing"
        if here != there:
            raise TrainingError(
                f"{path} is a checkpoint of another model: it holds {there} as {name!r},"
                f" {type(model).__name__} has {here}"
            )
