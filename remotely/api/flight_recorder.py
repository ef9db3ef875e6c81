"""Flight recorder: memory that outlives an actor's process, reported to callers in `ActorDied`.

It is a memory file (memory_file.py), so a write is a plain store.  The actor sends its descriptor
to the worker over the socket that it was started with.  So the worker has it even if the process
dies immediately, and need not trust a number from the actor.  The worker reads the memory after the
process has ended (worker/reaper.py).
"""

import mmap
import os
from collections.abc import Callable, Sequence

from remotely import arguments
from remotely.api.current_actor import current_actor
from remotely.machine import memory_file
from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.numbers import MOST_FLIGHT_RECORD
from remotely.protocol.resources import format_bytes

HandOver = Callable[[control.FlightRecorder, Sequence[int]], None]

_hand_over: HandOver | None = None
_memory: mmap.mmap | None = None  # of this life
_lock = RLock()


def enable(hand_over: HandOver) -> None:
    """Enable the recorder; `hand_over` sends a message and descriptors to the actor's worker."""
    global _hand_over
    _hand_over = hand_over


def flight_recorder(nbytes: int) -> memoryview:
    """Return memory of `nbytes` zeros that outlives this actor's process: its flight recorder.

    Unless the actor is closed gracefully, the ActorDied of its callers has the final contents as
    `flight_record`: after a crash, a signal, os._exit, lack of memory or `remotely.kill`.  A write
    costs no more than any store to memory.  Each life of an actor has its own recorder; calling
    this again returns the same one.  In a script, with REMOTELY_LOCAL=1, and in processes that an
    actor started, it is plain memory.

    Raises ValueError unless `nbytes` is a whole number from 1 to 1 MiB, the same in each call.
    """
    arguments.whole_number("nbytes", nbytes, 1)
    if nbytes > MOST_FLIGHT_RECORD:
        most = format_bytes(MOST_FLIGHT_RECORD)
        raise ValueError(f"nbytes={nbytes}: a flight recorder has at most {most}")
    if current_actor() is None or _hand_over is None:
        return memoryview(bytearray(nbytes))
    global _memory
    with _lock:
        if _memory is None:
            _memory = _new_memory(nbytes, _hand_over)
        elif len(_memory) != nbytes:
            raise ValueError(
                f"nbytes={nbytes}: this actor already has a flight recorder, of {len(_memory)} "
                "bytes; ask for the same size, and divide it between its users"
            )
        return memoryview(_memory)


def _new_memory(nbytes: int, hand_over: HandOver) -> mmap.mmap:
    fd = memory_file.create("remotely-flight-recorder", nbytes)
    try:
        memory = mmap.mmap(fd, nbytes)
        hand_over(control.FlightRecorder(), [fd])
        return memory
    finally:
        os.close(fd)
