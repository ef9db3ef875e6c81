"""What is left to do in the process of an actor before it ends.

An actor's process ends by os._exit: it was forked from a process whose stack is below its own, and
libraries that run threads crash when the interpreter takes them down.  So what the interpreter does
at the end of a script is done here: the object is let go, `atexit` runs, and open files are
flushed.  How long it may take is the worker's business (undertaker.py).
"""

import atexit
import contextlib
import gc
import io
import os
import select
import signal
import sys

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def run_exit_functions() -> None:
    """Run what was registered with `atexit`, last first; errors are printed."""
    atexit._run_exitfuncs()


def flush_files() -> list[object]:
    """Write out what open files still hold back, whoever holds the files; return the files.

    Those that were opened since the fork: the zygote has frozen what was there before.  While the
    object is let go, the files are to be kept: if the collector finds a file in a cycle, it may
    close the descriptor before the buffer above it is written (bugs.python.org/issue17852).
    """
    files = [thing for thing in gc.get_objects() if issubclass(type(thing), _WRITERS)]
    for file in files:
        with contextlib.suppress(Exception):  # closed, detached, or the disk is full
            file.flush()
    return files


def exit_code(error: SystemExit) -> int:
    """Return the exit code that the interpreter would end with, and say what it would say."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def say(text: str) -> None:
    """Print to stderr if that does not wait: who reads it may be stopped, and who writes to it hold
    its lock."""
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def end_group() -> None:
    """End this actor with all that it started."""
    os.killpg(0, signal.SIGKILL)


def end_fork() -> None:
    """End a child that a method forked, and that went on as if it were the actor: it has the
    actor's sockets, and would answer in its place."""
    print(
        "remotely: a forked child returned from a method, and was ended: leave it by os._exit()",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
