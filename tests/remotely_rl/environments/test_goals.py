"""Goals: what environments say of goals other than their own."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from examples.bit_flip import BitFlip
from remotely_rl.environments.goals import Judge, judge_of
from remotely_rl.environments.sources import make
from remotely_rl.errors import TrainingError


class OneByOne(BitFlip):
    """Rewards of one goal at a time, and never a success."""

    compute_terminated: Any = None

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        assert achieved_goal.ndim == 1
        return -float(np.abs(achieved_goal - desired_goal).sum())


class WithoutRewards(BitFlip):
    compute_reward: Any = None


def judge(env: Any) -> Judge:
    return judge_of(make(env, 1), lambda report: pytest.fail(str(report)))


BITS = np.array([[0, 1, 1], [1, 1, 1]], np.float32)


def test_a_judge_asks_the_environment_for_all_goals_at_once() -> None:
    reward, terminated = judge(lambda: BitFlip(3))(BITS, np.ones((2, 3), np.float32))
    assert reward.dtype == np.float32
    assert reward.tolist() == [-1, 0]
    assert terminated is not None
    assert terminated.tolist() == [False, True]


def test_a_function_of_one_goal_is_called_for_each() -> None:
    reward, terminated = judge(lambda: OneByOne(3))(BITS, np.ones((2, 3), np.float32))
    assert (reward.tolist(), terminated) == ([-1, 0], None)


def test_a_judge_is_found_beneath_wrappers() -> None:
    made = judge(lambda: gymnasium.wrappers.TimeLimit(BitFlip(3), 3))
    assert made(BITS, BITS).reward.tolist() == [0, 0]


class Tenfold(gymnasium.Wrapper[Any, Any, Any, Any]):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        return 10 * self.get_wrapper_attr("env").compute_reward(achieved_goal, desired_goal, info)


def test_a_wrapper_may_judge_for_its_environment() -> None:
    made = judge(lambda: Tenfold(BitFlip(3)))
    assert made(BITS, np.ones((2, 3), np.float32)).reward.tolist() == [-10, 0]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("CartPole-v1", "observations with 'achieved_goal' and 'desired_goal' of the same shape"),
        (lambda: WithoutRewards(3), "compute_reward.achieved_goal, desired_goal, info"),
    ],
)
def test_what_an_environment_lacks_for_hindsight_is_named(env: Any, says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        judge(env)
