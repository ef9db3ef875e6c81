"""n-softsync: a step is made of c = N / n contributions, from any clients.

    theta <- theta - rate (1 / c) sum_l g_l / s(tau_l)

Zhang, Gupta, Lian, Liu 2015, https://arxiv.org/abs/1511.05950.  n = 1 is synchronous, n = N
asynchronous.  A client that contributed waits for the step, as in the simulator of the FASGD
paper.  Staleness divides as in SASGD, or not at all (`at_zero=none`).
"""

from dataclasses import dataclass
from typing import Annotated

from remotely_rl.errors import SyncError
from remotely_rl.settings import COUNT
from remotely_rl.sync.rules.staleness_scaled import READINGS, check_reading, divisor
from remotely_rl.sync.rules.synchronous import Synchronous


@dataclass(eq=False)
class SoftSync(Synchronous):
    """See the module's docstring."""

    n: Annotated[int, "steps in the time in which each client pushes once", COUNT] = 1
    at_zero: Annotated[str, "what staleness is divided by: max1, plus1 or none"] = "max1"

    def setup(self) -> None:
        super().setup()
        check_reading(self.at_zero, (*READINGS, "none"))
        if self.n > self.clients:
            raise SyncError(
                f"n must be at most the number of clients, {self.clients}, not {self.n}"
            )

    def scale(self, staleness: int) -> float:
        return 1.0 if self.at_zero == "none" else 1 / divisor(staleness, self.at_zero)

    def complete(self) -> bool:
        # If fewer clients are alive than a step needs, all of them are enough.
        return len(self.pool) >= self.clients // self.n or self.live <= self.pool.keys()
