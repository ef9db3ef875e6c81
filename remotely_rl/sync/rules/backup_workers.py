"""Backup workers: the first N of N + b gradients of a version make the step.

Chen et al. 2016, Revisiting distributed synchronous SGD, https://arxiv.org/abs/1604.00981.
Synchronous, but for the b slowest of each round: theirs come too late and are dropped, and
they go on with the newest parameters.  (The paper evaluates a moving average of the parameters;
there is none here.)
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.settings import NOT_NEGATIVE
from remotely_rl.sync.rule import Accepted, Reply
from remotely_rl.sync.rules.synchronous import Synchronous


@dataclass(eq=False)
class BackupWorkers(Synchronous):
    """See the module's docstring."""

    backups: Annotated[int, "clients that a step does not wait for", NOT_NEGATIVE] = 1

    def begin(self) -> None:
        super().begin()
        if self.backups >= self.clients:
            raise SyncError(
                f"backups must be fewer than the clients, {self.clients}, not {self.backups}:"
                " nobody's gradient would count"
            )

    def arrive(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        if staleness:
            return Reply(Accepted.DROPPED, self.version, staleness, self.parameters)
        return super().arrive(client, contribution, staleness)

    def complete(self) -> bool:
        return len(self.pool) >= self.clients - self.backups or self.live <= self.pool.keys()
