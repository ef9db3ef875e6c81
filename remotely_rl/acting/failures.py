"""Actors that fail: what is said of it, and when there are too many to train on.

An environment raises, or a native crash ends its process; somebody kills it, or its machine is
lost.  Each costs the trajectory that was being played, and the actor is replaced.  That is no
reason to stop: simulators that crash once in a few thousand steps are common, and at sixteen
environments and 64 steps a call every other call may meet such a crash.  A run of five failures
in a row is then a matter of minutes, so it is the rate that tells a flaky environment from a
broken one:

    stop when more than 9 in 10 of the last 50 calls failed, judged from the 12th call on

An environment that always raises is found out after 12 calls.  One that lets 4 calls in 10 pass
has a chance below 1e-4 to be stopped in its first 50.  A machine that is lost takes many actors
with it at once and says nothing of the environment: it is told of, but not judged.

The first failure of each kind is told at once, with the user's part of the traceback; the rest are
counted, and told once a minute.
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

JUDGED = 50  # calls, the last
JUDGED_FROM = 12  # calls
TOO_MANY = 0.9  # of them
TOLD_EVERY_S = 60.0

LOST = (remotely.ActorDied, remotely.WorkerLost)

# A frame of a traceback, with the lines of code below it; and files that are not the user's.
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+).*\n(?:    .*\n)*', re.M)
OURS = (
    f"{Path(__file__).parents[1]}/",
    *(f"{Path(module.__file__ or '').parent}/" for module in (remotely, gymnasium)),
)


def is_failure(error: BaseException) -> bool:
    """Whether another actor may do better: not if it was asked for what cannot be."""
    if isinstance(error, (*LOST, remotely.ActorRaised)):
        return True
    return isinstance(error, Exception) and not isinstance(
        error, (remotely.RemotelyError, TrainingError)
    )


class Failures:
    """Counts the failures of a crew among its calls."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._say = say
        self._clock = clock
        self._judged: deque[bool] = deque(maxlen=JUDGED)  # of each call, whether it failed
        self._told: set[str] = set()  # kinds
        self._told_at = clock()
        self._calls = 0  # since failures were told last
        self._untold = 0
        self._last = ""

    def answered(self) -> None:
        """A call has returned what was asked for."""
        self._calls += 1
        self._judged.append(False)
        self._tell_if_due()

    def failed(self, error: BaseException) -> None:
        """An actor has failed, in a call or while it was made.

        Raises TrainingError if too many do.
        """
        self._calls += 1
        self._last = last_line(error)
        kind = _kind(error)
        if kind in self._told:
            self._untold += 1
            self._tell_if_due()
        else:
            self._told.add(kind)
            self._say(f"an actor {'died' if isinstance(error, LOST) else 'raised'}"
                      f" and is replaced: {readable(error)}")  # fmt: skip
        if isinstance(error, remotely.WorkerLost):
            return
        self._judged.append(True)
        failed, judged = sum(self._judged), len(self._judged)
        if judged >= JUDGED_FROM and failed > TOO_MANY * judged:
            self.tell()
            raise TrainingError(
                f"{failed} of the last {judged} calls of actors failed; the last: {self._last}"
            ) from error

    def tell(self) -> None:
        """Tells of the failures that were not told yet."""
        if self._untold:
            self._say(
                f"{self._untold:,} more actors were replaced in {self._clock() - self._told_at:.0f}"
                f" s, of {self._calls:,} calls; the last: {self._last}"
            )
        self._told_at, self._calls, self._untold = self._clock(), 0, 0

    def _tell_if_due(self) -> None:
        if self._clock() >= self._told_at + TOLD_EVERY_S:
            self.tell()


def leave_no_stack() -> None:
    """Has a native crash of this process print nothing, for an actor that replaces another: the
    first have shown their stacks, of a hundred lines each."""
    if os.environ.get("REMOTELY_LOCAL") != "1":  # else it is the process of the user
        faulthandler.disable()


def readable(error: BaseException) -> str:
    """An actor's error with the frames of its traceback that are the user's, or all if none is.

    Of a death, how it ended: the stack that a native crash leaves is on the terminal already.
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
        if not frame["file"].startswith((*OURS, "<frozen "))
    ]
    return "\n".join([last_line(error), *frames]) if frames else f"{last_line(error)}\n{text}"


def last_line(error: BaseException) -> str:
    """What a traceback ends with; of a death, what it was."""
    if isinstance(error, LOST):
        return str(error).splitlines()[0]
    if isinstance(error, remotely.ActorRaised):
        return str(error).rstrip().splitlines()[-1]
    return "".join(traceback.format_exception_only(error)).rstrip()


def _kind(error: BaseException) -> str:
    """What two failures have in common if they are of the same cause, as far as can be told."""
    frames = list(FRAME.finditer(f"{readable(error)}\n"))
    where = f"{frames[-1]['file']}:{frames[-1]['line']}" if frames else ""
    return f"{type(error).__name__} {getattr(error, 'exit', '')} {where}"
