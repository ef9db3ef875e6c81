"""Signals at a chosen point of the code."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType


@contextmanager
def struck_after(n: int, number: signal.Signals, module: ModuleType) -> Iterator[list[bool]]:
    """Raise a signal at the end of the n-th call to C that a module makes, where Python handles
    signals.  Yield a list that is not empty once that has happened."""
    calls = 0
    has_struck: list[bool] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "c_return" and frame.f_code.co_filename == module.__file__:
            calls += 1
            if calls == n:
                sys.setprofile(None)
                has_struck.append(True)
                signal.raise_signal(number)

    sys.setprofile(look)
    try:
        yield has_struck
    finally:
        sys.setprofile(None)
