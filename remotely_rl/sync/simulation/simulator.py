"""Simulation: a server and its clients in one process, exactly reproducible from a seed.

    rule = sync.make("fasgd", parameters, clients=128, optimizer=sync.sgd(0.005))
    simulation = Simulation(rule, workload, RandomOrder(seed=1))
    rows = simulation.run(100_000, evaluate=test_loss, every=1000)

An iteration is one client's push.  The rule and the clients are the same objects as on a cluster; a
dispatcher decides the order of pushes.  Clients share equal parameters, so memory holds only the
distinct versions in use.

A client computes its gradient only when its push is due, which makes no difference, because its
parameters do not change before that.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.sync.rule import Release, Reply, Rule
from remotely_rl.sync.simulation.dispatcher import Event, EventKind, SimulatedDispatcher

# From client and parameters [P] to a gradient [P].
Workload = Callable[[int, Tensor], Tensor]


class Row(NamedTuple):
    """The state of a simulation; `metrics` are from `evaluate`."""

    iteration: int
    time_s: float
    version: int
    staleness: float  # mean of all pushes so far
    pushes: int
    fetches: int
    bytes: int
    metrics: dict[str, float]


class Simulation:
    """See the module's docstring.  A push is the sum of `accumulate` gradients."""

    def __init__(
        self, rule: Rule, workload: Workload, dispatcher: SimulatedDispatcher, accumulate: int = 1
    ):
        self.rule = rule
        self.workload = workload
        self.dispatcher = dispatcher
        self.accumulate = accumulate
        self.iteration = 0
        self.time_s = 0.0
        self.clients = [rule.client(number, accumulate) for number in range(rule.clients)]
        dispatcher.begin(rule.clients)

    def run(
        self,
        iterations: int,
        evaluate: Callable[[Tensor], dict[str, float]] = lambda parameters: {},
        every: int = 100,
    ) -> list[Row]:
        """Process `iterations` pushes; evaluate at the start, at the end, and `every` so often.

        Raises SyncError if all clients wait for each other.
        """
        rows = [self._row(evaluate)]
        for _ in range(iterations):
            self.push()
            if self.iteration % every == 0:
                rows.append(self._row(evaluate))
        if rows[-1].iteration != self.iteration:
            rows.append(self._row(evaluate))
        return rows

    def push(self) -> Reply:
        """Process all events up to and including the next push."""
        while True:
            event = self.dispatcher.next()
            if event is None:
                raise SyncError(
                    f"no client pushes any more after {self.iteration} iterations:"
                    f" {len(self.rule.waiting)} of {self.rule.clients} clients wait"
                )
            self.time_s = event.time_s
            if event.kind is EventKind.PUSH:
                return self._push(event)
            if event.kind is EventKind.LEAVE:
                released = self.rule.leave(event.client)
                self._release(released, self.rule.version, self.rule.deviation)
            else:
                parameters, _ = self.rule.join(event.client)
                self.clients[event.client] = self.rule.client(event.client, self.accumulate)
                self.dispatcher.answered(event.client, parameters.nbytes)

    def _push(self, event: Event) -> Reply:
        client = self.clients[event.client]
        if self.rule.client_rate is not None:
            client.set_rate(self.rule.client_rate)
        contribution = client.next_push(lambda parameters: self.workload(event.client, parameters))
        reply = self.rule.push(event.client, contribution, client.version)
        self.iteration += 1
        if not reply.waits:
            answer = Release(event.client, reply.parameters)
            self._release((answer,), reply.version, reply.deviation)
        self._release(reply.released, self.rule.version, reply.deviation)
        return reply

    def _release(self, released: tuple[Release, ...], version: int, deviation: float) -> None:
        for number, parameters in released:
            self.clients[number].receive(parameters, version, deviation)
            self.dispatcher.answered(number, 0 if parameters is None else parameters.nbytes)

    def _row(self, evaluate: Callable[[Tensor], dict[str, float]]) -> Row:
        counters = self.rule.counters
        return Row(
            self.iteration,
            self.time_s,
            self.rule.version,
            counters.staleness_mean,
            counters.pushes,
            counters.fetches,
            counters.bytes_pushed + counters.bytes_fetched,
            evaluate(self.rule.parameters),
        )
