"""Hooks of a run: when they are called, what they may change, and errors in them."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from examples import loggers
from remotely_rl import Hook, TrainingError, a2c
from remotely_rl.runs import metrics
from remotely_rl.runs.hooks import checked, make
from tests.remotely_rl.runs.sessions import TRAINED

pytestmark = pytest.mark.usefixtures("local", "no_curve")

MOMENTS = ("on_start", "on_rollout", "on_update", "on_evaluation", "on_row", "on_end")
ROWS = dataclasses.replace(TRAINED, log_interval_s=0.0, evaluate_every=40, evaluate_episodes=2)


class Diary(Hook):
    """Records the calls and their arguments."""

    def __init__(self) -> None:
        self.moments: list[str] = []
        self.steps: list[int] = []
        self.seen: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in MOMENTS:
            return super().__getattribute__(name)

        def written(session: Any, *seen: Any) -> None:
            self.moments.append(name)
            self.steps.append(session.env_steps)
            self.seen.append(seen)

        return written


class Raises(Hook):
    def __init__(self, moment: str):
        setattr(self, moment, self.fail)

    def fail(self, *seen: Any) -> None:
        raise ZeroDivisionError("by mistake")


def test_hooks_are_called_in_the_order_of_a_run(tmp_path: Path) -> None:
    diary = Diary()
    result = a2c.train(ROWS, run=tmp_path / "run", hooks=[diary])
    assert diary.moments[0] == "on_start"
    assert diary.moments[-1] == "on_end"
    assert diary.seen[-1] == (result,)
    rollout, update = (diary.moments.index(moment) for moment in ("on_rollout", "on_update"))
    assert rollout < update
    assert diary.steps[rollout] == sum(one.steps for one in diary.seen[rollout][0])
    assert "train/policy_loss" in diary.seen[update][0]


def test_a_value_added_to_a_row_by_a_hook_becomes_a_column(tmp_path: Path) -> None:
    class Doubled(Hook):
        def on_row(self, session: Any, row: metrics.Row) -> None:
            row["mine/double"] = 2 * row["time/env_steps"]

    a2c.train(ROWS, run=tmp_path / "run", hooks=[Doubled()])
    rows = metrics.read(tmp_path / "run" / "metrics.csv")
    assert rows
    assert all(row["mine/double"] == 2 * row["time/env_steps"] for row in rows)


def test_a_hook_stops_a_run_gracefully(tmp_path: Path) -> None:
    class Stops(Hook):
        def on_update(self, session: Any, metrics: Any) -> None:
            session.stop("enough")

    result = a2c.train(TRAINED, run=tmp_path / "run", hooks=[Stops()])
    assert result.ended == "enough"
    assert result.updates == 1
    assert a2c.train(TRAINED, resume=tmp_path / "run").ended == "100 steps are done"


def test_a_hook_changes_coefficients_of_later_updates(tmp_path: Path) -> None:
    rates = []

    class Changes(Hook):
        def on_update(self, session: Any, metrics: Any) -> None:
            rates.append(metrics["train/learning_rate"])
            session.change(learning_rate=0.125, learning_rate_end=0.125, entropy_coef=0.5)
            assert session.learner.config.entropy_coef == 0.5

    config = dataclasses.replace(TRAINED, rate_rule="none")
    a2c.train(config, run=tmp_path / "run", hooks=[Changes()])
    assert rates[0] != 0.125
    assert set(rates[1:]) == {0.125}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"actors": 3}, "actors cannot be changed during a run; entropy_coef"),
        ({"gamma": 2.0}, "gamma"),
    ],
)
def test_fields_that_cannot_be_changed_are_rejected(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    class Changes(Hook):
        def on_start(self, session: Any) -> None:
            session.change(**change)

    with pytest.raises(TrainingError, match=said):
        a2c.train(TRAINED, run=tmp_path / "run", hooks=[Changes()])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_hook_that_raises_is_named_with_its_line_and_the_run_can_be_resumed(
    moment: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(ROWS, total_steps=60)
    line = Raises.fail.__code__.co_firstlineno + 1
    said = rf"the hook Raises raised in {moment}: \S*test_hooks.py, line {line}: ZeroDivision"
    with pytest.raises(TrainingError, match=said):
        a2c.train(config, run=tmp_path / "run", hooks=[Diary(), Raises(moment)])
    if moment != "on_start":  # before the first checkpoint
        assert a2c.train(TRAINED, resume=tmp_path / "run").ended == "100 steps are done"


@pytest.mark.parametrize(
    ("hook", "said"),
    [(Diary, "has the class Diary: pass an instance"), (3, "has a int, not a remotely_rl.Hook")],
)
def test_an_object_that_is_not_a_hook_is_rejected_before_a_folder_is_made(
    hook: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=said):
        a2c.train(TRAINED, run=tmp_path / "run", hooks=[hook])
    assert not (tmp_path / "run").exists()


def test_a_method_that_no_run_calls_is_rejected_with_the_nearest_name() -> None:
    class Typo(Hook):
        def on_rows(self, session: Any, row: Any) -> None:
            pass

    with pytest.raises(TrainingError, match="Typo has on_rows, which no run calls, did you mean"):
        checked([Typo()])


def test_methods_from_classes_that_are_not_hooks_are_not_checked() -> None:
    class Listener:
        def on_message(self) -> None:
            pass

    class Both(Hook, Listener):
        pass

    both = Both()
    assert checked([both]) == [both]


def test_a_column_that_is_not_a_number_is_rejected_by_name(tmp_path: Path) -> None:
    class Talks(Hook):
        def on_row(self, session: Any, row: Any) -> None:
            row["mine/word"] = "hello"

    with pytest.raises(TrainingError, match=r"mine/word = 'hello'.*columns are numbers"):
        a2c.train(ROWS, run=tmp_path / "run", hooks=[Talks()])


def test_the_command_line_takes_a_class_or_an_instance() -> None:
    diary = Diary()
    assert make(diary, "x.py:diary") is diary
    assert isinstance(make(Diary, "x.py:Diary"), Diary)
    with pytest.raises(TrainingError, match=r"--hook x\.py:f is a int"):
        make(lambda: 3, "x.py:f")
    said = r"--hook x\.py:R, called without arguments, raised TypeError: Raises.*an instance"
    with pytest.raises(TrainingError, match=said):
        make(Raises, "x.py:R")


def test_an_example_logger_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(TrainingError, match="pip install trackio"):
        loggers.Trackio().on_start(None)


@pytest.mark.parametrize(
    ("logger", "module", "logs", "ends"),
    [
        ("WandB", "wandb", "log", "finish"),
        ("MLflow", "mlflow", "log_metrics", "end_run"),
        ("Trackio", "trackio", "log", "finish"),
    ],
)
def test_the_example_loggers_receive_each_row_and_are_closed(
    logger: str, module: str, logs: str, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Mock()
    monkeypatch.setitem(sys.modules, module, service)
    a2c.train(ROWS, run=tmp_path / "run", hooks=[getattr(loggers, logger)()])
    rows = metrics.read(tmp_path / "run" / "metrics.csv")
    logged = [call.args[0] for call in getattr(service, logs).call_args_list]
    assert [row["time/env_steps"] for row in logged] == [row["time/env_steps"] for row in rows]
    assert not any(math.isnan(number) for row in logged for number in row.values())
    getattr(service, ends).assert_called_once_with()
