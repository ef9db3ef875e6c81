"""An error that can be made again over there, even if its class does not take its `args`.

Exceptions pickle as a call of their class with `args`, which is what was passed to
`Exception.__init__`.  A class whose own `__init__` takes something else, a code and a message and
passes on a sentence, can so be pickled, but not unpickled.
"""

from contextlib import suppress
from typing import Any


class ErrorCopy:
    """Stands in for an error where it is pickled: it is unpickled as that error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        reduced = self._error.__reduce_ex__(4)
        if isinstance(reduced, tuple) and reduced[0] is type(self._error) and len(reduced) <= 3:
            return make_error, reduced
        return _itself, (self._error,)


def make_error(cls: type[BaseException], args: tuple[Any, ...], state: Any = None) -> Any:
    """Call the class as pickle would; if it does not take that, go without its `__init__`."""
    try:
        error = cls(*args)
    except Exception:
        error = cls.__new__(cls, *args)
        built_in: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        with suppress(Exception):
            built_in.__init__(error, *args)  # an OSError's errno
        error.args = args
    if state is not None:
        error.__setstate__(state)
    return error


def _itself(error: BaseException) -> BaseException:
    return error
