"""Errors of training, whose messages need no traceback."""

from collections.abc import Iterable, Sequence

from remotely.arguments import did_you_mean


class TrainingError(RuntimeError):
    """Training cannot start or continue.

    Whose fault: the settings, the model or the environment.
    What to do: read the message, which names the problem and what would work.

    The command line prints it without a traceback and exits with status 2.
    """


class LearnerLost(TrainingError):
    """The learner's parameters are lost: they became NaN, or the GPU failed.

    Whose fault: a learning rate that is too high, unbounded rewards, or the machine.
    What to do: resume from the last checkpoint, which is still intact, with other settings.
    """


class SyncError(TrainingError):
    """A sync rule, or a push to it, is invalid.

    Whose fault: the settings of the rule, or the client that pushed.
    What to do: read the message; `remotely-rl rules` lists the settings.
    """


class ReplayError(TrainingError):
    """A replay cannot do what was asked, or cannot be loaded.

    Whose fault: the settings, or the folder.
    What to do: read the message; the replay is as it was before the call.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ", did you mean ...?" with the closest known name, or an empty string."""
    hint = did_you_mean(name, known)
    return f", {hint}" if hint else ""


# Packages of the extra `rl`, by the names under which they are imported.
OF_EXTRA = ("torch", "gymnasium", "ale_py", "tensorboard", "matplotlib", "rich")


def check_is_of_extra(error: ModuleNotFoundError) -> None:
    """Raise TrainingError, with the command to install it, if a package of the extra is missing."""
    package = (error.name or "").partition(".")[0]
    if package in OF_EXTRA:
        raise TrainingError(
            f"remotely_rl needs {package}, which is not installed:"
            " pip install '.[rl]' in a checkout of remotely"
        ) from error


def not_elsewhere(python: str | None, packages: Sequence[str], why: object) -> TrainingError:
    """Return the error of environments that cannot be in this Python; it names what was set."""
    given = {"env_python": python, "env_packages": packages}
    return TrainingError(f"{' and '.join(name for name in given if given[name])}: {why}")
