"""Evaluation of the agent in a run folder."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remotely_rl import networks
from remotely_rl.acting.evaluation import Evaluation, measure
from remotely_rl.agents import load
from remotely_rl.environments import Source, Wrapper
from remotely_rl.runs.training import Train

__all__ = ["Evaluation", "as_json", "evaluate", "measure"]


def as_json(evaluations: list[Evaluation]) -> str:
    """Return all numbers as JSON, one object per mode."""
    content = {
        "greedy" if one.greedy else "sampled": {
            "mean": one.mean,
            "interval_95": None if math.isnan(one.interval) else one.interval,
            "min": min(one.scores),
            "max": max(one.scores),
            "mean_length": one.mean_length,
            "metrics": one.metrics,
            "scores": one.scores,
            "lengths": one.lengths,
        }
        for one in evaluations
    }
    return json.dumps(content, indent=2)


def evaluate(
    run: str | Path,
    episodes: int = 30,
    greedy: bool = False,
    which: str = "last",
    *,
    seed: int = 1000,
    model: networks.ModelSource | None = None,
    env: Source | None = None,
    algorithm: Train[Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    envs: int = 16,
    steps: int | None = None,
) -> Evaluation:
    """Play `episodes` whole games with the agent in a run folder; see `agent.load`.

    The same arguments give the same games.  Raises TrainingError.
    """
    agent = load.load(run, which, model, env, algorithm, env_kwargs, wrappers)
    return measure(agent, episodes, greedy, seed, envs, steps)
