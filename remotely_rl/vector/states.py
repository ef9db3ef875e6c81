"""State table of the seats of a VectorEnv, and the state of the episodes in their rows.

A seat is the slot of one host and owns the rows of its environments.  TABLE has every transition,
without I/O; hosts.py reports events and acts on the states:

    IDLE       in a step, send it to the host; between steps, make calls (`reset`, `call`, ...)
    STEPPING   wait for the host's answer
    DONE       nothing until the step ends
    DEAD       for a call, or if `Episodes.are_due`, wait for a new host; otherwise nothing
    RENEWING   connect the new host; its first step begins an episode in each row

The autoreset mode decides which DEAD seats a step waits for:

    NEXT_STEP  those with an ended episode, because this step must begin the next one
    SAME_STEP  all: a crash row has the first observation of the next episode
    DISABLED   none: only `reset` begins episodes, and `step` raises while one has ended

The table in docs/design.md is generated from TABLE.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray


class SeatState(StrEnum):
    """State of a seat."""

    IDLE = "IDLE"
    STEPPING = "STEPPING"
    DONE = "DONE"
    DEAD = "DEAD"
    RENEWING = "RENEWING"


class SeatEvent(StrEnum):
    """Event at a seat."""

    STEP = "step sent"
    ANSWER = "rows received"
    DEATH = "host died, raised, or could not be made"
    ARRIVAL = "new host made"
    CONNECTION = "host connected"  # to shared memory, or found to be on another machine
    END = "step ended"  # all rows were received, or written as crash rows


class SeatRule(NamedTuple):
    """Consequences of an event."""

    next: SeatState
    reports_death: bool = False  # a death is reported once; another thread may have done it
    loses_episodes: bool = False  # those that are running: each gets a crash row


TABLE = {
    (SeatState.IDLE, SeatEvent.STEP): SeatRule(SeatState.STEPPING),
    (SeatState.IDLE, SeatEvent.DEATH): SeatRule(
        SeatState.DEAD, reports_death=True, loses_episodes=True
    ),
    (SeatState.STEPPING, SeatEvent.ANSWER): SeatRule(SeatState.DONE),
    (SeatState.STEPPING, SeatEvent.DEATH): SeatRule(
        SeatState.DEAD, reports_death=True, loses_episodes=True
    ),
    (SeatState.DONE, SeatEvent.DEATH): SeatRule(
        SeatState.DONE
    ),  # its rows are valid; the next use finds it dead
    (SeatState.DONE, SeatEvent.END): SeatRule(SeatState.IDLE),
    (SeatState.DEAD, SeatEvent.DEATH): SeatRule(SeatState.DEAD, reports_death=True),
    (SeatState.DEAD, SeatEvent.ARRIVAL): SeatRule(SeatState.RENEWING),
    (SeatState.DEAD, SeatEvent.END): SeatRule(SeatState.DEAD),
    (SeatState.RENEWING, SeatEvent.CONNECTION): SeatRule(SeatState.IDLE),
    (SeatState.RENEWING, SeatEvent.DEATH): SeatRule(SeatState.DEAD, reports_death=True),
}


class Episodes:
    """The episodes in all rows.  An episode is running unless it is in one of these states:

    ended    the previous step returned its last row
    lost     its host died, and no row has reported that yet
    """

    def __init__(self, count: int, mode: AutoresetMode, wait: bool = False):
        """`wait`: ended episodes stay ended until they are reset."""
        self.in_same_step = mode is AutoresetMode.SAME_STEP
        self.wait = wait
        self.ended = np.zeros(count, np.bool_)
        self.lost = np.zeros(count, np.bool_)

    def lose(self, rows: slice) -> None:
        """Mark the running episodes of these rows as lost: their host has died."""
        self.lost[rows] |= ~self.ended[rows]

    def are_due(self, rows: slice) -> bool:
        """Whether the current step must begin episodes in these rows, whose host has died."""
        return self.in_same_step or bool(self.ended[rows].any())

    def reset(self, chosen: NDArray[np.bool_]) -> None:
        """Mark the episodes of the chosen rows as running."""
        self.ended &= ~chosen
        self.lost &= ~chosen

    def end_step(self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        """Record the rows that a step returned; those of lost episodes are truncated."""
        self.lost[:] = False
        if not self.in_same_step:
            over = terminated | truncated
            self.ended[:] = over | self.ended if self.wait else over
