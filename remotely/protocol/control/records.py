"""The records in several messages: an actor's place, request, state and end."""

import msgspec

from remotely.protocol.numbers import (
    Amount,
    Balance,
    FlightRecord,
    Gpus,
    Id,
    Moment,
    Percent,
    Pid,
    Route,
    Seconds,
)
from remotely.protocol.resources import Resources


class StoreAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where clients talk to the store of a machine, and its key.  The store starts when they do."""

    tcp: str  # as in `Location`
    public_key: bytes


class BulkAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where a store takes and gives large values over TLS, and its certificate's SHA-256."""

    tcp: str  # as in `Location`
    fingerprint: bytes


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where one life of an actor takes calls.  `life` counts its restarts."""

    actor: str
    name: str
    class_name: str
    life: Amount
    pid: Pid
    host: str  # processes of the same host see the same files and pids
    machine: str  # its name, for people
    ipc: str
    tcp: str  # where others connect to (listening.py); empty on an embedded cluster
    public_key: bytes
    store: StoreAddress | None = None  # of its machine; none on an embedded cluster


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor needs to be placed."""

    actor: Id
    name: str
    named: bool = False  # by the user: then no other actor may have that name
    gang: str = ""  # the group that is placed with it, whole or not at all
    together: Amount = 1  # how many of that are made at once, this among them
    machine: str = ""  # on which it is to be; empty for any
    near: str = ""  # the actor on whose machine it is to be; empty for any
    class_name: str
    owner: str  # the session whose end is the actor's end; empty if detached
    job: str  # the session of the script at the root, whose terminal shows the output
    resources: Resources = Resources(cpus=1)  # no memory is no limit
    names_cpus: bool = True  # or `resources` has the default, where CPUs are counted
    life: Amount = 0
    max_restarts: Amount = 0
    maker: str = ""  # the session that has the class and the arguments, to make its next life
    python: str
    env: dict[str, str] = {}
    modules: list[str] = []  # to be imported before the fork, if the worker has them
    key: bytes = b""  # the master writes it: the listed key of the client at the root
    # Of an object whose process has dialled in: the names of its class and of the bases of that.
    # The key is then that of a worker, with which it came.
    classes: list[str] = []


class Obituary(msgspec.Struct, frozen=True, kw_only=True):
    """How an actor ended.  `lost`: nobody saw; its machine went silent."""

    actor: str
    life: Amount
    lost: bool = False
    asked: bool = False  # it was closed, or its owner ended
    exited: bool = False  # in good order: its last replies may still be on their way
    exit: Balance | str | None = None
    why: str = ""
    stderr: str = ""
    flight_record: FlightRecord = b""  # what its flight recorder held
    begun: dict[Route, Amount] = {}  # the last call that has begun, by the route of its client
    all_begun: bool = False  # of a client that is not listed, none has
    restarting: bool = False  # another life follows; `Locate` is answered when it has a place


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What changes of an actor while it lives.  `method` has run longest of those that run."""

    actor: str
    calls: Amount = 0
    cpu_percent: Percent = 0
    rss: Amount = 0
    running: Amount = 0
    method: str = ""
    method_s: Seconds = 0


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An actor that lives: from its worker, what the master has to know of it; from there, more."""

    location: Location
    request: Request
    gpu_ids: list[Gpus] = []
    since: Moment = 0  # wall clock, for people alone
    seal: bytes = b""  # of its placement; for the master alone
    delegate: bytes = b""  # the key with which it makes calls, if it does
    figures: Figures = Figures(actor="")  # as the master was told last
    queue: Amount = 0  # calls that clients have made, and that do not run yet


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Who a session is; it is the owner of actors.  `actor`: the one in which it lives, if any."""

    session: str
    machine: str
    pid: Pid
    actor: str = ""


class WaitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one script for one class that wait for room: how many, since when, and why."""

    class_name: str
    count: Amount
    waits_s: Seconds  # the first of them
    why: str


class EndStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an actor that nobody had asked for."""

    name: str
    class_name: str
    machine: str
    ago_s: Seconds
    lost: bool
    restarting: bool
    exit: Balance | str | None
    why: str
    stderr: str


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    machine: str
    host: str = ""  # the same for workers that share a machine
    address: str
    python: str
    resources: Resources
    gpu_names: list[str] = []  # as CUDA knows them, in the order of their ids
    away_s: Seconds = 0.0  # for how long it could not be reached; nothing of it is free then
    free_cpus: float  # each below zero where actors hold more than there is
    free_gpus: float
    free_memory: Balance
    free_others: dict[str, float] = {}  # of the user's resources
    actors: list[ActorStatus]
