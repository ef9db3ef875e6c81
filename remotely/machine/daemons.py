"""The common setup of daemons: command line, log, limit on file descriptors."""

import contextlib
import logging
import os
import resource
import sys
from pathlib import Path

LOG_BYTES = 4 << 20  # then the file becomes the old one, and the last old one is removed


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of remotely; -P excludes the working directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def log_format(role: str, stays: bool) -> str:
    """Return the format of a daemon's log; `stays`: with the time, as in a log file."""
    return f"{'%(asctime)s ' if stays else ''}remotely {role}: %(message)s"


def log_to(file: str, role: str, stays: bool) -> None:
    """Log warnings to standard error; `file`: where it leads, which does not grow beyond LOG_BYTES.

    One old file is kept, with `.1` at its end.
    """
    handler = _Bounded(Path(file)) if file else logging.StreamHandler()
    logging.basicConfig(
        format=log_format(role, stays), level=logging.WARNING, handlers=[handler], force=True
    )


class _Bounded(logging.StreamHandler):  # type: ignore[type-arg] # generic for checkers alone
    """Makes standard error lead to a new file when it is full, so that whatever a library or the
    interpreter prints goes there too.  Several workers may have one file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        with contextlib.suppress(OSError):  # the disk is full: go on in the old one
            ours = os.fstat(2)
            if ours.st_size > LOG_BYTES:
                self._renew(ours)

    def _renew(self, ours: os.stat_result) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(ours, self._file.stat()):  # else another worker has renamed it
                self._file.replace(self._file.with_name(f"{self._file.name}.1"))
        fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(fd, 2)
        os.close(fd)


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
