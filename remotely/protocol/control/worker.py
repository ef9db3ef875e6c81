"""The messages between a worker and the master."""

from remotely.protocol.control.message import ControlMessage
from remotely.protocol.control.records import ActorStatus, Figures, Location, Obituary, Request
from remotely.protocol.numbers import MOST_GPUS, MOST_OTHERS, Gpus, Moment, Pid
from remotely.protocol.resources import Resources


class Spawn(ControlMessage, frozen=True):
    """`again`: from what the life before left there (restart_file.py), and not by a client.

    `seal`: to be shown with the actor, should the master be started again.
    """

    request: Request
    gpu_ids: list[Gpus]
    again: bool = False
    seal: bytes = b""


class Register(ControlMessage, frozen=True):
    """Sent at the start, and whenever the master asks who this is: the worker is the truth.

    A process that serves an object (guests.py) is a worker too.  It names no Python and has no
    resources, so nothing is placed there.  Its one actor has the id of the worker, and needs no
    seal.
    """

    worker: str
    python: str
    host: str
    machine: str
    address: str
    pid: Pid
    resources: Resources
    actors: list[ActorStatus]
    births: list[Spawn] = []  # of which `Spawned` has not been said yet
    gpu_names: list[str] = []  # as CUDA knows them; the cluster counts them from 0
    nonce: str = ""  # what makes `worker` of the key; see admission.py
    # The same of workers that ran here and were killed, and of which nothing is left.
    predecessors: list[str] = []
    returns: bool = False  # of a guest: the master, or the one before, has taken it already
    relay: str = ""  # where guests may connect to be reached by their callers; empty if nowhere
    relay_token: bytes = b""  # by which they answer the challenge there

    def __post_init__(self) -> None:
        gpus = self.resources.gpus
        if gpus > MOST_GPUS or gpus != int(gpus):  # the master keeps a list of them
            raise ValueError(f"{gpus:g} GPUs, where a machine has {MOST_GPUS} at most, all whole")
        if len(self.resources.others) > MOST_OTHERS:
            raise ValueError(f"{len(self.resources.others)} resources of the user's")


class Spawned(ControlMessage, frozen=True):
    location: Location
    since: Moment = 0  # wall clock, for people alone


class Died(ControlMessage, frozen=True):
    """`lived`: of one that may be restarted, for a master that has not heard that it lived."""

    obituary: Obituary
    lived: ActorStatus | None = None


class Report(ControlMessage, frozen=True):
    actors: list[Figures]


class Delegate(ControlMessage, frozen=True):
    """An actor is about to make calls, with this key.  Its worker writes which actor."""

    key: bytes
    actor: str = ""


class MayCall(ControlMessage, frozen=True):
    """Somebody knocks at an actor with this key, which is not listed."""

    key: bytes


class Left(ControlMessage, frozen=True):
    """I have ended my actors, and nothing of me is left on my machine."""


class AskFigures(ControlMessage, frozen=True):
    """Somebody wants the status: say what there is to say now.  To clients as well."""


class Registered(ControlMessage, frozen=True):
    client_keys: list[bytes]


class Delegated(ControlMessage, frozen=True):
    """An actor may make calls with its key from now on."""

    actor: str = ""


class Caller(ControlMessage, frozen=True):
    """Whether this key may call; said to who asked, and again when it may no more."""

    key: bytes
    admitted: bool


class Preload(ControlMessage, frozen=True):
    modules: list[str]


class Leave(ControlMessage, frozen=True):
    """The cluster is being stopped: end all actors, then yourself."""


class AskRelay(ControlMessage, frozen=True):
    """I am about to serve an object: which worker passes on what its callers send?"""


class Relay(ControlMessage, frozen=True):
    """This one; `is_near`: it is on the master's machine, which the asker has reached."""

    address: str
    token: bytes
    is_near: bool
