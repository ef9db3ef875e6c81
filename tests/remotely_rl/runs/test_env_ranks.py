"""Each environment of a run has a rank of its own, wherever and whenever it is made."""

import os
from pathlib import Path
from typing import Any

import pytest

from examples.bit_flip import BitFlip
from remotely_rl import a2c, a3c, dqn, ga3c, impala
from remotely_rl.agents import evaluation
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve", "own_cluster")


class Ranked(toys.Guess):
    """Notes its rank in a folder; that with rank 1 dies once, in its first step."""

    def __init__(self, folder: str, rank: int):
        super().__init__()
        self.folder, self.rank = Path(folder), rank
        with open(self.folder / str(rank), "a") as file:
            file.write("made\n")

    def step(self, action: Any) -> Any:
        if self.rank == 1 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os._exit(3)
        return super().step(action)


LOCAL: dict[str, Any] = {"sampling": "local", "evaluate_every": 100, "evaluate_episodes": 2}
HALVES: dict[str, Any] = {"sampling": "alternating", "batch_trajectories": 2}


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        (a2c, LOCAL),
        (impala, HALVES),
        pytest.param(a2c, {"sampling": "central"}, marks=pytest.mark.slow),
        pytest.param(a3c, {}, marks=pytest.mark.slow),
        pytest.param(ga3c, {"train_rows": 16, "device": "cpu"}, marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_replaces_another_has_its_rank(
    algorithm: Any, more: dict[str, Any], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    config = algorithm.Config(
        env=Ranked,
        env_kwargs={"folder": str(notes)},
        actors=2,
        envs_per_actor=2,
        total_steps=400,
        max_crash_rate=1.0,
        rollout_steps=4,
        **more,
    )
    run = algorithm.train(config, run=tmp_path / "run").run
    made = {int(one.name): len(one.read_text().splitlines()) for one in notes.glob("[0-9]*")}
    in_training = {rank: times for rank, times in made.items() if rank < 10_000}
    assert in_training == {0: 2, 1: 2, 2: 1, 3: 1}  # a process has two of them
    probed_and_evaluated = {10_000, 10_001} if more is LOCAL else {10_000}
    assert made.keys() - in_training.keys() == probed_and_evaluated
    evaluation.evaluate(run, episodes=2)
    assert {int(one.name) for one in notes.glob("2*")} - {2} == {20_000, 20_001}


class RankedBits(BitFlip):
    def __init__(self, folder: str, rank: int):
        super().__init__(4)
        (Path(folder) / str(rank)).touch()


@pytest.mark.slow
def test_the_environments_that_judge_hindsight_have_ranks_of_their_learners(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    config = dqn.Config(
        env=RankedBits,
        env_kwargs={"folder": str(notes)},
        device="cpu",
        learners=2,
        actors=1,
        envs_per_actor=2,
        hindsight=4,
        total_steps=128,
        learn_from=64,
        batch_size=32,
        replay_rows=1_000,
    )
    dqn.train(config, run=tmp_path / "run")
    made = {int(one.name) for one in notes.iterdir()}
    assert made == {0, 1, 2, 3, 10_000, 15_000, 15_001}
