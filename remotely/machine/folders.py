"""Where remotely keeps its files on this machine."""

import os
from pathlib import Path


def home() -> Path:
    """Return `~/.remotely`, or REMOTELY_HOME if that is set."""
    return Path(os.environ.get("REMOTELY_HOME") or "~/.remotely").expanduser()


def key_folder() -> Path:
    """Return the folder in which keys are made and looked for."""
    return home() / "keys"
