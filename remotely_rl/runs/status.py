"""The status of a run: in training, or how it has ended; and what it was started with.

A run in training holds a lock in its folder, which the kernel drops with the process, whatever
ends that.  So nobody waits for a row that is late to know that a run is over:

    trains     the lock is held
    limit      it has reached its steps or minutes
    target     it has reached its target
    hook       a hook has stopped it
    stopped    Ctrl-C or SIGTERM
    failed     an exception, whose last line is kept
    killed     it has ended without a word: SIGKILL, or its machine went down
    unknown    an earlier version has written it; or it was started on another machine, whose locks
               cannot be seen here, or on a file system without locks

`config.json` has what it was started with as `started`, and its end as `ended` (`run_folder.py`).
"""

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import remotely
from remotely.machine import file_lock, this_machine
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder
from remotely_rl.runs.run_folder import AGAIN, CHECKPOINT, LOCK, RunConfig, RunFolder

MAX_TEXT = 1000  # characters that are kept of an error
CLAIM_S = 1.0  # a look of the dashboard holds the lock for microseconds
RETRY_S = 0.01
GIT_S = 2.0  # a huge repository is not waited for


class How(StrEnum):
    """How a run has ended, or that it has not."""

    TRAINS = "trains"
    LIMIT = "limit"
    TARGET = "target"
    HOOK = "hook"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"
    UNKNOWN = "unknown"


class RunStatus(NamedTuple):
    """Whether a run trains, or how it has ended; why, in words; and the command to continue."""

    how: How
    why: str
    go_on: str  # empty for a run that trains, and for one that cannot be resumed
    start_anew: str = ""  # the command that starts it once more, if it has no checkpoint to resume


# --- the run's side -------------------------------------------------------------------------------


class TrainingLock:
    """The lock of a run's folder, from before its files are changed to the end of its session.

    A process that is forked meanwhile does not hold it: it may outlive the run.  Raises
    TrainingError if another process trains the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._close: Callable[[], object] | None = None  # None: the file system has no locks
        until = time.monotonic() + CLAIM_S
        while self._close is None:
            try:
                folder.lock.touch()
                fd = file_lock.hold(folder.lock)
                self._close = weakref.finalize(self, os.close, fd)
                _claims.add(self)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise in_training(folder.path) from None
                time.sleep(RETRY_S)
            except OSError:
                break

    def begin(self, gpu: str | None) -> None:
        """Write what the run was started with into its config.json."""
        self._change(started=started(gpu) | {"has_lock": self._close is not None}, ended=None)

    def end(self, why: str, how: How, limits: Mapping[str, int | float] | None) -> None:
        """Write how the run has ended, and the limits with which it goes on (`go_on`)."""
        at = round(time.time(), 3)
        more = None if limits is None else dict(limits)
        self._change(ended={"how": how, "why": why[:MAX_TEXT], "at": at, "limits": more})

    def release(self) -> None:
        """Drop the lock."""
        if self._close is not None:
            self._close()

    def _change(self, **parts: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk: training goes on
            content = json.loads(self._folder.config.read_bytes()) | parts
            run_folder.replace(self._folder, content)


_claims: weakref.WeakSet[TrainingLock] = weakref.WeakSet()  # of this process


def _after_fork() -> None:
    for claim in list(_claims):
        claim.release()


os.register_at_fork(after_in_child=_after_fork)


def check_is_over(folder: RunFolder) -> None:
    """Raise TrainingError if a process trains this run."""
    with contextlib.suppress(OSError):
        if is_in_training(folder.path):
            raise in_training(folder.path)


def in_training(path: Path) -> TrainingError:
    """Return the error of a run that would be trained by two processes."""
    pid = run_folder.read(path).started.get("pid")
    process = f", by process {pid}" if pid else ""
    return TrainingError(f"{path} is in training already{process}: stop that first")


def started(gpu: str | None) -> dict[str, Any]:
    """Return what a run is started with: versions, commit, machine and command."""
    found = {
        "at": round(time.time(), 3),
        "command": command(),
        "folder": os.getcwd(),
        "pid": os.getpid(),
        "machine": platform.node(),
        "cores": this_machine.cores(),
        "gpu": gpu,
        "commit": commit(),
        "python": platform.python_version(),
        "remotely": remotely.__version__,
        **{name: version_of(name) for name in ("torch", "gymnasium", "numpy")},
    }
    return {name: value for name, value in found.items() if value is not None}


def command() -> str | None:
    """Return the command that has started this process.

    Returns None at a prompt and in a notebook, where that command does not repeat the run.
    """
    script = getattr(sys.modules["__main__"], "__file__", "")  # "<stdin>" is none
    has_code = os.path.isfile(script) or "-c" in sys.orig_argv
    return shlex.join(sys.orig_argv) if has_code else None


def version_of(package: str) -> str | None:
    """Return the version of a distribution that is installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit of the working directory, with `-dirty` if it has changes; None without
    git."""
    # Not `git describe --dirty`, which writes the index: killed meanwhile, it leaves its lock.
    words = ["git", "--no-optional-locks"]
    try:
        head, changes = (
            subprocess.run(
                [*words, *more], capture_output=True, text=True, timeout=GIT_S, check=True
            ).stdout.strip()
            for more in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-dirty" if changes else head


def last_line(error: BaseException) -> str:
    """Return the kind of an error, and the last line of its text."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    return f"{kind}: {lines[-1].strip()}" if lines else kind


# --- what others see ------------------------------------------------------------------------------


def is_in_training(path: Path) -> bool:
    """Whether a process holds the lock of a run's folder.  Raises OSError if nobody can know."""
    try:
        os.close(file_lock.hold(path / LOCK, shared=True))
    except BlockingIOError:
        return True
    except FileNotFoundError:  # an earlier version has written it, or it is about to start
        return False
    return False


def of(path: Path, read: Callable[[], RunConfig]) -> RunStatus:
    """Return the status of the run in this folder.

    `read` returns its config.json.  It is called after the look at the lock, because a run writes
    its end before it drops the lock.  Raises what it raises.
    """
    why_unknown = ""
    try:
        if is_in_training(path):
            return RunStatus(How.TRAINS, "", "")
    except OSError as error:
        why_unknown = f"its lock cannot be looked at: {error.strerror}"
    ran = read()
    how, why = (How.UNKNOWN, why_unknown) if why_unknown and not ran.ended else _end_of(ran)
    command = go_on(path, ran, ran.ended.get("limits", {}))
    return RunStatus(how, why, command, start_anew(path, ran, how))


def _end_of(ran: RunConfig) -> tuple[How, str]:
    if ran.ended:
        how, why = str(ran.ended.get("how")), str(ran.ended.get("why", ""))
        return (How(how), why) if how in set(How) else (How.UNKNOWN, why)
    if not ran.started:
        return How.UNKNOWN, "an earlier version has written it, or it is about to start"
    machine = str(ran.started.get("machine", ""))
    if machine != platform.node():
        return How.UNKNOWN, f"it was started on {machine}, and has not written an end"
    if not ran.started.get("has_lock", True):
        return How.UNKNOWN, "its file system has no locks, and it has not written an end"
    return How.KILLED, "it has ended without a word: SIGKILL, or its machine went down"


NO_CHECKPOINT = "It has no checkpoint.  Remove its folder, and start it anew with"


def go_on(path: Path, ran: RunConfig, limits: Mapping[str, int | float] | None) -> str:
    """Return the command that goes on with an ended run, with these limits in place of its own.

    Returns an empty string if it has no checkpoint, or with None, which is for a run that has
    nothing left to do.
    """
    if limits is None or not (path / CHECKPOINT).exists():
        return ""
    words = ["remotely-rl", "train", ran.source or ran.algorithm, "--resume", str(path)]
    for name, limit in limits.items():
        words += [f"--{name.replace('_', '-')}", str(limit)]
    lost = ["env"] if ran.env_is_own and ran.env_source is None else []
    again = [AGAIN[name] for name in (*lost, *ran.not_kept) if name in AGAIN]
    return " ".join([shlex.join(words), *again])


def start_anew(path: Path, ran: RunConfig, how: How) -> str:
    """Return the command with which an ended run was started; empty if it has a checkpoint.

    It is empty too if nobody knows that the run has ended, and for one that has reached its target.
    """
    command, folder = ran.started.get("command"), ran.started.get("folder")
    if how in (How.UNKNOWN, How.TARGET) or (path / CHECKPOINT).exists() or not command:
        return ""
    return f"cd {shlex.quote(str(folder))} && {command}"


def facts(ran: RunConfig) -> Mapping[str, Any]:
    """Return what a run was started with, without what only this module needs."""
    return {name: value for name, value in ran.started.items() if name != "has_lock"}
