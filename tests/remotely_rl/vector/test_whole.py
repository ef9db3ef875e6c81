"""Tests of Whole: a third-party vector environment in a host."""

import functools
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from remotely_rl.environments.multi_agent import MultiAgent
from remotely_rl.vector.host import Host, Settings
from remotely_rl.vector.whole import Whole
from tests.remotely_rl.agent_toys import Party
from tests.remotely_rl.environments.test_contract import doubled


def test_a_wrapper_may_set_the_attributes_of_some_environments_itself() -> None:
    made = doubled(3)
    whole = Whole(made)
    inner: Any = made.env
    whole.set_attr_at([0, 2], "length", [8, 20])
    assert whole.call_at([2, 1], "length") == [20, 6]
    assert inner.get_attr("length") == (4, 3, 10)


def games(count: int, watch: Any, first: int) -> Any:
    return MultiAgent(functools.partial(Party, "ab"))(count)


def shown(count: int, watch: Any, first: int) -> Any:
    return doubled(count)


def kind_of(env: Any) -> str:
    return type(env).__name__


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(("make", "says"), [(shown, "Counting"), (games, "Games")])
def test_a_host_asks_its_environments_or_those_that_are_one_together(make: Any, says: str) -> None:
    host = Host()
    settings = Settings(AutoresetMode.NEXT_STEP, True, True, 0.0, {}, are_whole=True)
    host.make([make] * 3, settings)
    assert host.apply([1], kind_of) == [says]
    host.close()
