"""Values to bytes and back: pickle protocol 5, buffers out of band.

`decode` is the only place in the code base that unpickles.  It runs whatever the pickle says, so
only authenticated peers reach it, and the master never does.

`encode` tries plain pickle first, which is in C, and cloudpickle where that is not enough
(picklers.py).

    value                          arrives
    numpy array                    equal, with its dtype and order; writable, unless the buffers
                                   that `decode` is given are read-only (picklers.py)
    torch tensor, CPU and dense    equal, contiguous; two that share storage arrive as copies,
                                   though the same tensor twice (tied weights) stays one
    any other tensor               as torch itself pickles it
    an exception                   as itself, whatever its class's `__init__` takes (picklers.py)
    a lock among globals           a new one (locks.py)
    a SharedArray                  the same memory (shared_array.py)
    a module made by hand          a copy, with its classes, functions and globals
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
from remotely.values import in_transit
from remotely.values.in_transit import InTransit, Used
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

# The number of frames in a message is limited; buffers beyond it are copied into the payload too.
MAX_BUFFERS = 4000


class Encoded:
    """A pickle, in pieces, and the buffers that travel beside it, flat and contiguous.

    The buffers, and pieces that are large, are the memory of the value itself: what is changed
    there before it is sent, is sent changed.  What is kept for later is `owned.Owned`.
    `travelling` are the shared arrays within it (in_transit.py), and the actors whose handles are
    among the arguments of a call: hold them until it has been read.
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


def encode(value: object, what: PartNames = "the value", *, in_band: bool = False) -> Encoded:
    """Pickle a value.  Raises NotPicklable, which names the part that cannot be.

    `what` names the value in that message.  `in_band` puts every buffer into the payload, for where
    only one piece can go.
    """
    if type(value) in _ATOMS:
        return Encoded((pickle.dumps(value, 5),), ())
    try:
        return _encode(PlainPickler, value, in_band)
    except Exception:  # a user's __reduce__ may raise anything; the next pickler tells
        pass
    try:
        return _encode(ByValuePickler, value, in_band)
    except Exception as error:
        raise NotPicklable(not_picklable_message(value, what, error)) from error


def decode(payload: bytes | memoryview, buffers: Sequence[object] = ()) -> Any:
    """Unpickle what `encode` made.  The buffers are not copied: arrays are views of them."""
    return pickle.loads(payload, buffers=buffers)  # noqa: S301 - the one site; peers are authenticated


def parts(
    payload: bytes | memoryview, buffers: Sequence[memoryview]
) -> tuple[bytes | pickle.PickleBuffer, list[pickle.PickleBuffer]]:
    """Return the arguments of `decode`, for something that pickles as what it encoded."""
    head = payload if isinstance(payload, bytes) else _pickle_buffer(payload)
    return head, out_of_band(buffers)


def out_of_band(buffers: Sequence[bytes | memoryview]) -> list[pickle.PickleBuffer]:
    """Return what a pickler leaves out of its pickle, for an engine that pickles by itself."""
    return [_pickle_buffer(memoryview(buffer)) for buffer in buffers]


def _pickle_buffer(view: memoryview) -> pickle.PickleBuffer:
    """Return a buffer of the memory of a view, which does not lend the view itself.

    A view that is lent and lies in a cycle is cleared by the garbage collector all the same, and
    CPython (3.11) then ends with a segmentation fault.
    """
    if memoryview(view.obj).nbytes == view.nbytes:
        return pickle.PickleBuffer(view.obj)
    if view.readonly:  # what arrives is writable
        return pickle.PickleBuffer(bytearray(view))
    return pickle.PickleBuffer((ctypes.c_ubyte * view.nbytes).from_buffer(view))


# Pickling these needs no pickler of ours: they hold nothing, and have no buffers.
_ATOMS = frozenset((type(None), bool, int, float, complex, str))


def _encode(
    pickler: Callable[..., pickle.Pickler], value: object, in_band: bool = False
) -> Encoded:
    if len(REDUCERS) < 3 and (not REDUCERS or "torch" in sys.modules):
        learn_types()
    pieces: list[Any] = []
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if in_band or view.nbytes < SMALL_BUFFER_BYTES or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(view)
        return False

    # What is written is kept as it is: large bytes of the value are not copied.
    file = SimpleNamespace(write=pieces.append)
    dump = pickler(file, protocol=5, buffer_callback=keep).dump
    travelling: Sequence[InTransit] = ()
    if not Used.ever:
        dump(value)
    else:
        with in_transit.collected() as travelling:
            dump(value)
    if len(pieces) > 1:  # what is large, and part of the value, is a piece of its own
        pieces = [piece if type(piece) is bytes else _flat(piece) for piece in pieces]
    return Encoded(pieces, buffers, travelling)


def _flat(piece: Any) -> memoryview:
    return piece.raw() if isinstance(piece, pickle.PickleBuffer) else memoryview(piece)


# --- arguments of calls ---------------------------------------------------------------------------


class Named(NamedTuple):
    """What an argument refers to without containing it, and the words for that argument."""

    thing: Any
    name: str


def encode_arguments(
    actors: Sequence[Any],
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: PartNames = "",
) -> tuple[Encoded, Sequence[Named]]:
    """Pickle the arguments of a call, and say which of them refer to futures or refs.

    Without `actors` nobody knows yet which actor the call is for.  `names` are what errors call
    the arguments.  The actors whose handles are among them are kept by what is returned.
    """
    if not kwargs:
        for argument in args:
            if type(argument) not in _ATOMS:
                break
        else:  # faster than what follows
            return Encoded((pickle.dumps((args, kwargs), 5),), ()), ()
    notes = Notes(actors)
    outer = noting.get()
    try:
        noting.set(notes)  # within `try`: Ctrl-C may strike as soon as it is set
        encoded = encode((args, kwargs), (names or f"{method}: args", f"{method}: kwargs"))
    finally:
        noting.set(outer)
    if notes.kept:
        encoded.travelling = (*encoded.travelling, *notes.kept)
    return encoded, notes.things and named_arguments(method, args, kwargs, notes.things)


class Notes:
    """What was noted for a call to these actors, in the order of the numbers.

    There are none if it is not known yet which actor the call is for.  `kept` are the actors whose
    handles are among the arguments, which have to live until the call has its outcome.
    """

    __slots__ = ("_numbers", "kept", "remotes", "things")

    def __init__(self, remotes: Sequence[Any]) -> None:
        self.remotes = remotes
        self.things: list[Any] | tuple[()] = ()  # there is one of these for each call: no list yet
        self.kept: list[Any] | tuple[()] = ()
        self._numbers: dict[int, int]  # by the id of a thing

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


# Where things note themselves, while the arguments of a call are pickled.
noting: ContextVar[Notes | None] = ContextVar("remotely_notes", default=None)


def named_arguments(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any], things: Sequence[Any]
) -> list[Named]:
    """Say which arguments refer to these things."""
    words = [*((f"argument {i} of {method}", a) for i, a in enumerate(args, 1))]
    words += [(f"argument {name!r} of {method}", a) for name, a in kwargs.items()]
    names: dict[int, str] = {}
    for name, argument in words:
        # Of a `Reference`. Static: an argument may be a handle, or run code of the user's.
        for thing in (argument, inspect.getattr_static(argument, "future", None)):
            names.setdefault(id(thing), name)
    return [Named(thing, names.get(id(thing), f"an argument of {method}")) for thing in things]
