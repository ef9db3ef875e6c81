"""Without a master, actors and calls go on for longer than any lease."""

import signal
import time
from pathlib import Path

import pytest

from remotely.protocol.lease import LEASE_S
from tests.chaos.load import ACTORS_A_THREAD, THREADS
from tests.chaos.stage import CLIENTS, Stage
from tests.clusters import wait_until

ACTORS = CLIENTS * THREADS * ACTORS_A_THREAD


@pytest.mark.slow
def test_a_new_master_takes_over_all_actors_of_a_killed_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", seed=1)
    try:
        wait_until(lambda: len(stage.pids("actor")) == ACTORS, "all actors")
        before = set(stage.pids("actor"))
        (master,) = stage.pids("master")
        stage.signal(master, signal.SIGKILL)
        over = time.monotonic() + LEASE_S + 5
        while time.monotonic() < over:
            assert stage.await_calls(100, within_s=3)
        assert set(stage.pids("actor")) == before

        stage.mend()

        assert stage.await_calls(100, within_s=30)
        assert set(stage.pids("actor")) == before
    finally:
        verdict, left = stage.close()
    assert (verdict.anomalies, left) == ([], {})
