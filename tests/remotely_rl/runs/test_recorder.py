"""The files that a run writes into its folder, and when."""

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from remotely_rl import a2c, a3c
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError
from remotely_rl.runs import metrics, run_folder
from remotely_rl.runs.recorder import ClippingReport
from tests.remotely_rl import toys
from tests.remotely_rl.runs.sessions import CONFIG, Clock, Learner, finished_run, resumed, session

pytestmark = pytest.mark.usefixtures("no_curve")


def test_rows_and_checkpoints_are_written_when_they_are_due(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        for _ in range(29):
            clock.now += 1
            run.tick()
        assert not run.folder.checkpoint.exists()
        clock.now += 1
        run.tick()
        rows = metrics.read(run.folder.metrics)
        assert [row["time/seconds"] for row in rows] == [5, 10, 15, 20, 25, 30]
        assert run.folder.checkpoint.exists()


def test_a_full_disk_is_reported_once_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save, clock = run_folder.save_checkpoint, Clock()

    def full(path: Path, content: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        monkeypatch.setattr(run_folder, "save_checkpoint", full)
        for _ in range(4):  # rows are still written, because they are small
            clock.now += 31
            run.tick()
        said = capsys.readouterr().out.splitlines()
        sentence = f"cannot write to {run.folder.path}: No space left on device; training continues"
        assert said.count(sentence) == 1
        assert not run.folder.checkpoint.exists()

        monkeypatch.setattr(run_folder, "save_checkpoint", save)
        clock.now += 31
        run.tick()
        said = capsys.readouterr().out.splitlines()
        assert said.count(f"{run.folder.path} can be written to again") == 1
        assert run.folder.checkpoint.exists()
    assert len(metrics.read(run.folder.metrics)) == 5


def test_a_short_run_has_an_early_row_and_no_empty_rows(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        for seconds, games in ((0.5, 0), (1.0, 2), (1.5, 0)):
            clock.now = 100 + seconds
            run.tally.sampled(10, [Episode(7.0, 5)] * games, {})
            run.learnt({"train/entropy": seconds}, [0])
        clock.now += 1
        run.tally.sampled(5, [Episode(7.0, 5)] * 30, {})  # no update uses these
        clock.now += 1
    rows = metrics.read(run.folder.metrics)
    assert [(row["time/seconds"], row["train/entropy"]) for row in rows] == [(1, 0.75), (3.5, 1.5)]

    with resumed(run.folder, clock) as again:
        again.restore(Learner())
        clock.now += 1
        again.tally.sampled(5, [Episode(9.0, 5)] * 30, {})
    assert metrics.read(run.folder.metrics) == rows
    assert again.result.best_return == 9.0  # counts without an update


def test_a_run_that_is_shorter_than_an_interval_has_rows_by_its_steps(tmp_path: Path) -> None:
    clock = Clock()
    config = dataclasses.replace(CONFIG, total_steps=1000)
    with session(tmp_path, config, clock) as run:
        run.restore(Learner())
        while not run.over():
            clock.now += 0.001
            run.tally.sampled(20, [Episode(7.0, 20)], {})
            run.learnt({"train/entropy": 1.0}, [0])
    steps = [row["time/env_steps"] for row in metrics.read(run.folder.metrics)]
    assert steps == [20, *range(80, 1000, 60), 1000]


def test_a_resumed_run_that_does_nothing_keeps_its_checkpoint(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    before = folder.checkpoint.read_bytes()
    with resumed(folder) as run:
        run.restore(Learner())
    assert folder.checkpoint.read_bytes() == before
    assert run.result.new_steps == 0


def test_an_incomplete_checkpoint_of_a_killed_run_is_harmless(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    half = folder.checkpoint.with_suffix(".pt.tmp")
    whole = folder.checkpoint.read_bytes()
    half.write_bytes(whole[: len(whole) // 2])  # killed while it wrote the next
    with resumed(folder) as run:
        run.restore(Learner())
        assert run.env_steps == 500
        run.tally.sampled(1, [], {})
    assert not half.exists()  # replaced by the next save
    assert run_folder.load_checkpoint(folder.checkpoint)["times_resumed"] == 1


def test_the_best_return_has_its_own_checkpoint(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        for score, best in ((5.0, 5.0), (1.0, 5.0), (8.0, 8.0)):
            run.tally.sampled(1, [Episode(score, 1)] * 100, {})
            clock.now += 6
            run.tick()
            assert run_folder.load_checkpoint(run.folder.best)["counters"]["best_return"] == best


def test_a_resumed_run_keeps_the_best_agent_of_before_a_crash(tmp_path: Path) -> None:
    clock = Clock()
    folder = finished_run(tmp_path)  # its mean is 9
    with resumed(folder, clock) as run:
        run.restore(Learner())
        run.tally.sampled(1, [Episode(20.0, 1)] * 30, {})
        clock.now += 6
        run.tick()
        best = folder.best.read_bytes()
        before = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(before)  # killed before the next checkpoint
    with resumed(folder, clock) as run:
        run.restore(Learner())
        run.tally.sampled(1, [Episode(15.0, 1)] * 30, {})
        clock.now += 6
        run.tick()
    assert folder.best.read_bytes() == best
    assert run.result.best_return == 20.0


def test_the_folder_keeps_the_config(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    kept = json.loads((folder.path / "config.json").read_text())
    del kept["started"], kept["ended"]  # of status.py
    assert kept == {
        "algorithm": "toy",
        "config": dataclasses.asdict(CONFIG) | {"wrappers": [], "env_packages": []},
    }


def test_an_existing_run_folder_is_rejected(tmp_path: Path) -> None:
    finished_run(tmp_path)
    with pytest.raises(TrainingError, match=r"exists already; resume it with --resume"):
        session(tmp_path)


def test_a_run_folder_without_a_checkpoint_is_rejected_with_no_word_of_resuming_it(
    tmp_path: Path,
) -> None:
    finished_run(tmp_path).checkpoint.unlink()
    with pytest.raises(TrainingError, match="no checkpoint to resume from: if its run has ended"):
        session(tmp_path)


# --- clipped rewards ------------------------------------------------------------------------------


def test_clipping_is_reported_once_and_in_the_summary() -> None:
    clipped = ClippingReport(1.0)
    clipped.count({"train/rewards_clipped": 0.0})
    assert (clipped.news(), clipped.summary()) == ("", "")
    clipped.count({"train/rewards_clipped": 0.02})
    assert clipped.news().startswith("1 % of rewards were clipped to 1 for the learner")
    clipped.count({"train/rewards_clipped": 0.07})
    clipped.count({"entropy_coef": 1.0})  # an update without rewards, such as a later epoch
    assert clipped.news() == ""
    assert clipped.summary().startswith("3 % of rewards were clipped")


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("algorithm", "bound", "share"), [(a2c, 10.0, 2 / 3), (a3c, 10.0, 2 / 3), (a2c, 30.0, 0.0)]
)
def test_a_run_reports_the_share_of_clipped_rewards(
    algorithm: Any, bound: float, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = algorithm.Config(
        env=toys.Counting,
        actors=1,
        envs_per_actor=4,
        rollout_steps=8,
        random_start=0,
        total_steps=200,
        reward_clip=bound,
        log_interval_s=1e6,
        checkpoint_interval_s=1e6,
    )

    algorithm.train(config, run=tmp_path / "run")

    for row in metrics.read(tmp_path / "run" / "metrics.csv"):
        assert row["train/rewards_clipped"] == pytest.approx(share, abs=0.1)
    is_reported = " % of rewards were clipped to 10 for the learner" in capsys.readouterr().out
    assert is_reported == (share > 0)
