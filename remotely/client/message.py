"""A call that cannot leave at once, as the ZeroMQ cluster sends it: to one actor or to several.

Its arguments were pickled when it was made.  What they refer to (values/references.py) is put in
their place when it leaves:

    a future     its value as it came, or as it is now if it has come before; or where the value
                 is, if it has stayed there: to an actor that may reach no store, it goes itself
    a large ref  where it is in the store of the actor's machine, to which it has crossed before
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from remotely.client.ref import Ref
from remotely.futures.future import CallFuture
from remotely.futures.reference import Elsewhere
from remotely.machine.shield import RLock
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import codec, references
from remotely.values.owned import Owned, own
from remotely.values.payload import OutgoingValue, Transfer
from remotely.values.references import InStore, Named, Referring


class Message:
    """The same bytes for each actor, and for each try.

    named       what the arguments refer to, of which `refs` are the refs
    transfers   that bring a large value to other machines, as far as they have begun
    ship        brings what is sent to the machine of an actor, if it is large and not there
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        value: Owned,
        named: Sequence[Named],
        transfers: Sequence[Transfer],
        ship: Callable[[OutgoingValue, StoreAddress | None], None],
    ) -> None:
        self.kind = kind
        self.name = name
        self.value = value
        self.refs = [thing for thing, _ in named if isinstance(thing, Ref)]
        self._futures = [thing for thing, _ in named if isinstance(thing, CallFuture)]
        self._named = named
        self._transfers = transfers
        self._ship = ship
        self._lock = RLock()
        self._kept: list[Elsewhere] = []  # what is not to be released before the call has run
        # By the number of the future, and whether the actor is apart.
        self._values: dict[tuple[int, bool], Any] = {}
        self._made: dict[tuple[bytes, ...], OutgoingValue] = {}
        for number, (thing, _) in enumerate(named):
            if not isinstance(thing, CallFuture):
                continue
            thing.stays = True
            if thing.done() and thing.kept is None and not isinstance(thing.where, Elsewhere):
                with suppress(Exception):  # it is told when the call is to leave
                    arriving = _arriving(thing.result())
                    self._values[number, True] = self._values[number, False] = arriving

    def __del__(self) -> None:
        for made in vars(self).get("_made", {}).values():  # none yet, if we were interrupted
            made.close()

    def needs(self, store: StoreAddress | None) -> list[Future[Any]]:
        """Return what has to be done before it leaves for an actor there."""
        transfers = [*self._transfers, *(t for ref in self.refs for t in ref.transfers)]
        here = [t.done for t in transfers if store is not None and t.covers(store)]
        return [*self._futures, *here]

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
                value = self.value
                if entries:
                    value = own(codec.encode(Referring(value, entries), self.name))
                made = self._made[kind] = OutgoingValue(value, True, self._transfers)
            if not is_apart:
                self._ship(made, store)
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
        kept = future.kept or future.where
        if isinstance(kept, Owned):
            return Referring(kept)
        if not isinstance(kept, Elsewhere):
            return _arriving(kept)
        if is_apart:
            return kept.fetch()
        self._kept.append(kept)
        return kept.entry()


def _arriving(value: Any) -> Referring:
    """Return what arrives as the value is now."""
    return Referring(own(codec.encode(value)))
