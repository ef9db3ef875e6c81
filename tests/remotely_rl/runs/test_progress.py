"""The output of a run: the summary of its model, and its rows."""

import io
import math
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn

from remotely_rl import a2c, crossq, environments, networks, sac, td3
from remotely_rl.config import Common
from remotely_rl.environments import Episode
from remotely_rl.runs import progress
from remotely_rl.runs.metrics import Row, Tally
from remotely_rl.runs.progress import RunProgress
from tests.remotely_rl import space_toys, toys

NO_LIMITS = Common()


def row(seconds: float = 4.0) -> Row:
    tally = Tally()
    tally.sampled(640, [Episode(-21.0, 800), Episode(-19.0, 1000)], {"environment": 3.0})
    tally.spent("inference", 1.5)
    tally.spent("waiting", 0.5)
    for loss, entropy, rate, staleness in ((1.0, 0.5, 1e-4, [1, 3]), (2.0, 1.5, 3e-4, [0])):
        update = {"policy_loss": loss, "entropy": entropy, "learning_rate": rate}
        tally.learnt({f"train/{name}": value for name, value in update.items()}, staleness)
    return tally.close(seconds)


def test_a_line_has_speed_return_staleness_and_time_shares() -> None:
    line = progress.line(row(), NO_LIMITS)
    for part in (
        "0:00:04",
        "640 steps",
        "160/s",
        "-20.00",
        "2 games",
        "0/1.3/3",
        "environment 60%",
        "inference 30%",
        "waiting 10%",
        "rate 0.0002",
    ):
        assert part in line
    assert "left" not in line


def test_only_the_metrics_of_the_algorithm_are_shown() -> None:
    of_dqn = Tally()
    of_dqn.learnt({"train/value_loss": 2.0, "train/q_mean": 1.5, "train/td_error": 0.25}, [0])
    of_dqn.gauges.append(lambda: {"train/epsilon": 0.1})
    closed = of_dqn.close(1.0)
    assert progress.learning(closed) == [
        "value loss 2.0000",
        "epsilon 0.100",
        "mean Q 1.500",
        "TD error 0.2500",
    ]
    assert "epsilon 0.100  mean Q 1.500  rate" in progress.line(closed, NO_LIMITS)
    assert progress.learning(row()) == ["policy loss 1.5000", "entropy 1.000"]


def test_success_rates_and_evaluations_are_shown_if_present() -> None:
    tally = Tally()
    assert "success" not in progress.line(row(), NO_LIMITS)
    tally.sampled(640, [Episode(1.0, 9, {"success": x, "r": 9.0}) for x in (0.0, 1.0)], {})
    tally.evaluated(
        {
            "evaluation/env_steps": 500,
            "evaluation/return_mean": 2.5,
            "evaluation/return_std": 0.25,
        },
        {"success": 0.75},
    )
    line = progress.line(tally.close(4.0), NO_LIMITS)
    assert "2 games, success 0.50)  evaluation 2.50 (std 0.25), success 0.75  rate" in line
    assert "160/s" in line
    assert "evaluation" not in progress.line(tally.close(8.0), NO_LIMITS)
    tally.evaluated({"evaluation/env_steps": 640, "evaluation/return_mean": 2.5}, {})
    assert "  640 steps       -/s" in progress.line(tally.close(9.0), NO_LIMITS)


def test_missing_values_are_dashes() -> None:
    nothing = Tally().close(1.0)
    assert "return - (max -, 0 games)" in progress.line(nothing, NO_LIMITS)
    assert progress.table("a run", nothing, NO_LIMITS).row_count > 3


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({"total_steps": 1600}, 6.0),  # 960 more at 160 a second
        ({"minutes": 0.1}, 2.0),
        ({"total_steps": 1600, "minutes": 0.1}, 2.0),  # the first limit
        ({"total_steps": 800, "minutes": 0.1}, 1.0),
        ({"total_steps": 10}, 0.0),
        ({"minutes": 0.01}, 0.0),
    ],
)
def test_seconds_left_are_those_of_the_first_limit(limits: dict[str, Any], seconds: float) -> None:
    assert progress.seconds_left(row(), Common(**limits)) == pytest.approx(seconds)


def test_seconds_left_are_nan_without_a_limit_or_a_speed() -> None:
    assert math.isnan(progress.seconds_left(row(), NO_LIMITS))
    assert math.isnan(progress.seconds_left(Tally().close(5.0), Common(total_steps=100)))
    assert progress.seconds_left(Tally().close(5.0), Common(total_steps=100, minutes=1.0)) == 55.0


def test_the_line_ends_with_the_time_left() -> None:
    assert progress.line(row(), Common(total_steps=640 + 160 * 3723)).endswith("left 1:02:03")


def test_without_a_terminal_each_row_is_a_line() -> None:
    out = io.StringIO()
    shown = RunProgress("a run", NO_LIMITS, out)
    shown.say("hello [bold]")  # markup is not interpreted
    shown.show(row(4.0))
    shown.show(row(8.0))
    shown.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "hello [bold]"
    assert [line[:7] for line in lines[1:]] == ["0:00:04", "0:00:08"]


def test_on_a_terminal_a_live_table_remains_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    shown = RunProgress("a run", Common(minutes=1), out)
    shown.show(row())
    shown.say("an actor died")
    shown.close()
    shown.close()  # a second time is harmless
    for part in ("a run", "an actor died", "640", "160 a second", "at most 0:00:56 left"):
        assert part in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0:00:00"), (59.9, "0:00:59"), (36610, "10:10:10")]
)
def test_clock_formats_hours_minutes_and_seconds(seconds: float, said: str) -> None:
    assert progress.clock(seconds) == said


def said(
    space: gymnasium.Space[Any], units: int = 0, maker: networks.ModelSource | None = None
) -> Any:
    envs = environments.make(lambda: toys.Blank(space), 1)
    outputs = envs.actions.outputs
    model = networks.build(maker, envs.spec, outputs, networks.Architecture(lstm=units))
    size = sum(parameter.numel() for parameter in model.parameters())
    first, *rest = progress.summary(model, envs.spaces)
    assert f"; {size:,} parameters; sees " in first
    return first.replace(f" {size:,} parameters;", ""), rest


def image(*shape: int, dtype: Any = np.uint8) -> Box:
    return Box(0, 1, shape, dtype)


@pytest.mark.parametrize(
    ("space", "units", "line"),
    [
        (
            image(4, 84, 84),
            64,
            "model: 3 convolutions, 512; LSTM 64; sees images of 4 channels, 84x84",
        ),
        (
            image(42, 42, 12, dtype=np.float32),
            0,
            "model: 2 convolutions, 256; sees images of 12 channels, which came last, 42x42",
        ),
        (Box(-1, 1, (3,)), 0, "model: MLP, 64, 64; as much for the value; sees 3 numbers"),
        (
            Box(-1, 1, (3, 2)),
            8,
            "model: MLP, 64, 64; LSTM 8; as much for the value; sees 3x2, flattened to 6 numbers",
        ),
        (
            Discrete(5),
            0,
            "model: MLP, 64, 64; as much for the value; sees one of 5",
        ),
    ],
)
def test_the_summary_names_the_layers_and_the_observations(
    space: gymnasium.Space[Any], units: int, line: str
) -> None:
    assert said(space, units) == (line, [])


@pytest.mark.parametrize(
    ("space", "line"),
    [
        (
            Dict({"camera": image(30, 30, 3), "speed": Box(0, 1, (1,))}),
            (
                "model: 2 convolutions, 256, 64, 64; as much for the value; sees a Dict of"
                " ['camera'] images of 3 channels, 30x30, ['speed'] 1 number"
            ),
        ),
        (
            image(4, 20, 20, 3),  # a stack of pictures
            "model: 2 convolutions, 256; sees images of 12 channels, which came last, 20x20",
        ),
        (
            image(64, 64),
            (
                "model: 3 convolutions, 256, 64, 64; as much for the value; sees images of 1"
                " channel, 64x64"
            ),
        ),
        (
            Tuple([MultiDiscrete([3, 3, 4]), MultiBinary(2)]),
            (
                "model: MLP, 64, 64; as much for the value; sees a Tuple of [0] 3 numbers, each"
                " one of 3 or 4, [1] 2 numbers"
            ),
        ),
    ],
    ids=["Dict", "stack", "gray", "Tuple"],
)
def test_the_summary_names_each_part_of_an_observation(
    space: gymnasium.Space[Any], line: str
) -> None:
    assert said(space) == (line, [])


def test_a_model_without_convolutions_for_images_is_warned_about() -> None:
    line, (warning,) = said(image(6, 30, 30, 7))  # seven frames of six channels, perhaps
    assert line.startswith("model: MLP")
    assert "flattened to" in line
    assert warning.startswith("the model has no convolutions for the images")


class Mine(networks.MLP):
    """A model of a user's."""


@pytest.mark.parametrize("algorithm", [sac, td3, crossq])
@pytest.mark.parametrize(
    ("source", "policy"), [(None, "MLP, 16, 16"), (Mine, "Mine")], ids=["default", "own"]
)
def test_the_summary_of_an_actor_critic_describes_the_policy(
    algorithm: Any, source: Any, policy: str
) -> None:
    envs = environments.make(toys.Aim, 1)
    model = algorithm.Config(hidden="16,16").make_model(source, envs.spec, envs.actions)
    (line,) = progress.summary(model, envs.spaces)
    assert line.startswith(f"model: {policy}; ")
    assert line.endswith("; sees 1 number")


def test_the_summary_mentions_action_masks() -> None:
    envs = environments.make(space_toys.Masked, 1)
    envs.reset(1)
    model = networks.build(None, envs.spec, envs.actions.outputs)
    (line,) = progress.summary(model, envs.spaces)
    assert line.endswith("sees 1 number; illegal actions are masked")


class Own(nn.Module):
    def __init__(self, shape: Any, outputs: int):
        super().__init__()
        self.inner = networks.SmallCNN(shape["camera"], outputs)

    def forward(self, obs: Any) -> Any:
        return self.inner(obs["camera"])


def test_the_summary_of_a_users_model_is_its_name_without_advice() -> None:
    line, rest = said(Dict({"camera": image(30, 30, 3)}), maker=Own)
    assert line == "model: Own; sees a Dict of ['camera'] images of 3 channels, 30x30"
    assert not rest


@pytest.mark.usefixtures("local", "no_curve")
def test_a_run_prints_the_summary_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = a2c.Config(env=toys.Guess, actors=1, envs_per_actor=2, random_start=0, total_steps=1)
    a2c.train(config, run=tmp_path / "run")
    _, watch, model, *_ = capsys.readouterr().out.splitlines()
    assert watch == f"to watch it in the browser: remotely-rl dashboard {tmp_path}"
    # Twice (2 + 1) * 64 and 65 * 64, and heads of 65 * 2 and 65.
    assert model == ("model: MLP, 64, 64; as much for the value; 8,899 parameters; sees 2 numbers")


# --- in a notebook --------------------------------------------------------------------------------


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what a notebook displays, with updates in place."""
    shown: list[Any] = []

    class ZMQInteractiveShell:  # rich detects a notebook by the name of this class
        pass

    class Handle:
        def update(self, table: Any) -> None:
            shown[-1] = table

    def display(table: Any, display_id: bool) -> Handle:
        shown.append(table)
        return Handle()

    there = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", there)
    monkeypatch.setattr("builtins.get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as set by kernels
    return shown


def test_a_notebook_shows_one_updated_table_and_plain_lines(
    displayed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = RunProgress("a2c on Pong", NO_LIMITS)
    shown.say("a line")
    shown.show(row())
    shown.show(row(8.0))
    shown.close()
    (table,) = displayed
    assert next(iter(table.columns[1].cells)).startswith("0:00:08")
    assert capsys.readouterr().out == "a line\n"
