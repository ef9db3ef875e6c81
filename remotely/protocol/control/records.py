"""Records in several messages: the location, request, status and end of an actor."""

import msgspec

from remotely.protocol.measures import MetricFigures as MetricFigures
from remotely.protocol.numbers import (
    Amount,
    Balance,
    FlightRecord,
    Gpus,
    History,
    Id,
    Moment,
    Percent,
    Pid,
    Rate,
    Route,
    Seconds,
)
from remotely.protocol.resources import Resources, Shares


class StoreAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address and key of a machine's store, which starts with the first connection."""

    tcp: str  # as in `Location`
    public_key: bytes


class BulkAddress(msgspec.Struct, frozen=True, array_like=True):
    """The TLS address of a store for large values, and its certificate's SHA-256."""

    tcp: str  # as in `Location`
    fingerprint: bytes


class Location(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of one life of an actor.  `life` counts its restarts."""

    actor: str
    name: str
    class_name: str
    life: Amount
    pid: Pid
    host: str  # processes of the same host see the same files and pids
    machine: str  # its name, for display
    ipc: str
    tcp: str  # for other machines (listening.py); empty on an embedded cluster
    public_key: bytes
    store: StoreAddress | None = None  # of its machine; none on an embedded cluster


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to place an actor."""

    actor: Id
    name: str
    named: bool = False  # by the user: then no other actor may have this name
    gang: str = ""  # the gang that is placed together with it, or not at all
    together: Amount = 1  # the size of the gang
    machine: str = ""  # where it must be placed; empty for any
    near: str = ""  # the actor on whose machine it must be placed; empty for any
    packs: bool = False  # it is placed on the fullest machine with room, not on the emptiest
    class_name: str
    owner: str  # the session with which the actor ends; empty if detached
    job: str  # the session of the script at the root, whose terminal shows the output
    resources: Resources = Resources(cpus=1)  # zero memory means no limit
    names_cpus: bool = True  # else `resources` has the default number of CPUs
    life: Amount = 0
    max_restarts: Amount = 0
    maker: str = ""  # the session that keeps the class and the arguments for restarts
    python: str
    env: dict[str, str] = {}
    interpreter: str = ""  # a path, a name or a version; empty for that of the worker
    packages: list[str] = []  # of an environment that is made for it
    post_mortem: bool = False  # a call that fails waits for a debugger
    modules: list[str] = []  # to import before the fork, if the worker has them
    is_spare: bool = False  # when others wait for room, its owner ends it if it is idle
    key: bytes = b""  # set by the master: the listed key of the client at the root
    # Of a guest's actor: the names of its class and base classes.  `key` is then the worker key of
    # the guest.
    classes: list[str] = []

    @property
    def has_own_interpreter(self) -> bool:
        """Whether it is started by another interpreter than the worker's, or has packages."""
        return bool(self.interpreter or self.packages)

    def without_secrets(self) -> "Request":
        """Return it without what may hold secrets: variables, and the addresses of packages."""
        if not self.env and not self.packages:
            return self
        return msgspec.structs.replace(self, env={}, packages=[])


class Obituary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an actor ended.  `lost`: its machine went silent, and nobody saw the end."""

    actor: str
    life: Amount
    lost: bool = False
    asked: bool = False  # it was closed, or its owner ended
    exited: bool = False  # gracefully: its last replies may still be on their way
    unstarted: bool = False  # its machine could not start it, before its constructor could run
    refused: bool = False  # no machine could: its options are wrong
    exit: Balance | str | None = None
    why: str = ""
    stderr: str = ""
    flight_record: FlightRecord = b""  # the content of its flight recorder
    begun: dict[Route, Amount] = {}  # the last call that has begun, by the route of its client
    all_begun: bool = False  # no call has begun of a client that is not in `begun`
    restarting: bool = False  # another life follows; `Locate` gets a reply when it has started
    moved: bool = False  # its machine is drained: another life of it is no restart that counts


class MethodFigures(msgspec.Struct, frozen=True, array_like=True):
    """The calls of one method that have ended since the actor began."""

    method: str
    calls: Amount
    mean_s: Seconds
    p99_s: Seconds
    errors: Amount = 0  # how many of them ended with one


class Figures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The changing figures of an actor.  `method` is the running method that began first."""

    actor: str
    calls: Amount = 0
    cpu_percent: Percent = 0
    rss: Amount = 0
    memory: Amount = 0  # its own, as a limit counts it
    running: Amount = 0
    method: str = ""
    method_s: Seconds = 0
    calls_per_s: Rate = 0.0  # like the next, over the interval of `cpu_percent`
    busy_percent: Percent = 0.0
    received: Amount = 0  # bytes of arguments
    sent: Amount = 0  # bytes of results
    errors: Amount = 0  # of calls, and of items of streams
    methods: list[MethodFigures] = []  # those that took the most time, or failed most often
    metrics: list[MetricFigures] = []  # the user's own
    stopped_at: str = ""  # where a call has stopped for a debugger
    stopped_s: Seconds = 0.0
    is_debugged: bool = False


class GpuFigures(msgspec.Struct, frozen=True, array_like=True):
    """What the driver says that a GPU does; memory in bytes."""

    percent: Percent = 0.0
    memory_used: Amount = 0
    memory_total: Amount = 0  # zero if none of these is known


class MachineUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the kernel says that a machine uses, whoever uses it; memory and disk in bytes."""

    cpu_percent: Percent = 0.0  # of all its cores
    memory_used: Amount = 0
    memory_total: Amount = 0  # zero if none of these is known
    disk_used: Amount = 0  # of the disk with the temporary folder
    disk_total: Amount = 0  # what is used, and what is available
    gpus: list[GpuFigures] = []  # in the order of their ids, if the driver is there
    cpu_hour: History = b""  # of the last hour, oldest first
    memory_hour: History = b""


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A living actor, as its worker reports it; the master adds some fields for clients."""

    location: Location
    request: Request
    gpu_ids: list[Gpus] = []
    since: Moment = 0  # wall clock, for display
    seal: bytes = b""  # of its placement; only for the master
    delegate: bytes = b""  # the key with which it makes calls, if any
    moves: bool = False  # its machine is drained, and it is to end once it is idle
    figures: Figures = Figures(actor="")  # the last that the master received
    queue: Amount = 0  # calls that do not run yet
    lends: bool = False  # it waits, and its CPUs are free for others meanwhile


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session, the owner of actors.  `actor`: the actor in which it runs, if any."""

    session: str
    machine: str
    pid: Pid
    actor: str = ""
    script: str = ""  # its name
    metrics: list[MetricFigures] = []  # the user's own, unless an actor has them


class WaitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting requests of one script for one class."""

    class_name: str
    count: Amount
    waits_s: Seconds  # of the oldest
    why: str


class EndStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The unexpected end of a life of an actor.

    As of now, it is `restarting` if its next life does not run yet, and `restarted` if it does.
    """

    name: str
    class_name: str
    actor: str = ""
    life: Amount = 0
    machine: str
    ago_s: Seconds
    lost: bool
    restarting: bool
    restarted: bool = False
    exit: Balance | str | None
    why: str
    stderr: str


class EventStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened (master/history.py); `name` and `class_name` are an actor's."""

    kind: str
    machine: str
    text: str
    name: str = ""
    class_name: str = ""
    number: Amount = 0
    ago_s: Seconds = 0.0


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    machine: str
    host: str = ""  # the same for workers that share a machine
    address: str
    python: str
    resources: Resources
    gpu_names: list[str] = []  # as CUDA knows them, in the order of their ids
    shares: Shares = Shares()
    away_s: Seconds = 0.0  # how long it has been unreachable; then nothing on it is free
    sick: str = ""  # why the last start of an actor there failed; empty if it did not
    sick_s: Seconds = 0.0  # for how long starts have failed
    drains_s: Seconds = 0.0  # if it is being drained, the time that is left; then nothing is free
    free_cpus: float  # like the following, negative if actors hold more than there is
    free_gpus: float
    free_memory: Balance
    free_others: dict[str, float] = {}  # custom resources
    kept_cpus: float = 0  # not held by any actor, and not free: kept for a waiting request
    kept_gpus: float = 0
    use: MachineUse = MachineUse()  # the last that the master received
    actors: list[ActorStatus]
