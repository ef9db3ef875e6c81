"""Whose turn it is: the order in which a simulation's clients reach its server.

    Scripted    as written down, a live run's for instance
    Drawn       at random among those who do not wait, by weights
    Clocked     by a clock: how long clients compute, and how long vectors are on the way

All are deterministic: what is drawn is drawn from a seed.
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


class Kind(Enum):
    """What happens at the server."""

    PUSH = "push"
    LEAVE = "leave"
    JOIN = "join"


class Event(NamedTuple):
    """What happens next, to whom, and when; order alone has no time."""

    kind: Kind
    client: int
    time_s: float = 0.0


class Dispatcher(Protocol):
    """See the module's docstring.  `begin` is called once, with all clients ready."""

    def begin(self, clients: int) -> None: ...

    def next(self) -> Event | None:
        """What happens next; None if nothing ever will."""
        ...

    def go_on(self, client: int, fetched: int) -> None:
        """A client was answered, with so many bytes, and computes again."""
        ...


class Scripted:
    """Clients in the order given: numbers, or whole events."""

    def __init__(self, order: Iterable[int | Event]):
        self._order = iter(order)

    def begin(self, clients: int) -> None:
        pass

    def next(self) -> Event | None:
        for one in self._order:
            return one if isinstance(one, Event) else Event(Kind.PUSH, one)
        return None

    def go_on(self, client: int, fetched: int) -> None:
        pass


class Drawn:
    """Each of those who do not wait with a chance in proportion to its weight; alike without."""

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
        # The last takes its place: who is drawn costs the same for ten clients and ten thousand.
        client, self._ready[place] = self._ready[place], self._ready[-1]
        self._ready.pop()
        return Event(Kind.PUSH, client)

    def go_on(self, client: int, fetched: int) -> None:
        self._ready.append(client)

    def _place(self) -> int:
        place = int(self._random.random() * len(self._ready))
        if self._weights is None:
            return place
        # By rejection: the heaviest is taken whenever it is drawn.
        while self._random.random() * max(self._weights) >= self._weights[self._ready[place]]:
            place = int(self._random.random() * len(self._ready))
        return place


class Outage(NamedTuple):
    """A client is gone for a while."""

    client: int
    from_s: float
    to_s: float = math.inf


@dataclass(frozen=True)
class Clock:
    """How long things take."""

    compute_s: Annotated[float, "mean seconds for a contribution", NOT_NEGATIVE] = 0.01
    jitter: Annotated[float, "deviation of that, as part of it", NOT_NEGATIVE] = 0.1
    latency_s: Annotated[float, "seconds for a message, one way", NOT_NEGATIVE] = 0.0
    bandwidth: Annotated[float, "bytes a second of each client's line; 0: no limit",
                         NOT_NEGATIVE] = 0.0  # fmt: skip
    server_s: Annotated[float, "seconds of the server for a push, one at a time",
                        NOT_NEGATIVE] = 0.0  # fmt: skip

    def __post_init__(self) -> None:
        settings.check(self)

    def on_the_way(self, size: int) -> float:
        """Seconds that so many bytes take."""
        return self.latency_s + (size / self.bandwidth if self.bandwidth else 0.0)


class Clocked:
    """By a clock.  What a contribution takes is log-normal, times `slowness` of its client."""

    def __init__(
        self,
        clock: Clock,
        pushed: int,
        seed: int = 0,
        slowness: Sequence[float] = (),
        outages: Iterable[Outage] = (),
    ):
        """`pushed` is the bytes of a push; `slowness` is 1 for all who are not in it."""
        self._clock = clock
        self._pushed = pushed
        self._slowness = slowness
        self._outages = list(outages)
        self._random = random.Random(f"clock {seed}")
        self._free = 0.0  # when the server is done with what has arrived so far
        self._now = 0.0
        # (time, order of entry, event, which life of its client)
        self._due: list[tuple[float, int, Event, int]] = []
        self._life: list[int] = []
        self._entries = 0

    def begin(self, clients: int) -> None:
        self._life = [0] * clients
        for client in range(clients):
            self._compute(client, 0.0)
        for client, from_s, to_s in self._outages:
            self._enter(Event(Kind.LEAVE, client, from_s))
            if to_s < math.inf:
                self._enter(Event(Kind.JOIN, client, to_s))

    def next(self) -> Event | None:
        while self._due:
            _, _, event, life = heapq.heappop(self._due)
            if event.kind is not Kind.PUSH:
                self._life[event.client] += event.kind is Kind.LEAVE
                self._now = max(self._now, event.time_s)
                return event
            if life == self._life[event.client]:  # else it died with this under way
                self._free = max(self._free, event.time_s) + self._clock.server_s
                self._now = self._free
                return event._replace(time_s=self._free)
        return None

    def go_on(self, client: int, fetched: int) -> None:
        self._compute(client, self._now + self._clock.on_the_way(fetched))

    def _compute(self, client: int, begins: float) -> None:
        clock = self._clock
        slowness = self._slowness[client] if client < len(self._slowness) else 1.0
        # Log-normal of mean 1 and this deviation.
        variance = math.log1p(clock.jitter**2)
        factor = math.exp(self._random.gauss(-variance / 2, math.sqrt(variance)))
        takes = clock.compute_s * slowness * factor
        arrives = begins + takes + clock.on_the_way(self._pushed)
        self._enter(Event(Kind.PUSH, client, arrives))

    def _enter(self, event: Event) -> None:
        self._entries += 1
        life = self._life[event.client]
        heapq.heappush(self._due, (event.time_s, self._entries, event, life))
