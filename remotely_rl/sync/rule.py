"""Rule: the update rule of a parameter server, without I/O.

A rule holds the parameters as one flat vector, and answers each `push` immediately.  It has no
clock, socket or thread, and its random streams are seeded: the same pushes give the same bits, in
the simulator and on a cluster.

    version     the number of steps that the parameters have taken; 0 at the start
    staleness   the rule's version when a contribution arrives, minus the version of the
                parameters that it was computed with: never negative

`Reply` says how a contribution was used, and what the client does next.

A torch optimizer in the rule turns a direction into a step.  It sees one flat vector.  For
elementwise optimizers (SGD, RMSprop, Adam and most others) this is equivalent to a list of layers.

A rule scales the *step* (`scale`): at half the scale the parameters move half as far, whatever
the optimizer.  The optimizer's state sees unscaled gradients; `Stepper` says why.  A step of
several contributions goes along their mean, weighted by their scales, and is scaled by the mean of
their scales.  For plain descent that is the sum in the papers.
"""

import copy
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


class Accepted(Enum):
    """How a rule uses a contribution.

    counted     it moves the parameters, now or at the next step, and counts towards that step
    weak        it moves the parameters, but does not count
    dropped     it is discarded
    """

    COUNTED = "counted"
    WEAK = "weak"
    DROPPED = "dropped"


class Release(NamedTuple):
    """A waiting client that may continue, with these parameters, or with its own if None."""

    client: int
    parameters: Tensor | None


class Reply(NamedTuple):
    """The answer to a push, for the client that pushed and for those that it releases.

    The client installs `parameters` of `version`; with None it keeps its own and their version.
    A client that `waits` does nothing until a later reply releases it.  `deviation` is for the
    client's gate: see `gates.py`.
    """

    accepted: Accepted
    version: int
    staleness: int
    parameters: Tensor | None = None
    waits: bool = False
    released: tuple[Release, ...] = ()
    deviation: float = 1.0


@dataclass
class RuleCounters:
    """Numbers of pushes and fetches by outcome, bytes sent, and a histogram of staleness."""

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
        """Mean staleness of all pushes."""
        count = self.staleness.total()
        return sum(tau * n for tau, n in self.staleness.items()) / count if count else 0.0


# Optimizers whose step is proportional to their learning rate.
PROPORTIONAL = (
    torch.optim.SGD,
    torch.optim.RMSprop,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)


class Stepper:
    """A torch optimizer of one flat vector, whose steps can be scaled.

    A rule that gives a stale contribution less weight scales the *step*.  Scaling the gradient is
    equivalent for plain descent only: RMSProp and Adam divide by the size of gradients, which
    cancels a constant scale.  So the optimizer's state (momentum, mean squares) sees unscaled
    gradients, and the resulting step is scaled:

        by a number     through the learning rate of that step: no copy, no pass over the vector
        elementwise     by keeping the old vector and scaling the difference; plain descent divides
                        the gradient instead, which is equivalent and cheaper

    An optimizer whose step may not be proportional to its rate (Rprop, ASGD, Adafactor, your own)
    is scaled by a number in the second way too.
    """

    def __init__(self, vector: nn.Parameter, optimizer: MakeOptimizer):
        self.vector = vector
        self._optimizer = optimizer([vector])
        self._scratch_memory: Tensor | None = None

    def step(self, direction: Tensor, scale: float = 1.0, divisors: Tensor | None = None) -> None:
        """Step against `direction` [P] as the optimizer does for a gradient, but `scale` times as
        far, and divided elementwise by `divisors` [P] if given."""
        if divisors is None and (scale == 1.0 or type(self._optimizer) in PROPORTIONAL):
            self._step(direction, scale)
        elif divisors is not None and self._is_plain():
            # Allocating the buffer in each step would cost more than the computation.
            self._step(torch.div(direction, divisors, out=self._scratch()), scale)
        else:
            before = self._scratch().copy_(self.vector.detach())
            self._step(direction)
            difference = self.vector.detach().sub_(before)
            if divisors is None:
                torch.add(before, difference, alpha=scale, out=difference)
            else:
                torch.addcdiv(before, difference, divisors, value=scale, out=difference)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state."""
        return self._optimizer.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        # Torch would keep these tensors and modify them.
        self._optimizer.load_state_dict(copy.deepcopy(state))

    def _step(self, direction: Tensor, scale: float = 1.0) -> None:
        self.vector.grad = direction
        rates = [group["lr"] for group in self._optimizer.param_groups]
        try:
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
            self._optimizer.step()
        finally:
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _is_plain(self) -> bool:
        """Whether a step is the gradient times the rate, without any state."""
        return type(self._optimizer) is torch.optim.SGD and not any(
            group["momentum"] or group["weight_decay"] for group in self._optimizer.param_groups
        )

    def _scratch(self) -> Tensor:
        if self._scratch_memory is None:
            self._scratch_memory = torch.empty_like(self.vector.detach())
        return self._scratch_memory


def sgd(rate: float) -> MakeOptimizer:
    """Return a factory of plain gradient descent."""
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


@dataclass(eq=False)
class Rule(ABC):
    """See the module's docstring.

    A subclass is a dataclass of its settings, written as in `settings.py`.  `on_push` decides how
    a contribution is used, `setup` creates the state of the rule.
    """

    start: InitVar[Tensor]
    clients: int
    optimizer: InitVar[MakeOptimizer] = sgd(0.1)  # noqa: RUF009 - makes a function, no state
    gates: Gates | None = None

    clients_optimize: ClassVar[bool] = False  # the clients have the optimizer and its rate

    def __post_init__(self, start: Tensor, optimizer: MakeOptimizer) -> None:
        """`start` [P] are the initial parameters; clients are numbered from 0.

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
        self.counters = RuleCounters()
        self.deviation = 1.0  # for gates
        self.has_fixed_rate = False  # the spec sets the rate, and schedules do not change it
        self.client_rate: float | None = None  # of the clients' optimizers; None: unchanged
        self.returns_views = False  # the receiver copies parameters before the next push
        self._snapshot: Tensor | None = None
        self.setup()

    # --- called by a server -----------------------------------------------------------------------

    def push(self, client: int, contribution: Tensor | None, version: int) -> Reply:
        """Process a contribution, computed with the parameters of `version`.

        The contribution is None if the client's gate withheld it.  Raises SyncError, and changes
        only a counter, for a client that is unknown, gone or waiting, a version that does not exist
        yet, and a contribution of the wrong shape or dtype, or with NaN or infinity.
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
        """Return the newest parameters for a client that restarts, bypassing gates."""
        self.counters.fetches += 1
        self.counters.bytes_fetched += self.parameters.nbytes
        self.on_fetch(client, self.parameters)
        return self.parameters

    @property
    def parameters(self) -> Tensor:
        """The newest parameters [P].  Later steps do not change them, unless `returns_views`."""
        return self.vector.detach() if self.returns_views else self.snapshot()

    def snapshot(self) -> Tensor:
        """Return the newest parameters [P]; later steps do not change them."""
        if self._snapshot is None:
            self._snapshot = self.vector.detach().clone()
        return self._snapshot

    def client(self, number: int, accumulate: int = 1) -> Client:
        """Return the part of the rule for client `number` to run; it can be pickled."""
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
        """Return the state for a checkpoint.

        It lacks contributions that wait for a step, because clients restart.
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

    # --- overridden by subclasses -----------------------------------------------------------------

    def setup(self) -> None:  # noqa: B027 - a rule may be stateless
        """Create the state of the rule.  Called once."""

    @abstractmethod
    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        """Process a contribution [P]; nothing modifies the tensor afterwards."""

    def scale(self, staleness: int) -> float:
        """Return the positive scale of the step for a contribution of this staleness."""
        return 1.0

    def on_leave(self, client: int) -> Iterable[Release]:
        """Return the clients to release, now that `client` is gone."""
        return ()

    def on_join(self, client: int) -> None:  # noqa: B027
        """Handle the return of a client."""

    def on_fetch(self, client: int, parameters: Tensor) -> None:  # noqa: B027
        """Note that `client` has these parameters from now on."""

    # --- used by subclasses -----------------------------------------------------------------------

    def step(self, direction: Tensor, scale: float = 1.0, divisors: Tensor | None = None) -> None:
        """Step against `direction` [P] as the optimizer does for a gradient, but `scale` times as
        far, and divided elementwise by `divisors` [P] if given."""
        self._stepper.step(direction, scale, divisors)
        self.version += 1
        self._snapshot = None

    def release(self, clients: Iterable[int]) -> tuple[Release, ...]:
        """Release clients with the newest parameters, lowest number first."""
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
        # NaN or infinity anywhere makes the sum not finite, a much cheaper test.
        if not math.isfinite(float(contribution.sum())):
            raise SyncError(f"client {client} pushed numbers that are NaN or infinite")
