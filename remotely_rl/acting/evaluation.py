"""Evaluation of a trained agent: raw scores of whole games, and the confidence in their mean.

The first N games to end in parallel environments are a biased sample, because short games end
first.  So each environment has a quota of games, and games beyond the quota are ignored.  One that
only crashes would never meet its quota, and ends the evaluation (`CrashesInARow`).
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from remotely_rl.acting.policy import Trained, one_thread
from remotely_rl.environments import Environments, Episode
from remotely_rl.environments.episodes import means
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.crashes import CrashesInARow

T = TypeVar("T")

PROGRESS_EVERY_S = 10.0

# The 97.5 % point of Student's t by degrees of freedom.  Between two entries the lower one applies,
# which makes the interval slightly too wide.  No dependency has these numbers; bootstrap intervals
# would be much too narrow for few games.
STUDENT_T = {
    1: 12.71,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    10: 2.228,
    12: 2.179,
    14: 2.145,
    16: 2.120,
    18: 2.101,
    20: 2.086,
    25: 2.060,
    29: 2.045,
    40: 2.021,
    60: 2.000,
    120: 1.980,
    500: 1.965,
}


@dataclass(frozen=True)
class Evaluation:
    """Games of one agent.  Scores are sums of raw rewards, lengths are in the agent's steps."""

    greedy: bool
    scores: list[float]
    lengths: list[int]
    metrics: dict[str, float] = field(default_factory=dict)  # means of the environments' metrics
    env_steps: int | None = None  # of training so far, if known

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(np.mean(self.scores))

    @property
    def interval(self) -> float:
        """Half the 95 % confidence interval of the mean; NaN for a single game."""
        return half_interval(self.scores)

    @property
    def std(self) -> float:
        """The standard deviation of the scores; NaN for a single game."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else math.nan

    @property
    def mean_length(self) -> float:
        """The mean length."""
        return float(np.mean(self.lengths))

    def __str__(self) -> str:
        count, interval = len(self.scores), self.interval
        mode = "greedy" if self.greedy else "sampled"
        decimals = decimals_of(self.mean, interval)
        mean = f"{mode:<8} {self.mean:,.{decimals}f}"
        metrics = "".join(f", {name} {number:.4g}" for name, number in self.metrics.items())
        if count == 1:
            return f"{mean}, 1 episode, {self.lengths[0]:,} steps{metrics}"
        low, high = min(self.scores), max(self.scores)
        return (
            f"{mean} ± {interval:,.{decimals}f} (95 %), {count:,} episodes,"
            f" from {plain(low)} to {plain(high)}, {self.mean_length:,.0f} steps each{metrics}"
        )


def decimals_of(mean: float, interval: float) -> int:
    """Return the decimals that the interval makes significant, else those of the mean; 1 to 6."""
    if interval > 0:
        return min(6, max(1, -math.floor(math.log10(interval))))
    exact = (n for n in range(1, 6) if math.isclose(round(mean, n), mean, rel_tol=1e-6))
    return next(exact, 6)


def plain(score: float) -> str:
    """Format a score, with the precision of a sum of float32 rewards."""
    return f"{score:,.0f}" if float(score).is_integer() else f"{score:,.6g}"


def half_interval(scores: list[float]) -> float:
    """Return half the 95 % confidence interval of the mean, by Student's t; NaN for one score."""
    if len(scores) < 2:
        return math.nan
    freedom = max(known for known in STUDENT_T if known < len(scores))
    return STUDENT_T[freedom] * float(np.std(scores, ddof=1)) / math.sqrt(len(scores))


def measure(
    agent: Trained,
    episodes: int,
    greedy: bool,
    seed: int = 1000,
    envs: int = 16,
    steps: int | None = None,
) -> Evaluation:
    """Play `episodes` whole games in `envs` environments, the i-th seeded with `seed` + i.

    The games are in the order of the environments.  After `steps` steps in each environment it
    stops with the games that have ended, which is biased towards short ones.  Raises TrainingError
    for numbers out of range, and if no game has ended by then.
    """
    check_at_least(1, episodes=episodes, envs=envs, **({} if steps is None else {"steps": steps}))
    check_at_least(0, seed=seed)
    wanted = quotas(episodes, min(envs, episodes))
    with closing(agent.environments(len(wanted))) as playing:
        return measure_in(agent, playing, wanted, greedy, seed, steps)


def measure_in(
    agent: Trained,
    playing: Environments,
    wanted: Sequence[int],
    greedy: bool,
    seed: int,
    steps: int | None = None,
    shows_progress: bool = True,
) -> Evaluation:
    """Play in existing environments, `wanted` games in each; show progress on stderr.

    Raises TrainingError if an environment only crashes.
    """
    games: list[list[Episode]] = [[] for _ in wanted]
    count = sum(wanted)
    crashes = CrashesInARow()

    def progress(turn: int) -> str:
        ended = sum(map(len, games))
        return f"{ended:,} of {count:,} episodes have ended in {turn * len(wanted):,} steps"

    with one_thread():
        obs = playing.reset(seed)
        playing.pop_episodes()  # drop games from before the reset
        turns = agent.play(playing, obs, greedy, seed, crashes.add)
        rewards: list[float] = []
        if shows_progress:
            turns = with_progress(turns, progress)
        for turn, (_, step) in enumerate(turns, 1):
            rewards.append(float(step.reward.mean()))
            for number, episode in playing.pop_episodes_by_environment():
                crashes.ended(number)
                if len(games[number]) < wanted[number]:
                    games[number].append(episode)
            if sum(map(len, games)) == count or turn == steps:
                break
    if not any(games):
        raise TrainingError(
            f"no episode has ended in {turn:,} steps of {len(wanted)} environments; the mean reward"
            f" of a step was {np.mean(rewards):.6g}"
        )
    played = [episode for of_one in games for episode in of_one]
    return Evaluation(
        greedy,
        [episode.score for episode in played],
        [episode.length for episode in played],
        means(played),
    )


def quotas(episodes: int, envs: int) -> list[int]:
    """Divide `episodes` among `envs` environments, as evenly as possible."""
    each, more = divmod(episodes, envs)
    return [each + (number < more) for number in range(envs)]


def with_progress(
    turns: Iterator[T], progress: Callable[[int], str], clock: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """Yield the turns; print `progress(turns so far)` to stderr every 10 seconds."""
    due = clock() + PROGRESS_EVERY_S
    for number, turn in enumerate(turns, 1):
        yield turn
        if clock() >= due:
            print(progress(number), file=sys.stderr, flush=True)
            due = clock() + PROGRESS_EVERY_S


def check_at_least(lowest: int, **given: int) -> None:
    """Raise TrainingError for an argument that is lower, naming it."""
    for name, number in given.items():
        if number < lowest:
            raise TrainingError(f"{name} must be at least {lowest}, not {number}")
