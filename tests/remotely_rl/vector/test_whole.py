"""Tests of Whole: a third-party vector environment in a host."""

from typing import Any

from remotely_rl.vector.whole import Whole
from tests.remotely_rl.environments.test_contract import doubled


def test_a_wrapper_may_set_the_attributes_of_some_environments_itself() -> None:
    made = doubled(3)
    whole = Whole(made)
    inner: Any = made.env
    whole.set_attr_at([0, 2], "length", [8, 20])
    assert whole.call_at([2, 1], "length") == [20, 6]
    assert inner.get_attr("length") == (4, 3, 10)
