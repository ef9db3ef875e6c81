"""A few chaos trials in each run of the tests, all kinds in the slow ones; see `make chaos`."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    ("trial", "n"),
    [
        ("kill actor", 5),
        ("admitted peers", 500),
        ("versions", 1_000),
        *(
            pytest.param(*trial, marks=pytest.mark.chaos)
            for trial in (
                ("kill worker", 1),
                ("decoder", 20_000),
                ("calls", 5_000),
                ("interrupts", 2),
                ("a worker that lies", 1_000),
                ("a client that lies", 1_000),
                ("raw bytes", 100),
                ("strangers", 1),
                ("births", 30),
                ("kill a store amid a transfer", 3),
                ("kill a relaying worker", 3),
                ("kill an end of a served object", 10),
                ("stop a relay", 1),
                ("environments sampled centrally", 20),
                ("environments under our PPO", 20),
                ("environments under CleanRL's PPO", 20),
                ("environments sampled in two halves", 20),
                ("versions", 20_000),
                ("kill a follower of a value", 3),
                ("stop a follower of a value", 1),
                ("kill the writer of a followed value", 3),
            )
        ),
    ],
)
def test_nothing_is_lost_run_twice_or_left_behind(nothing_left: None, trial: str, n: int) -> None:
    command = [sys.executable, "-m", "tests.chaos", trial, "-n", str(n)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
