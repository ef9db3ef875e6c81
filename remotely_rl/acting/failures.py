"""Failures of actors: how they are reported, and when there are too many to go on.

An environment raises, or a native crash ends its process; the process is killed, or its machine is
lost.  Each costs the trajectory that was being played, and the actor is replaced.  Training goes
on: simulators that crash once in a few thousand steps are common, and with sixteen environments
and 64 steps a call every other call may meet such a crash.  Five failures in a row then happen
within minutes, so it is the rate that tells a flaky environment from a broken one:

    stop when more than 9 in 10 of the last 50 calls failed, judged from the 12th call on

An environment that always raises is detected after 12 calls.  One in which 4 calls in 10 succeed
is stopped in its first 50 with a probability below 1e-4.  A lost machine takes many actors with it
at once and says nothing about the environment: it is reported, but does not count.

The first failure of each kind is reported at once, with the frames of the traceback that are the
user's.  The rest are counted, and reported once a minute.
"""

import faulthandler
import os
import re
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

import gymnasium

import remotely
from remotely.errors import RemoteTraceback
from remotely_rl.errors import TrainingError

WINDOW = 50  # calls, the last
MIN_CALLS = 12  # before any judgement
MAX_FAILURE_RATE = 0.9
REPORT_EVERY_S = 60.0

LOST = (remotely.ActorDied, remotely.WorkerLost)

# A frame of a traceback, with the lines of code below it.
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+).*\n(?:    .*\n)*', re.M)
# Folders of files that are not the user's.
NOT_THE_USERS = (
    f"{Path(__file__).parents[1]}/",
    *(f"{Path(module.__file__ or '').parent}/" for module in (remotely, gymnasium)),
)


def is_failure(error: BaseException) -> bool:
    """Whether another actor may succeed: not if the request itself is wrong."""
    if isinstance(error, (*LOST, remotely.ActorRaised)):
        return True
    return isinstance(error, Exception) and not isinstance(
        error, (remotely.RemotelyError, TrainingError)
    )


class Failures:
    """Counts the failures among the calls of a crew."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._say = say
        self._clock = clock
        self._failed: deque[bool] = deque(maxlen=WINDOW)  # for each call, whether it failed
        self._reported: set[str] = set()  # kinds
        self._reported_at = clock()
        self._calls = 0  # since the last report
        self._unreported = 0
        self._last = ""

    def succeeded(self) -> None:
        """Count a call that succeeded."""
        self._calls += 1
        self._failed.append(False)
        self._report_if_due()

    def failed(self, error: BaseException) -> None:
        """Count an actor that failed, in a call or while it was made.

        Raises TrainingError if too many do.
        """
        self._calls += 1
        self._last = last_line(error)
        kind = _kind(error)
        if kind in self._reported:
            self._unreported += 1
            self._report_if_due()
        else:
            self._reported.add(kind)
            self._say(f"an actor {'died' if isinstance(error, LOST) else 'raised'}"
                      f" and is replaced: {readable(error)}")  # fmt: skip
        if isinstance(error, remotely.WorkerLost):
            return
        self._failed.append(True)
        failed, calls = sum(self._failed), len(self._failed)
        if calls >= MIN_CALLS and failed > MAX_FAILURE_RATE * calls:
            self.report()
            raise TrainingError(
                f"{failed} of the last {calls} calls of actors failed; the last: {self._last}"
            ) from error

    def report(self) -> None:
        """Report the failures that were not reported yet."""
        if self._unreported:
            seconds = self._clock() - self._reported_at
            self._say(
                f"{self._unreported:,} more actors were replaced in {seconds:.0f} s,"
                f" of {self._calls:,} calls; the last: {self._last}"
            )
        self._reported_at, self._calls, self._unreported = self._clock(), 0, 0

    def _report_if_due(self) -> None:
        if self._clock() >= self._reported_at + REPORT_EVERY_S:
            self.report()


def disable_stack_dumps() -> None:
    """Make a native crash of this process print no stack.

    For actors that replace others: the first have shown their stacks, of a hundred lines each.
    """
    if os.environ.get("REMOTELY_LOCAL") != "1":  # else this is the user's own process
        faulthandler.disable()


def readable(error: BaseException) -> str:
    """Return an actor's error with the frames of its traceback that are the user's, or all frames.

    For a death, return how it ended: the stack of a native crash is on the terminal already.
    """
    if isinstance(error, LOST):
        return last_line(error)
    if isinstance(error, remotely.ActorRaised):
        text = str(error)
    elif isinstance(error.__cause__, RemoteTraceback):
        text = str(error.__cause__.args[0])
    else:
        text = "".join(traceback.format_exception(error))
    frames = [
        frame.group().rstrip()
        for frame in FRAME.finditer(text)
        if not frame["file"].startswith((*NOT_THE_USERS, "<frozen "))
    ]
    return "\n".join([last_line(error), *frames]) if frames else f"{last_line(error)}\n{text}"


def last_line(error: BaseException) -> str:
    """Return the last line of a traceback; for a death, what happened."""
    if isinstance(error, LOST):
        return str(error).splitlines()[0]
    if isinstance(error, remotely.ActorRaised):
        return str(error).rstrip().splitlines()[-1]
    return "".join(traceback.format_exception_only(error)).rstrip()


def _kind(error: BaseException) -> str:
    """Return a key that failures of the same cause share, as far as can be told."""
    frames = list(FRAME.finditer(f"{readable(error)}\n"))
    where = f"{frames[-1]['file']}:{frames[-1]['line']}" if frames else ""
    return f"{type(error).__name__} {getattr(error, 'exit', '')} {where}"
