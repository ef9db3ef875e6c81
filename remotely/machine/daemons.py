"""The common setup of daemons: command line, log format, limit on file descriptors."""

import resource
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of remotely; -P excludes the working directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def log_format(role: str, stays: bool) -> str:
    """Return the format of a daemon's log; `stays`: with the time, as in a log file."""
    return f"{'%(asctime)s ' if stays else ''}remotely {role}: %(message)s"


def raise_descriptor_limit(at_most: int | None = None) -> None:
    """Raise the limit on open files to the maximum; each actor needs a few.

    `at_most` is for a process that also runs other code: the processes that it starts inherit the
    limit, and some programs close every descriptor up to the limit one by one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if at_most is None else min(hard, at_most)
    if hard == resource.RLIM_INFINITY and at_most is not None:
        wanted = at_most
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
