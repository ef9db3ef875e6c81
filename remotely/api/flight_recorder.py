"""Memory of an actor that outlives its process, and that its callers find in `ActorDied`.

The memory is a memory file (memory_file.py), so writing to it is a store and nothing else.  Its
descriptor goes to the worker over the socket that the actor was started with.  So the worker has it
even if the process dies at once, and need not trust any number that the actor says.  It reads the
memory when it has seen the process end (worker/reaper.py).
"""

import mmap
import os
from collections.abc import Callable

from remotely import arguments
from remotely.api.current_actor import current_actor
from remotely.machine import memory_file
from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.numbers import MOST_FLIGHT_RECORD
from remotely.protocol.resources import format_bytes

HandOver = Callable[[control.FlightRecorder, int], None]

_hand_over: HandOver | None = None
_memory: mmap.mmap | None = None  # of this life
_lock = RLock()


def serve(hand_over: HandOver) -> None:
    """This process is an actor; `hand_over` sends a message and a descriptor to its worker."""
    global _hand_over
    _hand_over = hand_over


def flight_recorder(nbytes: int) -> memoryview:
    """Return memory of `nbytes` zeros that outlives this actor's process: its flight recorder.

    If the process ends in any other way than by closing the actor (a crash, a signal, os._exit,
    lack of memory, `remotely.kill`), the ActorDied of its callers has what the memory held at that
    moment, as `flight_record`.  Writing to it costs as much as any store to memory.  Each life of
    an actor has its own, and asking again returns the same.  In a script, with REMOTELY_LOCAL=1,
    and in processes that an actor started it is plain memory.

    Raises ValueError if `nbytes` is no whole number from 1 to 1 MiB, or not that of the first time.
    """
    arguments.whole_number("nbytes", nbytes, 1)
    if nbytes > MOST_FLIGHT_RECORD:
        most = format_bytes(MOST_FLIGHT_RECORD)
        raise ValueError(f"nbytes={nbytes}: a flight recorder has {most} at most")
    if current_actor() is None or _hand_over is None:
        return memoryview(bytearray(nbytes))
    global _memory
    with _lock:
        if _memory is None:
            _memory = _new_memory(nbytes, _hand_over)
        elif len(_memory) != nbytes:
            raise ValueError(
                f"nbytes={nbytes}: this actor has a flight recorder of {len(_memory)} bytes, and "
                "an actor has one; ask for the same size, or divide it between its users"
            )
        return memoryview(_memory)


def _new_memory(nbytes: int, hand_over: HandOver) -> mmap.mmap:
    fd = memory_file.create("remotely-flight-recorder", nbytes)
    try:
        memory = mmap.mmap(fd, nbytes)
        hand_over(control.FlightRecorder(), fd)
        return memory
    finally:
        os.close(fd)
