"""Runs with hindsight: they resume, and say what they cannot do."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiBinary
from numpy.typing import NDArray

from examples.bit_flip import BitFlip
from remotely_rl import Hook, algorithms, dqn
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

pytestmark = pytest.mark.usefixtures("local", "no_curve")


class Bits(BitFlip):
    def __init__(self) -> None:
        super().__init__(4)


class LeveredBits(Bits):
    """A lever selects the bit."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = Box(-1.0, 1.0, (1,))

    def step(self, action: Any) -> Any:
        return super().step(min(3, int((action[0] + 1) * 2)))  # type: ignore[arg-type]


def config_of(name: str, **more: Any) -> Any:
    given: dict[str, Any] = {
        "env": LeveredBits if name in FOR_BOXES else Bits,
        "actors": 1,
        "envs_per_actor": 4,
        "rollout_steps": 8,
        "random_start": 0,
        "learn_from": 32,
        "batch_size": 32,
        "replay_ratio": 4.0,
        "replay_rows": 1_000,
        "hindsight": 4,
        "anneal_steps": 1_000,
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
    }
    return algorithms.named(name).Config(**given | more)


@pytest.mark.parametrize("name", ["dqn", "rainbow", "sac", "td3", "crossq"])
def test_a_run_that_is_resumed_draws_the_same_goals(name: str, tmp_path: Path) -> None:
    toys.assert_resumed_to_the_bit(
        algorithms.named(name).train, config_of(name, total_steps=0), (64, 128), tmp_path
    )


class Judging(Bits):
    """Notes by which rank, and with which number of bits that may differ, goals are judged."""

    seen: ClassVar[set[tuple[int, int]]] = set()
    may_differ = 0

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def reset(self, **kwargs: Any) -> Any:
        self.may_differ_now = self.may_differ  # as hooks.md says
        return super().reset(**kwargs)

    def compute_terminated(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: dict[str, Any]
    ) -> NDArray[np.bool_]:
        if np.ndim(achieved_goal) > 1:
            self.seen.add((self.rank, self.may_differ_now))
        return np.asarray((achieved_goal != desired_goal).sum(-1) <= self.may_differ_now)


class Eases(Hook):
    def on_start(self, session: Any) -> None:
        session.set_env_attr("may_differ", 1)


def test_goals_are_judged_at_a_rank_of_their_own_by_the_attributes_that_hooks_set(
    tmp_path: Path,
) -> None:
    Judging.seen.clear()
    dqn.train(config_of("dqn", env=Judging, total_steps=64), run=tmp_path / "run", hooks=[Eases()])
    assert Judging.seen == {(15_000, 1)}


class Tenfold(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, 10 * float(reward), *rest


class Masked(Bits):
    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return obs, {"action_mask": np.ones(4, np.int8)}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:-1], {"action_mask": np.ones(4, np.int8)}


class ObservedMasked(Masked):
    def __init__(self) -> None:
        super().__init__()
        mask = MultiBinary(4)
        self.observation_space: Any = Dict(**self.observation_space.spaces, action_mask=mask)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs | info, {}

    def step(self, action: Any) -> Any:
        obs, *rest, info = super().step(action)
        return obs | info, *rest, {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"env": Masked}, "without action masks"),
        ({"env": ObservedMasked}, "without action masks"),
        ({"wrappers": [Tenfold]}, "had the reward -10.0, and compute_reward says -1.0"),
        ({"lstm": 8, "sequence_length": 8}, "without a memory"),
        ({"env": toys.Guess}, "hindsight needs observations with 'achieved_goal'"),
    ],
)
def test_what_has_no_hindsight_is_told(change: Any, says: str, tmp_path: Path) -> None:
    config = dataclasses.replace(config_of("dqn", total_steps=64), **change)
    with pytest.raises(TrainingError, match=says):
        algorithms.named("dqn").train(config, run=tmp_path / "run")
