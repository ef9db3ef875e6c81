"""The metric that best.pt is chosen by, and pictures for TensorBoard."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from remotely_rl import Hook, TrainingError, a2c
from remotely_rl.runs import metrics, run_folder
from tests.remotely_rl.runs.sessions import TRAINED

pytestmark = pytest.mark.usefixtures("local", "no_curve")

ROWS = dataclasses.replace(TRAINED, log_interval_s=0.0)


class Scores(Hook):
    """Adds a column with these numbers, one for each row, and then the last."""

    def __init__(self, *scores: float):
        self.scores, self.steps = list(scores), list[int]()

    def on_row(self, session: Any, row: Any) -> None:
        row["mine/a, b"] = self.scores[min(len(self.steps), len(self.scores) - 1)]
        self.steps.append(session.env_steps)


def steps_of_best(run: Path) -> int:
    return int(run_folder.load_checkpoint(run / "best.pt")["counters"]["env_steps"])


@pytest.mark.parametrize(("best_by", "row"), [("mine/a, b", 2), ("-mine/a, b", 1)])
def test_the_best_checkpoint_is_that_of_the_best_row_by_a_column(
    best_by: str, row: int, tmp_path: Path
) -> None:
    hook = Scores(3.0, 1.0, 8.0, 5.0)
    a2c.train(dataclasses.replace(ROWS, best_by=best_by), run=tmp_path / "run", hooks=[hook])
    assert len(hook.steps) >= 4
    assert steps_of_best(tmp_path / "run") == hook.steps[row]


def test_a_resumed_run_keeps_the_best_by_the_same_column_only(tmp_path: Path) -> None:
    run, config = tmp_path / "run", dataclasses.replace(ROWS, best_by="mine/a, b")
    a2c.train(config, run=run, hooks=[Scores(9.0, 1.0)])
    first, longer = steps_of_best(run), 2 * config.total_steps
    config = dataclasses.replace(config, total_steps=longer)
    a2c.train(config, resume=run, hooks=[Scores(5.0)])
    assert steps_of_best(run) == first
    other = dataclasses.replace(config, total_steps=2 * longer, best_by="-mine/a, b")
    a2c.train(other, resume=run, hooks=[Scores(5.0)])
    assert steps_of_best(run) > longer


def test_the_best_may_be_that_of_an_evaluation_by_another_metric(tmp_path: Path) -> None:
    config = dataclasses.replace(
        ROWS, evaluate_every=40, evaluate_episodes=2, best_by="-evaluation/env_steps"
    )
    a2c.train(config, run=tmp_path / "run")
    first = next(
        row["evaluation/env_steps"]
        for row in metrics.read(tmp_path / "run" / "metrics.csv")
        if row.get("evaluation/env_steps", np.nan) > 0
    )
    assert steps_of_best(tmp_path / "run") == first


def test_a_metric_of_evaluations_needs_evaluations(tmp_path: Path) -> None:
    config = dataclasses.replace(ROWS, best_by="evaluation/success")
    with pytest.raises(TrainingError, match="set evaluate_every"):
        a2c.train(config, run=tmp_path / "run")


def test_a_run_says_that_no_row_has_the_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a2c.train(dataclasses.replace(ROWS, best_by="mine/none"), run=tmp_path / "run")
    assert not (tmp_path / "run" / "best.pt").exists()
    assert "no row has a number mine/none: there is no best.pt" in capsys.readouterr().out


class Draws(Hook):
    def on_update(self, session: Any, metrics: Any) -> None:
        session.log_image("mine/gray", np.full((3, 4), 255, np.uint8))
        session.log_image("mine/colour", torch.rand(3, 4, 3))
        session.log_histogram("mine/weights", next(session.model.parameters()))

    def on_start(self, session: Any) -> None:
        for image in (np.zeros(3), np.zeros((3, 4, 7)), np.full((2, 2), "x")):
            with pytest.raises(TrainingError, match=r"give \[height, width\]"):
                session.log_image("mine/wrong", image)
        with pytest.raises(TrainingError, match="has no finite numbers"):
            session.log_histogram("mine/wrong", [np.nan])


def test_a_hook_writes_images_and_histograms_for_tensorboard_and_the_dashboard(
    tmp_path: Path,
) -> None:
    a2c.train(ROWS, run=tmp_path / "run", hooks=[Draws()])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["images"]) == {"mine/gray", "mine/colour"}
    assert events.Tags()["histograms"] == ["mine/weights"]
    image = events.Images("mine/gray")[0]
    assert (image.width, image.height) == (4, 3)
    *_, last = metrics.read(tmp_path / "run" / "metrics.csv")
    assert events.Histograms("mine/weights")[-1].step == last["time/env_steps"]
    assert not [name for name in last if name.startswith("mine/")]
    files = {path.name for path in (tmp_path / "run" / "media").iterdir()}
    assert f"mine%2Fcolour@{last['time/env_steps']:.0f}.png" in files
    assert "mine%2Fweights.jsonl" in files
