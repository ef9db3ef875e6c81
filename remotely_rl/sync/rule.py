"""What a parameter server does with a contribution that arrives.

A `Rule` holds the parameters, one flat vector, and answers each `push` at once.  It knows no
clock, socket or thread, and draws nothing from a random stream that was not handed to it:
the same pushes give the same bits, in the simulator and on a cluster.

Words, the same in all rules:

    version     how often the parameters were stepped; 0 at the start
    staleness   the rule's version when a contribution arrives, less the version of the
                parameters that it was computed with: never negative
    counted     what arrived moves the parameters, now or at the next step, and counts
                towards that step
    weak        it moves them, but does not count
    dropped     it is forgotten
    waits       the client is to do nothing before a later reply releases it

Who pushed is told in the reply whether to install new parameters, to go on with its own, or
to wait.  Who waited is told in `released`, of the reply to somebody else's push.

How a direction becomes a step is the business of a torch optimizer, whose state lives here.
It sees one flat vector: rules of torch that are elementwise (SGD, RMSprop, Adam and most
others) do what they do for a list of layers.

A rule says by what its *step* is scaled (`scale`): at half the scale the parameters move half
as far, by any optimizer.  The optimizer's state sees gradients unscaled; `stepper.py` says why.
A step of several contributions goes along their mean, each weighted by its scale, and is itself
scaled by the mean of their scales: for descent the sum that papers print.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from remotely_rl import settings
from remotely_rl.errors import SyncError
from remotely_rl.sync.client import Client, MakeOptimizer
from remotely_rl.sync.gates import Gates
from remotely_rl.sync.stepper import Stepper


def sgd(rate: float) -> MakeOptimizer:
    """Plain gradient descent."""
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


class Accepted(Enum):
    """What becomes of a contribution; see the module's table."""

    COUNTED = "counted"
    WEAK = "weak"
    DROPPED = "dropped"


class Release(NamedTuple):
    """A client that waited and goes on: with these parameters, or its own if there are none."""

    client: int
    parameters: Tensor | None


class Reply(NamedTuple):
    """What who pushed is told.

    `version` is what the client calls the parameters that it installs; it keeps its own
    version with its own parameters.  `deviation` is what gates go by: see `gates.py`.
    """

    accepted: Accepted
    version: int
    staleness: int
    parameters: Tensor | None = None
    waits: bool = False
    released: tuple[Release, ...] = ()
    deviation: float = 1.0


@dataclass
class Counters:
    """What a rule has seen, and what went over the wire for it, in bytes of vectors."""

    pushes: int = 0
    withheld_pushes: int = 0
    refused: int = 0
    counted: int = 0
    weak: int = 0
    dropped: int = 0
    fetches: int = 0
    withheld_fetches: int = 0
    bytes_pushed: int = 0
    bytes_fetched: int = 0
    staleness: Counter[int] = field(default_factory=Counter)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of all that arrived."""
        count = self.staleness.total()
        return sum(tau * n for tau, n in self.staleness.items()) / count if count else 0.0


@dataclass(eq=False)
class Rule(ABC):
    """See the module's docstring.

    A subclass is a dataclass of its settings, as `settings.py` has them; `arrive` says what
    becomes of a contribution, `begin` makes what it remembers between two.
    """

    start: InitVar[Tensor]
    clients: int
    optimizer: InitVar[MakeOptimizer] = sgd(0.1)  # noqa: RUF009 - makes a function, no state
    gates: Gates | None = None

    explores: ClassVar[bool] = False  # the optimizer is the clients', and so is its rate

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "weighed" in vars(cls):  # else it would never be called, and the rule be another
            raise SyncError(
                f"{cls.__name__}.weighed is not called any more: say in `direction(client,"
                " contribution)` what is stepped along, and in `scale(staleness)` how far"
            )

    def __post_init__(self, start: Tensor, optimizer: MakeOptimizer) -> None:
        """`start` [P] is where all begin; clients are numbered from 0.

        Raises SyncError for a start that is no flat vector of floats, for no clients, and for
        settings that cannot be.
        """
        if start.dim() != 1 or not start.is_floating_point():
            raise SyncError(
                f"parameters must be one flat vector of floats, not {list(start.shape)}"
                f" of {start.dtype}"
            )
        if self.clients < 1:
            raise SyncError(f"there must be at least 1 client, not {self.clients}")
        settings.check(self)
        self.vector = nn.Parameter(start.detach().clone())
        self._stepper = Stepper(self.vector, optimizer)
        self.version = 0
        self.live = set(range(self.clients))
        self.waiting: set[int] = set()
        self.counters = Counters()
        self.deviation = 1.0  # what gates go by
        self.has_own_rate = False  # which a schedule leaves alone: the word has said one
        self.client_rate: float | None = None  # of the clients' optimizers; none: as they began
        self.lends = False  # whoever is handed parameters copies them before the next push
        self._newest: Tensor | None = None
        self.begin()

    # --- what a rule is told ----------------------------------------------------------------------

    def push(self, client: int, contribution: Tensor | None, version: int) -> Reply:
        """Takes in what a client made of its parameters, which are of `version`.

        No contribution is one that the client's gate withheld.  Raises SyncError, and stays
        as it was, for a client that is unknown, gone or waiting, a version that is not there
        yet, and a contribution of the wrong shape or type or with numbers that are none.
        """
        try:
            self._check(client, contribution, version)
        except SyncError:
            self.counters.refused += 1
            raise
        self._count_push(contribution)
        if self.gates is not None:
            contribution, version = self.gates.pushed(client, contribution, version)
        if contribution is None:
            reply = Reply(Accepted.DROPPED, self.version, self.version - version)
        else:
            reply = self.arrive(client, contribution, self.version - version)
        if reply.waits:
            self.waiting.add(client)
        self.counters.staleness[reply.staleness] += 1
        name = reply.accepted.value
        setattr(self.counters, name, getattr(self.counters, name) + 1)
        fetched = None if reply.parameters is None else self._fetch(client, reply.parameters)
        return reply._replace(
            parameters=fetched,
            released=self._release(reply.released),
            deviation=self.deviation,
        )

    def leave(self, client: int) -> tuple[Release, ...]:
        """Forgets a client that is gone; returns who needs not wait any longer."""
        self._check_known(client)
        self.live.discard(client)
        self.waiting.discard(client)
        return self._release(self.left(client)) if self.live else ()

    def join(self, client: int) -> tuple[Tensor, int]:
        """Takes a client in that was gone; returns the newest parameters and their version."""
        self._check_known(client)
        if client in self.live:
            raise SyncError(f"client {client} is here already")
        self.live.add(client)
        self.joined(client)
        if self.gates is not None:
            self.gates.forget(client)
        return self.renew(client), self.version

    def renew(self, client: int) -> Tensor:
        """The newest parameters for a client that is to begin anew with them, past all gates."""
        self.counters.fetches += 1
        self.counters.bytes_fetched += self.parameters.nbytes
        self.delivered(client, self.parameters)
        return self.parameters

    @property
    def parameters(self) -> Tensor:
        """The newest parameters [P]; no later step changes them, unless the rule `lends`."""
        return self.vector.detach() if self.lends else self.snapshot()

    def snapshot(self) -> Tensor:
        """The newest parameters [P], which no later step changes."""
        if self._newest is None:
            self._newest = self.vector.detach().clone()
        return self._newest

    def client(self, number: int, accumulate: int = 1) -> Client:
        """What client `number` does between two pushes; it can be sent to its machine."""
        self.delivered(number, self.parameters)
        gate = self.gates.of_client(number) if self.gates else None
        return Client(number, self.parameters, self.version, gate, accumulate)

    def set_rate(self, rate: float) -> None:
        """Has the optimizer take steps at this rate from here on, here or at the clients, unless
        the rule has its own."""
        if self.has_own_rate:
            return
        if self.explores:
            self.client_rate = rate
        else:
            self._stepper.set_rate(rate)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps.  What waits for a step is not in it: clients begin anew."""
        return {
            "version": self.version,
            "vector": self.vector.detach(),
            "optimizer": self._stepper.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        self.version = state["version"]
        with torch.no_grad():
            self.vector.copy_(state["vector"])
        self._stepper.load(state["optimizer"])
        self._newest = None

    # --- what a rule is ---------------------------------------------------------------------------

    def begin(self) -> None:  # noqa: B027 - a rule may have nothing to remember
        """Makes what the rule remembers; called once."""

    @abstractmethod
    def arrive(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        """What becomes of a contribution [P]; nobody changes it afterwards."""

    def scale(self, staleness: int) -> float:
        """By what a step is scaled for a contribution that is so stale; positive."""
        return 1.0

    def left(self, client: int) -> Iterable[Release]:
        """Who need not wait any longer, now that `client` is gone."""
        return ()

    def joined(self, client: int) -> None:  # noqa: B027
        """`client` is back."""

    def delivered(self, client: int, parameters: Tensor) -> None:  # noqa: B027
        """`client` has these parameters from here on."""

    # --- what a rule may use ----------------------------------------------------------------------

    def step(self, direction: Tensor, scale: float = 1.0, divisors: Tensor | None = None) -> None:
        """Moves the parameters against `direction` [P], as the optimizer does with a gradient, but
        `scale` times as far, and divided by `divisors` [P] if there are any."""
        self._stepper.step(direction, scale, divisors)
        self.version += 1
        self._newest = None

    def release(self, clients: Iterable[int]) -> tuple[Release, ...]:
        """Lets clients go on with the newest parameters, lowest number first."""
        return tuple(Release(client, self.parameters) for client in sorted(clients))

    # --- the rest ---------------------------------------------------------------------------------

    def _count_push(self, contribution: Tensor | None) -> None:
        if contribution is None:
            self.counters.withheld_pushes += 1
        else:
            self.counters.pushes += 1
            self.counters.bytes_pushed += contribution.nbytes

    def _release(self, released: Iterable[Release]) -> tuple[Release, ...]:
        done = []
        for client, parameters in released:
            self.waiting.discard(client)
            fetched = None if parameters is None else self._fetch(client, parameters)
            done.append(Release(client, fetched))
        return tuple(done)

    def _fetch(self, client: int, parameters: Tensor) -> Tensor | None:
        if self.gates is not None and not self.gates.fetched(client, self.deviation):
            self.counters.withheld_fetches += 1
            return None
        self.counters.fetches += 1
        self.counters.bytes_fetched += parameters.nbytes
        self.delivered(client, parameters)
        return parameters

    def _check_known(self, client: int) -> None:
        if not 0 <= client < self.clients:
            raise SyncError(
                f"client {client} is unknown: there are {self.clients}, numbered from 0"
            )

    def _check(self, client: int, contribution: Tensor | None, version: int) -> None:
        self._check_known(client)
        if client not in self.live:
            raise SyncError(f"client {client} has left; it must join before it pushes")
        if client in self.waiting:
            raise SyncError(f"client {client} pushed twice: it waits for others since its last")
        if not 0 <= version <= self.version:
            raise SyncError(
                f"client {client} pushed for version {version}; there are 0 to {self.version}"
            )
        if contribution is None:
            if self.gates is None:
                raise SyncError(f"client {client} pushed nothing, and the rule has no gates")
            return
        if contribution.shape != self.vector.shape or contribution.dtype != self.vector.dtype:
            raise SyncError(
                f"client {client} pushed {list(contribution.shape)} of {contribution.dtype};"
                f" expected {list(self.vector.shape)} of {self.vector.dtype}"
            )
        # One that is no number, anywhere, shows in the sum: much cheaper than to ask each.
        if not math.isfinite(float(contribution.sum())):
            raise SyncError(f"client {client} pushed numbers that are NaN or infinite")
