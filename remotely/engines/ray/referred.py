"""What the arguments of a call refer to, as references of Ray's, which counts and fetches them."""

from collections.abc import Sequence
from typing import Any

from remotely.engines.ray.put import PlasmaRef
from remotely.engines.ray.replies import Reply
from remotely.futures.future import CallFuture
from remotely.objects.idempotent import RetriedFuture
from remotely.values import codec, references
from remotely.values.references import Named


class Referred:
    """References are made once, for all actors that are called."""

    def __init__(self, named: Sequence[Named] = ()) -> None:
        self._named = named
        self.names = [name for _, name in named]
        self._refs: list[Any] | None = None

    def refs(self) -> list[Any]:
        """Return the references.  Raises the error of a future that has failed.

        Waits for a future that is tried again if its actor dies, as Ray knows only the first try.
        """
        if self._refs is None:
            self._refs = [_ref_of(thing, name) for thing, name in self._named]
        return self._refs


def _ref_of(thing: Any, name: str) -> Any:
    if isinstance(thing, PlasmaRef):
        return thing.ref
    assert isinstance(thing, CallFuture)
    is_tried_again = isinstance(thing, RetriedFuture)
    if not thing.done() and not is_tried_again and isinstance(thing.receiver, Reply):
        ref = thing.receiver.ref
        if ref is not None:
            thing.on_unretrieved = None  # the call that needs it tells of its error
            return ref
    try:
        error = thing.exception()
    except Exception as cancelled:
        error = cancelled
    if error is not None:
        raise references.of_argument(error, name)
    return PlasmaRef(codec.encode(thing.result())).ref
