"""What the arguments of a call refer to, as references of Ray's, which counts and fetches them."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from remotely.calling.send_queue import RetriedFuture
from remotely.engines.ray.put import PlasmaRef
from remotely.engines.ray.replies import Reply
from remotely.futures.future import CallFuture
from remotely.values import codec, references
from remotely.values.owned import Owned
from remotely.values.references import Named


class Referred:
    """References are made once, for all actors that are called."""

    def __init__(self, named: Sequence[Named] = ()) -> None:
        self._named = named
        self.names = [name for _, name in named]
        self._refs: list[Any] | None = None
        self._values: dict[int, Any] = {}  # of futures that were done already, by their number
        for number, (thing, _) in enumerate(named):
            if isinstance(thing, CallFuture):
                thing.stays = True
                if thing.done() and thing.kept is None:
                    with suppress(Exception):  # it is told when the call is to leave
                        value = PlasmaRef(codec.encode(thing.result())).ref
                        self._values[number] = value

    def needs(self) -> list[Future[Any]]:
        """Return the futures that have to be done first: of calls that have not left, and of those
        that may be tried again, as Ray knows only the first try."""
        futures = [thing for thing, _ in self._named if isinstance(thing, CallFuture)]
        return [future for future in futures if not future.done() and _on_its_way(future) is None]

    def refs(self) -> list[Any]:
        """Return the references.  Raises the error of a future that has failed."""
        if self._refs is None:
            self._refs = [
                self._values[number] if number in self._values else _ref_of(thing, name)
                for number, (thing, name) in enumerate(self._named)
            ]
        return self._refs


def _ref_of(thing: Any, name: str) -> Any:
    if isinstance(thing, PlasmaRef):
        return thing.ref
    assert isinstance(thing, CallFuture)
    if not thing.done() and (ref := _on_its_way(thing)) is not None:
        thing.on_unretrieved = None  # the call that needs it tells of its error
        return ref
    try:
        error = thing.exception()
    except Exception as cancelled:
        error = cancelled
    if error is not None:
        raise references.of_argument(error, name)
    kept = thing.kept
    return PlasmaRef(kept if isinstance(kept, Owned) else codec.encode(thing.result())).ref


def _on_its_way(future: CallFuture[Any]) -> Any:
    """Return what Ray knows the outcome by that is to come; None if it knows of none."""
    if isinstance(future, RetriedFuture) or not isinstance(future.receiver, Reply):
        return None
    return future.receiver.ref
