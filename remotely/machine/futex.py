"""Sleeping until a word of shared memory changes (man 2 futex).

The word is 32 bits in a mapping that processes share.  `wait` sleeps only if the word still has the
value that its caller has seen, so a change in between is never missed.  It releases the GIL, and
returns early when a signal arrives, so that Python can run the handler.
"""

import ctypes
import platform
import time
from functools import cache
from typing import Any

_WAIT, _WAKE = 0, 1
_EVERYONE = (1 << 31) - 1
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_POLL_S = 0.001  # on a machine whose number is not known


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(word: ctypes.c_uint32, seen: int, timeout_s: float) -> None:
    """Sleep until the word is woken, for at most `timeout_s`; not if it differs from `seen`."""
    call, number = _syscall()
    if call is None:
        if word.value == seen:
            time.sleep(min(timeout_s, _POLL_S))
        return
    whole, part = divmod(timeout_s, 1)
    until = _Time(int(whole), int(part * 1e9))
    call(number, ctypes.byref(word), _WAIT, ctypes.c_uint32(seen), ctypes.byref(until), None, 0)


def wake(word: ctypes.c_uint32) -> None:
    """Wake all that wait for the word, which has been changed."""
    call, number = _syscall()
    if call is not None:
        call(number, ctypes.byref(word), _WAKE, _EVERYONE, None, None, 0)


@cache
def _syscall() -> tuple[Any, int]:
    number = _NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        return None, 0
    return ctypes.CDLL(None).syscall, number
