"""The last steps of an actor process.

It ends with os._exit, because the frames of the zygote are still on its stack, and because
libraries with threads may crash during the shutdown of the interpreter.  So the actor itself does
what the interpreter does at the end of a script: it releases the object, runs `atexit` functions
and flushes open files.  The worker limits the time for this (worker/reaper.py).
"""

import atexit
import contextlib
import gc
import io
import os
import select
import signal
import sys
import time

CHILDREN_S = 1.0  # from SIGTERM to SIGKILL for the children of an actor that ends

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def run_exit_functions() -> None:
    """Run the functions registered with `atexit`, last first; errors are printed."""
    atexit._run_exitfuncs()


def end_child_processes() -> None:
    """End the processes of `multiprocessing` that still run, since they end with their actor.

    Its own exit function would wait for them as long as they live, and the actor would keep its
    cores meanwhile.
    """
    if (processes := sys.modules.get("multiprocessing.process")) is None:
        return
    children = [child for child in processes.active_children() if not child.daemon]
    deadline = time.monotonic() + CHILDREN_S
    # By pid, because the processes of loky have no `kill`.  A child keeps its pid until `join`.
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # it was waited for by other means
            os.kill(child.pid, signal.SIGTERM)
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)


def flush_files() -> list[object]:
    """Flush the files that were opened since the fork, and return them.

    (The zygote's `gc.freeze` hides older ones.)  Keep a reference to the files while the object is
    released: if the collector finds a file in a cycle, it may close the descriptor before the
    buffer is written (bugs.python.org/issue17852).
    """
    files = [thing for thing in gc.get_objects() if issubclass(type(thing), _WRITERS)]
    for file in files:
        with contextlib.suppress(Exception):  # closed, detached, or the disk is full
            file.flush()
    return files


def exit_code(error: SystemExit) -> int:
    """Return the exit code for this error, and print its message, as the interpreter would."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def try_print(text: str) -> None:
    """Print to stderr if that does not block: its reader may be stopped, or its lock held."""
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def end_group() -> None:
    """Kill the process group of this actor."""
    os.killpg(0, signal.SIGKILL)


def end_fork() -> None:
    """End a forked child that returned from a method: it would reply on the actor's sockets."""
    print(
        "remotely: a forked child returned from a method and was ended; end it with os._exit()",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
