"""The table of a VectorEnv's seats says what follows from the facts, for every pair there is."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from remotely_rl.vector.states import TABLE, Episodes, Event, Rule, State


class Facts(NamedTuple):
    """What is so of a seat, as far as the VectorEnv knows."""

    has_host: bool
    is_connected: bool = False
    was_told_to_step: bool = False
    has_answered: bool = False

    def state(self) -> State:
        if self.has_answered:
            return State.DONE
        if not self.has_host:
            return State.DEAD
        if not self.is_connected:
            return State.RENEWING
        return State.STEPPING if self.was_told_to_step else State.IDLE


ALL = {
    State.IDLE: Facts(True, True),
    State.STEPPING: Facts(True, True, True),
    State.DONE: Facts(True, True, True, True),
    State.DEAD: Facts(False),
    State.RENEWING: Facts(True, False),
}


def after(facts: Facts, event: Event) -> Facts | None:
    """Return what is so after an event; None if it cannot happen then."""
    is_idle = facts.is_connected and not facts.was_told_to_step
    match event:
        case Event.STEP if is_idle:
            return facts._replace(was_told_to_step=True)
        case Event.ANSWER if facts.was_told_to_step and not facts.has_answered:
            return facts._replace(has_answered=True)
        case Event.DEATH:  # of one that has answered nothing is known until it is used
            return facts if facts.has_answered else Facts(False)
        case Event.ARRIVAL if not facts.has_host:
            return Facts(True)
        case Event.CONNECTION if facts.has_host and not facts.is_connected:
            return Facts(True, True)
        case Event.END if facts.has_answered or not facts.has_host:
            return facts._replace(was_told_to_step=False, has_answered=False)
    return None


@pytest.mark.parametrize(("state", "event"), [*itertools.product(State, Event)])
def test_every_event_in_every_state_has_the_consequences_of_the_facts(
    state: State, event: Event
) -> None:
    facts = ALL[state]
    assert facts.state() is state
    then = after(facts, event)
    if then is None:
        assert (state, event) not in TABLE
        return
    dies = event is Event.DEATH and not facts.has_answered
    had_episodes = facts.is_connected  # those of a host that was not are over, or lost before
    assert TABLE[state, event] == Rule(then.state(), dies, dies and had_episodes)


class Row:
    """An episode, told in words."""

    def __init__(self, mode: AutoresetMode):
        self.mode = mode
        self.word = "under way"

    def happens(self, what: str) -> None:
        match self.word, what:
            case "under way", "death":
                self.word = "lost"
            case _, "reset":
                self.word = "under way"
            case "under way", "last row":
                self.word = "ended"
            case "lost", "step":  # the row of a crash
                self.word = "ended"
            case "ended", "step":
                self.word = "under way"
        if self.word == "ended" and self.mode is AutoresetMode.SAME_STEP:
            self.word = "under way"


@pytest.mark.parametrize("mode", AutoresetMode)
def test_episodes_are_what_their_rows_have_told_whatever_happens(mode: AutoresetMode) -> None:
    events = ("death", "reset", "last row", "step")
    for story in itertools.chain.from_iterable(
        itertools.product(events, repeat=length) for length in range(6)
    ):
        row, episodes = (
            Row(mode),
            Episodes(2, mode),
        )  # the second is of a seat to which nothing happens
        for what in story:
            if what == "last row" and row.word != "under way":
                break
            match what:
                case "death":
                    episodes.lose(slice(0, 1))
                case "reset":
                    episodes.reset(np.array([True, False]))
                case _:
                    is_over = what == "last row" or bool(episodes.lost[0])
                    episodes.end_step(np.array([False, False]), np.array([is_over, False]))
            row.happens(what)
            words = "ended" * bool(episodes.ended[0]) + "lost" * bool(episodes.lost[0])
            assert (words or "under way") == row.word, story
            is_due = row.word == "ended" or mode is AutoresetMode.SAME_STEP
            assert episodes.are_due(slice(0, 1)) == is_due, story
        assert not episodes.ended[1]
        assert not episodes.lost[1]
