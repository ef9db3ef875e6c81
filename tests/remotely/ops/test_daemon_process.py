"""What a daemon does with what it is told on its standard input."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("role", ["master", "worker"])
def test_a_daemon_without_configuration_ends_silently(role: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"remotely.{role}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
