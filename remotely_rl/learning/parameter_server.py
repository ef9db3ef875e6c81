"""The parameter server: workers on a cluster push contributions, a sync rule applies them.

    rule = sync.make("semi_async:n=2", parameters, clients=8)
    server = ParameterServer(rule, lambda number: Worker(make_work, number))
    while ...:
        pushed = server.take(timeout_s=0.5)

The server lives in the process that creates it; the workers are actors on any machine of the
cluster.  The server sends a worker parameters (`worker.set_param(update)`) only if the sync rule
returns some, and requests its next contribution unless the rule makes it wait.  Contributions are
pushed in order of arrival.  With `record=True`, `arrivals` keeps that order, from which the
simulator computes the same parameters, bit for bit.

A worker that dies or raises leaves the rule, so that no other waits for it, and its replacement
starts with the current parameters.  If the rule refuses a contribution, the server drops and
reports it, and the worker continues with the current parameters.  It is not an arrival, so such a
run cannot be replayed.

Vectors are sent as flat arrays: on one machine a push is one copy, and so is its reply.
"""

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

import remotely
from remotely_rl import cluster
from remotely_rl.acting.crew import Crew, Number
from remotely_rl.errors import SyncError, TrainingError
from remotely_rl.supervision import Crashes, failures
from remotely_rl.sync.client import Client
from remotely_rl.sync.rule import Release, Reply, Rule
from remotely_rl.sync.simulation.dispatcher import Event, EventKind

REFUSED_IN_A_ROW = 100


class Work(Protocol):
    """The computation of a worker; created in the worker's process."""

    def gradient(self, parameters: Tensor, broadcast: Any) -> Tensor:
        """Compute the gradient [P] of the next piece of work, at these parameters [P].

        `broadcast` is the server's latest message to all workers.
        """
        ...

    def report(self) -> Any:
        """Return the report since the last one, which is sent with a contribution.

        If it has `steps` and `crashes` (of environments), the server counts and logs these.
        """
        ...


class ParameterUpdate(NamedTuple):
    """Parameters for a worker, if any, and the state for its gate."""

    vector: NDArray[Any] | None
    version: int
    deviation: float


class Contribution(NamedTuple):
    """A worker's push: a vector, or None if its gate withheld it."""

    vector: NDArray[Any] | None
    version: int
    report: Any


class PushResult(NamedTuple):
    """The result of a push: the client, the rule's reply, and the worker's report.

    Parameters in the reply are the rule's own tensor, which the next push changes.
    """

    client: int
    reply: Reply
    report: Any


@remotely.remote_class
class Worker:
    """Computes contributions, one per call."""

    def __init__(self, make_work: Callable[[int], Work], number: int, is_replacement: bool = False):
        """`number` is unique to each worker, replacements included."""
        torch.set_num_threads(1)
        if is_replacement:
            failures.disable_stack_dumps()
        self.work = make_work(number)
        self.client: Client | None = None

    def begin(self, client: Client) -> None:
        """Start as this client of the rule, with the client's parameters."""
        self.client = client

    def set_param(self, update: ParameterUpdate) -> None:
        """Use these parameters from now on."""
        assert self.client is not None
        vector = None if update.vector is None else torch.from_numpy(update.vector)
        self.client.receive(vector, update.version, update.deviation)

    def contribute(self, broadcast: Any, rate: float | None = None) -> Contribution:
        """Compute the next contribution; `rate` is the learning rate of local steps."""
        assert self.client is not None
        if rate is not None:
            self.client.set_rate(rate)
        version = self.client.version
        vector = self.client.next_push(lambda parameters: self.work.gradient(parameters, broadcast))
        return Contribution(None if vector is None else vector.numpy(), version, self.work.report())


class ParameterServer:
    """See the module's docstring."""

    def __init__(
        self,
        rule: Rule,
        make: Callable[[Number], Any],
        say: Callable[[str], None] = print,
        accumulate: int = 1,
        record: bool = False,
        broadcast: Any = None,
        over: Callable[[], bool] = lambda: False,
        *,
        width: int = 1,
        crashes: Crashes | None = None,
    ):
        """Start one worker for each client of the rule; `make(n)` makes the n-th `Worker` overall.

        `record` keeps the order of pushes, which takes memory for each.  `broadcast` goes to each
        worker with its first call.  Waits for the workers, unless training is `over` first.
        """
        self.rule = rule
        # Views are safe if a call copies its arguments, as it does except in REMOTELY_LOCAL.
        rule.returns_views = os.environ.get("REMOTELY_LOCAL") != "1"
        self.arrivals: list[Event] = []
        self._record = record
        self._accumulate = accumulate
        self._say = say
        self._crew: Crew[Any] = Crew(
            make, rule.clients, say, over=over, width=width, crashes=crashes
        )
        self._free = list(range(rule.clients))[::-1]
        self._client_of: dict[Any, int] = {}
        self._worker_of: dict[int, Any] = {}
        self._done: queue.SimpleQueue[tuple[Any, Future[Any]]] = queue.SimpleQueue()
        self._refused = 0
        self._broadcast = broadcast
        for worker in self._crew.actors:
            self._begin(worker, self._free.pop())

    def take(self, timeout_s: float, broadcast: Any = None) -> PushResult | None:
        """Push the next contribution to the rule; return None if none arrives in time.

        `broadcast` goes to each worker with its next call.  Raises TrainingError if there
        are too many crashes, or if the rule refuses too many pushes in a row.
        """
        self._broadcast = broadcast
        self._admit()
        try:
            worker, call = self._done.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if worker not in self._client_of:  # it has been replaced already
            return None
        client = self._client_of[worker]
        if error := call.exception():
            self._replace(worker, client, error)
            return None
        contribution = call.result()
        report = contribution.report
        self._crew.succeeded(worker, getattr(report, "steps", 1), getattr(report, "crashes", ()))
        return self._push(client, contribution)

    def close(self) -> None:
        """Close the workers; contributions in progress are lost."""
        self._client_of.clear()
        self._crew.close()

    def _push(self, client: int, contribution: Contribution) -> PushResult | None:
        rule = self.rule
        vector = None if contribution.vector is None else torch.from_numpy(contribution.vector)
        try:
            reply = rule.push(client, vector, contribution.version)
        except SyncError as error:
            self._refused += 1
            if self._refused >= REFUSED_IN_A_ROW:
                raise TrainingError(
                    f"the rule refused {self._refused} pushes in a row: {error}"
                ) from error
            self._say(f"{error}; it continues with the current parameters")
            self._resume(client, rule.restart(client), rule.version)
            return None
        self._refused = 0
        self._log(EventKind.PUSH, client)
        if not reply.waits:
            self._resume(client, reply.parameters, reply.version)
        self._release(reply.released)
        return PushResult(client, reply, contribution.report)

    def _log(self, kind: EventKind, client: int) -> None:
        if self._record:
            self.arrivals.append(Event(kind, client))

    def _release(self, released: tuple[Release, ...]) -> None:
        for client, parameters in released:
            self._resume(client, parameters, self.rule.version)

    def _resume(self, client: int, parameters: Tensor | None, version: int) -> None:
        """Send a client new parameters, if any, and request its next contribution."""
        worker = self._worker_of[client]
        if parameters is not None or self.rule.gates is not None:
            vector = None if parameters is None else parameters.numpy()
            update = ParameterUpdate(vector, version, self.rule.deviation)
            self._watch(worker, remotely.submit(worker.set_param, update))
        self._request(worker)

    def _request(self, worker: Any) -> None:
        call = remotely.submit(worker.contribute, self._broadcast, self.rule.client_rate)
        call.add_done_callback(lambda done: self._done.put((worker, done)))
        cluster.discard(call)  # after the last `take`, nothing else retrieves its error

    def _watch(self, worker: Any, call: "Future[None]") -> None:
        """Pass a call to `take` if it fails."""

        def on_done(done: "Future[None]") -> None:
            if done.exception():
                self._done.put((worker, done))

        call.add_done_callback(on_done)

    def _begin(self, worker: Any, client: int) -> None:
        self._client_of[worker] = client
        self._worker_of[client] = worker
        client_of_rule = self.rule.client(client, self._accumulate)
        self._watch(worker, remotely.submit(worker.begin, client_of_rule))
        self._request(worker)

    def _replace(self, worker: Any, client: int, error: BaseException) -> None:
        waiting = len(self.rule.waiting - {client})
        released = self.rule.leave(client)
        self._log(EventKind.LEAVE, client)
        if released:
            self._say(f"worker {client} is gone; {waiting} that waited for it continue")
        del self._client_of[worker], self._worker_of[client]
        self._free.append(client)
        self._release(released)
        self._crew.replace(worker, error)

    def _admit(self) -> None:
        """Let new workers join the rule; without any worker, wait up to a second for one."""
        if not self._crew.admit(timeout_s=0.0 if self._crew.actors else 1.0):
            return
        for worker in self._crew.actors:
            if worker not in self._client_of:
                client = self._free.pop()
                self.rule.join(client)
                self._log(EventKind.JOIN, client)
                self._begin(worker, client)
