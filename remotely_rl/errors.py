"""Errors of training that one sentence explains."""

import difflib
from collections.abc import Iterable


class TrainingError(Exception):
    """Training cannot continue as asked.

    Whose fault: the settings', the model's or the environment's.
    What to do: what the message says: what was asked, what was found and what would work.

    The command line prints it without a traceback and exits with status 2.
    """


class LearnerLost(TrainingError):
    """The learner's parameters are lost: they became NaN, or the GPU failed.

    Whose fault: a learning rate that is too high, rewards without bounds, or the machine.
    What to do: resume from the last checkpoint, which is kept as it is, with other settings.
    """


class SyncError(TrainingError):
    """A rule of synchronisation, or what was pushed to one, is not as it must be.

    Whose fault: the settings' of the rule, or the client's that pushed.
    What to do: what the message says; `remotely-rl rules` lists the settings.
    """


class ReplayError(TrainingError):
    """What was asked of a replay does not fit it, or what it was loaded from cannot be used.

    Whose fault: the settings', or the folder's.
    What to do: what the message says; the replay is as it was before the call.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ", did you mean ...?" for the known name most like `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


# What the extra `rl` brings, by the names that are imported.
OF_EXTRA = ("torch", "gymnasium", "ale_py", "tensorboard", "matplotlib", "rich")


def check_is_of_extra(error: ModuleNotFoundError) -> None:
    """Raises TrainingError, which says what to install, if a package of the extra is missing."""
    package = (error.name or "").partition(".")[0]
    if package in OF_EXTRA:
        raise TrainingError(
            f"remotely_rl needs {package}, which is not installed:"
            " pip install 'remotely-actors[rl]'"
        ) from error
