"""Remote objects with one decorator, on a cluster that is started with one command.

import remotely

@remotely.remote_class
class Counter:
    def __init__(self):
        self.count = 0

    def add(self, n):
        self.count += n
        return self.count

counter = Counter()               # in a process of its own, here or on another machine
print(counter.add(2))             # runs there, blocks here
future = counter.add.submit(3)    # does not block
print(future.result())
"""

from remotely.batching import batched
from remotely.connection import connect, is_connected, shipped, shutdown
from remotely.errors import (
    ActorDied,
    ActorRaised,
    CallTimeout,
    Deadlock,
    MasterLost,
    NameTaken,
    NoResources,
    NotAllowed,
    NotConnected,
    NotPicklable,
    RemotelyError,
    TooLarge,
    VersionMismatch,
    WireError,
    WorkerLost,
)
from remotely.future import as_completed
from remotely.handle import Group, close, get_actor, kill, put, status, submit
from remotely.idempotent import idempotent
from remotely.identity import current_actor
from remotely.remote_class import group, local, options, remote_class
from remotely.stream import Stream, merge

__version__ = "0.1.0"

__all__ = [
    "ActorDied",
    "ActorRaised",
    "CallTimeout",
    "Deadlock",
    "Group",
    "MasterLost",
    "NameTaken",
    "NoResources",
    "NotAllowed",
    "NotConnected",
    "NotPicklable",
    "RemotelyError",
    "Stream",
    "TooLarge",
    "VersionMismatch",
    "WireError",
    "WorkerLost",
    "as_completed",
    "batched",
    "close",
    "connect",
    "current_actor",
    "get_actor",
    "group",
    "idempotent",
    "is_connected",
    "kill",
    "local",
    "merge",
    "options",
    "put",
    "remote_class",
    "shipped",
    "shutdown",
    "status",
    "submit",
]
