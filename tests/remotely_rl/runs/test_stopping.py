"""When a run stops: at its limits, and when it is asked to."""

import signal
from pathlib import Path

import pytest

from remotely_rl.config import Common
from remotely_rl.environments import Episode
from tests.remotely_rl.runs.sessions import Clock, Learner, session

pytestmark = pytest.mark.usefixtures("no_curve")


def test_a_session_stops_when_the_steps_are_done(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", total_steps=100)) as run:
        run.tally.sampled(99, [], {})
        assert not run.over()
        run.tally.sampled(1, [], {})
        assert run.over()
    assert run.result.ended == "100 steps are done"


def test_a_session_stops_when_the_minutes_are_over(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, Common(env="CartPole-v1", minutes=2), clock) as run:
        clock.now += 119
        assert not run.over()
        clock.now += 1
        assert run.over()
    assert run.result.ended == "2 minutes are over"
    assert run.result.seconds == 120


def test_a_session_stops_at_its_target_but_not_for_a_lucky_few_games(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", target=8.0)) as run:
        run.tally.sampled(1, [Episode(9.0, 9)] * 29, {})
        assert not run.over()
        run.tally.sampled(1, [Episode(9.0, 9)], {})
        assert run.over()
    assert run.result.ended == "the mean return of 8 is reached"


def test_what_ended_a_session_first_is_what_it_says(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", total_steps=100)) as run:
        run.tally.sampled(100, [], {})
        assert run.over()
        signal.raise_signal(signal.SIGINT)
        assert run.over()
    assert run.result.ended == "100 steps are done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_ctrl_c_stops_at_the_next_turn_and_keeps_checkpoint_metrics_and_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with session(tmp_path) as run:
        run.restore(Learner())
        run.tally.sampled(10, [Episode(1.0, 5)], {})
        assert not run.over()
        signal.raise_signal(number)
        assert run.over()
    assert signal.getsignal(number) is before
    assert run.result.ended == f"stopped by {number.name}"
    assert run.folder.checkpoint.exists()
    assert run.folder.curve.exists()
    assert str(run.folder.path) in capsys.readouterr().out.splitlines()[-1]


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    with session(tmp_path):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
