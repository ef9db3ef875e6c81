"""A parameter server on a cluster: workers push contributions, a sync rule applies them.

    rule = sync.make("semi_async:n=2", parameters, clients=8)
    server = ParameterServer(rule, lambda number: Worker(make_work, number))
    while ...:
        pushed = server.take(timeout_s=0.5)

The server is an object in the process that makes it; the workers are actors, on any machine of
the cluster.  The server sends a worker parameters, `worker.set_param(update)`, only when the rule
says so, and asks it for its next contribution unless the rule makes it wait.  Contributions are
pushed in the order in which they arrive.  With `record=True` that order is kept in `arrivals`,
from which the simulator computes the same parameters, bit by bit.

A worker that dies or raises leaves the rule, so that no other waits for it, and a replacement
starts with the current parameters.  A contribution that the rule refuses is dropped and reported,
and its worker continues with the current parameters.  It is not an arrival, so such a run cannot
be replayed.

Vectors travel as flat arrays: on one machine a push is one copy, and so is its reply.
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
from remotely_rl.acting import cluster
from remotely_rl.acting.crew import Crew
from remotely_rl.errors import SyncError, TrainingError
from remotely_rl.supervision import Crashes, failures
from remotely_rl.sync.client import Client
from remotely_rl.sync.rule import Release, Reply, Rule
from remotely_rl.sync.simulation.dispatcher import Event, EventKind

REFUSED_IN_A_ROW = 100


class Work(Protocol):
    """What a worker computes with; made in the worker's process."""

    def gradient(self, parameters: Tensor, broadcast: Any) -> Tensor:
        """The gradient [P] at these parameters [P], of the next piece of work.

        `broadcast` is what the server last sent to all workers.
        """
        ...

    def report(self) -> Any:
        """What goes with a contribution: all since the last report.

        If it has `steps` and `crashes` (of environments), these are counted and told.
        """
        ...


class ParameterUpdate(NamedTuple):
    """Parameters for a worker, or none, and what its gate needs."""

    vector: NDArray[Any] | None
    version: int
    deviation: float


class Contribution(NamedTuple):
    """What a worker pushes: a vector, or none if its gate withheld it."""

    vector: NDArray[Any] | None
    version: int
    report: Any


class PushResult(NamedTuple):
    """What a push led to: the client, the rule's reply, and the worker's report.

    Parameters in the reply are the rule's own: the next push changes them.
    """

    client: int
    reply: Reply
    report: Any


@remotely.remote_class
class Worker:
    """Computes contributions, one call each."""

    def __init__(self, make_work: Callable[[int], Work], number: int, is_replacement: bool = False):
        """`number` is unique to each worker, replacements included."""
        torch.set_num_threads(1)
        if is_replacement:
            failures.disable_stack_dumps()
        self.work = make_work(number)
        self.client: Client | None = None

    def begin(self, client: Client) -> None:
        """Starts as this client of the rule, with the parameters that are in it."""
        self.client = client

    def set_param(self, update: ParameterUpdate) -> None:
        """Computes with these parameters from now on."""
        assert self.client is not None
        vector = None if update.vector is None else torch.from_numpy(update.vector)
        self.client.receive(vector, update.version, update.deviation)

    def contribute(self, broadcast: Any, rate: float | None = None) -> Contribution:
        """The next contribution; `rate` is for steps that the client takes by itself."""
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
        make: Callable[[int], Any],
        say: Callable[[str], None] = print,
        accumulate: int = 1,
        record: bool = False,
        broadcast: Any = None,
        over: Callable[[], bool] = lambda: False,
        *,
        width: int = 1,
        crashes: Crashes | None = None,
    ):
        """`make(n)` makes the n-th `Worker` ever; there is one for each client of the rule.

        `record` keeps the order of pushes, which takes memory for each.  `broadcast` goes to each
        worker with its first call.  Waits for the workers, unless training is `over` first.
        """
        self.rule = rule
        # A call's arguments are copied as it is made, but in REMOTELY_LOCAL, where nothing is.
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
        """Pushes the next contribution to the rule; returns None if none came in time.

        `broadcast` goes to each worker with its next call.  Raises TrainingError if there
        are too many crashes, or if the rule refuses too many pushes in a row.
        """
        self._broadcast = broadcast
        self._welcome()
        try:
            worker, call = self._done.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if worker not in self._client_of:  # it died meanwhile
            return None
        client = self._client_of[worker]
        if error := call.exception():
            self._lost(worker, client, error)
            return None
        contribution = call.result()
        report = contribution.report
        self._crew.succeeded(worker, getattr(report, "steps", 1), getattr(report, "crashes", ()))
        return self._push(client, contribution)

    def close(self) -> None:
        """Closes the workers; what they are computing is lost."""
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
            self._answer(client, rule.restart(client), rule.version)
            return None
        self._refused = 0
        self._arrived(EventKind.PUSH, client)
        if not reply.waits:
            self._answer(client, reply.parameters, reply.version)
        self._let_go(reply.released)
        return PushResult(client, reply, contribution.report)

    def _arrived(self, kind: EventKind, client: int) -> None:
        if self._record:
            self.arrivals.append(Event(kind, client))

    def _let_go(self, released: tuple[Release, ...]) -> None:
        for client, parameters in released:
            self._answer(client, parameters, self.rule.version)

    def _answer(self, client: int, parameters: Tensor | None, version: int) -> None:
        """Sends a client new parameters, if there are any, and asks for its next contribution."""
        worker = self._worker_of[client]
        if parameters is not None or self.rule.gates is not None:
            vector = None if parameters is None else parameters.numpy()
            update = ParameterUpdate(vector, version, self.rule.deviation)
            self._watch(worker, remotely.submit(worker.set_param, update))
        self._ask(worker)

    def _ask(self, worker: Any) -> None:
        call = remotely.submit(worker.contribute, self._broadcast, self.rule.client_rate)
        call.add_done_callback(lambda done: self._done.put((worker, done)))
        cluster.discard(call)  # a worker may die when nobody takes any more

    def _watch(self, worker: Any, call: "Future[None]") -> None:
        """Have `take` hear of a call if it fails."""

        def hear(done: "Future[None]") -> None:
            if done.exception():
                self._done.put((worker, done))

        call.add_done_callback(hear)

    def _begin(self, worker: Any, client: int) -> None:
        self._client_of[worker] = client
        self._worker_of[client] = worker
        client_of_rule = self.rule.client(client, self._accumulate)
        self._watch(worker, remotely.submit(worker.begin, client_of_rule))
        self._ask(worker)

    def _lost(self, worker: Any, client: int, error: BaseException) -> None:
        waited = len(self.rule.waiting - {client})
        released = self.rule.leave(client)
        self._arrived(EventKind.LEAVE, client)
        if released:
            self._say(f"worker {client} is gone; {waited} that waited for it continue")
        del self._client_of[worker], self._worker_of[client]
        self._free.append(client)
        self._let_go(released)
        self._crew.replace(worker, error)

    def _welcome(self) -> None:
        nobody = not self._crew.actors
        if not self._crew.admit(timeout_s=1.0 if nobody else 0.0):
            return
        for worker in self._crew.actors:
            if worker not in self._client_of:
                client = self._free.pop()
                self.rule.join(client)
                self._arrived(EventKind.JOIN, client)
                self._begin(worker, client)
