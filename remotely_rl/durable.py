"""Files that are either the old ones or the new ones, whole, after any crash."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write(path: Path, parts: Iterable[Any]) -> None:
    """Write bytes, and what else has a buffer, one after the other: atomically and durably."""
    beside = path.with_suffix(path.suffix + ".tmp")
    with beside.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
