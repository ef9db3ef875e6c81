"""Tests of runs whose actors dial in."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely_rl import impala, ppo
from remotely_rl.acting.dial_in import Station
from remotely_rl.errors import TrainingError
from tests.clusters import Here
from tests.clusters import run as run_command

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys
import gymnasium
import remotely_rl

def make():
    print("an environment of this process", flush=True)
    return gymnasium.make("CartPole-v1")

remotely_rl.dial_in(make, address=sys.argv[1], key=sys.argv[2])
print("the cluster was stopped", flush=True)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path / "cluster")
    yield made
    remotely.shutdown()
    with contextlib.suppress(AssertionError):  # the test has stopped it
        made.stop()


def start(cluster: Here) -> "subprocess.Popen[str]":
    key = str(cluster.home / "keys" / "worker.key")
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, cluster.address, key],
        cwd=ROOT,
        env={**os.environ, "REMOTELY_HOME": str(cluster.home)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_successive_runs_train_with_the_same_actors_that_dial_in(
    cluster: Here, tmp_path: Path
) -> None:
    remotely.connect(cluster.address, key=cluster.key)
    actors = [start(cluster) for _ in range(2)]
    common: dict[str, Any] = {
        "env": "CartPole-v1",
        "arrivals": True,
        "actors": 2,
        "envs_per_actor": 2,
        "rollout_steps": 16,
        "total_steps": 600,
    }
    try:
        for number, algorithm in enumerate((ppo, impala)):
            run = tmp_path / f"run-{number}"
            result = algorithm.train(algorithm.Config(**common), run=run)
            assert result.env_steps >= 600
        for station in remotely.arrivals(Station, timeout=40, count=2):  # free for the next run
            with pytest.raises(remotely.RemotelyError, match="has no actor"):
                station.sample()
        run_command(cluster.home, "stop", "--port", str(cluster.port))
        said = [actor.communicate(timeout=40)[0] for actor in actors]
    finally:
        for actor in actors:
            actor.kill()
            actor.communicate()
    for out in said:
        assert out.count("an environment of this process") >= 4  # two for each run
        assert out.endswith("the cluster was stopped\n")


def test_a_run_with_arrivals_needs_a_cluster_that_others_can_reach(tmp_path: Path) -> None:
    with pytest.raises((remotely.NotConnected, TrainingError), match="remotely start"):
        ppo.train(ppo.Config(env="CartPole-v1", arrivals=True), run=tmp_path / "run")
    remotely.shutdown()
