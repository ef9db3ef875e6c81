"""A little of every kind of chaos, in each run of the tests; `make chaos` does more."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    ("trial", "n"),
    [
        ("kill actor", 10), ("kill worker", 2), ("decoder", 20_000), ("admitted peers", 500),
        ("a worker that lies", 2_000), ("a client that lies", 2_000), ("raw bytes", 100),
        ("strangers", 2), ("births", 60), ("calls", 20_000), ("interrupts", 3),
    ],
)  # fmt: skip
def test_nothing_is_lost_run_twice_or_left_behind(nothing_left: None, trial: str, n: int) -> None:
    command = [sys.executable, "-m", "tests.chaos", trial, "-n", str(n)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
