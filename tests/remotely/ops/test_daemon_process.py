"""The configuration of daemons on standard input."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("role", ["master", "worker"])
def test_a_daemon_without_configuration_exits_silently(role: str) -> None:
    command = [sys.executable, "-m", f"remotely.{role}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
