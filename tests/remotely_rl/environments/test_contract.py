"""The contract of environments from every source."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from remotely_rl import environments
from remotely_rl.environments import Environments, Episode
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.whole import Wrapper
from tests.remotely_rl import space_toys, toys
from tests.remotely_rl.toys import play


@pytest.mark.parametrize("truncates", [False, True])
def test_a_reset_row_is_not_experience(truncates: bool) -> None:
    envs = Environments(toys.vector(toys.Counting, 1, AutoresetMode.NEXT_STEP, truncates=truncates))
    assert envs.reset(1).tolist() == [[0.0]]
    rows = play(envs, 8)
    assert [row.obs.item() for row in rows] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [row.valid.item() for row in rows] == [True, True, True, False] * 2
    assert [row.truncated.item() for row in rows] == [False, False, truncates, False] * 2
    assert [row.terminated.item() for row in rows] == [False, False, not truncates, False] * 2
    assert [row.begins.item() for row in rows] == [False, False, False, True] * 2
    assert envs.pop_episodes() == [Episode(60.0, 3)] * 2
    assert envs.pop_episodes() == []


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("truncates", [False, True])
def test_with_same_step_resets_only_truncated_rows_are_invalid(
    mode: AutoresetMode, truncates: bool
) -> None:
    envs = Environments(toys.vector(toys.Counting, 1, mode, truncates=truncates))
    envs.reset(1)
    rows = play(envs, 6)
    assert [row.obs.item() for row in rows] == [1, 2, 0, 1, 2, 0]
    assert [row.valid.item() for row in rows] == [True, True, not truncates] * 2
    assert [row.begins.item() for row in rows] == [False, False, True] * 2
    assert envs.pop_episodes() == [Episode(60.0, 3)] * 2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_row_that_is_both_terminated_and_truncated_keeps_its_last_reward(
    mode: AutoresetMode,
) -> None:
    envs = Environments(toys.vector(toys.EndsBothWays, 1, mode))
    envs.reset(1)
    last = play(envs, 3)[-1]
    assert (last.terminated.item(), last.truncated.item()) == (True, True)
    assert last.reward.item() == 30.0
    assert last.valid.item()


def test_an_attribute_is_set_in_environments_that_are_watched_as_a_whole() -> None:
    made: list[SyncVectorEnv] = []

    def side_by_side(num_envs: int) -> SyncVectorEnv:
        made.append(toys.vector(toys.Counting, num_envs, AutoresetMode.NEXT_STEP))
        return made[0]

    envs = environments.make(side_by_side, 2, watch=environments.Watch(None, 0.0))
    envs.set_attributes({"length": 7})
    assert made[0].get_attr("length") == (7, 7)


class Doubled(Wrapper):
    """Has twice the length of its environments."""

    def get_attr(self, name: str) -> list[Any]:
        inner: Any = self.env
        return [2 * value for value in inner.get_attr(name)]

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        inner: Any = self.env
        inner.set_attr(name, [value // 2 for value in values])


def doubled(num_envs: int) -> Doubled:
    return Doubled(toys.vector(toys.Counting, num_envs, AutoresetMode.NEXT_STEP))


def test_a_wrapper_of_a_vector_environment_may_set_attributes_itself() -> None:
    made = doubled(2)
    envs = environments.make(lambda num_envs: made, 2, watch=environments.Watch(None, 0.0))
    envs.set_attributes({"length": 8})
    inner: Any = made.env
    assert inner.get_attr("length") == (4, 4)


def test_rewards_of_a_wrong_shape_are_rejected() -> None:
    class Column(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, reward, *rest = super().step(actions)
            return obs, reward[:, None], *rest

    envs = Environments(Column([toys.Counting] * 3))
    envs.reset(1)
    with pytest.raises(TrainingError, match=r"3 environments has rewards of shape \(3, 1\) and en"):
        play(envs, 1)


@pytest.mark.parametrize(
    ("space", "action", "arrives"),
    [
        (spaces.MultiDiscrete([2, 3], start=[1, 5]), [[0, 2], [1, 0]], [[1, 7], [2, 5]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
        (
            spaces.Box(np.array([0, -2], np.float32), np.array([10, 2], np.float32)),
            [[-1.0, 0.5], [9.0, -9.0]],
            [[0, 1], [10, -2]],
        ),
        (spaces.Box(-4, 4, (1, 2), np.float32), [[0.0, 0.5], [-1.0, 1.0]], [[0, 2], [-4, 4]]),
    ],
    ids=str,
)
def test_each_environment_receives_its_own_action(
    space: gymnasium.Space[object], action: list[list[float]], arrives: list[list[float]]
) -> None:
    envs = environments.make(lambda: toys.Echo(space), 2)
    envs.reset(1)
    row = envs.step(np.array(action, envs.actions.dtype))  # the toy checks its action
    assert row.obs.tolist() == arrives


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_decorrelated_environments_are_at_different_steps(mode: AutoresetMode) -> None:
    envs = Environments(toys.vector(toys.Counting, 12, mode, length=9))
    together = envs.reset(1)
    assert len(set(together[:, 0])) == 1
    obs = envs.decorrelate(20, [np.random.default_rng(3)])
    assert len(set(obs[:, 0])) >= 5
    step = envs.step(np.zeros(12, np.int64)).obs  # one step later
    goes_on = (step == obs + 1) | (step == 0)
    assert goes_on.all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_decorrelation_does_not_count_as_episodes(mode: AutoresetMode) -> None:
    envs = Environments(toys.vector(toys.Counting, 12, mode, length=9))
    envs.reset(1)
    envs.decorrelate(30, [np.random.default_rng(3)])  # several games end
    assert envs.pop_episodes() == []
    play(envs, 10)
    games = envs.pop_episodes()
    assert len(games) >= 12
    assert games == [Episode(450.0, 9)] * len(games)  # 10 + 20 + ... + 90: the whole game


def test_decorrelation_is_reproducible() -> None:
    def moments(seed: int) -> list[float]:
        envs = environments.make(lambda: toys.Counting(9), 12)
        envs.reset(1)
        return list(envs.decorrelate(20, [np.random.default_rng(seed)])[:, 0])

    assert moments(3) == moments(3) != moments(4)


def test_decorrelation_needs_resets_of_single_environments() -> None:
    class Together(SyncVectorEnv):
        def reset(self, *, seed: object = None, options: object = None) -> Any:
            if options is not None:
                raise TypeError("no options")
            return super().reset()

    envs = Environments(Together([toys.Counting] * 2))
    envs.reset(1)
    with pytest.raises(TrainingError, match="random_start needs environments that can be reset"):
        envs.decorrelate(5, [np.random.default_rng(1)])


def masked(mode: AutoresetMode, kind: type[space_toys.Masked] = space_toys.Masked) -> Environments:
    return Environments(SyncVectorEnv([kind] * 3, autoreset_mode=mode))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [space_toys.Masked, space_toys.MaskObserved])
def test_a_mask_belongs_to_the_observation_that_is_acted_on(
    mode: AutoresetMode, kind: type[space_toys.Masked]
) -> None:
    envs = masked(mode, kind)
    obs = envs.reset(1)
    ended = np.zeros(3, np.bool_)
    for turn in range(25):
        states: list[Any] = [env.unwrapped for env in envs.vector.envs]
        for mask, state, is_last in zip(obs["action_mask"], states, ended, strict=True):
            if is_last and mode is AutoresetMode.NEXT_STEP:
                assert mask.all()
            else:
                assert mask.tolist() == state.mask.tolist()
        # One loses every fifth turn, so episodes do not end together.
        action = np.array([mask.argmax() for mask in obs["action_mask"]])
        if turn % 5 == 4:
            action[turn % 3] = obs["action_mask"][turn % 3].argmin()
        step = envs.step(action)
        obs, ended = step.obs, step.terminated | step.truncated
    assert len({episode.length for episode in envs.pop_episodes()}) > 1


def test_random_play_and_staggered_starts_take_legal_actions_only() -> None:
    class Strict(space_toys.Masked):
        def judge(self, action: Any) -> tuple[float, bool]:
            assert self.mask[action - 1], "an illegal action"
            return super().judge(action)

    envs = environments.make(Strict, 4)
    shapes = [obs["action_mask"].shape for obs in envs.play_randomly(50, seed=3)]
    assert len(shapes) == 50
    assert shapes[0] == (4, 8)
    assert {mask for _, mask in shapes} == {8}
    envs.reset(1)
    obs = envs.decorrelate(19, [np.random.default_rng(0)])
    assert set(obs["action_mask"].sum(1)) <= {2, 8}  # 8 where an episode is over
    assert envs.pop_crashes() == []


class OneAtATime(toys.Counting):
    """Episodes of two steps in which only the action `now % 3` is legal."""

    action_space = spaces.Discrete(3)

    def __init__(self, tells: str, truncates: bool):
        self.tells = tells
        super().__init__(2, truncates)

    def reset(self, **given: Any) -> Any:
        obs, _ = super().reset(**given)
        return obs, {"action_mask": np.eye(3, dtype=np.int8)[0]}

    def step(self, action: Any) -> Any:
        *row, _ = super().step(action)
        if self.now < 2 or self.tells == "a mask":
            return *row, {"action_mask": np.eye(3, dtype=np.int8)[self.now]}
        return *row, {"action_mask": np.zeros(3, np.int8)} if self.tells == "zeros" else {}


@pytest.mark.parametrize(
    ("tells", "truncates", "mask"),
    [
        ("a mask", True, [0, 0, 1]),  # its value is bootstrapped
        ("a mask", False, [1, 1, 1]),
        ("zeros", True, [1, 1, 1]),
        ("zeros", False, [1, 1, 1]),
        ("nothing", True, [1, 1, 1]),
    ],
)
def test_the_last_observation_of_a_truncated_episode_keeps_its_mask(
    tells: str, truncates: bool, mask: list[int]
) -> None:
    envs = environments.make(lambda: OneAtATime(tells, truncates), 2)
    envs.reset(1)
    play(envs, 1)
    assert envs.step(np.zeros(2, np.int64)).obs["action_mask"].tolist() == [mask] * 2
    assert envs.step(np.zeros(2, np.int64)).obs["action_mask"].tolist() == [[1, 0, 0]] * 2


class Breaks(toys.Counting):
    """An environment that raises in the second step of its first episode."""

    broken = False

    def step(self, action: int) -> Any:
        if self.now == 1 and not type(self).broken:
            type(self).broken = True
            raise RuntimeError("the simulator broke")
        return super().step(action)


def test_a_crash_row_is_not_experience_and_its_episode_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Breaks, "broken", False)
    envs = environments.make(Breaks, 1)
    envs.reset(1)
    rows = play(envs, 7)
    assert [row.obs.item() for row in rows] == [1, 1, 0, 1, 2, 3, 0]
    assert [row.valid.item() for row in rows] == [True, False, False, True, True, True, False]
    assert [row.truncated.item() for row in rows] == [False, True, *5 * [False]]
    assert [row.begins.item() for row in rows] == [False, False, True, *3 * [False], True]
    assert envs.pop_episodes() == [Episode(60.0, 3)]
    (report,) = envs.pop_crashes()
    assert report.step == 2
