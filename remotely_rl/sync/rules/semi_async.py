"""Semi-asynchronous: a step is made of n gradients that are not too old; nobody waits.

C is the server's version, X that of who pushes; R counts towards the next step.

    lag = C - X       what arrived is                      R
    0 to `counted`    pooled                               R + 1
    .. to `weak`      pooled                               R
    beyond            dropped                              R

    R = n:  merge the pool into the parameters; C + 1, R = 0, the pool empty
    X < C:  the newest parameters go to who pushed, which calls them C

Between synchronous and asynchronous: no client waits for another, a slow one's late gradient
still helps, one that is too late does no harm, and whoever is behind is brought up to date at
once.  Between two merges each client is at most once not counted, for it then has C: there are
at most (N - 1) + n pushes from one merge to the next, so that no order of arrivals stops it,
for any N and n.  A client that dies costs nothing.

The lag of N clients of the same speed is about N / n, for n of their pushes are a step.
`counted` should be somewhat above that, `weak` half as much again; docs/sync.md says what was
measured.  The thresholds 3 and 5 are the proposal's, for N = 100 and n = 20.

`pull="counts"` is the proposal to the letter: a client counts the parameters that it was sent
(X + 1), so that one that is far behind stays so, however new what it has: most of what slow
clients push is dropped then.

`merge="sum"` steps as many times as far as the pool has gradients, `sum_n` as many as it has
by n: with plain descent their sum, and their sum by n.
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
    weak: Annotated[int, "staleness up to which it is merged; beyond, dropped", NOT_NEGATIVE] = 5
    merge: Annotated[str, "mean of the pool, its sum, or its sum by n: mean, sum, sum_n"] = "mean"
    pull: Annotated[str, "X becomes C on a pull (version), or X + 1 (counts)"] = "version"

    def begin(self) -> None:
        if self.weak < self.counted:
            raise SyncError(
                f"weak ({self.weak}) must be at least counted ({self.counted}): what counts is"
                " merged"
            )
        if self.merge not in MERGES:
            raise SyncError(f"merge must be {', '.join(MERGES)}, not {self.merge!r}")
        if self.pull not in PULLS:
            raise SyncError(f"pull must be {' or '.join(PULLS)}, not {self.pull!r}")
        self.pool: list[tuple[int, Tensor]] = []
        self.towards = 0

    def arrive(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        has = self.version - staleness
        accepted = self._class(staleness)
        if accepted is not Accepted.DROPPED:
            self.pool.append((client, contribution))
        if accepted is Accepted.COUNTED:
            self.towards += 1
        if self.towards >= self.n:
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
        # A client's own stay in the order in which it sent them: the sort is stable.
        parts = [part for _, part in sorted(self.pool, key=lambda one: one[0])]
        scale = {"mean": 1.0, "sum": float(len(parts)), "sum_n": len(parts) / self.n}[self.merge]
        self.step(mean(parts, [1.0] * len(parts)), scale)
        self.pool.clear()
        self.towards = 0
