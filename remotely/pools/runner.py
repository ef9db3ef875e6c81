"""The actor of an Executor: runs functions, one by one or in chunks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from remotely.api.current_actor import heading
from remotely.api.remote_class import remote_class
from remotely.values import raised_error


class Outcomes(NamedTuple):
    """What became of the items of a chunk: their values, and errors by their place."""

    values: list[Any]
    errors: dict[int, raised_error.RaisedError]

    def each(self) -> Iterator[Any]:
        """Yield the values; raise an error, with its traceback over there, in its place."""
        for place, value in enumerate(self.values):
            if place in self.errors:
                raise raised_error.unpack(*self.errors[place])
            yield value


@remote_class(cpus=1)  # counted on every cluster: an Executor takes all that there is room for
class Runner:
    def __init__(self, initializer: Callable[..., object] | None, initargs: Sequence[Any]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return function(*args, **(kwargs or {}))

    def run_chunk(self, function: Callable[..., Any], items: Sequence[Sequence[Any]]) -> Outcomes:
        outcomes = Outcomes([], {})
        for item in items:
            try:
                outcomes.values.append(function(*item))
            except SystemExit:  # ends this process, as in any actor
                raise
            except BaseException as error:
                packed = raised_error.pack(error, heading(), (__name__,))
                outcomes.errors[len(outcomes.values)] = packed
                outcomes.values.append(None)
        return outcomes
