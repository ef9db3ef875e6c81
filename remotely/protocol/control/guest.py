"""What a process that dials in says, and what it is told.

It asks the master where to dial in, dials the worker that it is told, and says there which object
it serves.  The worker reports that to the master, and passes the answer back.  From then on the
two say what a worker and an actor's process say to each other, but for one thing: the master itself
tells the process who may call the object (Registered, MayCall, Caller).
"""

from remotely.protocol.control.message import ControlMessage
from remotely.protocol.control.records import Location, Request
from remotely.protocol.numbers import Moment


class AskHost(ControlMessage, frozen=True):
    """I serve an object: where may I dial in?  Said again on each new connection.

    `nonce`: what makes its actor's id of the key; see admission.py.
    `before`: the same of the actor that it was until its connection ended, of which nobody may have
    heard yet.
    `worker`: the one of which I was told already.
    """

    nonce: str
    before: str = ""
    worker: str = ""


class Host(ControlMessage, frozen=True):
    """At this worker.  `is_near`: it is on the master's machine, which the asker has reached."""

    worker: str
    address: str
    public_key: bytes
    is_near: bool


class Arrived(ControlMessage, frozen=True):
    """An object is served here.  The worker adds the address at which others reach it, and when."""

    request: Request
    location: Location
    since: Moment = 0  # wall clock, for people alone


class Hosted(ControlMessage, frozen=True):
    """It is an actor of the cluster from now on."""

    actor: str
    request: Request
    seal: bytes  # see Spawn


class NotHosted(ControlMessage, frozen=True):
    """It is none, or none any more; `error` is the name of a class in errors.py."""

    actor: str
    error: str
    why: str
