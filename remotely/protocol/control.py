"""What clients and workers say to the master, and a worker to its own processes.

Every message is a struct below, as msgpack behind one version byte.  The unions at the end say
who may say what; a message that is not of its sender's union is refused by the schema before
anyone looks at it.  There is no pickle here, on purpose: a pickle is code, and the master never
runs any.

Over 500 lines: a protocol is read in one place.
"""

from typing import Annotated, TypeVar

import msgspec

from remotely.errors import VersionMismatch, WireError

VERSION = 2
MAX_MESSAGE = 1 << 16  # between the processes of one worker
# Modules worth importing before a fork; a client names those of them that it has loaded.
HEAVY = ("numpy", "torch", "gymnasium", "ale_py", "cv2")


class _Struct(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The tag, the class's name, tells the members of a union apart."""


# --- numbers --------------------------------------------------------------------------------------
# What msgpack can carry and no honest peer says (a NaN, an infinity, fewer than none, more than any
# machine has) is refused here, and so never counted with.

LONGEST_S = 1e9  # 30 years; who would wait for ever asks for this
MOST = 1 << 62
Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST)]  # bytes, calls, tickets, lives
Cores = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Gpus = Annotated[int, msgspec.Meta(ge=0, le=4096)]  # how many a machine has, or which
Pid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # of some clock
Percent = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Offset = Annotated[int, msgspec.Meta(ge=-1, le=MOST)]  # in a file; -1: near its end
# Of an actor: its worker names files by it.
Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]
Balance = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]  # below zero where too much went


# --- nouns that several messages carry ------------------------------------------------------------


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
    tcp: str  # empty on an embedded cluster
    public_key: bytes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor needs to be placed."""

    actor: Id
    name: str
    named: bool = False  # by the user: then no other actor may have that name
    together: Amount = 1  # how many of a group are made at once, this among them
    class_name: str
    owner: str  # the session whose end is the actor's end; empty if detached
    job: str  # the session of the script at the root, whose terminal shows the output
    cpus: Cores = 1
    gpus: Amount = 0
    memory: Amount = 0  # bytes; 0 is no limit
    life: Amount = 0
    max_restarts: Amount = 0
    maker: str = ""  # the session that has the class and the arguments, to make its next life
    python: str
    env: dict[str, str] = {}
    modules: list[str] = []  # to be imported before the fork, if the worker has them
    key: bytes = b""  # the master writes it: the listed key of the client at the root


class Obituary(msgspec.Struct, frozen=True, kw_only=True):
    """How an actor ended.  `lost`: nobody saw; its machine went silent."""

    actor: str
    life: Amount
    lost: bool = False
    asked: bool = False  # it was closed, or its owner ended
    exit: Balance | str | None = None
    why: str = ""
    stderr: str = ""
    restarting: bool = False  # another life follows; `Locate` is answered when it has a place


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    location: Location
    request: Request
    gpu_ids: list[Gpus] = []
    calls: Amount = 0
    cpu_percent: Percent = 0
    rss: Amount = 0
    since: Moment = 0  # wall clock, for people alone
    running: Amount = 0
    method: str = ""
    method_s: Seconds = 0
    queue: Amount = 0  # calls that clients have made, and that do not run yet
    seal: bytes = b""  # of its placement; for the master alone
    delegate: bytes = b""  # the key with which it makes calls, if it does


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What changes of an actor while it lives.  `method` has run longest of those that run."""

    actor: str
    calls: Amount = 0
    cpu_percent: Percent = 0
    rss: Amount = 0
    running: Amount = 0
    method: str = ""
    method_s: Seconds = 0


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Who a session is; it is the owner of actors.  `actor`: the one in which it lives, if any."""

    session: str
    machine: str
    pid: Pid
    actor: str = ""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    machine: str
    host: str = ""  # the same for workers that share a machine
    address: str
    python: str
    cpus: Cores
    gpus: Gpus
    gpu_names: list[str] = []  # as CUDA knows them, in the order of their ids
    memory: Amount
    free_cpus: float
    free_gpus: Balance
    free_memory: Balance
    actors: list[ActorStatus]


# --- from a client --------------------------------------------------------------------------------


class Hello(_Struct, frozen=True):
    session: str
    python: str
    pid: Pid
    host: str
    machine: str
    actor: str = ""  # the actor in which this client lives, if it does
    modules: list[str] = []
    nonce: str = ""  # what makes `session` of the key; see admission.py


class Place(_Struct, frozen=True):
    ticket: Amount
    request: Request
    patience_s: Seconds


class End(_Struct, frozen=True):
    """End an actor: asked politely first, made to after `grace_s`; `kill`: at once, unasked.

    `by` is who had it killed; the master fills it in.
    """

    actor: Id
    grace_s: Seconds
    kill: bool = False
    by: str = ""


class Locate(_Struct, frozen=True):
    """Where is the actor of this id, or this name?  From then on the asker is told of its end."""

    ticket: Amount
    actor: str = ""
    name: str = ""


class AskStatus(_Struct, frozen=True):
    """`fresh`: with figures of this moment; else with those that are there, at once."""

    ticket: Amount
    fresh: bool = True


class Unanswered(_Struct, frozen=True):
    """How many calls of this client each actor has yet to answer, where there are any."""

    calls: dict[str, Amount]


class ReadLog(_Struct, frozen=True):
    """The next piece of an actor's output from `offset`; -1 means its last few kilobytes.

    `actor` is an id or a name; a name stays known when its actor has ended.
    """

    ticket: Amount
    actor: str
    offset: Offset = -1


class Blocked(_Struct, frozen=True):
    """I live in an actor, and that has served nobody for a while: it waits for another.

    Said again for as long as the wait lasts, which has this number.
    """

    wait: Amount
    actor: str
    call: str


class Unblocked(_Struct, frozen=True):
    pass


class Goodbye(_Struct, frozen=True):
    """End my actors, then let me go."""


# --- to a client ----------------------------------------------------------------------------------


class Welcome(_Struct, frozen=True):
    pythons: list[str]
    cpus: Cores  # of all workers together


class Placed(_Struct, frozen=True):
    ticket: Amount
    location: Location


class NotPlaced(_Struct, frozen=True):
    ticket: Amount
    error: str  # the name of a class in errors.py
    why: str


class Waiting(_Struct, frozen=True):
    ticket: Amount
    why: str  # empty: there is room now, and the actor is being made


class Located(_Struct, frozen=True):
    ticket: Amount
    location: Location | None = None
    obituary: Obituary | None = None


class Status(_Struct, frozen=True):
    ticket: Amount
    workers: list[WorkerStatus]
    clients: list[ClientStatus]
    waiting: Amount


class LogPiece(_Struct, frozen=True):
    ticket: Amount
    text: str
    offset: Offset
    known: bool
    ended: bool


class Output(_Struct, frozen=True):
    """Lines that an actor printed."""

    actor: str
    name: str
    job: str
    error: bool
    text: str


class Logged(_Struct, frozen=True):
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


class Farewell(_Struct, frozen=True):
    pass


class Deadlocked(_Struct, frozen=True):
    """Your wait of this number is one of a circle."""

    wait: Amount
    why: str


# --- to a worker, and back from one that is asked who it is ---------------------------------------


class Spawn(_Struct, frozen=True):
    """`again`: from what the life before left there (restart_file.py), and not by a client.

    `seal`: to be shown with the actor, should the master be started again.
    """

    request: Request
    gpu_ids: list[Gpus]
    again: bool = False
    seal: bytes = b""


# --- from a worker --------------------------------------------------------------------------------


class Register(_Struct, frozen=True):
    """Sent at the start, and whenever the master asks who this is: the worker is the truth."""

    worker: str
    python: str
    host: str
    machine: str
    address: str
    pid: Pid
    cpus: Cores
    gpus: Gpus
    memory: Amount
    actors: list[ActorStatus]
    births: list[Spawn] = []  # of which `Spawned` has not been said yet
    gpu_names: list[str] = []  # as CUDA knows them; the cluster counts them from 0
    nonce: str = ""  # what makes `worker` of the key; see admission.py


class Spawned(_Struct, frozen=True):
    location: Location
    since: Moment = 0  # wall clock, for people alone


class Died(_Struct, frozen=True):
    """`lived`: of one that may be restarted, for a master that has not heard that it lived."""

    obituary: Obituary
    lived: ActorStatus | None = None


class Report(_Struct, frozen=True):
    actors: list[Figures]


class Delegate(_Struct, frozen=True):
    """An actor is about to make calls, with this key.  Its worker writes which actor."""

    key: bytes
    actor: str = ""


class MayCall(_Struct, frozen=True):
    """Somebody knocks at an actor with this key, which is not listed."""

    key: bytes


class Left(_Struct, frozen=True):
    """I have ended my actors, and nothing of me is left on my machine."""


# --- to a worker ----------------------------------------------------------------------------------


class AskFigures(_Struct, frozen=True):
    """Somebody wants the status: say what there is to say now.  To clients as well."""


class Registered(_Struct, frozen=True):
    client_keys: list[bytes]


class Delegated(_Struct, frozen=True):
    """An actor may make calls with its key from now on."""

    actor: str = ""


class Caller(_Struct, frozen=True):
    """Whether this key may call; said to who asked, and again when it may no more."""

    key: bytes
    admitted: bool


class Preload(_Struct, frozen=True):
    modules: list[str]


class Leave(_Struct, frozen=True):
    """The cluster is being stopped: end all actors, then yourself."""


# --- to and from both -----------------------------------------------------------------------------


class Beat(_Struct, frozen=True):
    """`asked`: when, on the sender's own clock; not zero if an answer is wanted."""

    asked: Moment = 0.0


class Tick(_Struct, frozen=True):
    """Proves a route; see lease.py.  `asked`: of the beat that it answers, if it answers one."""

    asked: Moment = 0.0


class WhoAreYou(_Struct, frozen=True):
    """The master does not know this connection (one of them is new): introduce yourself."""


class Refused(_Struct, frozen=True):
    error: str
    why: str


# --- between a worker, its zygote and the processes of its actors ---------------------------------


class Birth(_Struct, frozen=True):
    """All that a new process needs to become an actor; the first message on its own socket."""

    request: Request
    master: str  # its address, as this machine reaches it
    master_public: bytes
    host: str
    machine: str
    ipc: str
    tcp_host: str
    folder: str  # of the worker, for shipped files
    gpus: list[str]  # as CUDA knows them
    public_key: bytes
    secret_key: bytes
    client_keys: list[bytes]
    again: bool = False  # see Spawn


class Prepare(_Struct, frozen=True):
    """From the client, before the class: PREPARE in wire.py.  It never passes the master."""

    job: str
    host: str
    path: list[str]  # the client's sys.path, of use where both see the same files
    files: dict[str, str]  # relative path: sha256
    concurrency: Amount
    argv: list[str] = []
    sources: bytes = b""  # the script's modules: a batch of sources.py
    log_levels: dict[str, int] = {}  # of the client's loggers; "" is the root


class Admit(_Struct, frozen=True):
    """From now on these keys alone may call."""

    client_keys: list[bytes]


class Bound(_Struct, frozen=True):
    tcp: str


class Count(_Struct, frozen=True):
    calls: Amount


class Ending(_Struct, frozen=True):
    """The actor ends in good order: no call is begun any more."""

    why: str


class Exiting(_Struct, frozen=True):
    """The last reply was given; the object is let go, and the process ends."""

    calls: Amount


class Fork(_Struct, frozen=True):
    actor: str


class Forked(_Struct, frozen=True):
    actor: str
    pid: Pid


class NotForked(_Struct, frozen=True):
    """There is no room for another process on this machine."""

    actor: str
    why: str


class Exited(_Struct, frozen=True):
    pid: Pid
    status: Balance


ToMaster = {
    "client": Hello
    | Place
    | End
    | Locate
    | AskStatus
    | Unanswered
    | ReadLog
    | Blocked
    | Unblocked
    | Goodbye
    | Beat,
    "worker": (
        Register
        | Spawned
        | Died
        | Report
        | Output
        | Logged
        | LogPiece
        | Delegate
        | MayCall
        | Left
        | Beat
    ),
}
FromMaster = {
    "client": (
        Welcome
        | Placed
        | NotPlaced
        | Waiting
        | Located
        | Died
        | Status
        | LogPiece
        | Output
        | Logged
        | AskFigures
        | Farewell
        | Deadlocked
        | Tick
        | WhoAreYou
        | Refused
    ),
    "worker": (
        Registered
        | Spawn
        | End
        | Preload
        | ReadLog
        | AskFigures
        | Delegated
        | Caller
        | Leave
        | Tick
        | WhoAreYou
        | Refused
    ),
}
ToActor = Birth | Admit | Delegated | Caller | Leave
FromClient = Prepare
FromActor = Bound | Count | Logged | Delegate | MayCall | Ending | Exiting
ToZygote = Preload | Fork
FromZygote = Forked | NotForked | Exited

Message = TypeVar("Message")


class Reader:
    """Decodes one union; anything else is a WireError."""

    def __init__(self, union: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(union)

    def read(self, data: bytes | memoryview) -> object:
        if not data:
            raise WireError("an empty message")
        if data[0] != VERSION:
            raise VersionMismatch(
                f"the other side speaks version {data[0]} of remotely's protocol, this side "
                f"{VERSION}: install the same version of remotely on both"
            )
        try:
            return self._decoder.decode(memoryview(data)[1:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"not a message of this direction: {error}") from None


_encode = msgspec.msgpack.Encoder().encode
_VERSION_BYTE = bytes([VERSION])


def write(message: msgspec.Struct) -> bytes:
    """Return the bytes of one message."""
    return _VERSION_BYTE + _encode(message)
