"""Rule: what a parameter server does with a contribution that arrives.

A rule holds the parameters, one flat vector, and answers each `push` at once.  It knows no clock,
socket or thread, and draws only from random streams that it was given: the same pushes give the
same bits, in the simulator and on a cluster.

    version     how many steps the parameters have taken; 0 at the start
    staleness   the rule's version when a contribution arrives, minus the version of the
                parameters that it was computed with: never negative

`reply.py` says what can become of a contribution, and what the client does next.

A torch optimizer, whose state lives here, turns a direction into a step.  It sees one flat
vector.  For elementwise optimizers (SGD, RMSprop, Adam and most others) this is the same as a
list of layers.

A rule scales the *step* (`scale`): at half the scale the parameters move half as far, whatever
the optimizer.  The optimizer's state sees unscaled gradients; `stepper.py` says why.  A step of
several contributions goes along their mean, weighted by their scales, and is itself scaled by the
mean of their scales.  For plain descent that is the sum that papers print.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from remotely_rl import settings
from remotely_rl.errors import SyncError
from remotely_rl.sync.client import Client, MakeOptimizer
from remotely_rl.sync.counters import Counters
from remotely_rl.sync.gates import Gates
from remotely_rl.sync.reply import Accepted, Release, Reply
from remotely_rl.sync.stepper import Stepper


def sgd(rate: float) -> MakeOptimizer:
    """Plain gradient descent."""
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


@dataclass(eq=False)
class Rule(ABC):
    """See the module's docstring.

    A subclass is a dataclass of its settings, written as in `settings.py`.  `on_push` decides
    what becomes of a contribution, `setup` creates what the rule remembers between pushes.
    """

    start: InitVar[Tensor]
    clients: int
    optimizer: InitVar[MakeOptimizer] = sgd(0.1)  # noqa: RUF009 - makes a function, no state
    gates: Gates | None = None

    clients_optimize: ClassVar[bool] = False  # the optimizer, and its rate, are the clients'

    def __post_init__(self, start: Tensor, optimizer: MakeOptimizer) -> None:
        """`start` [P] are the first parameters; clients are numbered from 0.

        Raises SyncError if `start` is not a flat vector of floats, if there is no client, and for
        settings out of range.
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
        self.deviation = 1.0  # for gates
        self.has_fixed_rate = False  # its spec gives a rate, which schedules do not change
        self.client_rate: float | None = None  # of the clients' optimizers; None: unchanged
        self.returns_views = False  # the receiver of parameters copies them before the next push
        self._snapshot: Tensor | None = None
        self.setup()

    # --- what a server calls ----------------------------------------------------------------------

    def push(self, client: int, contribution: Tensor | None, version: int) -> Reply:
        """Process a contribution, computed with the parameters of `version`.

        The contribution is None if the client's gate withheld it.  Raises SyncError, and changes
        nothing but a counter, for a client that is unknown, gone or waiting, a version that does
        not exist yet, and a contribution of the wrong shape or dtype, or with NaN or infinities.
        """
        try:
            self._check(client, contribution, version)
        except SyncError:
            self.counters.refused += 1
            raise
        self._count_push(contribution)
        if self.gates is not None:
            contribution, version = self.gates.on_push(client, contribution, version)
        if contribution is None:
            reply = Reply(Accepted.DROPPED, self.version, self.version - version)
        else:
            reply = self.on_push(client, contribution, self.version - version)
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
        """Remove a client that is gone; return the clients that it releases."""
        self._check_known(client)
        self.live.discard(client)
        self.waiting.discard(client)
        return self._release(self.on_leave(client)) if self.live else ()

    def join(self, client: int) -> tuple[Tensor, int]:
        """Add a client that was gone; return the newest parameters and their version."""
        self._check_known(client)
        if client in self.live:
            raise SyncError(f"client {client} is here already")
        self.live.add(client)
        self.on_join(client)
        if self.gates is not None:
            self.gates.forget(client)
        return self.restart(client), self.version

    def restart(self, client: int) -> Tensor:
        """Return the newest parameters for a client that starts afresh, past all gates."""
        self.counters.fetches += 1
        self.counters.bytes_fetched += self.parameters.nbytes
        self.on_fetch(client, self.parameters)
        return self.parameters

    @property
    def parameters(self) -> Tensor:
        """The newest parameters [P].  Later steps do not change them, unless `returns_views`."""
        return self.vector.detach() if self.returns_views else self.snapshot()

    def snapshot(self) -> Tensor:
        """Return the newest parameters [P], which no later step changes."""
        if self._snapshot is None:
            self._snapshot = self.vector.detach().clone()
        return self._snapshot

    def client(self, number: int, accumulate: int = 1) -> Client:
        """Return the part of the rule that runs at client `number`; it can be sent there."""
        self.on_fetch(number, self.parameters)
        gate = self.gates.client_gate(number) if self.gates else None
        return Client(number, self.parameters, self.version, gate, accumulate)

    def set_rate(self, rate: float) -> None:
        """Set the optimizer's learning rate, here or at the clients, unless the rule fixes it."""
        if self.has_fixed_rate:
            return
        if self.clients_optimize:
            self.client_rate = rate
        else:
            self._stepper.set_rate(rate)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps.

        Contributions that wait for a step are not in it: clients start afresh.
        """
        return {
            "version": self.version,
            "vector": self.vector.detach(),
            "optimizer": self._stepper.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.version = state["version"]
        with torch.no_grad():
            self.vector.copy_(state["vector"])
        self._stepper.load(state["optimizer"])
        self._snapshot = None

    # --- what a subclass defines ------------------------------------------------------------------

    def setup(self) -> None:  # noqa: B027 - a rule may have nothing to remember
        """Create what the rule remembers between pushes.  Called once."""

    @abstractmethod
    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        """Decide what becomes of a contribution [P]; nothing changes it afterwards."""

    def scale(self, staleness: int) -> float:
        """Return by what to scale the step for a contribution of this staleness; positive."""
        return 1.0

    def on_leave(self, client: int) -> Iterable[Release]:
        """Return the clients that need not wait any longer, now that `client` is gone."""
        return ()

    def on_join(self, client: int) -> None:  # noqa: B027
        """`client` is back."""

    def on_fetch(self, client: int, parameters: Tensor) -> None:  # noqa: B027
        """`client` has these parameters from here on."""

    # --- what a subclass may use ------------------------------------------------------------------

    def step(self, direction: Tensor, scale: float = 1.0, divisors: Tensor | None = None) -> None:
        """Step against `direction` [P] as the optimizer does for a gradient, but `scale` times as
        far, and divided elementwise by `divisors` [P] if given."""
        self._stepper.step(direction, scale, divisors)
        self.version += 1
        self._snapshot = None

    def release(self, clients: Iterable[int]) -> tuple[Release, ...]:
        """Let clients go on with the newest parameters, lowest number first."""
        return tuple(Release(client, self.parameters) for client in sorted(clients))

    # --- private ----------------------------------------------------------------------------------

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
        if self.gates is not None and not self.gates.allows_fetch(client, self.deviation):
            self.counters.withheld_fetches += 1
            return None
        self.counters.fetches += 1
        self.counters.bytes_fetched += parameters.nbytes
        self.on_fetch(client, parameters)
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
            raise SyncError(f"client {client} pushed again while it waits for other clients")
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
        # A NaN or infinity anywhere shows in the sum, which is much cheaper than testing each.
        if not math.isfinite(float(contribution.sum())):
            raise SyncError(f"client {client} pushed numbers that are NaN or infinite")
