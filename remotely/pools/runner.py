"""The actor of an Executor: runs functions, one by one or in chunks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from remotely.api.current_actor import heading
from remotely.api.remote_class import remote_class
from remotely.values import raised_error


class Outcome(NamedTuple):
    """What became of one item of a chunk."""

    value: Any = None
    error: raised_error.RaisedError | None = None

    def result(self) -> Any:
        """Return the value, or raise the error with the traceback of the other process."""
        if self.error is None:
            return self.value
        raise raised_error.unpack(*self.error)


@remote_class
class Runner:
    def __init__(self, initializer: Callable[..., object] | None, initargs: Sequence[Any]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def run_chunk(
        self, function: Callable[..., Any], items: Sequence[Sequence[Any]]
    ) -> list[Outcome]:
        return [_outcome(function, item) for item in items]


def _outcome(function: Callable[..., Any], item: Sequence[Any]) -> Outcome:
    try:
        return Outcome(function(*item))
    except SystemExit:  # ends this process, as in any actor
        raise
    except BaseException as error:
        return Outcome(error=raised_error.pack(error, heading(), (__name__,)))
