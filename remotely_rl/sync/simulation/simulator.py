"""A server and its clients in one process, replayed bit by bit from a seed.

    rule = sync.make("fasgd", parameters, clients=128, optimizer=sync.sgd(0.005))
    simulation = Simulation(rule, workload, Drawn(seed=1))
    rows = simulation.run(100_000, watch=test_loss, every=1000)

One iteration is one client's push.  The rule and the clients are those of a cluster; only who
comes when is decided here, by a dispatcher.  Clients share the parameters that they have in
common: memory is that of the distinct versions which some client still has.

A client computes when its push is due, at the parameters that it was answered with: nobody
could tell the difference, for what it computes with does not change meanwhile.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.sync.rule import Release, Reply, Rule
from remotely_rl.sync.simulation.dispatch import Dispatcher, Event, Kind

# Of client and parameters [P]: a gradient [P].
Workload = Callable[[int, Tensor], Tensor]


class Row(NamedTuple):
    """Where a simulation stands; what is watched is in `seen`."""

    iteration: int
    time_s: float
    version: int
    staleness: float  # mean of all pushes so far
    pushes: int
    fetches: int
    bytes: int
    seen: dict[str, float]


class Simulation:
    """See the module's docstring.  With `accumulate` a push is so many gradients, summed."""

    def __init__(self, rule: Rule, workload: Workload, dispatcher: Dispatcher, accumulate: int = 1):
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
        watch: Callable[[Tensor], dict[str, float]] = lambda parameters: {},
        every: int = 100,
    ) -> list[Row]:
        """Takes so many pushes; looks at the newest parameters first, last, and between.

        Raises SyncError if all clients wait for each other.
        """
        rows = [self._row(watch)]
        for _ in range(iterations):
            self.push()
            if self.iteration % every == 0:
                rows.append(self._row(watch))
        if rows[-1].iteration != self.iteration:
            rows.append(self._row(watch))
        return rows

    def push(self) -> Reply:
        """What happens up to the next push, and that."""
        while True:
            event = self.dispatcher.next()
            if event is None:
                raise SyncError(
                    f"nobody pushes any more after {self.iteration} iterations:"
                    f" {len(self.rule.waiting)} of {self.rule.clients} clients wait"
                )
            self.time_s = event.time_s
            if event.kind is Kind.PUSH:
                return self._push(event)
            if event.kind is Kind.LEAVE:
                released = self.rule.leave(event.client)
                self._let_go(released, self.rule.version, self.rule.deviation)
            else:
                parameters, _ = self.rule.join(event.client)
                self.clients[event.client] = self.rule.client(event.client, self.accumulate)
                self.dispatcher.go_on(event.client, parameters.nbytes)

    def _push(self, event: Event) -> Reply:
        client = self.clients[event.client]
        if self.rule.client_rate is not None:
            client.set_rate(self.rule.client_rate)
        contribution = client.work(lambda parameters: self.workload(event.client, parameters))
        reply = self.rule.push(event.client, contribution, client.version)
        self.iteration += 1
        if not reply.waits:
            answer = Release(event.client, reply.parameters)
            self._let_go((answer,), reply.version, reply.deviation)
        self._let_go(reply.released, self.rule.version, reply.deviation)
        return reply

    def _let_go(self, released: tuple[Release, ...], version: int, deviation: float) -> None:
        for number, parameters in released:
            self.clients[number].hear(parameters, version, deviation)
            self.dispatcher.go_on(number, 0 if parameters is None else parameters.nbytes)

    def _row(self, watch: Callable[[Tensor], dict[str, float]]) -> Row:
        counters = self.rule.counters
        return Row(
            self.iteration,
            self.time_s,
            self.rule.version,
            counters.staleness_mean,
            counters.pushes,
            counters.fetches,
            counters.bytes_pushed + counters.bytes_fetched,
            watch(self.rule.parameters),
        )
