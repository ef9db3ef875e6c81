"""The messages between a worker and the master."""

from remotely.protocol.control.message import ControlMessage, sent
from remotely.protocol.control.records import (
    ActorStatus,
    Figures,
    Location,
    MachineUse,
    Obituary,
    Request,
)
from remotely.protocol.numbers import MOST_GPUS, MOST_OTHERS, Gpus, Id, Moment, Pid, Seconds
from remotely.protocol.resources import Resources, Shares


@sent("master > worker")
class Spawn(ControlMessage, frozen=True):
    """Start an actor.  `again`: from its restart file (restart_file.py), not by a client.

    `seal`: to show to a restarted master with the actor.
    """

    request: Request
    gpu_ids: list[Gpus]
    again: bool = False
    seal: bytes = b""


@sent("worker > master")
class Register(ControlMessage, frozen=True):
    """Sent at the start, and in reply to WhoAreYou: the worker's state is authoritative.

    A guest (guests.py) is a worker too.  It names no Python and has no resources, so nothing is
    placed there.  Its one actor has the id of the worker, and a seal if it was admitted before.
    """

    worker: str
    python: str
    host: str
    machine: str
    address: str
    pid: Pid
    resources: Resources
    actors: list[ActorStatus]
    births: list[Spawn] = []  # actors that are starting: `Spawned` was not sent yet
    gpu_names: list[str] = []  # as CUDA knows them; the cluster counts them from 0
    shares: Shares = Shares()
    nonce: str = ""  # `worker` is derived from it and the key; see admission.py
    # The nonces of workers that ran here and were killed, and of which nothing is left.
    predecessors: list[str] = []
    relay: str = ""  # the address at which guests find the relay for their callers; may be empty
    relay_token: bytes = b""  # for the challenge of the relay
    drains_s: Seconds = 0.0  # if it is being drained, the time that is left
    must_leave: bool = False  # it is, because it was sent SIGTERM: this cannot be undone

    def __post_init__(self) -> None:
        gpus = self.resources.gpus
        if gpus > MOST_GPUS or gpus != int(gpus):  # the master keeps a list of them
            raise ValueError(f"{gpus:g} GPUs; a machine has a whole number, at most {MOST_GPUS}")
        if self.shares.gpus and len(self.shares.gpus) != gpus:
            raise ValueError(f"{len(self.shares.gpus)} ids of {gpus:g} GPUs")
        if len(self.resources.others) > MOST_OTHERS:
            raise ValueError(f"{len(self.resources.others)} custom resources, over {MOST_OTHERS}")
        if len(self.resources.labels) > MOST_OTHERS:
            raise ValueError(f"{len(self.resources.labels)} labels, over {MOST_OTHERS}")


@sent("worker > master", "actor > worker", "zygote > worker")
class Preparing(ControlMessage, frozen=True):
    """Actors are being started, and an environment is made for them.

    `what` is worth saying about it, for the actor's output.  The worker sets `actor`.
    """

    actor: str = ""
    what: str = ""


@sent("worker > master", "actor > worker")
class Begun(ControlMessage, frozen=True):
    """The process of a next life runs, and its constructor is next.  Its worker sets `actor`.

    Of a first life, `Spawned` says so: its constructor comes from the client.
    """

    actor: str = ""


@sent("worker > master")
class Spawned(ControlMessage, frozen=True):
    location: Location
    since: Moment = 0  # wall clock, for display


@sent("worker > master", "master > client")
class Died(ControlMessage, frozen=True):
    """`lived`: of an actor that may be restarted, for a master that never knew it."""

    obituary: Obituary
    lived: ActorStatus | None = None


@sent("worker > master")
class Report(ControlMessage, frozen=True):
    actors: list[Figures]
    use: MachineUse = MachineUse()


@sent("worker > master", "actor > worker")
class Delegate(ControlMessage, frozen=True):
    """An actor is about to make calls with this key.  Its worker sets `actor`."""

    key: bytes
    actor: str = ""


@sent("worker > master", "actor > worker", "store > worker")
class MayCall(ControlMessage, frozen=True):
    """Ask whether this key may call an actor.

    `again`: after Registered, about a key that some here may admit, by an earlier reply.
    """

    key: bytes
    again: bool = False


@sent("worker > master")
class Leaving(ControlMessage, frozen=True):
    """The worker was sent SIGTERM: its machine is drained, as by Drain.

    Zero: it stays, because the drain was undone.
    """

    within_s: Seconds


@sent("master > worker", "worker > master")
class Stay(ControlMessage, frozen=True):
    """The move of this actor is withdrawn; its worker confirms that unless it ends already."""

    actor: Id


@sent("worker > master")
class Left(ControlMessage, frozen=True):
    """The worker has ended its actors, and nothing of it is left on its machine."""


@sent("master > client", "master > worker")
class AskFigures(ControlMessage, frozen=True):
    """Ask for the current figures, for a status.  Sent to clients as well."""


@sent("master > worker")
class Registered(ControlMessage, frozen=True):
    """The reply to Register.  The worker is told of the end of each of these keys.

    It confirms the list by a CallerHeard without a key.
    `seal`: of a guest's actor, to show when it registers again.
    """

    client_keys: list[bytes]
    seal: bytes = b""


@sent("master > worker", "worker > actor")
class Delegated(ControlMessage, frozen=True):
    """An actor may make calls with its key from now on."""

    actor: str = ""


@sent("master > worker", "worker > actor", "worker > store")
class Caller(ControlMessage, frozen=True):
    """Whether this key may call: the reply to MayCall, and sent when it is revoked.

    If it may not, the reply is CallerHeard (access_list.py).
    """

    key: bytes
    admitted: bool


@sent("worker > master", "actor > worker", "store > worker")
class CallerHeard(ControlMessage, frozen=True):
    """This key may call nothing here any more.

    Without a key: nor may any other that the last Registered does not list, except those that the
    worker has asked about again before this.
    """

    key: bytes


@sent("master > worker", "worker > zygote")
class Preload(ControlMessage, frozen=True):
    modules: list[str]


@sent("master > worker", "worker > actor")
class Leave(ControlMessage, frozen=True):
    """The cluster is being stopped: end all actors, then yourself."""


@sent("worker > master")
class AskRelay(ControlMessage, frozen=True):
    """A future guest asks which worker relays its callers."""


@sent("master > worker")
class Relay(ControlMessage, frozen=True):
    """The relay; `is_near`: it is on the master's machine, which the guest can reach."""

    address: str
    token: bytes
    is_near: bool
