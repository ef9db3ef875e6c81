"""Evaluating a trained agent: raw scores of whole games, and the confidence in their mean.

Of many games that run side by side, the first N to end are not a fair sample: short ones end
first.  So each environment has a quota of games, and games beyond the quota are not counted.
"""

import json
import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remotely_rl import networks
from remotely_rl.agents import load
from remotely_rl.agents.load import Trained
from remotely_rl.environments import Episode, Source
from remotely_rl.errors import TrainingError
from remotely_rl.runs import training

# The 97.5 % point of Student's t by its degrees of freedom.  Between two entries the lower one
# is used, which makes the interval a little too wide.  A table, because no dependency has these
# numbers; not a bootstrap, whose intervals are much too narrow for few games.
STUDENT_T = {
    1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
    10: 2.228, 12: 2.179, 14: 2.145, 16: 2.120, 18: 2.101, 20: 2.086, 25: 2.060, 29: 2.045,
    40: 2.021, 60: 2.000, 120: 1.980, 500: 1.965,
}  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """Games by one agent.  Scores are sums of raw rewards, lengths are in the agent's steps."""

    greedy: bool
    scores: list[float]
    lengths: list[int]

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(np.mean(self.scores))

    @property
    def interval(self) -> float:
        """Half the 95 % confidence interval of the mean; NaN for a single game."""
        return half_interval(self.scores)

    @property
    def mean_length(self) -> float:
        """The mean length."""
        return float(np.mean(self.lengths))

    def __str__(self) -> str:
        count, interval = len(self.scores), self.interval
        mode = "greedy" if self.greedy else "sampled"
        # As many decimals as the interval makes meaningful, at least one.
        telling = 0 < interval < 1
        decimals = min(6, -math.floor(math.log10(interval))) if telling else 1
        mean = f"{mode:<8} {self.mean:,.{decimals}f}"
        if count == 1:
            return f"{mean}, 1 episode, {self.lengths[0]:,} steps"
        low, high = min(self.scores), max(self.scores)
        return (
            f"{mean} ± {interval:,.{decimals}f} (95 %), {count:,} episodes,"
            f" from {plain(low)} to {plain(high)}, {self.mean_length:,.0f} steps each"
        )


def plain(score: float) -> str:
    """A score, to the digits that a sum of float32 rewards has."""
    return f"{score:,.0f}" if float(score).is_integer() else f"{score:,.6g}"


def as_json(evaluations: list[Evaluation]) -> str:
    """All numbers as JSON: an object for each mode."""
    content = {
        "greedy" if one.greedy else "sampled": {
            "mean": one.mean,
            "interval_95": None if math.isnan(one.interval) else one.interval,
            "min": min(one.scores),
            "max": max(one.scores),
            "mean_length": one.mean_length,
            "scores": one.scores,
            "lengths": one.lengths,
        }
        for one in evaluations
    }
    return json.dumps(content, indent=2)


def half_interval(scores: list[float]) -> float:
    """Half the 95 % confidence interval of the mean, by Student's t; NaN for less than two."""
    if len(scores) < 2:
        return math.nan
    freedom = max(known for known in STUDENT_T if known < len(scores))
    return STUDENT_T[freedom] * float(np.std(scores, ddof=1)) / math.sqrt(len(scores))


def evaluate(
    run: str | Path,
    episodes: int = 30,
    greedy: bool = False,
    which: str = "last",
    *,
    seed: int = 1000,
    model: networks.ModelSource | None = None,
    env: Source | None = None,
    algorithm: training.Train[Any] | None = None,
    envs: int = 16,
    steps: int | None = None,
) -> Evaluation:
    """Plays `episodes` whole games with the agent in a run folder; see `load.load`.

    The same arguments give the same games.  Raises TrainingError.
    """
    return measure(
        load.load(run, which, model, env, algorithm), episodes, greedy, seed, envs, steps
    )


def measure(
    agent: Trained,
    episodes: int,
    greedy: bool,
    seed: int = 1000,
    envs: int = 16,
    steps: int | None = None,
) -> Evaluation:
    """Plays `episodes` whole games in `envs` environments, the i-th from `seed` + i.

    The games are in the order of the environments.  After `steps` steps in each environment it
    stops with the games that have ended, of which more are short than would be.  Raises
    TrainingError for numbers out of range, and if no game has ended by then.
    """
    load.check_at_least(
        1, episodes=episodes, envs=envs, **({} if steps is None else {"steps": steps})
    )
    load.check_at_least(0, seed=seed)
    wanted = quotas(episodes, min(envs, episodes))
    games: list[list[Episode]] = [[] for _ in wanted]

    def how_far(turn: int) -> str:
        ended = sum(map(len, games))
        return f"{ended:,} of {episodes:,} episodes have ended in {turn * len(wanted):,} steps"

    with closing(agent.environments(len(wanted))) as playing, training.one_thread():
        turns = agent.play(playing, playing.reset(seed), greedy, seed)
        rewards: list[float] = []
        for turn, (_, step) in enumerate(load.telling(turns, how_far), 1):
            rewards.append(float(step.reward.mean()))
            for number, episode in playing.pop_episodes_by_environment():
                if len(games[number]) < wanted[number]:
                    games[number].append(episode)
            if sum(map(len, games)) == episodes or turn == steps:
                break
    if not any(games):
        raise TrainingError(
            f"no episode has ended in {turn:,} steps of {len(wanted)} environments; the mean reward"
            f" of a step was {np.mean(rewards):.6g}"
        )
    scores, lengths = zip(*(episode for played in games for episode in played), strict=True)
    return Evaluation(greedy, list(scores), list(lengths))


def quotas(episodes: int, envs: int) -> list[int]:
    """Divides `episodes` among `envs` environments, as evenly as possible."""
    each, more = divmod(episodes, envs)
    return [each + (number < more) for number in range(envs)]
