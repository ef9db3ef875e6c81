"""Tests of the seats' state table and of `Episodes`, against a model written as facts."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from remotely_rl.vector.states import TABLE, Episodes, SeatEvent, SeatRule, SeatState


class Facts(NamedTuple):
    """What the VectorEnv knows of a seat."""

    has_host: bool
    is_connected: bool = False
    has_step: bool = False
    has_answered: bool = False


STATES = {
    SeatState.IDLE: Facts(True, True),
    SeatState.STEPPING: Facts(True, True, True),
    SeatState.DONE: Facts(True, True, True, True),
    SeatState.DEAD: Facts(False),
    SeatState.RENEWING: Facts(True, False),
}


def after(facts: Facts, event: SeatEvent) -> Facts | None:
    """Return the facts after an event; None if it cannot happen."""
    match event:
        case SeatEvent.STEP if facts.is_connected and not facts.has_step:
            return facts._replace(has_step=True)
        case SeatEvent.ANSWER if facts.has_step and not facts.has_answered:
            return facts._replace(has_answered=True)
        case SeatEvent.DEATH:  # after an answer it goes unnoticed until the next use
            return facts if facts.has_answered else Facts(False)
        case SeatEvent.ARRIVAL if not facts.has_host:
            return Facts(True)
        case SeatEvent.CONNECTION if facts.has_host and not facts.is_connected:
            return Facts(True, True)
        case SeatEvent.END if facts.has_answered or not facts.has_host:
            return facts._replace(has_step=False, has_answered=False)
    return None


@pytest.mark.parametrize(("state", "event"), [*itertools.product(SeatState, SeatEvent)])
def test_the_table_has_the_consequences_of_every_event_in_every_state(
    state: SeatState, event: SeatEvent
) -> None:
    facts = STATES[state]
    then = after(facts, event)
    if then is None:
        assert (state, event) not in TABLE
        return
    dies = event is SeatEvent.DEATH and not facts.has_answered
    had_episodes = facts.is_connected  # before, they were over or lost already
    [next_state] = [known for known, those in STATES.items() if those == then]
    assert TABLE[state, event] == SeatRule(next_state, dies, dies and had_episodes)


class Row:
    """The state of an episode, by the events at its row."""

    def __init__(self, mode: AutoresetMode):
        self.mode = mode
        self.state = "running"

    def happens(self, event: str) -> None:
        match self.state, event:
            case "running", "death":
                self.state = "lost"
            case _, "reset":
                self.state = "running"
            case "running", "last row":
                self.state = "ended"
            case "lost", "step":  # returns the crash row
                self.state = "ended"
            case "ended", "step":
                self.state = "running"
        if self.state == "ended" and self.mode is AutoresetMode.SAME_STEP:
            self.state = "running"


@pytest.mark.parametrize("mode", AutoresetMode)
def test_episodes_follow_the_returned_rows_in_every_sequence_of_events(mode: AutoresetMode) -> None:
    events = ("death", "reset", "last row", "step")
    for story in itertools.chain.from_iterable(
        itertools.product(events, repeat=length) for length in range(6)
    ):
        row, episodes = Row(mode), Episodes(2, mode)  # the second row has no events
        for event in story:
            if event == "last row" and row.state != "running":
                break
            match event:
                case "death":
                    episodes.lose(slice(0, 1))
                case "reset":
                    episodes.reset(np.array([True, False]))
                case _:
                    is_over = event == "last row" or bool(episodes.lost[0])
                    episodes.end_step(np.array([False, False]), np.array([is_over, False]))
            row.happens(event)
            state = "ended" * bool(episodes.ended[0]) + "lost" * bool(episodes.lost[0])
            assert (state or "running") == row.state, story
            is_due = row.state == "ended" or mode is AutoresetMode.SAME_STEP
            assert episodes.are_due(slice(0, 1)) == is_due, story
        assert not episodes.ended[1]
        assert not episodes.lost[1]
