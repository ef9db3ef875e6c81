"""Rows of metrics: their content, and their files."""

import csv
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter

from remotely_rl import durable
from remotely_rl.environments import Episode
from remotely_rl.runs import metrics
from remotely_rl.runs.metrics import COLUMNS, MAX_METRICS, Tally, Writer
from tests.remotely_rl import toys

PROMISED = """
time/seconds time/env_steps time/updates time/steps_per_second
rollout/episodes rollout/return_mean rollout/return_max rollout/episode_length_mean
train/policy_loss train/value_loss train/entropy train/staleness_mean train/staleness_max
"""


def busy_tally() -> Tally:
    tally = Tally()
    tally.sampled(320, [Episode(-21.0, 800)], {"environment": 2.0, "inference": 1.0, "idle": 0.0})
    tally.sampled(320, [Episode(-19.0, 1000)], {"environment": 1.0, "inference": 0.5})
    tally.spent("waiting", 0.5)
    tally.learnt({"train/policy_loss": 1.0, "train/entropy": 0.5}, staleness=[1, 3])
    tally.learnt({"train/policy_loss": 2.0, "train/entropy": 1.5}, staleness=[0])
    return tally


def test_the_first_columns_are_fixed() -> None:
    assert list(COLUMNS[:13]) == PROMISED.split()


def test_a_row_has_the_metrics_of_its_interval() -> None:
    row = busy_tally().close(seconds=4.0)
    assert row["time/env_steps"] == 640
    assert row["time/steps_per_second"] == 160
    assert row["time/updates"] == 2
    assert (row["rollout/episodes"], row["rollout/return_mean"], row["rollout/return_max"]) == (
        2,
        -20,
        -19,
    )
    assert row["rollout/episode_length_mean"] == 900
    assert (row["train/policy_loss"], row["train/entropy"]) == (1.5, 1.0)
    assert (row["train/staleness_min"], row["train/staleness_max"]) == (0, 3)
    assert row["train/staleness_mean"] == pytest.approx(4 / 3)
    assert (row["time/environment_s"], row["time/inference_s"], row["time/waiting_s"]) == (
        3.0,
        1.5,
        0.5,
    )


def test_the_next_interval_starts_empty_except_the_mean_return() -> None:
    tally = busy_tally()
    tally.close(seconds=4.0)
    row = tally.close(seconds=6.0)
    assert row["time/steps_per_second"] == 0
    assert row["time/environment_s"] == 0
    assert math.isnan(row["train/entropy"])
    assert math.isnan(row["rollout/return_interval"])
    assert row["rollout/return_mean"] == -20
    assert row["time/env_steps"] == 640


def test_a_row_of_an_evaluation_has_a_speed_only_if_steps_were_taken() -> None:
    tally = busy_tally()
    tally.evaluated({"evaluation/return_mean": 1.0}, {})
    assert tally.close(seconds=4.0)["time/steps_per_second"] == 160
    tally.evaluated({"evaluation/return_mean": 1.0}, {})
    assert math.isnan(tally.close(seconds=4.1)["time/steps_per_second"])


def test_the_mean_return_is_of_the_last_hundred_games() -> None:
    tally = Tally()
    tally.sampled(1, [Episode(-21.0, 1)] * 50 + [Episode(1.0, 1)] * 100, {})
    assert tally.return_mean() == 1.0


def test_rows_are_flushed(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(busy_tally().close(seconds=4.0))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        (cells,) = csv.DictReader(file)
    assert tuple(cells) == COLUMNS
    assert cells["time/env_steps"] == "640"
    assert cells["train/value_loss"] == ""  # no value
    assert list((tmp_path / "tensorboard").glob("events*"))
    writer.close()


def test_tensorboard_has_the_settings_of_a_run_beside_its_metrics(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.describe({"gamma": 0.9, "env": "CartPole-v1", "lstm": None, "wrappers": ["a:B"]})
    writer.write(busy_tally().close(seconds=4.0))
    writer.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (started,) = (
        HParamsPluginData.FromString(content).session_start_info.hparams
        for tag, content in board.PluginTagToContent("hparams").items()
        if tag == "_hparams_/session_start_info"
    )
    assert started["gamma"].number_value == 0.9
    assert started["lstm"].string_value == "None"
    assert started["wrappers"].string_value == "['a:B']"
    assert set(metrics.COMPARED) & set(board.Tags()["scalars"])


def test_a_resumed_run_drops_rows_later_than_its_checkpoint(tmp_path: Path) -> None:
    tally = busy_tally()
    writer = Writer(tmp_path)
    for seconds in (5.0, 10.0, 15.0):
        writer.write(tally.close(seconds))
    writer.close()
    Writer(tmp_path, resumed_at_s=10.0).close()
    assert [row["time/seconds"] for row in metrics.read(tmp_path / "metrics.csv")] == [5.0, 10.0]


def test_a_new_metric_becomes_a_column(tmp_path: Path) -> None:
    tally, file = busy_tally(), tmp_path / "metrics.csv"
    writer = Writer(tmp_path)
    writer.write(tally.close(5.0))
    tally.gauges.append(lambda: {"mine/gauge": 0.25})
    tally.learnt({"mine/surprise": 3.0}, [])
    writer.write(tally.close(10.0))
    writer.close()
    first, second = metrics.read(file)
    assert list(first) == list(second) == [*COLUMNS, "mine/surprise", "mine/gauge"]
    assert (first["time/env_steps"], math.isnan(first["mine/surprise"])) == (640, True)
    assert (second["mine/surprise"], second["mine/gauge"]) == (3.0, 0.25)
    Writer(tmp_path, resumed_at_s=10.0).close()
    assert metrics.read(file)[1] == second


def test_a_full_disk_on_resume_keeps_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally, file = busy_tally(), tmp_path / "metrics.csv"
    writer = Writer(tmp_path)
    for seconds in (5.0, 10.0):
        writer.write(tally.close(seconds))
    writer.close()
    before = file.read_bytes()
    monkeypatch.setattr(durable, "write", toys.no_room)
    Writer(tmp_path, resumed_at_s=10.0).close()  # there is nothing to drop
    with pytest.raises(OSError, match="No space left"):
        Writer(tmp_path, resumed_at_s=5.0)
    assert file.read_bytes() == before


def test_a_line_cut_short_by_a_crash_is_not_a_row(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(busy_tally().close(5.0))
    writer.close()
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("10,640,")
    assert len(metrics.read(tmp_path / "metrics.csv")) == 1


def test_the_short_mean_covers_the_last_thirty_games() -> None:
    tally = Tally()
    tally.sampled(1, [Episode(5.0, 1)] * 29, {})
    assert math.isnan(tally.short_return_mean())
    tally.sampled(1, [Episode(5.0, 1)], {})
    assert tally.short_return_mean() == 5.0
    tally.sampled(1, [Episode(7.0, 1)] * 30, {})
    assert tally.short_return_mean() == 7.0
    assert tally.return_mean() == 6.0


def test_tensorboard_recovers_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)

    def full(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(SummaryWriter, "add_scalar", full)
        with pytest.raises(OSError, match="no room"):
            writer.write(busy_tally().close(5.0))
    writer.write(busy_tally().close(10.0))
    writer.close()
    assert [row["time/seconds"] for row in metrics.read(tmp_path / "metrics.csv")] == [5.0, 10.0]


# --- metrics of episodes ------------------------------------------------------------------------


def test_environment_metrics_are_columns_with_the_mean_over_recent_episodes() -> None:
    tally = Tally()
    tally.sampled(1, [Episode(0.0, 1, {"success": 0.0, "found": 9.0})], {})
    tally.sampled(1, [Episode(0.0, 1, {"success": 1.0})] * 3 + [Episode(0.0, 1)], {})
    row = tally.close(1.0)
    assert (row["episode/success"], row["episode/found"]) == (0.75, 9.0)
    tally.sampled(1, [Episode(0.0, 1, {"success": 1.0})] * 100, {})
    row = tally.close(2.0)
    assert row["episode/success"] == 1.0
    assert "episode/found" not in row  # none of the last hundred has it


def test_a_resumed_run_keeps_the_metrics_of_recent_episodes() -> None:
    saved = {"counters": {}, "recent": [[1.0, 1, {"success": 1.0}], [1.0, 1]]}
    assert Tally.of(saved).close(1.0)["episode/success"] == 1.0


def test_a_metric_that_is_not_a_number_is_left_out_with_one_warning() -> None:
    tally = Tally()
    for _ in range(2):
        tally.sampled(1, [Episode(0.0, 1, {"success": math.nan}), Episode(0.0, 1)], {})
    (said,) = tally.warnings()
    assert said.startswith("the metric 'success' of an episode is not a finite number")
    assert tally.warnings() == []
    tally.sampled(1, [Episode(0.0, 1, {"success": 1.0})], {})
    assert tally.close(1.0)["episode/success"] == 1.0


def test_the_number_of_environment_metrics_is_limited() -> None:
    tally = Tally()
    tally.sampled(1, [Episode(0.0, 1, {f"level_{n}": 1.0}) for n in range(50)], {})
    columns = [name for name in tally.close(1.0) if name.startswith("episode/")]
    assert columns == [f"episode/level_{n}" for n in range(MAX_METRICS)]
    (said,) = tally.warnings()
    assert said == ("episodes have more than 32 metrics: 'level_32' and later ones are left out")
