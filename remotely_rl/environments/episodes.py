"""Episodes: their scores, and the metrics that environments report for them.

Numbers in the `info` of an episode's last step are its metrics:

    info["success"], info["is_success"]    success
    info["episode"][NAME]                  NAME, such as r and l of Gymnasium's wrapper

A value that is not a finite number becomes NaN, which the run reports; means ignore it.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

SUCCESS = ("is_success", "success")  # if there are both, the second counts
OWN = "episode"
KEYS = frozenset({*SUCCESS, OWN, *(f"_{key}" for key in (*SUCCESS, OWN))})  # of infos

Infos = Mapping[str, Any]  # of a vector environment, batched as by Gymnasium


class Episode(NamedTuple):
    """A finished episode: the sum of its raw rewards, its steps (of 4 frames in Atari), and its
    environment's metrics."""

    score: float
    length: int
    metrics: Mapping[str, float] = {}


def metrics_of(infos: Infos, i: int) -> dict[str, float]:
    """Return the metrics of environment `i`, whose episode ended in a step with these infos."""
    metrics: dict[str, float] = {}
    if _has(infos, OWN, i):
        own = infos[OWN] if isinstance(infos[OWN], Mapping) else infos[OWN][i]
        if isinstance(own, Mapping):
            batched = own is infos[OWN]
            for name in own:
                is_mask = isinstance(name, str) and name.startswith("_") and name[1:] in own
                if not is_mask and (not batched or _has(own, name, i)):
                    metrics[str(name)] = _number(own[name][i] if batched else own[name])
    for key in SUCCESS:
        if _has(infos, key, i):
            metrics["success"] = _number(infos[key][i])
    return metrics


def means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it."""
    numbers: dict[str, list[float]] = {}
    for episode in episodes:
        for name, number in episode.metrics.items():
            if not math.isnan(number):
                numbers.setdefault(name, []).append(number)
    return {name: float(np.mean(found)) for name, found in numbers.items()}


def _has(infos: Infos, key: str, i: int) -> bool:
    """Whether an environment has set a key of infos; without a mask, all have."""
    if key not in infos:
        return False
    mask = infos.get(f"_{key}")
    return mask is None or bool(mask[i])


def _number(value: Any) -> float:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if not isinstance(value, (Real, np.bool_)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan
