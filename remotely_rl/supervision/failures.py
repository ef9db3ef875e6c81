"""What an error of `remotely` says about the actor that failed: the kind of failure, and a report.

The report of an exception has the user's frames of its traceback.  The report of a death has the
signal or exit code, and from the flight record the environment that was being stepped, and whether
it hung.
"""

import faulthandler
import os
import re
import traceback
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import gymnasium

import remotely
from remotely.errors import NotStartable, RemoteTraceback
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.flight import FlightRecord
from remotely_rl.supervision.report import Cause, CrashReport
from remotely_rl.supervision.watchdog import SWITCH_EXIT, SWITCH_SAYS

LOST = (remotely.ActorDied, remotely.WorkerLost)

# A frame of a traceback, with the lines of code below it.
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+).*\n(?:    .*\n)*', re.M)
# Folders of library code.
NOT_THE_USERS = (
    f"{Path(__file__).parents[1]}/",
    *(f"{Path(module.__file__ or '').parent}/" for module in (remotely, gymnasium)),
)


class Failure(StrEnum):
    """The kind of a failure."""

    WRONG = "the request is wrong"  # no other process would fare better
    RAISED = "it raised an error"
    ENDED = "its process or machine is gone"


def failure_of(error: BaseException) -> Failure:
    """Return the kind of failure that the error of a call means."""
    if isinstance(error, LOST):
        is_wrong = isinstance(error, NotStartable)
        return Failure.WRONG if is_wrong else Failure.ENDED
    if isinstance(error, remotely.ActorRaised):
        return Failure.RAISED
    is_wrong = isinstance(error, (remotely.RemotelyError, TrainingError))
    return Failure.WRONG if is_wrong or not isinstance(error, Exception) else Failure.RAISED


class model_errors_are_fatal:  # noqa: N801 - used like a function
    """Turn an error that a model raises into a TrainingError: replacing its actor does not help."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        # GA3C's agents call a server, which may be lost.
        if error is not None and failure_of(error) is Failure.RAISED:
            raise TrainingError(f"the model raised {readable(error)}") from error


def report_of(error: BaseException, lived: int = 0) -> CrashReport:
    """Return the report of a failed actor.

    `lived` is the number of steps that its owner knows each environment to have taken.
    """
    if isinstance(error, remotely.WorkerLost):
        return CrashReport(None, Cause.LOST, last_line(error), lived=lived)
    if isinstance(error, remotely.ActorDied):
        return _of_death(error, lived)
    first, _, frames = readable(error).partition("\n")
    return CrashReport(None, Cause.RAISED, first, frames, lived=lived)


def _of_death(error: remotely.ActorDied, lived: int) -> CrashReport:
    record = FlightRecord.read(getattr(error, "flight_record", None))
    what = last_line(error)
    for ending in ("; the call may have run", "; the call did not run"):  # no call is retried
        what = what.removesuffix(ending)
    cause, details = Cause.DIED, error.stderr.rstrip()
    if record is not None and (stack := record.stack_of_hang) is not None:
        cause, details = Cause.HUNG, _users_frames(stack) or stack
        what = f"it has not returned for {record.limit_s:g} s"
    elif error.exit == SWITCH_EXIT and SWITCH_SAYS in error.stderr:
        cause = Cause.HUNG
        what = "it held the GIL and did not return in time"
        details = details[details.index(SWITCH_SAYS) :]
    if record is None or (env := record.env) is None:
        return CrashReport(None, cause, what, details, lived=lived)
    report = record.report(env, cause, what, details)
    return replace(report, lived=max(lived, report.lived))


def disable_stack_dumps() -> None:
    """Make a native crash of this process print no stack.

    For replacements: the first actors have already printed their stacks, a hundred lines each.
    """
    if os.environ.get("REMOTELY_LOCAL") != "1":  # otherwise this is the user's own process
        faulthandler.disable()


def readable(error: BaseException) -> str:
    """Return an actor's error with the user's frames of its traceback, or with all if none is.

    For a death, return only its cause: a native crash has already printed its stack.
    """
    if isinstance(error, LOST):
        return last_line(error)
    if isinstance(error, remotely.ActorRaised):
        text = str(error)
    elif isinstance(error.__cause__, RemoteTraceback):
        text = str(error.__cause__.args[0])
    else:
        text = "".join(traceback.format_exception(error))
    return f"{last_line(error)}\n{_users_frames(text) or text}"


def _users_frames(text: str) -> str:
    return "\n".join(
        frame.group().rstrip()
        for frame in FRAME.finditer(f"{text}\n")
        if not frame["file"].startswith((*NOT_THE_USERS, "<frozen "))
    )


def last_line(error: BaseException) -> str:
    """Return the last line of a traceback; for a death, its cause."""
    if isinstance(error, LOST):
        return str(error).splitlines()[0]
    if isinstance(error, remotely.ActorRaised):
        return str(error).rstrip().splitlines()[-1]
    return "".join(traceback.format_exception_only(error)).rstrip()
