"""The messages between a client and the master."""

from remotely.protocol.control.message import ControlMessage
from remotely.protocol.control.records import (
    ClientStatus,
    EndStatus,
    Location,
    Obituary,
    Request,
    WaitStatus,
    WorkerStatus,
)
from remotely.protocol.numbers import Amount, Id, Moment, Offset, Pid, Route, Seconds


class Hello(ControlMessage, frozen=True):
    session: str
    python: str
    pid: Pid
    host: str
    machine: str
    actor: str = ""  # the actor in which this client lives, if it does
    modules: list[str] = []
    nonce: str = ""  # what makes `session` of the key; see admission.py
    arrivals: list[str] = []  # the actors that it was given, and still has


class Place(ControlMessage, frozen=True):
    ticket: Amount
    request: Request
    patience_s: Seconds


class End(ControlMessage, frozen=True):
    """End an actor: asked politely first, made to after `grace_s`; `kill`: at once, unasked.

    `by` is who had it killed; the master fills it in.
    """

    actor: Id
    grace_s: Seconds
    kill: bool = False
    by: str = ""


class Cancel(ControlMessage, frozen=True):
    """Do not begin a call, if it has not begun.  To the actor, by the master and the worker.

    `route` names the caller's connection, `call` and `answer` are ids of calls on that: the actor
    answers there, whether the call will never run.
    """

    actor: Id
    route: Route
    call: Amount
    answer: Amount


class Locate(ControlMessage, frozen=True):
    """Where is the actor of this id, or this name?  From then on the asker is told of its end.

    `unreached`: I found nobody where it was.  Then the answer waits until its machine can be
    reached, or is lost.
    """

    ticket: Amount
    actor: str = ""
    name: str = ""
    unreached: bool = False


class AskArrival(ControlMessage, frozen=True):
    """Give me an actor of this class that has dialled in, now or when there is one."""

    ticket: Amount
    class_name: str


class NoArrival(ControlMessage, frozen=True):
    """I do not want the one that I asked for with this ticket."""

    ticket: Amount


class AskStatus(ControlMessage, frozen=True):
    """`fresh`: with figures of this moment; else with those that are there, at once."""

    ticket: Amount
    fresh: bool = True


class Unanswered(ControlMessage, frozen=True):
    """How many calls of this client each actor has yet to answer, where there are any."""

    calls: dict[str, Amount]


class ReadLog(ControlMessage, frozen=True):
    """The next piece of an actor's output from `offset`; -1 means its last few kilobytes.

    `actor` is an id or a name; a name stays known when its actor has ended.
    """

    ticket: Amount
    actor: str
    offset: Offset = -1


class Blocked(ControlMessage, frozen=True):
    """I live in an actor, and that has served nobody for a while: it waits for another.

    Said again for as long as the wait lasts, which has this number.
    """

    wait: Amount
    actor: str
    call: str
    method: str = ""  # in which I wait; empty if several run


class Unblocked(ControlMessage, frozen=True):
    pass


class Goodbye(ControlMessage, frozen=True):
    """End my actors, then let me go."""


class Welcome(ControlMessage, frozen=True):
    pythons: list[str]


class Placed(ControlMessage, frozen=True):
    ticket: Amount
    location: Location


class NotPlaced(ControlMessage, frozen=True):
    ticket: Amount
    error: str  # the name of a class in errors.py
    why: str


class Queued(ControlMessage, frozen=True):
    ticket: Amount
    why: str  # empty: there is room now, and the actor is being made


class Located(ControlMessage, frozen=True):
    ticket: Amount
    location: Location | None = None
    obituary: Obituary | None = None


class Status(ControlMessage, frozen=True):
    ticket: Amount
    workers: list[WorkerStatus]
    clients: list[ClientStatus]
    waiting: Amount
    waits: list[WaitStatus] = []  # of those, the first few and why
    ends: list[EndStatus] = []  # the last few that nobody had asked for, newest first


class LogPiece(ControlMessage, frozen=True):
    ticket: Amount
    text: str
    offset: Offset
    known: bool
    ended: bool


class Printed(ControlMessage, frozen=True):
    """Lines that an actor printed."""

    actor: str
    name: str
    job: str
    error: bool
    text: str


class Logged(ControlMessage, frozen=True):
    """A record that an actor logged (log_records.py).  Its worker writes `actor`, `name`, `job`."""

    logger: str
    level: Amount
    level_name: str
    message: str
    created: Moment  # wall clock, for people alone
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


class Farewell(ControlMessage, frozen=True):
    pass


class Notice(ControlMessage, frozen=True):
    """Something for the people at the terminal to know."""

    text: str
