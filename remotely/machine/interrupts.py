"""What a signal handler raises on the main thread, told from what the user's code raises.

Python runs signal handlers on the main thread alone, between any two bytecodes.  So their errors
come out of whatever that thread does: pickling a value, unpickling the reply of another call, a
look at an attribute.  Such an error says nothing about what it interrupts, and belongs to the call
that the thread is in.
"""

import _signal  # type: ignore[import-not-found]  # `signal` converts its results, which is slow
from _thread import get_ident
from functools import partial
from types import CodeType
from typing import Any

LONGEST_CHAIN = 10  # of errors that were raised from each other

main_thread: int | None = None  # its ident, which shield.py sets, also after a fork


def is_main_thread() -> bool:
    """Return whether this is the thread on which Python runs signal handlers."""
    return get_ident() == main_thread


def is_for_main(error: BaseException) -> bool:
    """Return whether an error ends what the main thread does: Ctrl-C, an exit, a handler's error.

    Code that makes an outcome of whatever the user's code raises must let these pass.  Other
    threads, such as the client's loop, must survive all that the user's code raises.
    """
    if get_ident() != main_thread:
        return False
    return isinstance(error, KeyboardInterrupt | SystemExit) or _is_of_handler(error)


class _ErrorsIgnored:
    """Use the one `errors_ignored` below, in place of `suppress(Exception)`."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return isinstance(error, Exception) and not is_for_main(error)


errors_ignored = _ErrorsIgnored()


def _is_of_handler(error: BaseException) -> bool:
    """Return whether an error, or what it was raised from, has come out of a signal handler.

    Its traceback shows that, if the handler is still installed and written in Python.  What was
    being handled when the error was raised (`__context__`) does not count: it may be older.
    """
    handlers = [_signal.getsignal(number) for number in range(1, _signal.NSIG)]
    codes = {_code_of(each) for each in handlers if callable(each)} - {None}
    found: BaseException | None = error if codes else None
    for _ in range(LONGEST_CHAIN):
        if found is None:
            break
        trace = found.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                return True
            trace = trace.tb_next
        found = found.__cause__
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a handler that is written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler):  # the default, or ignored
        return None
    for function in (handler, type(handler).__call__):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
