"""Runs with several learners, each in a process: they learn as one and end together."""

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import remotely
from remotely.machine import memory_file
from remotely_rl import a2c, appo, dqn, ppo, rainbow
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.runs import metrics, ranks, run_folder
from tests.clusters import printed, wait_until
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve", "own_cluster")


GIVEN: dict[str, Any] = {
    "env": toys.Tells,
    "actors": 1,
    "envs_per_actor": 4,
    "rollout_steps": 8,
    "device": "cpu",
    "learner_threads": 1,
    "learners": 2,
    "log_interval_s": 1e6,
    "checkpoint_interval_s": 1e6,
}
A2C = a2c.Config(**GIVEN, random_start=0, total_steps=7_000)
OF_REPLAY: dict[str, Any] = {"learn_from": 64, "batch_size": 16, "replay_ratio": 4.0}
RUNS: dict[str, tuple[Any, Any]] = {
    # More than a hundred updates each: then the learners compare their parameters.
    "a2c": (a2c, A2C),
    "ppo": (ppo, ppo.Config(**GIVEN, overlap=True, total_steps=7_000)),
    "rainbow": (rainbow, rainbow.Config(**GIVEN, **OF_REPLAY, total_steps=1_500)),
}


def the_rank() -> int:
    """Return the process of a learner other than rank 0, once it has started."""

    def found() -> list[int]:
        return [one.pid for one in remotely.actors() if one.class_name == "Rank"]

    wait_until(found, "the other learner has started")
    return found()[0]


def meanwhile(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def until_updates(run: Path) -> None:
    """Wait for the first row, which is written at the first update after a game."""
    wait_until(lambda: metrics.read(run / "metrics.csv"), "there is a row")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_learners_stay_equal_count_all_steps_and_resume(name: str, tmp_path: Path) -> None:
    algorithm, config = RUNS[name]
    config = dataclasses.replace(config, evaluate_every=config.total_steps // 2)
    result = algorithm.train(config, run=tmp_path / "run")
    assert result.ended == f"{config.total_steps:,} steps are done"
    steps_of_a_round = 2 * 4 * 8
    assert config.total_steps <= result.env_steps < config.total_steps + steps_of_a_round
    assert result.updates >= 100
    assert result.episodes > 0.4 * result.env_steps  # a step and a reset each, of both
    row = metrics.read(tmp_path / "run" / "metrics.csv")[-1]
    assert row["episode/success"] > 0.4
    assert row["evaluation/env_steps"] == result.env_steps
    kept = run_folder.load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert kept["counters"]["env_steps"] == result.env_steps
    more = dataclasses.replace(config, total_steps=config.total_steps + 500)
    resumed = algorithm.train(more, resume=tmp_path / "run")
    assert resumed.env_steps >= more.total_steps
    assert resumed.updates > result.updates


@pytest.mark.slow
def test_learners_started_from_a_runs_model_stay_equal(tmp_path: Path) -> None:
    _, config = RUNS["ppo"]
    alone = dataclasses.replace(config, learners=1, total_steps=1_000)
    ppo.train(alone, run=tmp_path / "first")
    result = ppo.train(config, run=tmp_path / "next", initial=tmp_path / "first")
    assert result.ended == f"{config.total_steps:,} steps are done"
    assert result.updates >= 100


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_bit_by_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(A2C, learners=3, total_steps=2_000)
    for name in ("one", "other"):
        a2c.train(config, run=tmp_path / name)
    toys.assert_same_bits(tmp_path / "one", tmp_path / "other")


@pytest.mark.chaos
def test_a_killed_rank_ends_the_run_which_names_it_and_keeps_the_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a2c.train(dataclasses.replace(A2C, total_steps=200), run=tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    killed: list[float] = []

    def kill() -> None:
        pid = the_rank()
        time.sleep(0.2)  # at any point: while it starts, or while it learns
        os.kill(pid, signal.SIGKILL)
        killed.append(time.monotonic())

    killing = meanwhile(kill)
    endless = dataclasses.replace(A2C, total_steps=0)
    with pytest.raises(LearnerLost, match=r"learner 1 is lost: .*SIGKILL"):
        a2c.train(endless, resume=tmp_path / "run")
    assert time.monotonic() - killed[0] < 10
    killing.join()
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
    assert "the last good checkpoint is kept: --resume" in capfd.readouterr().out


@pytest.mark.slow
def test_ctrl_c_ends_all_learners_gracefully(tmp_path: Path) -> None:
    config = dataclasses.replace(A2C, total_steps=0)

    def interrupt() -> None:
        until_updates(tmp_path / "run")
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = meanwhile(interrupt)
    result = a2c.train(config, run=tmp_path / "run")
    interrupting.join()
    assert result.ended == "stopped by SIGINT"
    kept = run_folder.load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert kept["counters"]["updates"] == result.updates > 0
    assert not [one for one in remotely.actors() if one.class_name in ("Rank", "Actor")]


ON_STORE: dict[str, tuple[Any, Any]] = {
    "appo": (appo, appo.Config(**GIVEN, total_steps=2_000)),
    **{
        name: (
            RUNS[name][0],
            dataclasses.replace(RUNS[name][1], learners_share="store", total_steps=2_000),
        )
        for name in ("a2c", "rainbow")
    },
}


# --- a store --------------------------------------------------------------------------------------

ALONE: dict[str, tuple[Any, dict[str, Any]]] = {
    "a2c": (a2c, {"total_steps": 320}),
    "dqn": (dqn, {**OF_REPLAY, "total_steps": 160}),
    "noisy": (dqn, {**OF_REPLAY, "noisy": True, "prioritized_alpha": 0.5, "total_steps": 160}),
}


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", ALONE)
def test_one_learner_with_a_store_learns_the_same_as_without(name: str, tmp_path: Path) -> None:
    algorithm, changes = ALONE[name]
    given = {**GIVEN, "learners": 1, **changes}
    for share in ("gradients", "store"):
        config = algorithm.Config(**given, learners_share=share)
        algorithm.train(config, run=tmp_path / share)
    toys.assert_same_bits(tmp_path / "gradients", tmp_path / "store")
    longer = {**given, "total_steps": given["total_steps"] + 64}
    for share in ("gradients", "store"):
        config = algorithm.Config(**longer, learners_share=share)
        algorithm.train(config, resume=tmp_path / share)
    toys.assert_same_bits(tmp_path / "gradients", tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a2c", "rainbow", "appo"])
def test_learners_that_share_a_store_count_all_steps_and_resume(name: str, tmp_path: Path) -> None:
    algorithm, config = ON_STORE[name]
    result = algorithm.train(config, run=tmp_path / "run")
    assert result.ended == "2,000 steps are done"
    assert result.episodes > 0.4 * result.env_steps
    updates = result.env_steps // 64  # only rank 0's, which has about half of all rounds
    assert name != "a2c" or result.updates > updates / 4
    more = dataclasses.replace(config, total_steps=2_500)
    resumed = algorithm.train(more, resume=tmp_path / "run")
    assert resumed.env_steps >= 2_500
    assert resumed.updates > result.updates


@pytest.mark.chaos
def test_with_a_store_the_run_continues_if_a_learner_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(A2C, learners_share="store", learners=3, total_steps=0)

    def act() -> None:
        until_updates(tmp_path / "run")
        os.kill(the_rank(), signal.SIGKILL)
        wait_until(lambda: "the others continue" in printed(), "the death is told")
        os.kill(os.getpid(), signal.SIGINT)

    acting = meanwhile(act)
    result = a2c.train(config, run=tmp_path / "run")
    acting.join()
    assert result.ended == "stopped by SIGINT"
    assert (tmp_path / "run" / "checkpoint.pt").exists()


# --- rejected configs -----------------------------------------------------------------------------


def test_more_learners_than_gpus_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = dataclasses.replace(A2C, device="cuda", learners=3)
    with pytest.raises(TrainingError, match=r"learners=3 .* torch sees 2: set learners to 2"):
        ranks.check(config)
    with pytest.raises(TrainingError, match=r"device=cuda:1 names one: use cuda"):
        ranks.check(dataclasses.replace(config, device="cuda:1", learners=2))


def test_several_learners_reject_a_variable_number_of_actors() -> None:
    for config, what in (
        (appo.Config(learners=2, actors=0), "actors=0"),
        (ppo.Config(learners=2, arrivals=True), "arrivals"),
    ):
        with pytest.raises(TrainingError, match=f"{what} is for one learner"):
            ranks.check(config)


@pytest.mark.usefixtures("local")
def test_several_learners_are_rejected_in_local_mode(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="REMOTELY_LOCAL=1 runs all in one: unset it"):
        a2c.train(A2C, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_value_of_learners_share_suggests_the_closest() -> None:
    with pytest.raises(
        TrainingError, match=r"gradients or store, not 'stor', did you mean 'store'"
    ):
        a2c.Config(learners_share="stor")
    of_ppo: Any = {"learners_share": "store"}
    with pytest.raises(TrainingError, match=r"a2c, dqn, c51, qr_dqn and rainbow can share a store"):
        ppo.Config(**of_ppo)


def test_a_store_is_rejected_without_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_file, "SUPPORTED", False)
    for config in (a2c.Config(learners_share="store"), appo.Config(learners=2)):
        with pytest.raises(TrainingError, match="share a store need Linux"):
            ranks.check(config)
    ranks.check(appo.Config())


def test_the_first_update_needs_a_batch_for_all_learners() -> None:
    config = dqn.Config(learners=4, batch_size=128, learn_from=400)
    with pytest.raises(TrainingError, match=r"batch_size of all learners \(512\) is more than"):
        config.check_run()
