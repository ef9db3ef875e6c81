"""Infos of vector environments: those of several hosts as one, and those of each environment.

Gymnasium's form: a dict of arrays [n], and for each key `_key`, a mask of those that have it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

Info = dict[str, Any]


def merge(into: Info, part: Info, begin: int, count: int) -> None:
    """Write the infos of a host, whose rows begin at `begin`, into those of all `count` rows."""
    for key, value in part.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value, begin, count)
            continue
        values = np.asarray(value)
        if key not in into:
            fill = None if values.dtype == object else 0
            into[key] = np.full((count, *values.shape[1:]), fill, values.dtype)
        into[key][begin : begin + len(values)] = values


def add(into: Info, key: str, value: Any, i: int, count: int) -> None:
    """Give one environment an entry that holds an object."""
    if key not in into:
        into[key] = np.full(count, None, dtype=object)
        into[f"_{key}"] = np.zeros(count, np.bool_)
    into[key][i] = value
    into[f"_{key}"][i] = True


def of(infos: Info, i: int) -> Info:
    """Return the info of one environment."""
    return dict(_of(infos, i))


def _of(infos: Info, i: int) -> Iterator[tuple[str, Any]]:
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[i]:
            yield key, of(value, i) if isinstance(value, dict) else value[i]
