"""Phases that take long have a line, and short ones have none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remotely_rl.environments import Episode
from remotely_rl.runs import records
from remotely_rl.runs.phases import AFTER_S, Phases
from tests.remotely_rl.runs.sessions import Clock, Learner, session


class Timers:
    """Timers that expire when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, seconds: float, call: Callable[[], None]) -> Any:
        assert seconds == AFTER_S
        self.calls.append(call)
        return self

    def start(self) -> None: ...

    def cancel(self) -> None: ...

    def expire(self) -> None:
        """Expire all of them, also those that are cancelled too late."""
        for call in self.calls:
            call()


def test_a_phase_that_takes_long_has_one_line_and_a_short_one_none() -> None:
    said: list[str] = []
    timers = Timers()
    phases = Phases(said.append, timers)
    phases.enter("a short phase")
    phases.enter("a cluster starts")
    timers.expire()
    timers.expire()
    assert said == ["a cluster starts ..."]
    phases.enter("another")
    phases.end()
    timers.expire()
    assert said == ["a cluster starts ..."]


def test_a_phase_that_is_entered_again_and_again_is_one() -> None:
    said: list[str] = []
    timers = Timers()
    phases = Phases(said.append, timers)
    for _ in range(3):
        phases.enter("a replay fills")
    assert len(timers.calls) == 1
    timers.expire()
    phases.enter("a replay fills")
    timers.expire()
    assert said == ["a replay fills ..."]
    phases.end()
    phases.enter("a replay fills")
    timers.expire()
    assert said == 2 * ["a replay fills ..."]


def test_a_run_tells_what_it_waits_for_until_its_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timers, clock = Timers(), Clock()
    monkeypatch.setattr(records, "Phases", lambda say: Phases(say, timers))
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        timers.expire()
        assert "the actors start, make their environments, and play ..." in capsys.readouterr().out
        run.learnt({"train/entropy": 1.0}, [0])
        timers.expire()
        told = "it learns; the first row comes with a game's end or 5 s ..."
        assert told in capsys.readouterr().out
        run.tally.sampled(5, [Episode(7.0, 5)], {})
        run.learnt({"train/entropy": 1.0}, [0])  # the first row
        timers.expire()
        assert "..." not in capsys.readouterr().out
