"""The carrier interface: what an engine requires of the means by which its calls reach actors.

The engine (calling/engine.py) decides everything that is a promise: order, queues, retries, limits,
restarts, what a dead actor's calls raise.  A carrier only carries: it finds and makes processes,
and opens a channel to each life of an actor.

    client/carrier.py         ZeroMQ, to the processes of a cluster of `remotely start`
    engines/ray/carrier.py    Ray, to actors of Ray
    engines/in_process.py     this process: REMOTELY_LOCAL=1

Another carrier implements these verbs, and declares which promises it does not keep.
"""

import weakref
from collections.abc import Callable, Sequence, Sized
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from remotely.calling.actor import CalledActor
from remotely.engine import Arguments, Arrival, Engine, Options, Promises, RemoteActor
from remotely.errors import RemotelyError
from remotely.futures.future import CallFuture
from remotely.protocol.control import MakerState, ProcessTimeline
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClusterStatus
from remotely.values import codec, maker_state
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import Owned
from remotely.values.payload import Completion, Transfer
from remotely.values.sources import library
from remotely.values.unpicklable import PartNames


class Outgoing(Protocol):
    """A value that is being sent to one or several actors, and how it travels.

    is_large  whether it travels in another way than in the frames of its message
    """

    encoded: Encoded
    nbytes: int

    @property
    def is_large(self) -> bool: ...

    def close(self) -> None:
        """It has been sent to all."""


class WaitingCall(Protocol):
    """A call that cannot be sent immediately: the same bytes for each actor and each attempt."""

    kind: Kind
    name: str
    value: Owned

    @property
    def may_be_large(self) -> bool:
        """Whether `outgoing_to` may be large."""

    def needs(self, actor: Any) -> Sequence[Completion]:
        """Return what must be done before the call is sent to this actor."""

    def outgoing_to(self, actor: Any) -> Outgoing:
        """Return what to send to this actor, when its needs are done.

        May block on a thread that may wait.  Raises the error of a future among the arguments.
        """


class CallChannel(Protocol):
    """The connection to one life of an actor.  The `Receiver` of the calls that it has sent.

    is_open       whether calls can be sent
    is_introduced whether it is settled how large values reach the actor
    lends         whether large values are lent to the actor rather than copied
    sources_sent  the number of batches of sources.py that were sent
    """

    is_open: bool
    sources_sent: int

    @property
    def life(self) -> int: ...

    @property
    def pending(self) -> Sized:
        """The calls without an outcome."""

    @property
    def is_introduced(self) -> bool: ...

    @property
    def lends(self) -> bool: ...

    def wait_until_introduced(self) -> None: ...

    def send(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: Any = None,
        may_requeue: bool = False,
    ) -> bool:
        """Send one call.  Without `background`, the caller is about to wait for it.

        `large` is the same value, if it is large (`Outgoing`).  If the channel can send no more,
        the call fails; with `may_requeue`, this returns false instead.
        """

    def wait(self, future: Any, timeout: float | None = None) -> None: ...

    def receive_in_background(self) -> None: ...

    def holds(self, future: CallFuture[Any]) -> bool: ...

    def recall(self, future: CallFuture[Any]) -> bool: ...

    def cancel(self, future: CallFuture[Any], waits: bool) -> None: ...


class Encoder(NamedTuple):
    """How the values of calls leave this process.

    arguments     of a call of a method, with the futures and refs among them
    constructors  of new actors, with what these inherit from this process
    value         of an attribute
    value_of      the value of what `put` returned, if that is no `Put`; TypeError for anything else
    """

    arguments: Callable[
        [Sequence[RemoteActor], str, tuple[Any, ...], dict[str, Any], PartNames],
        tuple[Encoded, Sequence[NamedReference]],
    ]
    constructors: Callable[[type, Sequence[Arguments]], tuple[Sequence[Encoded], MakerState | None]]
    value: Callable[[Any, str], Encoded]
    value_of: Callable[[Any], Any]


def _pickled_constructors(
    cls: type, arguments: Sequence[Arguments]
) -> tuple[Sequence[Encoded], MakerState]:
    library.gather()
    state = maker_state.take()
    return codec.encode_constructors(cls, arguments), state


def _refuse_as_put(ref: Any) -> NoReturn:
    raise TypeError(
        f"get() takes what ref() or put() returned, or the future of a call; {ref!r} is none of "
        "these"
    )


PICKLED = Encoder(codec.encode_arguments, _pickled_constructors, codec.encode, _refuse_as_put)

A = TypeVar("A", bound=CalledActor)


NO_TIMELINE = (
    "a timeline needs a cluster: one of 'remotely start', or a script's own. With REMOTELY_LOCAL=1 "
    "there is one process, and on Ray there is 'ray timeline'"
)


class Carrier(Protocol[A]):
    """The means by which the calls of an engine reach their actors.

    cluster     as `Engine.cluster`
    inside      the actor that this process is; empty in a script
    encoder     how values leave this process
    lends       whether values that are kept are placed where other processes can read them
    known       the actors that this process has handles of
    is_immediate  whether a call has its outcome when it has been sent
    patience_s  how long `place` waits for room by default
    """

    cluster: str
    promises: Promises
    inside: str
    encoder: Encoder
    lends: bool
    is_immediate: bool
    known: "weakref.WeakValueDictionary[str, A]"

    @property
    def patience_s(self) -> float: ...

    # --- actors -----------------------------------------------------------------------------------

    def new(self, engine: Engine, cls: type, names: Sequence[str], options: Options) -> Sequence[A]:
        """Return actors of these names, which have no process yet."""

    def borrowed(self, engine: Engine, actor: str, name: str) -> A:
        """Return the actor of a handle that arrived here, which this process did not know."""

    def place(
        self,
        actors: Sequence[A],
        encoded: Sequence[Encoded],
        options: Options,
        state: MakerState | None,
        patience_s: float | None,
    ) -> None:
        """Make a process and an object for each actor: for all of them, or raise an error.

        `patience_s` is how long to wait for room, None for that of `connect`.  It makes the first
        life of actors, or the next one of an actor that is being restarted.
        """

    def abandon(self, actors: Sequence[A], kill: bool) -> None:
        """End actors that are not needed after all; they may have no process yet."""

    def await_name(self, options: Options, deadline: float, again: bool) -> bool:
        """After NameTaken: return whether the name may be free, or its actor found, at once.

        `again`: it has returned true before.
        """

    def find(self, engine: Engine, name: str) -> A | None:
        """Return the actor with this name, borrowed; None if there is none."""

    def hold(self, actor: A, giver: str) -> None:
        """Keep an actor alive, whose handle the client `giver` has returned."""

    def await_arrival(self, engine: Engine, class_name: str) -> Arrival:
        """As the engine's."""

    # --- calls ------------------------------------------------------------------------------------

    def begin_send(self, what: str) -> None:
        """Raise an error if this thread or this process cannot send a call now."""

    def connect(self, actor: A) -> CallChannel:
        """Return the open channel of an actor; may wait while it is restarted, or unreachable.

        Raises an error if the actor has ended.
        """

    def transfer(
        self, actors: Sequence[A], encoded: Encoded, background: bool
    ) -> tuple[Encoded, Transfer | None]:
        """Begin to bring a value nearer to these actors, if it is large and they are far away.

        Unless `background`, it has arrived when this returns.  The returned value is Owned if it is
        still being read.
        """

    def outgoing(
        self, encoded: Encoded, several: bool, transfers: Sequence[Transfer]
    ) -> Outgoing | None:
        """Return a value that is sent now, to one or `several` actors; None if it is small."""

    def message(
        self,
        actors: Sequence[A],
        kind: Kind,
        name: str,
        value: Owned,
        named: Sequence[NamedReference],
        transfers: Sequence[Transfer],
    ) -> WaitingCall:
        """Return a call that may wait.  `named` are the futures and refs among its arguments."""

    def may_wait(self) -> bool:
        """Tell whether this thread may wait for calls: it receives no outcomes for others."""

    def check_wait(self, actor: Any, future: CallFuture[Any], has_needs: bool) -> None:
        """Raise an error if this thread would wait for itself by waiting for this call.

        `has_needs`: the call waits in its actor's queue for other calls.
        """

    def sleep_until(
        self,
        is_over: Callable[[], object],
        timeout_s: float | None,
        actor: Any,
        future: CallFuture[Any],
    ) -> None:
        """Sleep about a call that waits in its actor's queue."""

    def is_any_elsewhere(self, actors: Sequence[A]) -> bool:
        """Tell whether large values for any of these are brought to other machines."""

    def put(self, value: object) -> Any:
        """As the engine's."""

    # --- the end ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise NotConnected if this process has left, or is a fork of the one that joined."""

    def begin_end(self, actors: Sequence[A], grace_s: float) -> None:
        """Note that actors were asked to end, after the message that says so was sent."""

    def await_end(self, actors: Sequence[A], deadline: float) -> None:
        """Wait until they have ended; they are killed at the deadline."""

    def finish_end(self, actors: Sequence[A]) -> None:
        """Have the calls of actors that were to end fail from now on, even after an interrupt."""

    def kill(self, actors: Sequence[A]) -> None:
        """Kill actors, and wait until they have ended."""

    def release(self, actor: A) -> None:
        """Handle the loss of the last handle here.  Never blocks, and may run in any code."""

    def report(self, fresh: bool) -> ClusterStatus: ...

    def timeline(self, seconds: float) -> list[ProcessTimeline]:
        """Return what all processes record in the next seconds.  Raises RemotelyError."""

    def note_unretrieved(self, what: str, error: BaseException) -> None:
        """Report the error of a submitted call that nobody has looked at."""

    def forget(self) -> None:
        """In a forked child: leave everything to the parent."""

    def leave(self) -> bool:
        """End what this process owns; return false if it has left before."""

    def close(self) -> None:
        """Fail every call, and release everything in this process."""

    def left(self) -> RemotelyError:
        """Return the error of calls that were not sent when this process left."""


def shut_down(carrier: Carrier[Any], close_first: Callable[[], object] = lambda: None) -> None:
    """Leave, and release everything, even if leaving is interrupted.  Has an effect once."""
    is_first = True
    try:
        is_first = carrier.leave()
    finally:
        if is_first:
            try:
                close_first()
            finally:
                carrier.close()
