"""Calls that wait on this machine until they can be sent, with the values that they refer to."""

from collections.abc import Callable, Sequence
from typing import Any

from remotely.client.channels import ActorState
from remotely.client.ref import Ref
from remotely.futures.future import CallFuture, futures_among
from remotely.futures.reference import StoredResult
from remotely.machine.interrupts import errors_ignored
from remotely.machine.shield import RLock
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import codec, references
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import NamedReference
from remotely.values.owned import Owned, own
from remotely.values.payload import Completion, OutgoingValue, Parcel, Transfer
from remotely.values.references import Referring


class DelayedCall:
    """A call in the queue of its actor, or one that may be retried: a `carrier.WaitingCall`.

    Its arguments are pickled when the call is made.  Futures and refs among them
    (values/references.py) are resolved when it is sent:

        a future     to its value as it arrived, or, if it was done before, as it was when the call
                     was made.  If the value is in a store, to its place there; an actor that may
                     reach no store gets the value itself
        a large ref  to its place in the store of the actor's machine, once transferred

    named       the futures and refs among the arguments; `refs` are the refs
    transfers   the transfers of a large value to other machines that have begun
    ship        transfers what is sent to an actor's machine, if it is large and not there
    may_wait    whether this thread may wait for a store
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        value: Owned,
        named: Sequence[NamedReference],
        transfers: Sequence[Transfer],
        ship: Callable[[OutgoingValue, StoreAddress | None], None],
        may_wait: Callable[[], bool],
    ) -> None:
        self.kind = kind
        self.name = name
        self.value = value
        self.refs = [thing for thing, _ in named if isinstance(thing, Ref)]
        self._futures = futures_among(named)
        self._named = named
        self._transfers = transfers
        self._ship = ship
        self._may_wait = may_wait
        self._lock = RLock()
        self._kept: list[StoredResult] = []  # not to be released before the call has run
        # By the index of the future, and whether the actor is apart.
        self._values: dict[tuple[int, bool], Any] = {}
        self._outgoing: dict[tuple[bytes, ...], OutgoingValue] = {}
        for number, (thing, _) in enumerate(named):
            if not isinstance(thing, CallFuture):
                continue
            thing.is_passed_on = True
            is_stored = isinstance(thing.raw_result, StoredResult)
            if thing.done() and thing.kept is None and not is_stored:
                with errors_ignored:  # sending the call raises it
                    snapshot = _snapshot(thing.result())
                    self._values[number, True] = self._values[number, False] = snapshot

    def __del__(self) -> None:
        for outgoing in vars(self).get("_outgoing", {}).values():  # {} if interrupted
            outgoing.close()

    @property
    def may_be_large(self) -> bool:
        """Whether it may go through memory: it, or the values of futures and refs in it."""
        return bool(self._named) or self.value.nbytes >= SHARE_FROM_BYTES

    def needs(self, actor: ActorState) -> list[Completion]:
        """Return the futures that must be done before the call is sent to this actor."""
        store = actor.store
        transfers = [*self._transfers, *(t for ref in self.refs for t in ref.transfers)]
        here = [t.done for t in transfers if store is not None and t.covers(store)]
        return [*self._futures, *here]

    def outgoing_to(self, actor: ActorState) -> OutgoingValue:
        """Return what to send to this actor: values if it `is_apart`, else perhaps store entries.

        Raises the error of a future that failed.
        """
        store, is_apart = actor.store, actor.is_apart and self._may_wait()
        with self._lock:
            entries = [
                self._entry(i, thing, name, store, is_apart)
                for i, (thing, name) in enumerate(self._named)
            ]
            kind = tuple(entry.value if isinstance(entry, Parcel) else b"" for entry in entries)
            if (outgoing := self._outgoing.get(kind)) is None:
                value = self.value
                if entries:
                    value = own(codec.encode(Referring(value, entries), self.name))
                outgoing = self._outgoing[kind] = OutgoingValue(value, True, self._transfers)
            if not is_apart:
                self._ship(outgoing, store)
            return outgoing

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
        references.check_argument(future, lambda: name)
        kept = future.kept or future.raw_result
        if isinstance(kept, Owned):
            return Referring(kept)
        if not isinstance(kept, StoredResult):
            return _snapshot(kept)
        if is_apart:
            return kept.fetch()
        self._kept.append(kept)
        return kept.entry()


def _snapshot(value: Any) -> Referring:
    """Return an argument that arrives as the value is now."""
    return Referring(own(codec.encode(value)))
