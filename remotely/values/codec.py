"""Serialization of values: pickle protocol 5, with buffers out of band.

`decode` is the only place in the code base that unpickles.  Unpickling can run any code, so only
authenticated peers reach it, and the master never does.

`encode` tries plain pickle first, which is written in C, and falls back to cloudpickle
(picklers.py).

    value                          arrives
    numpy array                    equal, with its dtype; with its strides if it fills its memory,
                                   else in C order; writable, unless the buffers
                                   that `decode` is given are read-only (picklers.py)
    torch tensor, CPU and strided  equal, with its strides if it fills its memory (channels last),
                                   else contiguous; two that share storage arrive as copies, but
                                   the same tensor twice (tied weights) stays one
    any other tensor               as torch itself pickles it
    an exception                   as itself, whatever its class's `__init__` takes (picklers.py)
    a lock among globals           a new lock (picklers.py)
    sys.stdout, sys.stderr         the receiver's; any other open file is refused
    a SharedArray                  the same memory (shared_array.py)
    a module created by hand       a copy, with its classes, functions and globals
"""

import ctypes
import inspect
import pickle
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NamedTuple

from remotely.errors import NotPicklable
from remotely.machine.interrupts import is_for_main
from remotely.values import in_transit
from remotely.values.in_transit import InTransit
from remotely.values.picklers import (
    REDUCERS,
    SMALL_BUFFER_BYTES,
    ByValuePickler,
    PlainPickler,
    learn_types,
)
from remotely.values.unpicklable import (
    PartNames,
    not_picklable_message,
)

# A message has a limited number of frames.  Buffers beyond it are copied into the payload.
MAX_BUFFERS = 4000


class Encoded:
    """A pickle, in pieces, and its out-of-band buffers, flat and contiguous.

    The buffers and the large pieces are the memory of the value itself: a change to the value
    before it is sent changes what is sent.  To keep a pickle for later, use `owned.Owned`.
    `travelling` holds the shared arrays in the value (in_transit.py), and the actors whose handles
    are among the arguments of a call: keep them alive until the receiver has read the pickle.
    """

    __slots__ = ("buffers", "nbytes", "pieces", "travelling")

    def __init__(
        self,
        pieces: Sequence[bytes | memoryview],
        buffers: Sequence[memoryview],
        travelling: Sequence[Any] = (),
    ) -> None:
        self.pieces = pieces
        self.buffers = buffers
        self.travelling = travelling
        self.nbytes = sum(map(len, pieces))
        for buffer in buffers:
            self.nbytes += buffer.nbytes

    @property
    def payload(self) -> bytes | memoryview:
        """The pickle in one piece."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


def encode(
    value: object,
    what: PartNames = "the value",
    *,
    in_band: bool = False,
    small_bytes: int = SMALL_BUFFER_BYTES,
) -> Encoded:
    """Pickle a value.  Raises NotPicklable, which names the part that does not pickle.

    `what` names the value in that message.  Buffers below `small_bytes` go into the payload;
    `in_band` puts every buffer there.
    """
    if type(value) in _ATOMS:
        return Encoded((pickle.dumps(value, 5),), ())
    if in_band:
        small_bytes = sys.maxsize
    try:  # not `errors_ignored`, which costs two calls for each value
        return _encode(PlainPickler, value, small_bytes)
    except (
        Exception
    ) as error:  # a user's __reduce__ may raise anything; the next pickler reports it
        if is_for_main(error):
            raise
    try:
        return _encode(ByValuePickler, value, small_bytes)
    except Exception as error:
        if is_for_main(error):
            raise
        raise NotPicklable(not_picklable_message(value, what, error)) from error


def encode_result(value: object, what: PartNames, now: float, *, in_band: bool = False) -> Encoded:
    """Pickle what leaves an actor with a reply, and keep what it needs until it has arrived.

    `now` is on the monotonic clock.
    """
    if not in_transit.is_used or type(value) in _ATOMS:
        return encode(value, what, in_band=in_band)
    with in_transit.returning():
        encoded = encode(value, what, in_band=in_band)
    in_transit.keep_result(encoded.travelling, now)
    return encoded


def decode(payload: bytes | memoryview, buffers: Sequence[object] = ()) -> Any:
    """Unpickle a value from `encode`.  Arrays are views of the buffers, which are not copied."""
    return pickle.loads(payload, buffers=buffers)  # noqa: S301 - the one site; peers are authenticated


def parts(
    payload: bytes | memoryview, buffers: Sequence[memoryview]
) -> tuple[bytes | pickle.PickleBuffer, list[pickle.PickleBuffer]]:
    """Return the arguments of `decode`, for a `__reduce__` that returns an encoded value."""
    head = payload if isinstance(payload, bytes) else _pickle_buffer(payload)
    return head, out_of_band(buffers)


def out_of_band(buffers: Sequence[bytes | memoryview]) -> list[pickle.PickleBuffer]:
    """Wrap buffers for an engine that does its own pickling, so that it keeps them out of band."""
    return [_pickle_buffer(memoryview(buffer)) for buffer in buffers]


def _pickle_buffer(view: memoryview) -> pickle.PickleBuffer:
    """Return a buffer over the memory of a view that does not export the view itself.

    The garbage collector clears a memoryview in a cycle even while it is exported, and CPython
    (3.11) then crashes with a segmentation fault.
    """
    if memoryview(view.obj).nbytes == view.nbytes:
        return pickle.PickleBuffer(view.obj)
    if view.readonly:  # values arrive writable
        return pickle.PickleBuffer(bytearray(view))
    return pickle.PickleBuffer((ctypes.c_ubyte * view.nbytes).from_buffer(view))


# Types that plain `pickle.dumps` handles: they contain no other objects, and have no buffers.
_ATOMS = frozenset((type(None), bool, int, float, complex, str))


def _encode(pickler: Callable[..., pickle.Pickler], value: object, small_bytes: int) -> Encoded:
    if len(REDUCERS) < 3 and (not REDUCERS or "torch" in sys.modules):
        learn_types()
    pieces: list[Any] = []
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < small_bytes or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(view)
        return False

    # The writes are kept as pieces, so that large bytes objects are not copied.
    file = SimpleNamespace(write=pieces.append)
    dump = pickler(file, protocol=5, buffer_callback=keep).dump
    travelling: Sequence[InTransit] = ()
    if not in_transit.is_used:
        dump(value)
    else:
        with in_transit.collected() as travelling:
            dump(value)
    if len(pieces) > 1:  # pickle writes a large bytes object of the value as a piece of its own
        pieces = [piece if type(piece) is bytes else _flat(piece) for piece in pieces]
    return Encoded(pieces, buffers, travelling)


def _flat(piece: Any) -> memoryview:
    return piece.raw() if isinstance(piece, pickle.PickleBuffer) else memoryview(piece)


# --- arguments of constructors --------------------------------------------------------------------


def encode_constructors(
    cls: type, arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
) -> list[Encoded]:
    """Pickle a class with each of these arguments; those that are in the list repeatedly, once."""
    what = cls.__name__
    done: dict[int, Encoded] = {}
    for pair in arguments:
        if id(pair) not in done:
            done[id(pair)] = encode((cls, *pair), (what, f"{what}: args", f"{what}: kwargs"))
    return [done[id(pair)] for pair in arguments]


# --- arguments of calls ---------------------------------------------------------------------------


class NamedReference(NamedTuple):
    """A future or ref that an argument refers to, and what messages call that argument."""

    thing: Any
    name: str


def encode_arguments(
    actors: Sequence[Any],
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: PartNames = "",
) -> tuple[Encoded, Sequence[NamedReference]]:
    """Pickle the arguments of a call, and return the futures and refs that they refer to.

    `actors` is empty if the actor is not chosen yet.  `names` are what errors call the arguments.
    The result keeps the actors alive whose handles are among the arguments.
    """
    if not kwargs:
        for argument in args:
            if type(argument) not in _ATOMS:
                break
        else:  # the fast path
            return Encoded((pickle.dumps((args, kwargs), 5),), ()), ()
    table = ReferenceTable(actors)
    outer = reference_table.get()
    try:
        reference_table.set(table)  # within `try`: Ctrl-C may strike as soon as it is set
        encoded = encode((args, kwargs), (names or f"{method}: args", f"{method}: kwargs"))
    finally:
        reference_table.set(outer)
    if table.kept:
        encoded.travelling = (*encoded.travelling, *table.kept)
    return encoded, table.things and named_arguments(method, args, kwargs, table.things)


class ReferenceTable:
    """The futures and refs met while the arguments of a call are pickled, by number.

    `remotes` are the actors to be called; empty if they are not chosen yet.  `kept` are the actors
    whose handles are among the arguments; they must live until the call has its outcome.
    """

    __slots__ = ("_numbers", "kept", "remotes", "things")

    def __init__(self, remotes: Sequence[Any]) -> None:
        self.remotes = remotes
        self.things: list[Any] | tuple[()] = ()  # a tuple, since most calls need no list
        self.kept: list[Any] | tuple[()] = ()
        self._numbers: dict[int, int]  # by `id(thing)`

    def keep(self, actor: object) -> None:
        self.kept = self.kept or []
        self.kept.append(actor)

    def number_of(self, thing: object) -> int:
        if isinstance(self.things, tuple):
            self.things, self._numbers = [], {}
        number = self._numbers.setdefault(id(thing), len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


# The table in which futures, refs and handles enter themselves while a call is pickled.
reference_table: ContextVar[ReferenceTable | None] = ContextVar("remotely_refs", default=None)


def named_arguments(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any], things: Sequence[Any]
) -> list[NamedReference]:
    """Name each of these things after the argument that refers to it."""
    words = [*((f"argument {i} of {method}", a) for i, a in enumerate(args, 1))]
    words += [(f"argument {name!r} of {method}", a) for name, a in kwargs.items()]
    names: dict[int, str] = {}
    for name, argument in words:
        # `.future` of a `Reference`.  Static, because a handle or a user's class may run code here.
        for thing in (argument, inspect.getattr_static(argument, "future", None)):
            names.setdefault(id(thing), name)
    other = f"an argument of {method}"
    return [NamedReference(thing, names.get(id(thing), other)) for thing in things]
