"""Errors that can be made again over there, even if their class does not take its `args`.

Exceptions pickle as a call of their class with `args`, which is what was passed to
`Exception.__init__`.  A class whose own `__init__` takes something else, a code and a message and
passes on a sentence, can so be pickled, but not unpickled.  Here they pickle as a call of
`make_error`, wherever in a value they are: raised, passed, returned, or in an ExceptionGroup.
"""

from contextlib import suppress
from typing import Any


def reduce_error(error: BaseException) -> Any:
    """Return how an error is pickled, for a pickler's `reducer_override`."""
    if type(error).__module__ == "builtins":
        return NotImplemented
    reduced = error.__reduce_ex__(5)
    if isinstance(reduced, tuple) and reduced[0] is type(error):
        make, args, *rest = reduced
        return make_error, (make, args), *rest
    return reduced


def make_error(cls: type[BaseException], args: tuple[Any, ...]) -> Any:
    """Call the class as pickle would; if it does not take that, go without its `__init__`."""
    try:
        return cls(*args)
    except Exception:
        error = cls.__new__(cls, *args)
        built_in: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        with suppress(Exception):
            built_in.__init__(error, *args)  # an OSError's errno
        error.args = args
        return error
