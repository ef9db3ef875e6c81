"""What is shown of a run while it trains."""

import io
import math
from typing import Any

import pytest

from remotely_rl.config import Common
from remotely_rl.environments import Episode
from remotely_rl.runs import progress
from remotely_rl.runs.metrics import Row, Tally
from remotely_rl.runs.progress import Progress

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


def test_a_line_tells_speed_return_staleness_and_where_time_went() -> None:
    line = progress.line(row(), NO_LIMITS)
    for part in (
        "0:00:04", "640 steps", "160/s", "-20.00", "2 games", "0/1.3/3", "environment 60%",
        "inference 30%", "waiting 10%", "rate 0.0002",
    ):  # fmt: skip
        assert part in line
    assert "left" not in line


def test_what_an_algorithm_has_is_told_and_nothing_else() -> None:
    of_dqn = Tally()
    of_dqn.learnt({"train/value_loss": 2.0, "train/q_mean": 1.5, "train/td_error": 0.25}, [0])
    of_dqn.gauges.append(lambda: {"train/epsilon": 0.1})
    told = of_dqn.close(1.0)
    assert progress.learning(told) == [
        "value loss 2.0000", "epsilon 0.100", "mean Q 1.500", "TD error 0.2500"
    ]  # fmt: skip
    assert "epsilon 0.100  mean Q 1.500  rate" in progress.line(told, NO_LIMITS)
    assert progress.learning(row()) == ["policy loss 1.5000", "entropy 1.000"]


def test_before_the_first_game_there_are_dashes() -> None:
    nothing = Tally().close(1.0)
    assert "return - (max -, 0 games)" in progress.line(nothing, NO_LIMITS)
    assert progress.table("a run", nothing, NO_LIMITS).row_count > 3


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({"total_steps": 1600}, 6.0),  # 960 more at 160 a second
        ({"minutes": 0.1}, 2.0),
        ({"total_steps": 1600, "minutes": 0.1}, 2.0),  # what comes first
        ({"total_steps": 800, "minutes": 0.1}, 1.0),
        ({"total_steps": 10}, 0.0),
        ({"minutes": 0.01}, 0.0),
    ],
)
def test_the_time_that_is_left_is_that_of_the_limit_which_comes_first(
    limits: dict[str, Any], seconds: float
) -> None:
    assert progress.left(row(), Common(**limits)) == pytest.approx(seconds)


def test_nobody_knows_how_long_it_takes_without_a_limit_or_without_speed() -> None:
    assert math.isnan(progress.left(row(), NO_LIMITS))
    assert math.isnan(progress.left(Tally().close(5.0), Common(total_steps=100)))
    assert progress.left(Tally().close(5.0), Common(total_steps=100, minutes=1.0)) == 55.0


def test_the_time_that_is_left_is_shown() -> None:
    assert progress.line(row(), Common(total_steps=640 + 160 * 3723)).endswith("left 1:02:03")


def test_elsewhere_than_on_a_terminal_each_row_is_a_line() -> None:
    out = io.StringIO()
    shown = Progress("a run", NO_LIMITS, out)
    shown.say("hello [bold]")  # nothing in it is markup
    shown.show(row(4.0))
    shown.show(row(8.0))
    shown.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "hello [bold]"
    assert [line[:7] for line in lines[1:]] == ["0:00:04", "0:00:08"]


def test_on_a_terminal_there_is_a_table_that_stays_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    shown = Progress("a run", Common(minutes=1), out)
    shown.show(row())
    shown.say("an actor died")
    shown.close()
    shown.close()  # twice does no harm
    for part in ("a run", "an actor died", "640", "160 a second", "at most 0:00:56 left"):
        assert part in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0:00:00"), (59.9, "0:00:59"), (36610, "10:10:10")]
)
def test_time_is_told_in_hours_minutes_and_seconds(seconds: float, said: str) -> None:
    assert progress.clock(seconds) == said
