"""A call whose arguments refer to futures or refs (values/references.py), until it leaves.

    a future     its value if that is here; where the value is, if it has stayed there
                 to an actor that may reach no store, the value goes in any case
    a large ref  where it is in the store of the actor's machine, to which it has crossed before

The arguments themselves were pickled when the call was made.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from remotely.client.ref import Ref
from remotely.futures.future import CallFuture
from remotely.futures.reference import Elsewhere
from remotely.protocol.control import StoreAddress
from remotely.values import codec, references
from remotely.values.codec import Encoded
from remotely.values.memory_peer import OutgoingValue
from remotely.values.references import InStore, Named, Referring


class ReferringCall:
    """`ship` brings an encoded value to the machines of all actors that are called.

    needs   what has to be done before the call leaves
    """

    def __init__(
        self,
        method: str,
        encoded: Encoded,
        named: Sequence[Named],
        crossings: Sequence[Future[None]],
        ship: Callable[[OutgoingValue], None],
    ) -> None:
        futures = [thing for thing, _ in named if isinstance(thing, CallFuture)]
        for future in futures:
            future.stays = True
        self.needs: list[Future[Any]] = [*futures, *crossings]
        self._method = method
        self._encoded = encoded
        self._named = named
        self._ship = ship
        self._lock = threading.Lock()
        self._kept: list[Elsewhere] = []  # what is not to be released before the call has run
        # By the number of the future, and whether the actor is apart.
        self._values: dict[tuple[int, bool], Any] = {}
        self._made: dict[tuple[bytes, ...], OutgoingValue] = {}

    def __del__(self) -> None:
        for made in self._made.values():
            made.close()

    def snapshot(self) -> None:
        """Copy the arguments, which their owner may change from now on."""
        self._encoded = codec.copied(self._encoded)

    def outgoing_to(self, store: StoreAddress | None, is_apart: bool = False) -> OutgoingValue:
        """Return what to send to an actor there; if it `is_apart`, with the values themselves.

        Raises the error of a future that failed.
        """
        with self._lock:
            entries = [
                self._entry(i, thing, name, store, is_apart)
                for i, (thing, name) in enumerate(self._named)
            ]
            kind = tuple(entry.name if isinstance(entry, InStore) else b"" for entry in entries)
            if (made := self._made.get(kind)) is None:
                encoded = codec.encode(Referring(self._encoded, entries), self._method)
                made = self._made[kind] = OutgoingValue(encoded, several=True)
                if not is_apart:
                    self._ship(made)
            return made

    def _entry(
        self, number: int, thing: Any, name: str, store: StoreAddress | None, is_apart: bool
    ) -> Any:
        if isinstance(thing, Ref):
            return thing.entry_at(store)
        key = number, is_apart
        if key not in self._values:
            self._values[key] = self._value_of(thing, name, is_apart)
        return self._values[key]

    def _value_of(self, future: CallFuture[Any], name: str, is_apart: bool) -> Any:
        try:
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        if error is not None:
            raise references.of_argument(error, name)
        if is_apart:
            return future.result()
        where = future.where
        if isinstance(where, Elsewhere):
            self._kept.append(where)
            return where.entry()
        return where
