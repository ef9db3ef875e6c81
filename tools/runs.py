"""Runs that are added to a file as they end: a measurement of hours goes on where it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Run = TypeVar("Run")  # a NamedTuple


def read(file: Path, kind: Callable[..., Run]) -> list[Run]:
    """All runs so far, the first first."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [kind(**json.loads(line)) for line in lines]


def add(file: Path, run: Any) -> None:
    """Add one that has ended: a NamedTuple."""
    with file.open("a") as lines:
        lines.write(json.dumps(run._asdict()) + "\n")
