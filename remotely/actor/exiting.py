"""The last steps of an actor's process.

It ends by os._exit: it was forked from a process whose stack is below its own, and libraries that
run threads crash when the interpreter shuts down.  So what the interpreter does at the end of a
script is done here: the object is released, `atexit` functions run, and open files are flushed.
The worker limits how long this may take (worker/reaper.py).
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
    """Flush the files that were opened since the fork, and return them.

    The zygote has frozen what was there before.  Keep the files while the object is released: if
    the collector finds a file in a cycle, it may close the descriptor before the buffer above it is
    written (bugs.python.org/issue17852).
    """
    files = [thing for thing in gc.get_objects() if issubclass(type(thing), _WRITERS)]
    for file in files:
        with contextlib.suppress(Exception):  # closed, detached, or the disk is full
            file.flush()
    return files


def exit_code(error: SystemExit) -> int:
    """Return the exit code of the interpreter for this error, and print what it would print."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def try_print(text: str) -> None:
    """Print to stderr if that does not block: its reader may be stopped, or another thread hold its
    lock."""
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def end_group() -> None:
    """Kill this actor with all that it started."""
    os.killpg(0, signal.SIGKILL)


def end_fork() -> None:
    """End a child that a method forked and that returned from the method: it has the actor's
    sockets, and would reply in the actor's place."""
    print(
        "remotely: a forked child returned from a method, and was ended: leave it by os._exit()",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
