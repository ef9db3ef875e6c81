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

`help(remotely.NAME)` describes each name.
"""

from typing import TYPE_CHECKING, Any

from remotely.api.connection import connect, is_connected, shipped, shutdown
from remotely.api.current_actor import current_actor
from remotely.api.flight_recorder import flight_recorder
from remotely.api.group import Group
from remotely.api.remote_class import group, local, options, remote_class
from remotely.api.verbs import (
    actors,
    arrivals,
    close,
    get,
    get_actor,
    kill,
    put,
    ref,
    status,
    submit,
    timeline,
)
from remotely.arguments import did_you_mean
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
    NotShared,
    NotStartable,
    PublisherGone,
    RemotelyError,
    TooLarge,
    VersionMismatch,
    WireError,
    WorkerLost,
)
from remotely.futures.future import CallFuture as Future
from remotely.futures.future import as_completed
from remotely.futures.stream import Stream, merge
from remotely.guest.serve import serve
from remotely.objects.batching import batched
from remotely.objects.marks import idempotent, method, timeout
from remotely.other_names import no_such_name
from remotely.pools.executor import Executor
from remotely.pools.pool import Pool
from remotely.pools.registration import register_joblib
from remotely.transport.own_metrics import count, gauge, histogram
from remotely.values.published import Latest, Published
from remotely.values.shared_array import SharedArray

__version__ = "0.1.0"

__all__ = [
    "ActorDied",
    "ActorRaised",
    "CallTimeout",
    "Deadlock",
    "Executor",
    "Future",
    "Group",
    "Latest",
    "MasterLost",
    "NameTaken",
    "NoResources",
    "NotAllowed",
    "NotConnected",
    "NotPicklable",
    "NotShared",
    "NotStartable",
    "Pool",
    "Published",
    "PublisherGone",
    "RemotelyError",
    "SharedArray",
    "Stream",
    "TooLarge",
    "VersionMismatch",
    "WireError",
    "WorkerLost",
    "actors",
    "arrivals",
    "as_completed",
    "batched",
    "close",
    "connect",
    "count",
    "current_actor",
    "flight_recorder",
    "gauge",
    "get",
    "get_actor",
    "group",
    "histogram",
    "idempotent",
    "is_connected",
    "kill",
    "local",
    "merge",
    "method",
    "options",
    "put",
    "ref",
    "register_joblib",
    "remote_class",
    "serve",
    "shipped",
    "shutdown",
    "status",
    "submit",
    "timeline",
    "timeout",
]


if not TYPE_CHECKING:  # checkers would take any name to exist

    def __getattr__(name: str) -> Any:
        """Raise an AttributeError with the equivalent of another library's name, or the closest."""
        hint = did_you_mean(name, __all__)
        raise no_such_name("remotely", f"module.{name}", otherwise=hint)
