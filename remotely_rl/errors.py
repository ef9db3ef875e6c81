"""What a training run can be told about by its user, in one sentence each."""

import difflib
from collections.abc import Iterable


class TrainingError(Exception):
    """Training cannot go on as asked.

    The message says what was asked, what was found and what would work; the command
    line prints it without a traceback and exits with status 2.
    """


class LearnerLost(TrainingError):
    """What the learner holds is lost: its numbers are none any more, or its GPU is gone.

    The last checkpoint is good, and is kept as it is.
    """


class SyncError(TrainingError):
    """A rule of synchronisation, or what was pushed to one, is not as it must be."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ", did you mean ...?" for the known name most like `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""
