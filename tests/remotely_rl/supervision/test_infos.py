"""Tests of merging infos: nothing is lost, in any order of hosts."""

import itertools
from typing import Any

import numpy as np
import pytest

from remotely_rl.supervision import SupervisedVectorEnv, infos
from remotely_rl.supervision.infos import Info
from tests.remotely_rl import toys


def of_host(*each: Info) -> Info:
    """Return the infos of a host, as Gymnasium has them."""
    envs = SupervisedVectorEnv([toys.Counting] * len(each))
    found: Info = {}
    for i, info in enumerate(each):
        found = envs._add_info(found, info, i)
    return found


VALUES: list[tuple[list[Any], Any]] = [
    ([1, 2, 3], np.int64),
    ([1, 0.5, 2], np.float64),
    ([True, 2, 0.5], np.float64),
    ([np.int8(1), np.int32(70_000), np.int8(2)], np.int32),
    ([np.zeros(2), np.ones(2), np.ones(2)], np.float64),
    ([np.zeros(2), np.ones(3), 7], object),
    ([1, "two", 3], object),
    (["one", None, "three"], object),
    ([1, {"a": 2}, 3], object),
]


@pytest.mark.parametrize(("values", "dtype"), VALUES)
def test_merging_keeps_all_values_in_any_order_of_hosts(values: list[Any], dtype: Any) -> None:
    parts = [(i, of_host({"value": value})) for i, value in enumerate(values)]
    for some in itertools.permutations(parts):
        merged = infos.merge(some, 3)
        assert merged["value"].dtype == dtype
        for i, value in enumerate(values):
            assert np.array_equal(infos.of(merged, i)["value"], value)


@pytest.mark.parametrize(("values", "dtype"), VALUES[:-1])
def test_a_host_keeps_all_values(values: list[Any], dtype: Any) -> None:
    found = of_host(*({"value": value} for value in values))
    assert found["value"].dtype == dtype
    for i, value in enumerate(values):
        assert np.array_equal(infos.of(found, i)["value"], value)


def test_missing_infos_are_masked_at_any_depth() -> None:
    one = of_host({"a": {"b": 1}}, {})
    other = of_host({}, {"a": {"b": 0.5, "c": "text"}})
    merged = infos.merge([(2, other), (0, one)], 4)
    assert [infos.of(merged, i) for i in range(4)] == [
        {"a": {"b": 1}},
        {},
        {},
        {"a": {"b": 0.5, "c": "text"}},
    ]
    assert infos.merge([], 4) == {}


def test_rows_without_a_value_have_none_in_an_array_of_objects() -> None:
    found = of_host({"value": 1}, {}, {"value": "two"})
    assert found["value"].tolist() == [1, None, "two"]
    merged = infos.merge([(0, of_host({"value": 1}, {})), (2, of_host({"value": "two"}))], 3)
    assert merged["value"].tolist() == [1, None, "two"]
