"""Runs that are added to a file as they end: a measurement of hours goes on where it was."""

import json
from pathlib import Path
from typing import NamedTuple, TypeVar

Kind = TypeVar("Kind", bound=NamedTuple)


def read(file: Path, kind: type[Kind]) -> list[Kind]:
    """All runs so far, the first first."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [kind(**json.loads(line)) for line in lines]


def add(file: Path, run: NamedTuple) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(run._asdict()) + "\n")
