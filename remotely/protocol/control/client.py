"""The messages between a client and the master."""

from remotely.protocol.control.message import ControlMessage, sent
from remotely.protocol.control.records import (
    ClientStatus,
    EndStatus,
    EventStatus,
    Location,
    MetricFigures,
    Obituary,
    Request,
    WaitStatus,
    WorkerStatus,
)
from remotely.protocol.numbers import LONGEST_S, Amount, Id, Moment, Offset, Pid, Route, Seconds
from remotely.protocol.spans import Offset_s, PackedClientSpans, PackedServerSpans, TimelineSeconds


@sent("client > master", "viewer > master")
class Hello(ControlMessage, frozen=True):
    session: str
    python: str
    pid: Pid
    host: str
    machine: str
    actor: str = ""  # the actor in which this client runs, if any
    script: str = ""  # its name, for display
    modules: list[str] = []
    nonce: str = ""  # `session` is derived from it and the key; see admission.py
    arrivals: list[str] = []  # actors that are assigned to it

    def __str__(self) -> str:
        script = f" ({self.script})" if self.script else ""
        return f"pid {self.pid}{script} on {self.machine}"


@sent("client > master")
class Place(ControlMessage, frozen=True):
    ticket: Amount
    request: Request
    patience_s: Seconds

    @property
    def waits_without_limit(self) -> bool:
        """Whether the actor has lived before, and is never given up for lack of room."""
        return self.request.life > 0 and self.patience_s >= LONGEST_S


@sent("client > master", "master > worker")
class End(ControlMessage, frozen=True):
    """End an actor: gracefully at first, by force after `grace_s`; `kill`: immediately.

    `by` names the client that had it killed; the master fills it in.  `moves`: its next life is to
    be placed on another machine, so it ends once its calls have.
    """

    actor: Id
    grace_s: Seconds
    kill: bool = False
    by: str = ""
    moves: bool = False


@sent("client > master", "master > worker")
class Drain(ControlMessage, frozen=True):
    """Place nothing new on a machine; its worker leaves when it has no actor left, or in time.

    From a client with a `ticket` and the name or address of a `machine`, or the id of a worker.
    `undo`: use the machine as before.
    """

    within_s: Seconds
    ticket: Amount = 0
    machine: str = ""
    undo: bool = False


@sent("master > client")
class DrainHeard(ControlMessage, frozen=True):
    """The reply to Drain; `why`: it is refused.

    `actors` are on the machine, and `movable` of them can have their next life elsewhere.
    """

    ticket: Amount
    machine: str = ""
    actors: Amount = 0
    movable: Amount = 0
    why: str = ""


@sent("master > client")
class Moving(ControlMessage, frozen=True):
    """This life of an actor ends after the calls that it has: keep further ones for the next.

    `stays`: it does not end after all, so send them.
    """

    actor: Id
    life: Amount
    stays: bool = False


@sent("client > master")
class Hold(ControlMessage, frozen=True):
    """This client has a handle that an actor returned: the actor lives as long as it holds it.

    `giver` is the client in that actor.  Sent again, without it, to a new master, which knows of no
    holders.
    """

    actor: Id
    giver: str = ""


@sent("client > master")
class LetGo(ControlMessage, frozen=True):
    """This client, the owner or a holder, has no handle of the actor any more.

    If others hold the actor, one of them is its owner then; else it ends.
    """

    actor: Id


@sent("master > client")
class Held(ControlMessage, frozen=True):
    """A handle that this client gave has arrived: its receiver holds the actor."""

    actor: Id


@sent("master > client")
class LetGoHeard(ControlMessage, frozen=True):
    """The answer to LetGo, which need not be repeated: others own or hold the actor."""

    actor: Id


@sent("client > master", "master > worker", "worker > actor")
class Cancel(ControlMessage, frozen=True):
    """Cancel a call that has not begun.  Sent to the actor through the master and the worker.

    `route` is the caller's connection; `call` and `answer` are ids of calls on it.  The actor
    replies to `answer` whether the call is cancelled.
    """

    actor: Id
    route: Route
    call: Amount
    answer: Amount


@sent("client > master", "master > worker", "worker > actor")
class Attend(ControlMessage, frozen=True):
    """A debugger is about to attach to an actor, which may run a call and receive no other."""

    actor: Id


@sent("client > master")
class Locate(ControlMessage, frozen=True):
    """Look up an actor by id or name, and notify the client when it ends.

    `unreached`: the client could not connect to its location.  Then the reply waits until its
    machine is reachable, or lost.
    """

    ticket: Amount
    actor: str = ""
    name: str = ""
    unreached: bool = False


@sent("client > master")
class AskArrival(ControlMessage, frozen=True):
    """Assign a guest's actor of this class to the client, now or when there is one."""

    ticket: Amount
    class_name: str


@sent("client > master")
class NoArrival(ControlMessage, frozen=True):
    """Withdraw the AskArrival with this ticket."""

    ticket: Amount


@sent("client > master", "viewer > master")
class AskStatus(ControlMessage, frozen=True):
    """`fresh`: collect current figures first; else reply immediately with the last ones."""

    ticket: Amount
    fresh: bool = True


@sent("client > master", "viewer > master")
class AskEvents(ControlMessage, frozen=True):
    """Ask for the events after the one with this number; 0 is for all that are remembered."""

    ticket: Amount
    after: Amount = 0


@sent("master > client", "master > viewer")
class Events(ControlMessage, frozen=True):
    """The reply to AskEvents, oldest first; `last` is the number of the newest event of all."""

    ticket: Amount
    events: list[EventStatus]
    last: Amount


@sent("client > master", "viewer > master")
class AskTimeline(ControlMessage, frozen=True):
    """Record a timeline of all processes for so long.  One is recorded at a time; it ends with the
    one that has asked."""

    ticket: Amount
    seconds: TimelineSeconds


@sent("master > worker", "master > client", "worker > actor")
class RecordTimeline(ControlMessage, frozen=True):
    """Record calls for so long, in place of a timeline that goes on.  To an actor, with the memory
    to which it writes them; without memory, it records no further calls."""

    timeline: str  # its id; "" to record none
    seconds: TimelineSeconds


@sent("worker > master", "client > master")
class TimelineClock(ControlMessage, frozen=True):
    """The immediate reply to RecordTimeline; `clock` is the sender's monotonic one."""

    timeline: str
    clock: Moment


@sent("worker > master", "client > master", "master > client", "master > viewer")
class ProcessTimeline(ControlMessage, frozen=True):
    """What one process has recorded: of an actor, the calls that it served; of a client, those that
    it has made, by the route of their connection.  Times are those of its machine's clock.

    The one that has asked learns its ticket too, and that the clock of the machine is so much
    behind the master's, within an error.
    """

    timeline: str
    host: str
    machine: str
    pid: Pid
    clock: Moment  # when this was sent
    name: str = ""  # of the actor, or of the script
    class_name: str = ""
    actor: str = ""  # its id, also of an actor that is a client
    born: Moment = 0.0  # zero: before this timeline
    ended: Moment = 0.0  # zero: it lives
    how: str = ""  # it ended
    served: PackedServerSpans = b""
    names: list[str] = []  # of the methods
    running: str = ""  # the method that it runs, and for how long
    running_s: Seconds = 0.0
    made: dict[Route, PackedClientSpans] = {}
    actors: dict[Route, str] = {}  # that were called
    missing: Amount = 0  # calls for which there was no room
    ticket: Amount = 0
    offset_s: Offset_s = 0.0
    error_s: Seconds = 0.0


@sent("worker > master", "client > master", "master > client", "master > viewer")
class TimelineEnd(ControlMessage, frozen=True):
    """A process, or the master, has sent all that was recorded; `why`: nothing was."""

    timeline: str
    ticket: Amount = 0  # to the one that has asked
    why: str = ""


@sent("viewer > master")
class AskKey(ControlMessage, frozen=True):
    """Read the list of keys now.  The reply says what this one may do, as far as it is read."""

    ticket: Amount
    key: bytes


@sent("client > master")
class Unanswered(ControlMessage, frozen=True):
    """The number of unanswered calls of this client, by actor; and the user's own metrics."""

    calls: dict[str, Amount]
    metrics: list[MetricFigures] = []


@sent("client > master", "viewer > master", "master > worker")
class ReadLog(ControlMessage, frozen=True):
    """Read an actor's output from `offset`; -1 means its last few kilobytes.

    `actor` is an id or a name; a name is still known after its actor has ended.  If it is empty,
    the last lines of the actors that ended last are meant, each after its name.
    """

    ticket: Amount
    actor: str
    offset: Offset = -1


@sent("client > master")
class Blocked(ControlMessage, frozen=True):
    """The actor in which this client runs serves no calls, because it waits for another actor.

    Repeated as long as the wait lasts; `wait` is its number.
    """

    wait: Amount
    actor: str
    call: str
    method: str = ""  # that waits; empty if several run
    has_timeout: bool = False  # the wait ends without help


@sent("client > master")
class Unblocked(ControlMessage, frozen=True):
    pass


@sent("client > master", "viewer > master")
class Goodbye(ControlMessage, frozen=True):
    """End this client's actors; the reply is Farewell."""


@sent("master > client", "master > viewer")
class Welcome(ControlMessage, frozen=True):
    pythons: list[str]
    host: str = ""  # of the master


@sent("master > client")
class Placed(ControlMessage, frozen=True):
    ticket: Amount
    location: Location


@sent("master > client")
class NotPlaced(ControlMessage, frozen=True):
    ticket: Amount
    error: str  # the name of a class in errors.py
    why: str


@sent("master > client")
class Queued(ControlMessage, frozen=True):
    ticket: Amount
    why: str  # empty: there is room now, and the actor is being started
    again: bool = False  # it still waits, and why is news: who holds the rest is silent


@sent("master > client")
class RoomWanted(ControlMessage, frozen=True):
    """Somebody waits for room, and this client owns actors that are spare if they are idle."""


@sent("master > client")
class ToReplace(ControlMessage, frozen=True):
    """These actors of this client are on machines that are being drained, and do not move.

    Pools replace their members.  Said again and again while the machines are drained.
    """

    actors: list[str]


@sent("master > client")
class Located(ControlMessage, frozen=True):
    ticket: Amount
    location: Location | None = None
    obituary: Obituary | None = None


@sent("master > client", "master > viewer")
class Status(ControlMessage, frozen=True):
    ticket: Amount
    workers: list[WorkerStatus]
    clients: list[ClientStatus]
    waiting: Amount
    waits: list[WaitStatus] = []  # the first few of them
    ends: list[EndStatus] = []  # the last few unexpected ends, newest first
    ended: Amount = 0  # all unexpected ends since the master started
    last_event: Amount = 0  # the number of the newest event of all
    counts_cpus: bool = True  # of actors that name none


@sent("master > viewer")
class KeyState(ControlMessage, frozen=True):
    """`role`: of this key; empty if it is not admitted.

    `unheard`: the machines that have not confirmed the end of each right that was taken away.
    """

    ticket: Amount
    role: str
    unheard: list[str]


@sent("worker > master", "master > client", "master > viewer")
class LogPiece(ControlMessage, frozen=True):
    ticket: Amount
    text: str
    offset: Offset
    known: bool
    ended: bool


class Printed(ControlMessage, frozen=True):
    """Lines that an actor printed: an item of `OutputBatch`."""

    actor: str
    name: str
    job: str
    error: bool
    text: str


@sent("actor > worker")
class Logged(ControlMessage, frozen=True):
    """A log record of an actor (log_records.py), also an item of `OutputBatch`.  Its worker sets
    `actor`, `name` and `job`."""

    logger: str
    level: Amount
    level_name: str
    message: str
    created: Moment  # wall clock, for display
    path: str
    line: Amount
    function: str
    process: Pid
    process_name: str
    thread: Amount
    thread_name: str
    exc_text: str = ""
    stack: str = ""
    actor: str = ""
    name: str = ""
    job: str = ""
    extra: dict[str, str | int | float | bool | None] = {}


@sent("master > client", "master > viewer")
class Farewell(ControlMessage, frozen=True):
    pass


@sent("master > client")
class Notice(ControlMessage, frozen=True):
    """A notice for the user's terminal."""

    text: str


@sent("worker > master", "master > client")
class OutputBatch(ControlMessage, frozen=True):
    """What actors printed and logged since the last batch (output_relay.py)."""

    items: list[Printed | Logged]


@sent("master > worker")
class OutputHeard(ControlMessage, frozen=True):
    """The master has passed on a batch: the worker may send the next.

    `unshown`: the scripts among its receivers that are gone.
    """

    unshown: list[str] = []
