"""The other learners of a run, and what they exchange after each round of their actors.

alone     there are none: rounds are counted here
in step   they average gradients (learning/all_reduce.py), so all must take the same number of
          updates.  A round is over when it is over for all of them.  All count all of the
          rounds, and so make the same decisions
apart     they share a store and do not wait for each other.  Rank 0 counts what the others have
          sampled when it hears of it; the steps of all are in shared memory
"""

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl.acting.actor import Rollout
from remotely_rl.environments import Episode
from remotely_rl.learning.all_reduce import AllReduce
from remotely_rl.runs.metrics import Tally


class Round(NamedTuple):
    """What learners exchange after a round of their actors."""

    steps: int
    episodes: list[tuple[float, int, dict[str, float]]]
    seconds: dict[str, float]  # by phase
    minibatches: int  # into which its experience can be split
    is_ready: bool  # whether it can draw from its replay, if there is one
    clock_s: float  # since the run began; rank 0's counts


@dataclasses.dataclass
class Apart:
    """The counts of a session whose learner shares a store and does not wait for the others.

    `steps` has each learner's environment steps since it started, in memory shared by all.  The
    other ranks keep their `rounds` until rank 0 fetches them through `news`.
    """

    rank: int
    steps: NDArray[np.int64]
    news: Callable[[], Sequence[Round]] = lambda: ()
    rounds: deque[Round] = dataclasses.field(default_factory=deque)


def minibatches_in(rollouts: Sequence[Rollout], wanted: int, is_recurrent: bool) -> int:
    """Return into how many minibatches, at most `wanted`, a round can be split."""
    each = (rollout.trajectory.rows.minibatches_in(is_recurrent) for rollout in rollouts)
    return min(wanted, sum(each))


class Peers:
    """The other learners of one of them.

    group      those that are in step with it, if any
    apart      what it shares with those that are apart, if any
    last       the last round of each learner that is in step

    `minibatches_in` returns into how many minibatches rollouts can be split, `is_ready` whether
    there is enough experience to learn from, and `seconds` how long the run has taken.
    """

    def __init__(
        self,
        tally: Tally,
        minibatches_in: Callable[[Sequence[Rollout]], int],
        is_ready: Callable[[], bool],
        seconds: Callable[[], float],
    ) -> None:
        self.group: AllReduce | None = None
        self.apart: Apart | None = None
        self.last: list[Round] = []
        self._tally = tally
        self._minibatches_in = minibatches_in
        self._is_ready = is_ready
        self._seconds = seconds
        self._unreported: dict[str, float] = {}  # seconds spent since the last round, by phase

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.group is None and self.apart is None

    @property
    def rank(self) -> int:
        """The number of this learner."""
        others = self.group or self.apart
        return 0 if others is None else others.rank

    def spent(self, phase: str, seconds: float) -> None:
        """Note the time of an update, which rank 0 counts for all learners."""
        if self.rank and phase == "learning":
            self._unreported[phase] = self._unreported.get(phase, 0.0) + seconds

    def exchange(self, rollouts: list[Rollout], over: Callable[[], bool]) -> list[Rollout]:
        """Count a round, of all learners; return this one's rollouts.

        Returns an empty list if the round is not over, for any of those in step.
        """
        if self.group is not None:
            return self._in_step(rollouts, self.group, over)
        if self.apart is not None:
            self._report(rollouts, self.apart)
        for rollout in rollouts:
            self._tally.sampled(rollout.steps, rollout.episodes, rollout.seconds)
        return rollouts

    def steps_of(self, rollouts: Sequence[Rollout]) -> int:
        """Return the steps of a round that was exchanged, of all learners in step."""
        own = sum(rollout.steps for rollout in rollouts)
        return own if self.group is None else sum(each.steps for each in self.last)

    def have_equal_minibatches(self) -> bool:
        """Whether the last round of each could be split into as many minibatches.

        Every gradient step averages over all of them.
        """
        counts = {each.minibatches for each in self.last}
        return self.group is None or (len(counts) == 1 and min(counts) > 0)

    def close(self) -> None:
        """Leave those that are in step."""
        if self.group is not None:
            self.group.close()

    def _in_step(
        self, rollouts: list[Rollout], group: AllReduce, over: Callable[[], bool]
    ) -> list[Rollout]:
        group.look()
        if not rollouts:
            return []
        shared = group.exchange(json.dumps(self._round_of(rollouts)).encode(), over)
        if shared is None:  # this run is over first
            return []
        self.last = [Round(*json.loads(content)) for content in shared]
        for each in self.last:
            self._count(each)
        return rollouts

    def _report(self, rollouts: Sequence[Rollout], apart: Apart) -> None:
        apart.steps[apart.rank] += sum(rollout.steps for rollout in rollouts)
        if apart.rank and rollouts:
            apart.rounds.append(self._round_of(rollouts))
        for each in apart.news():
            self._count(each)

    def _count(self, each: Round) -> None:
        episodes = [Episode(*episode) for episode in each.episodes]
        self._tally.sampled(each.steps, episodes, each.seconds)

    def _round_of(self, rollouts: Sequence[Rollout]) -> Round:
        spent, self._unreported = self._unreported, {}
        for rollout in rollouts:
            for phase, seconds in rollout.seconds.items():
                spent[phase] = spent.get(phase, 0.0) + seconds
        return Round(
            steps=sum(rollout.steps for rollout in rollouts),
            episodes=[
                (float(one.score), one.length, dict(one.metrics))
                for rollout in rollouts
                for one in rollout.episodes
            ],
            seconds=spent,
            minibatches=self._minibatches_in(rollouts),
            is_ready=self._is_ready(),
            clock_s=self._seconds(),
        )
