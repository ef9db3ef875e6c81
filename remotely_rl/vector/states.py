"""The states of the seats of a VectorEnv, and what becomes of the episodes in their rows.

A seat is the place of a host, and has the rows of its environments.  What follows from an event is
in one table here, without I/O; hosts.py reports events, and does what states call for:

    IDLE       in a step, tell its host of it; between steps, calls (`reset`, `call`, ...) are made
    STEPPING   wait for its answer
    DONE       nothing, until the step is over
    DEAD       wait for another host if `Episodes.are_due`, or for a call; nothing otherwise
    RENEWING   connect the host; in its first step it begins an episode in each row

The autoreset mode decides which DEAD seats a step waits for:

    NEXT_STEP  those with an episode that had ended, because this step is to begin the next one
    SAME_STEP  all: the row of a crash has the first observation of the next episode
    DISABLED   none: only `reset` begins episodes, and a step is refused while one has ended

The table in docs/design.md is made from this one.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray


class State(StrEnum):
    """What the host of a seat is doing."""

    IDLE = "IDLE"
    STEPPING = "STEPPING"
    DONE = "DONE"
    DEAD = "DEAD"
    RENEWING = "RENEWING"


class Event(StrEnum):
    """What happens to a seat, in words of its host."""

    STEP = "it is told to step"
    ANSWER = "its rows are there"
    DEATH = "it dies, raises, or cannot be made"
    ARRIVAL = "another is made"
    CONNECTION = "it is connected"  # to shared memory; or it is on another machine
    END = "the step ends"  # the rows of all seats are there, or were written for them


class Rule(NamedTuple):
    """What follows from an event.  A death is told once, perhaps by another thread before this."""

    next: State
    is_told: bool = False
    is_owed: bool = False  # the row of a crash, to each episode under way


TABLE = {
    (State.IDLE, Event.STEP): Rule(State.STEPPING),
    (State.IDLE, Event.DEATH): Rule(State.DEAD, is_told=True, is_owed=True),
    (State.STEPPING, Event.ANSWER): Rule(State.DONE),
    (State.STEPPING, Event.DEATH): Rule(State.DEAD, is_told=True, is_owed=True),
    (State.DONE, Event.DEATH): Rule(State.DONE),  # its rows count; the next use finds it dead
    (State.DONE, Event.END): Rule(State.IDLE),
    (State.DEAD, Event.DEATH): Rule(State.DEAD, is_told=True),
    (State.DEAD, Event.ARRIVAL): Rule(State.RENEWING),
    (State.DEAD, Event.END): Rule(State.DEAD),
    (State.RENEWING, Event.CONNECTION): Rule(State.IDLE),
    (State.RENEWING, Event.DEATH): Rule(State.DEAD, is_told=True),
}


class Episodes:
    """The episodes in all rows.  One that neither has `ended` nor is `lost` is under way.

    ended    the step before this one had its last row
    lost     it died with its host, and no row has told so yet
    """

    def __init__(self, count: int, mode: AutoresetMode, wait: bool = False):
        """`wait`: those that have ended stay so until they are reset."""
        self.in_same_step = mode is AutoresetMode.SAME_STEP
        self.wait = wait
        self.ended = np.zeros(count, np.bool_)
        self.lost = np.zeros(count, np.bool_)

    def lose(self, rows: slice) -> None:
        """The host of these rows has died."""
        self.lost[rows] |= ~self.ended[rows]

    def are_due(self, rows: slice) -> bool:
        """Whether the present step is to begin episodes in these rows, whose host has died."""
        return self.in_same_step or bool(self.ended[rows].any())

    def reset(self, chosen: NDArray[np.bool_]) -> None:
        """Episodes have begun in the chosen rows."""
        self.ended &= ~chosen
        self.lost &= ~chosen

    def end_step(self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        """All rows of a step have been told, those of lost episodes as truncated."""
        self.lost[:] = False
        if not self.in_same_step:
            over = terminated | truncated
            self.ended[:] = over | self.ended if self.wait else over
