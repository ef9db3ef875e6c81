"""The messages between a worker, its zygote and the processes of its actors."""

from remotely.protocol.control.message import ControlMessage
from remotely.protocol.control.records import Request
from remotely.protocol.listening import Listening
from remotely.protocol.numbers import Amount, Balance, Pid


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
    client_keys: list[bytes]
    again: bool = False  # see Spawn


class Prepare(ControlMessage, frozen=True):
    """From the client, before the class: PREPARE in wire.py.  Not sent through the master."""

    job: str
    host: str
    path: list[str]  # the client's sys.path, useful where both see the same files
    files: dict[str, str]  # relative path: sha256
    concurrency: Amount
    argv: list[str] = []
    sources: bytes = b""  # the script's modules: a batch of sources.py
    log_levels: dict[str, int] = {}  # of the client's loggers; "" is the root


class Admit(ControlMessage, frozen=True):
    """Only these keys may call from now on."""

    client_keys: list[bytes]


class Bound(ControlMessage, frozen=True):
    tcp: str


class NotBound(ControlMessage, frozen=True):
    """No port is free for this actor, which ends."""

    why: str


class Count(ControlMessage, frozen=True):
    calls: Amount


class FlightRecorder(ControlMessage, frozen=True):
    """The attached memory is the flight recorder: report its content if the actor dies."""


class Ending(ControlMessage, frozen=True):
    """The actor ends gracefully: it begins no more calls."""

    why: str


class Exiting(ControlMessage, frozen=True):
    """The last reply is sent; the actor releases its object, and its process ends."""

    calls: Amount


class Fork(ControlMessage, frozen=True):
    actor: str


class Forked(ControlMessage, frozen=True):
    actor: str
    pid: Pid


class NotForked(ControlMessage, frozen=True):
    """The machine has no room for another process."""

    actor: str
    why: str


class Exited(ControlMessage, frozen=True):
    pid: Pid
    status: Balance
