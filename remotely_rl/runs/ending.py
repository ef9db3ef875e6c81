"""The clock of a run, and why the run ends."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from remotely_rl.config import Common
from remotely_rl.runs import status
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.process import Process
from remotely_rl.runs.status import How


class Reason(NamedTuple):
    """Why a run ends, in words, which are empty if it does not; how; and how it can go on.

    limits   the options that raise the limits which are reached; None if the run has nothing left
             to do
    """

    why: str = ""
    how: How = How.TRAINS
    limits: Mapping[str, int | float] | None = MappingProxyType({})

    def __bool__(self) -> bool:
        return bool(self.why)


def limit_reached(config: Common, tally: Tally, seconds: float) -> Reason:
    """Return the limit of a config that is reached, or an empty reason.

    The target comes first, so that a run with one ends short of it at any other limit.
    """
    short = ""
    if config.target is not None:
        if tally.short_return_mean() >= config.target:
            return Reason(f"the mean return of {config.target:g} is reached", How.TARGET, None)
        short = f", short of the mean return of {config.target:g}"
    spent = {"total_steps": tally.counters.env_steps, "minutes": seconds / 60}
    raised: dict[str, int | float] = {}
    for name, amount in spent.items():
        limit: int | float | None = getattr(config, name)
        if limit and amount >= limit:
            raised[name] = _beyond(limit, amount)
    if "total_steps" in raised:
        return Reason(f"{config.total_steps:,} steps are done{short}", How.LIMIT, raised)
    if "minutes" in raised:
        are = " is" if config.minutes == 1 else "s are"
        return Reason(f"{config.minutes:g} minute{are} over{short}", How.LIMIT, raised)
    return Reason()


def _beyond(limit: int | float, spent: float) -> int | float:
    """Double a limit until it is not reached: a rollout may be larger than the limit."""
    while limit <= spent:
        limit *= 2
    return limit


class Clock:
    """The seconds of training, without the time between resumes."""

    def __init__(self, before_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock() - before_s

    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self._started


class RunEnding:
    """The reason for which a run ends: the first that is found is kept.

    Reasons are a limit of its config, a signal, a hook, and for other learners than rank 0 what
    `follows` returns: why the run is over, or an empty string.

    reason       why, in words, and how
    is_by_hook   whether a hook has asked for the end: the run starts no new evaluation then
    """

    def __init__(
        self,
        config: Common,
        tally: Tally,
        clock: Clock,
        process: Process,
        follows: Callable[[], str] | None,
    ) -> None:
        self.reason = Reason()
        self.is_by_hook = False
        self._config = config
        self._tally = tally
        self._clock = clock
        self._process = process
        self._follows = follows

    def is_here(self) -> bool:
        """Whether to stop now."""
        if not self.reason:
            self.reason = self._look() if self._follows is None else Reason(self._follows())
        return bool(self.reason)

    @property
    def why(self) -> str:
        """The reason in words, or an empty string."""
        return self.reason.why

    def is_urgent(self) -> bool:
        """Whether to stop before all updates that are due are made.

        A signal, a hook and the limit of time are urgent.  What ends a run with its last round, the
        limit of steps or a target, is not: the policy has been paid for.
        """
        if self._follows is not None:
            return self.is_here()
        minutes = self._config.minutes
        is_late = bool(minutes) and self._clock.seconds() >= minutes * 60
        if self._process.asked_to_stop or is_late:
            self.is_here()
            return True
        return self.is_by_hook

    def stop(self, why: str) -> None:
        """End the run as a limit does, for a hook."""
        self.reason = self.reason or Reason(why, How.HOOK, self._limit_reached().limits)
        self.is_by_hook = True

    def of(self, error: BaseException | None) -> Reason:
        """Return how the run has ended, and why, if this ended it or nothing was raised.

        How it can go on depends on its limits alone, whatever was raised when it had reached them.
        """
        if isinstance(error, KeyboardInterrupt):
            return self.reason._replace(why="interrupted by a second Ctrl-C", how=How.STOPPED)
        if error is not None:
            return self.reason._replace(why=status.last_line(error), how=How.FAILED)
        return self.reason or Reason("its loop has ended", How.LIMIT)

    def _look(self) -> Reason:
        reached = self._limit_reached()
        if signalled := self._process.asked_to_stop:
            return Reason(signalled, How.STOPPED, reached.limits)
        return reached

    def _limit_reached(self) -> Reason:
        return limit_reached(self._config, self._tally, self._clock.seconds())
