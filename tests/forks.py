"""Actions in a forked child of the test."""

import os
import signal
from collections.abc import Callable

CHILD_S = 20  # after which a child that hangs is ended


def raised_in_a_fork(action: Callable[[], object]) -> str:
    """Return the type and the text of what an action raises in a child; "" if it raises nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_S)
            action()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        raised = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hangs"
    return raised
