"""Semi-asynchronous: n gradients that are not too old make a step; no client waits.

C is the server's version, X the version of the client that pushes, R the count towards the next
step.

    lag = C - X       the contribution is                  R
    0 to `counted`    pooled                               R + 1
    .. to `weak`      pooled                               R
    beyond            dropped                              R

    R = n:  merge the pool into the parameters; C + 1, R = 0, the pool is emptied
    X < C:  the client receives the newest parameters, and its version becomes C

This lies between synchronous and asynchronous.  No client waits for another, a late gradient
still helps, one that is too late does no harm, and a stale client receives the current parameters
immediately.  Between two merges each client pushes at most once without being counted, because it
then has version C.  So there are at most (N - 1) + n pushes between merges, for any N, n and order
of arrivals.  A client that dies delays nothing.

The lag of N clients of the same speed is about N / n, because n of their pushes make a step.  Set
`counted` somewhat above that, and `weak` half as much again; docs/sync.md has measurements.  The
thresholds 3 and 5 are those of the proposal, for N = 100 and n = 20.

`pull="counts"` follows the proposal to the letter: a client counts the parameters that it
received (X + 1).  A client that is far behind then stays behind, however new its parameters, and
most of what slow clients push is dropped.

`merge="sum"` scales the step of the mean by the number of gradients in the pool, `sum_n` by that
number divided by n.  With plain descent these are the sum of the pool, and the sum divided by n.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.settings import COUNT, NOT_NEGATIVE
from remotely_rl.sync.rule import Accepted, Reply, Rule
from remotely_rl.sync.rules.synchronous import mean

MERGES = ("mean", "sum", "sum_n")
PULLS = ("version", "counts")


@dataclass(eq=False)
class SemiAsync(Rule):
    """See the module's docstring."""

    n: Annotated[int, "counted gradients that make a step", COUNT] = 4
    counted: Annotated[int, "staleness up to which a gradient counts", NOT_NEGATIVE] = 3
    weak: Annotated[int, "staleness up to which it is merged, else dropped", NOT_NEGATIVE] = 5
    merge: Annotated[str, "step along the pool's mean, sum, or sum / n: mean, sum, sum_n"] = "mean"
    pull: Annotated[str, "X becomes C on a pull (version), or X + 1 (counts)"] = "version"

    def setup(self) -> None:
        if self.weak < self.counted:
            raise SyncError(
                f"weak ({self.weak}) must be at least counted ({self.counted}): what is counted is"
                " merged"
            )
        if self.merge not in MERGES:
            raise SyncError(f"merge must be {', '.join(MERGES)}, not {self.merge!r}")
        if self.pull not in PULLS:
            raise SyncError(f"pull must be {' or '.join(PULLS)}, not {self.pull!r}")
        self.pool: list[tuple[int, Tensor]] = []
        self.count = 0

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        has = self.version - staleness
        accepted = self._class(staleness)
        if accepted is not Accepted.DROPPED:
            self.pool.append((client, contribution))
        if accepted is Accepted.COUNTED:
            self.count += 1
        if self.count >= self.n:
            self._merge()
        if has == self.version:
            return Reply(accepted, self.version, staleness)
        called = self.version if self.pull == "version" else has + 1
        return Reply(accepted, called, staleness, self.parameters)

    def _class(self, staleness: int) -> Accepted:
        if staleness <= self.counted:
            return Accepted.COUNTED
        return Accepted.WEAK if staleness <= self.weak else Accepted.DROPPED

    def _merge(self) -> None:
        # The sort is stable: each client's contributions stay in order.
        parts = [part for _, part in sorted(self.pool, key=lambda one: one[0])]
        scale = {"mean": 1.0, "sum": float(len(parts)), "sum_n": len(parts) / self.n}[self.merge]
        self.step(mean(parts, [1.0] * len(parts)), scale)
        self.pool.clear()
        self.count = 0
