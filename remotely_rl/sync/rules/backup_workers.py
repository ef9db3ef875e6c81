"""Backup workers: the first N of N + b gradients of a version make the step.

Chen et al. 2016, Revisiting distributed synchronous SGD, https://arxiv.org/abs/1604.00981.
Synchronous, except that the gradients of the b slowest clients of each round are dropped; these
clients go on with the newest parameters.  The paper evaluates a moving average of the parameters,
which is not implemented here.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.settings import NOT_NEGATIVE
from remotely_rl.sync.reply import Accepted, Reply
from remotely_rl.sync.rules.synchronous import Synchronous


@dataclass(eq=False)
class BackupWorkers(Synchronous):
    """See the module's docstring."""

    backups: Annotated[int, "clients that a step does not wait for", NOT_NEGATIVE] = 1

    def setup(self) -> None:
        super().setup()
        if self.backups >= self.clients:
            raise SyncError(
                f"backups must be fewer than the clients, {self.clients}, not {self.backups}:"
                " no gradient would count"
            )

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        if staleness:
            return Reply(Accepted.DROPPED, self.version, staleness, self.parameters)
        return super().on_push(client, contribution, staleness)

    def complete(self) -> bool:
        return len(self.pool) >= self.clients - self.backups or self.live <= self.pool.keys()
