"""The messages between a worker, its zygote and the processes of its actors."""

from remotely.protocol.control.message import ControlMessage, sent
from remotely.protocol.control.records import Request
from remotely.protocol.listening import Listening
from remotely.protocol.numbers import Amount, Balance, Pid


@sent("worker > actor")
class Birth(ControlMessage, frozen=True):
    """All that a new process needs to become an actor; the first message on its socket."""

    request: Request
    master: str  # its address, as this machine reaches it
    master_public: bytes
    host: str
    machine: str
    ipc: str
    listening: Listening
    folder: str  # of the worker, for shipped files
    gpus: list[str]  # as CUDA knows them
    public_key: bytes
    secret_key: bytes
    admitted: list[bytes]  # keys that may call from the start; it asks about others
    again: bool = False  # see Spawn


class WarningFilter(ControlMessage, frozen=True):
    """An entry of `warnings.filters`.

    A pattern is its text and its flags.  The interpreter's own filters have a plain string.
    """

    action: str
    message: tuple[str, int] | str | None
    category: tuple[str, str]  # the module and the name of the class
    module: tuple[str, int] | str | None
    line: Amount


class MakerState(ControlMessage, frozen=True):
    """The state of a process that an actor takes over from its maker (values/maker_state.py)."""

    path: list[str] = []  # sys.path, useful where both see the same files
    argv: list[str] = []
    folder: str = ""  # the working directory; empty if it was removed
    environment: dict[bytes, bytes | None] = {}  # what has changed since the process started
    log_levels: dict[str, int] = {}  # of its loggers; "" is the root
    warning_filters: list[WarningFilter] = []
    warning_options: list[str] = []  # of the command line
    authkey: bytes = b""  # of multiprocessing: a secret
    registered: list[str] = []  # with other libraries: "joblib" knows the cluster as a backend

    def __repr__(self) -> str:
        """Show no values: the environment may have secrets too."""
        return f"<the state of a process in {self.folder!r}>"


@sent("client > actor")
class Prepare(ControlMessage, frozen=True):
    """From the client, before the class: PREPARE in wire.py.  Not sent through the master."""

    job: str
    host: str
    files: dict[str, str]  # relative path: sha256
    concurrency: Amount
    state: MakerState
    sources: bytes = b""  # the script's modules: a batch of sources.py


@sent("actor > worker")
class Bound(ControlMessage, frozen=True):
    tcp: str


@sent("actor > worker", "zygote > worker")
class NotBound(ControlMessage, frozen=True):
    """This machine has no address for this actor, such as a free port, or no environment: it ends.

    `is_refused`: nor could another machine start it.
    """

    why: str
    is_refused: bool = False


@sent("actor > worker")
class Count(ControlMessage, frozen=True):
    calls: Amount


@sent("actor > worker")
class FlightRecorder(ControlMessage, frozen=True):
    """The attached memory is the flight recorder: report its content if the actor dies."""


@sent("actor > worker")
class Ending(ControlMessage, frozen=True):
    """The actor ends gracefully: it begins no more calls."""

    why: str


@sent("actor > worker")
class Exiting(ControlMessage, frozen=True):
    """The last reply is sent; the actor releases its object, and its process ends."""

    calls: Amount


@sent("worker > zygote")
class Fork(ControlMessage, frozen=True):
    """Asks for a process, which gets the attached descriptors.  `number` tells it from others."""

    number: Amount


@sent("zygote > worker")
class Forked(ControlMessage, frozen=True):
    number: Amount
    pid: Pid


@sent("zygote > worker")
class NotForked(ControlMessage, frozen=True):
    """The machine has no room for another process."""

    number: Amount
    why: str


@sent("zygote > worker")
class Exited(ControlMessage, frozen=True):
    pid: Pid
    status: Balance
