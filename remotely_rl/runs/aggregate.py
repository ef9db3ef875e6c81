"""Aggregates of runs: the interquartile mean of their returns, with a bootstrap interval.

Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.  One lucky run decides the mean of a few, and
a median ignores most of them.  The interquartile mean leaves out the lowest and the highest
quarter.  Its 95 % interval is that of a stratified bootstrap: the runs of each environment are
drawn again from its own.

These are the measures of the authors' library, rliable, which is no dependency: it wants one old
version of arch, with pandas and statsmodels, and seaborn, for the few lines below.

An environment with fewer than FEWEST runs gives no interval, and neither do fewer than
FEWEST_IN_ALL: drawn again, three or four would reach from the lowest to the highest, which is no
interval of 95 % of so few.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST = 3  # runs of an environment
FEWEST_IN_ALL = 5  # runs of all environments together
REPETITIONS = 2_000
TOGETHER = 100  # repetitions that are computed at once: more take more memory, and no less time
PERCENTILES = (2.5, 97.5)

Numbers = NDArray[np.float64]


class RunsOfMethod(NamedTuple):
    """The last returns of runs of one method in one environment."""

    method: str  # the algorithm, and the settings in which methods differ
    env: str
    returns: Sequence[float]


class Aggregate(NamedTuple):
    """The interquartile mean of a method's runs in one environment, or over all of its own."""

    method: str
    envs: tuple[str, ...]  # several: returns are scaled, see `summarize`
    runs: int
    mean: float
    interval: tuple[float, float] | None  # None: there are too few runs

    @property
    def where(self) -> str:
        """The environment, or how many there are."""
        return self.envs[0] if len(self.envs) == 1 else f"{len(self.envs)} environments, scaled"

    @property
    def spread(self) -> str:
        """The interval, or why there is none."""
        if self.interval is None:
            is_one = len(self.envs) == 1
            few = f"{FEWEST_IN_ALL} runs" if is_one else f"{FEWEST} runs of one"
            return f"fewer than {few}: no interval"
        low, high = self.interval
        return f"95 %: {low:,.4g} to {high:,.4g}"

    def __str__(self) -> str:
        runs = f"{self.runs} run{'s' if self.runs > 1 else ''}"
        return f"{self.method}, {self.where}: IQM {self.mean:,.4g} of {runs} ({self.spread})"


def interquartile_mean(scores: Numbers) -> Numbers:
    """Return the mean over the first axis, without its lowest and its highest quarter.

    A quarter is rounded down to whole scores, as in `scipy.stats.trim_mean`.
    """
    cut = len(scores) // 4
    middle: Numbers = np.sort(scores, 0)[cut : len(scores) - cut].mean(0)
    return middle


def has_interval(runs: Sequence[int]) -> bool:
    """Return whether so many runs of each environment have an interval."""
    return min(runs) >= FEWEST and sum(runs) >= FEWEST_IN_ALL


def interval(strata: Sequence[Numbers], repetitions: int = REPETITIONS) -> Numbers | None:
    """Return the 95 % interval [2, ...] of the interquartile mean of all strata together.

    A stratum holds the scores of one environment's runs, [runs, ...].  Returns None if there are
    too few.  The same scores always have the same interval.
    """
    if not has_interval([len(of) for of in strata]):
        return None
    random = np.random.default_rng(0)
    drawn = [[random.integers(len(of), size=len(of)) for of in strata] for _ in range(repetitions)]
    which = [np.array(of_one) for of_one in zip(*drawn, strict=True)]  # each [repetitions, runs]
    means = []
    for begin in range(0, repetitions, TOGETHER):
        some = slice(begin, begin + TOGETHER)
        scores = [of[chosen[some]] for of, chosen in zip(strata, which, strict=True)]
        means.append(interquartile_mean(np.moveaxis(np.concatenate(scores, 1), 1, 0)))
    ends: Numbers = np.percentile(np.concatenate(means), PERCENTILES, axis=0)
    return ends


def summarize(groups: Iterable[RunsOfMethod]) -> list[Aggregate]:
    """Return the aggregate of each group, and of each method over its environments if it has
    several.

    Returns of several environments have no common unit.  So they are scaled: 0 is the lowest, and 1
    the highest, of all runs that are given of that environment.
    """
    groups = list(groups)
    by_env: dict[str, list[float]] = {}
    for group in groups:
        by_env.setdefault(group.env, []).extend(group.returns)
    methods: dict[str, list[RunsOfMethod]] = {}
    for group in groups:
        methods.setdefault(group.method, []).append(group)
    found = []
    for method, of_method in methods.items():
        found += [_aggregate(method, [group.env], [np.array(group.returns)]) for group in of_method]
        if len(of_method) > 1:
            scaled = [_scaled(group.returns, by_env[group.env]) for group in of_method]
            found.append(_aggregate(method, [group.env for group in of_method], scaled))
    return found


def _scaled(returns: Sequence[float], among: Sequence[float]) -> Numbers:
    low, high = min(among), max(among)
    return (np.array(returns) - low) / ((high - low) or 1.0)


def _aggregate(method: str, envs: Sequence[str], strata: Sequence[Numbers]) -> Aggregate:
    scores, ends = np.concatenate(strata), interval(strata)
    spread = None if ends is None else (float(ends[0]), float(ends[1]))
    return Aggregate(method, tuple(envs), len(scores), float(interquartile_mean(scores)), spread)
