"""Room: whether the memory of this machine holds a replay, asked before any of it is touched."""

import psutil

from remotely.machine import this_machine
from remotely_rl.errors import ReplayError

GIB = 2**30


def check(nbytes: int, rows: int) -> None:
    """Raise ReplayError, naming both numbers, if `nbytes` for `rows` are more than are free."""
    free = min(psutil.virtual_memory().available, this_machine.memory())
    if nbytes > free:
        raise ReplayError(
            f"a replay of {rows:,} rows takes {nbytes / GIB:.1f} GiB, and {free / GIB:.1f} GiB of"
            f" memory are free: ask for at most {rows * free // nbytes:,} rows"
        )
