"""What every daemon needs at its start: a command line, a log format, enough file descriptors."""

import resource
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return what runs a module of ours, without taking a file of the working directory for one."""
    return [sys.executable, "-P", "-m", module, *arguments]


def log_format(role: str, stays: bool) -> str:
    """Return how a daemon's lines look: in a file with the time, on a script's terminal without."""
    return f"{'%(asctime)s ' if stays else ''}remotely {role}: %(message)s"


def raise_descriptor_limit(at_most: int | None = None) -> None:
    """Allow this process as many open files as the machine permits; an actor costs it a handful.

    `at_most` is for a process that is not ours alone.  What it starts inherits the limit, and some
    programs close every number up to it one by one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if at_most is None else min(hard, at_most)
    if hard == resource.RLIM_INFINITY and at_most is not None:
        wanted = at_most
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
