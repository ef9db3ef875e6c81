"""Atomic and durable writing of files: after a crash, a file is wholly old or wholly new."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write(path: Path, parts: Iterable[Any]) -> None:
    """Write bytes or buffers, one after the other, atomically and durably."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
