"""Infos of vector environments: merging those of several hosts, and extracting single ones.

They have Gymnasium's form: a dict of arrays [n], and for each key a mask `_key` of the environments
that have it.

Values under one key may differ in type.  Gymnasium casts them to the dtype of the first.  Here an
array has the numpy dtype that holds all of them, or object if shapes differ or values are not
numbers.  So the result does not depend on which host answers first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Info = dict[str, Any]

NUMERIC_KINDS = "biufc"  # of dtypes


def merge(parts: Sequence[tuple[int, Info]], count: int) -> Info:
    """Merge the infos of hosts into those of all `count` rows; a part is (first row, infos)."""
    parts = sorted(parts, key=lambda part: part[0])
    merged: Info = {}
    for key in dict.fromkeys(key for _, infos in parts for key in infos):
        having = [(begin, infos) for begin, infos in parts if key in infos]
        if all(isinstance(infos[key], dict) for _, infos in having):
            merged[key] = merge([(begin, infos[key]) for begin, infos in having], count)
            continue
        arrays = [(begin, _array(infos, key), infos.get(f"_{key}")) for begin, infos in having]
        dtype, shape = arrays[0][1].dtype, arrays[0][1].shape[1:]
        for _, array, _ in arrays[1:]:
            dtype, shape = _common(dtype, shape, array.dtype, array.shape[1:])
        into = merged[key] = _empty(count, shape, dtype)
        for begin, array, mask in arrays:
            _copy(into[begin : begin + len(array)], array, mask)
    return merged


def with_room_for(array: NDArray[Any], mask: NDArray[np.bool_], value: Any) -> NDArray[Any]:
    """Return the array, or a copy of a wider dtype, into which a value can be written."""
    if array.dtype == object:
        return array
    kind = type(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        dtype, shape = value.dtype, value.shape
    else:
        dtype, shape = np.dtype(kind if kind in (bool, int, float) else object), ()
    if dtype == array.dtype and shape == array.shape[1:]:
        return array
    dtype, shape = _common(array.dtype, array.shape[1:], dtype, shape)
    wider = _empty(len(array), shape, dtype)
    _copy(wider, array, mask)
    return wider


def add(into: Info, key: str, value: Any, i: int, count: int) -> None:
    """Set an object as one environment's entry under a key."""
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


def _common(
    dtype: np.dtype[Any], shape: tuple[int, ...], other: np.dtype[Any], others: tuple[int, ...]
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape of elements that hold values of either."""
    if shape == others and dtype == other:
        return dtype, shape
    if shape == others and dtype.kind in NUMERIC_KINDS and other.kind in NUMERIC_KINDS:
        return np.result_type(dtype, other), shape
    return np.dtype(object), ()


def _empty(count: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.full((count, *shape), 0 if dtype != np.dtype(object) else None, dtype)


def _array(infos: Info, key: str) -> NDArray[Any]:
    """Return the values under a key, dicts as objects: on other hosts they are not dicts."""
    value = infos[key]
    if not isinstance(value, dict):
        return np.asarray(value)
    mask = infos[f"_{key}"]
    array = np.full(len(mask), None, object)
    for i in np.flatnonzero(mask).tolist():
        array[i] = of(value, i)
    return array


def _copy(into: NDArray[Any], array: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
    if into.dtype != object or array.dtype == object or mask is None:
        into[:] = array
        return
    for i in np.flatnonzero(mask).tolist():
        into[i] = array[i]
