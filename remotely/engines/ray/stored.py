"""Values in Ray's object store, which arguments refer to; Ray fetches and counts references."""

from collections.abc import Sequence
from typing import Any

import ray

from remotely.calling.send_queue import RetriedFuture
from remotely.engines.ray.host import received, sendable
from remotely.futures.future import CallFuture, futures_among
from remotely.futures.reference import Put
from remotely.machine.interrupts import errors_ignored
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, in_transit, references
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import Owned

PUT_FROM_BYTES = 100_000  # of a value for several actors: Ray copies smaller ones into the call


class PlasmaRef(Put):
    """A value that was pickled once.  Passed in a call, it arrives as it was when it was put."""

    def __init__(self, encoded: Encoded) -> None:
        self._travelling = encoded.travelling
        # In the form of a reply, so that the receiver can treat both the same.
        frames = wire.encode(Kind.RESULT, 0, "", encoded.pieces, encoded.buffers)
        self.ref = ray.put(sendable(frames))

    @property
    def value(self) -> Encoded:  # type: ignore[override]
        payload, buffers = self._parts()
        return Encoded((payload,), buffers)

    def get(self) -> Any:
        """Return a new copy of the value."""
        return codec.decode(*self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        in_transit.note(self._travelling)
        if (table := codec.reference_table.get()) is not None:
            return references.entry(table.number_of(self))
        return codec.decode, codec.parts(*self._parts())

    def _parts(self) -> tuple[Any, Any]:
        message = wire.decode(received(ray.get(self.ref)), "actor")
        return message.payload, message.buffers


def put_buffers(encoded: Encoded) -> Any:
    """Put the buffers of a value for several actors into the store; return None if small."""
    if sum(buffer.nbytes for buffer in encoded.buffers) < PUT_FROM_BYTES:
        return None
    return ray.put(codec.out_of_band(encoded.buffers))


class HostOutgoing:
    """A value that Ray carries: a `carrier.Outgoing`.

    several         whether it goes to several actors: its buffers are put into Ray's store, once
    names, refs     of the arguments that are references, in order
    """

    is_large = True

    def __init__(
        self,
        encoded: Encoded,
        several: bool = False,
        names: Sequence[str] = (),
        refs: Sequence[Any] = (),
    ) -> None:
        self.encoded = encoded
        self.nbytes = encoded.nbytes
        self.names = names
        self.refs = refs
        self._several = several
        self.stored_buffers: Any = None  # in Ray's store

    def store(self) -> None:
        """Put its buffers into Ray's store, unless they are there or are sent with each message."""
        if self._several:
            self._several, self.stored_buffers = False, put_buffers(self.encoded)

    def close(self) -> None:
        """Do nothing: Ray counts references."""


class HostMessage:
    """A call that waits: a `carrier.WaitingCall`."""

    may_be_large = True

    def __init__(
        self,
        kind: Kind,
        name: str,
        value: Owned,
        named: Sequence[NamedReference],
        several: bool,
    ) -> None:
        self.kind = kind
        self.name = name
        self.value = value
        self._referred = Referred(named)
        self._several = several
        self._outgoing: HostOutgoing | None = None

    def needs(self, actor: object) -> list[CallFuture[Any]]:
        return self._referred.needs()

    def outgoing_to(self, actor: object) -> HostOutgoing:
        refs = self._referred.refs()
        if self._outgoing is None:
            names = self._referred.names
            self._outgoing = HostOutgoing(self.value, self._several, names, refs)
        return self._outgoing


class Referred:
    """The references of a call's arguments, created once for all actors."""

    def __init__(self, named: Sequence[NamedReference] = ()) -> None:
        self._named = named
        self.names = [name for _, name in named]
        self._refs: list[Any] | None = None
        self._values: dict[int, Any] = {}  # of futures that were already done, by number
        for number, (thing, _) in enumerate(named):
            if isinstance(thing, CallFuture):
                thing.is_passed_on = True
                if thing.done() and thing.kept is None:
                    with errors_ignored:  # `refs` raises it when the call is sent
                        value = PlasmaRef(codec.encode(thing.result())).ref
                        self._values[number] = value

    def needs(self) -> list[CallFuture[Any]]:
        """Return the futures that must be done first: those of calls that are not sent yet, and of
        calls that may be retried, since Ray knows only the first attempt."""
        futures = futures_among(self._named)
        return [future for future in futures if not future.done() and _pending_ref(future) is None]

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
    if not thing.done() and (ref := _pending_ref(thing)) is not None:
        thing.on_unretrieved = None  # the call that needs it reports its error
        return ref
    try:
        error = thing.exception()
    except Exception as cancelled:
        error = cancelled
    if error is not None:
        raise references.of_argument(error, name)
    kept = thing.kept
    return PlasmaRef(kept if isinstance(kept, Owned) else codec.encode(thing.result())).ref


def _pending_ref(future: CallFuture[Any]) -> Any:
    """Return Ray's reference to the outcome of a call in flight; None if there is none."""
    ref_of = getattr(future.receiver, "ref_of", None)  # of a `HostChannel`
    return None if isinstance(future, RetriedFuture) or ref_of is None else ref_of(future)
