"""Dispatchers: the order in which a simulation's clients push to its server.

    FixedOrder     a given order, for instance from the record of a live run
    RandomOrder    random among the clients that do not wait, with weights
    TimedOrder     by a simulated clock of computing and sending times

All are deterministic: random numbers come from a seed.
"""

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, NamedTuple, Protocol

from remotely_rl import settings
from remotely_rl.errors import SyncError
from remotely_rl.settings import NOT_NEGATIVE


class EventKind(Enum):
    """Kind of an event at the server."""

    PUSH = "push"
    LEAVE = "leave"
    JOIN = "join"


class Event(NamedTuple):
    """An event of a client, with its time if the dispatcher has a clock."""

    kind: EventKind
    client: int
    time_s: float = 0.0


class SimulatedDispatcher(Protocol):
    """See the module's docstring.  `begin` is called once, when all clients are ready."""

    def begin(self, clients: int) -> None: ...

    def next(self) -> Event | None:
        """Return the next event; None if there are no more."""
        ...

    def answered(self, client: int, fetched: int) -> None:
        """Note that a client has received an answer of `fetched` bytes and computes again."""
        ...


class FixedOrder:
    """Clients in a given order of numbers or events."""

    def __init__(self, order: Iterable[int | Event]):
        self._order = iter(order)

    def begin(self, clients: int) -> None:
        pass

    def next(self) -> Event | None:
        for one in self._order:
            return one if isinstance(one, Event) else Event(EventKind.PUSH, one)
        return None

    def answered(self, client: int, fetched: int) -> None:
        pass


class RandomOrder:
    """Random clients among those that do not wait, in proportion to weights if given."""

    def __init__(self, seed: int = 0, weights: Sequence[float] | None = None):
        if weights is not None and not (min(weights) >= 0 < max(weights) < math.inf):
            raise SyncError("weights must be at least 0, and one of them above it")
        self._random = random.Random(f"order {seed}")
        self._weights = weights
        self._ready: list[int] = []

    def begin(self, clients: int) -> None:
        if self._weights is not None and len(self._weights) != clients:
            raise SyncError(f"{len(self._weights)} weights were given for {clients} clients")
        self._ready = [
            client for client in range(clients) if not self._weights or self._weights[client] > 0
        ]

    def next(self) -> Event | None:
        if not self._ready:
            return None
        place = self._place()
        # Moving the last client to the free place makes the cost independent of their number.
        client, self._ready[place] = self._ready[place], self._ready[-1]
        self._ready.pop()
        return Event(EventKind.PUSH, client)

    def answered(self, client: int, fetched: int) -> None:
        self._ready.append(client)

    def _place(self) -> int:
        place = int(self._random.random() * len(self._ready))
        if self._weights is None:
            return place
        # Rejection sampling: the client of the largest weight is never rejected.
        while self._random.random() * max(self._weights) >= self._weights[self._ready[place]]:
            place = int(self._random.random() * len(self._ready))
        return place


class Outage(NamedTuple):
    """An interval in which a client is gone."""

    client: int
    from_s: float
    to_s: float = math.inf


@dataclass(frozen=True)
class Timing:
    """Computing and sending times."""

    compute_s: Annotated[float, "mean seconds for a contribution", NOT_NEGATIVE] = 0.01
    jitter: Annotated[float, "its relative standard deviation", NOT_NEGATIVE] = 0.1
    latency_s: Annotated[float, "seconds for a message, one way", NOT_NEGATIVE] = 0.0
    bandwidth: Annotated[
        float, "bytes per second of each client's link; 0: no limit", NOT_NEGATIVE
    ] = 0.0
    server_s: Annotated[float, "seconds of the server for a push, one at a time", NOT_NEGATIVE] = (
        0.0
    )

    def __post_init__(self) -> None:
        settings.check(self)

    def travel_s(self, size: int) -> float:
        """Return the seconds that a message of `size` bytes takes."""
        return self.latency_s + (size / self.bandwidth if self.bandwidth else 0.0)


class TimedOrder:
    """Clients by a simulated clock; computing takes a log-normal time, times `slowness`."""

    def __init__(
        self,
        clock: Timing,
        pushed: int,
        seed: int = 0,
        slowness: Sequence[float] = (),
        outages: Iterable[Outage] = (),
    ):
        """`pushed` is the size of a push in bytes; clients not in `slowness` have 1."""
        self._clock = clock
        self._pushed = pushed
        self._slowness = slowness
        self._outages = list(outages)
        self._random = random.Random(f"clock {seed}")
        self._free = 0.0  # when the server has processed all pushes that have arrived
        self._now = 0.0
        # (time, order of entry, event, departures of the client by then)
        self._due: list[tuple[float, int, Event, int]] = []
        self._departures: list[int] = []
        self._entries = 0

    def begin(self, clients: int) -> None:
        self._departures = [0] * clients
        for client in range(clients):
            self._compute(client, 0.0)
        for client, from_s, to_s in self._outages:
            self._enter(Event(EventKind.LEAVE, client, from_s))
            if to_s < math.inf:
                self._enter(Event(EventKind.JOIN, client, to_s))

    def next(self) -> Event | None:
        while self._due:
            _, _, event, departures = heapq.heappop(self._due)
            if event.kind is not EventKind.PUSH:
                self._departures[event.client] += event.kind is EventKind.LEAVE
                self._now = max(self._now, event.time_s)
                return event
            if departures == self._departures[event.client]:  # otherwise it has left since
                self._free = max(self._free, event.time_s) + self._clock.server_s
                self._now = self._free
                return event._replace(time_s=self._free)
        return None

    def answered(self, client: int, fetched: int) -> None:
        self._compute(client, self._now + self._clock.travel_s(fetched))

    def _compute(self, client: int, begins: float) -> None:
        clock = self._clock
        slowness = self._slowness[client] if client < len(self._slowness) else 1.0
        # Log-normal, with mean 1 and this standard deviation.
        variance = math.log1p(clock.jitter**2)
        factor = math.exp(self._random.gauss(-variance / 2, math.sqrt(variance)))
        takes = clock.compute_s * slowness * factor
        arrives = begins + takes + clock.travel_s(self._pushed)
        self._enter(Event(EventKind.PUSH, client, arrives))

    def _enter(self, event: Event) -> None:
        self._entries += 1
        departures = self._departures[event.client]
        heapq.heappush(self._due, (event.time_s, self._entries, event, departures))
