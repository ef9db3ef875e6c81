"""Tests of SupervisedVectorEnv: crash rows, reports, and recreated environments."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset

from remotely_rl import TrainingError
from remotely_rl.supervision import Cause, CrashReport, SupervisedVectorEnv
from tests.remotely_rl.supervision.fragile import Faults, Fragile

MODES = list(AutoresetMode)


def two(faults: Faults, **settings: Any) -> SupervisedVectorEnv:
    """Make two environments; the second has the faults."""
    return SupervisedVectorEnv([Faults().make, faults.make], **settings)


def test_a_step_that_raises_has_a_crash_row_and_a_report() -> None:
    envs = two(Faults(step_3="raise"))
    envs.reset(seed=1)
    envs.step([0, 0])
    last = envs.step([0, 1])[0]
    obs, reward, terminated, truncated, info = envs.step([0, 2])
    assert np.array_equal(obs[1], last[1])
    assert obs[0, 0] == 3
    assert reward.tolist() == [1, 0]
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
    (report,) = envs.pop_crashes()
    assert info["crash_report"].tolist() == [None, report]
    assert info["_crash_report"].tolist() == [False, True]
    assert envs.pop_crashes() == []
    assert str(report) == (
        "environment 1 raised in step 3, seed 2: RuntimeError: the simulator broke at step 3"
    )
    assert (report.cause, report.actions, report.lived) == (Cause.RAISED, (0, 1, 2), 3)
    assert 'raise RuntimeError(f"the simulator broke' in report.details
    assert "remotely_rl/supervision/vector.py" not in report.details


@pytest.mark.parametrize("episode_seeds", [False, True])
def test_a_crashed_environment_is_recreated_with_another_seed_at_its_next_reset(
    episode_seeds: bool,
) -> None:
    faults = Faults(step_1="raise")
    envs = two(faults, episode_seeds=episode_seeds)
    envs.reset(seed=1)
    envs.step([0, 0])
    obs, reward, terminated, truncated, info = envs.step([0, 0])
    assert obs[:, 0].tolist() == [2, 0]
    assert reward.tolist() == [1, 0]
    assert not (terminated | truncated).any()
    assert info["began"].tolist() == [False, True]
    assert (faults.made, faults.closed) == (2, 1)
    assert faults.seeds[0] == 2
    assert faults.seeds[1] not in (2, None)
    assert not envs.step([0, 0])[3].any()


def test_in_same_step_mode_the_final_observation_of_a_crash_is_the_last_one() -> None:
    envs = two(Faults(step_2="raise"), autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=1)
    last = envs.step([0, 0])[0]
    obs, reward, _, truncated, info = envs.step([0, 0])
    assert [reward[1], truncated[1], obs[1, 0]] == [0, True, 0]
    assert np.array_equal(info["final_obs"][1], last[1])
    (report,) = envs.crashes
    assert info["crash_report"][1] is report
    assert info["final_info"]["crash_report"][1] is report


def test_with_autoreset_disabled_a_crashed_environment_is_recreated_by_reset() -> None:
    faults = Faults(step_1="raise")
    envs = two(faults, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=1)
    envs.step([0, 0])
    with pytest.raises(ValueError, match=r"environments \[1\] have ended: reset them first"):
        envs.step([0, 0])
    obs, _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert obs[:, 0].tolist() == [1, 0]
    assert envs.step([0, 0])[0][:, 0].tolist() == [2, 1]


@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_failed_reset_is_reported_and_retried_in_a_new_environment(fault: str) -> None:
    faults = Faults(reset=fault)
    envs = two(faults)
    obs, _ = envs.reset(seed=1)
    assert obs[:, 0].tolist() == [0, 0]
    assert faults.made == 2
    (report,) = envs.crashes
    assert str(report).startswith("environment 1 r")
    assert " in reset, seed 2: " in str(report)


def test_making_a_new_environment_is_retried() -> None:
    faults = Faults(step_1="raise")
    envs = two(faults)
    envs.reset(seed=1)
    envs.step([0, 0])
    faults.pending["make"] = "raise"
    assert envs.step([0, 0])[0][1, 0] == 0
    assert [report.step for report in envs.crashes] == [1, 0]


def test_an_environment_that_cannot_be_reset_ends_the_run() -> None:
    class Broken(Faults):
        def at(self, where: str) -> str | None:
            if where == "reset":
                raise RuntimeError("no license")
            return None

    with pytest.raises(TrainingError, match=r"environment 1 could not be reset 10 times.*no licen"):
        two(Broken()).reset()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        ("nan observation", Cause.NOT_FINITE, r"2 numbers that are NaN or infinite"),
        ("nan reward", Cause.NOT_FINITE, r"the reward is nan"),
        ("shape", Cause.WRONG_SHAPE, r"the observation has shape (5,); its space has (2,)"),
        ("array of reward", Cause.WRONG_ROW, "the reward is [1.0] of shape (1,): it must be one"),
        ("no reward", Cause.WRONG_ROW, "the reward is None: it must be one number"),
        ("array of ends", Cause.WRONG_ROW, "terminated is [True, True] of shape (2,): it must"),
        ("list of infos", Cause.WRONG_ROW, "`step` returned an info that is a list of 0: it must"),
        (
            "four values",
            Cause.WRONG_ROW,
            "of 4: it must return (observation, reward, terminated, truncated, info); the old",
        ),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
def test_a_row_with_bad_values_is_a_crash(
    mode: AutoresetMode, fault: str, cause: Cause, words: str, ends: bool
) -> None:
    class Ends(Fragile):
        length = 2

    faults = Faults(step_2=fault)
    make = lambda: Ends(faults) if ends else Fragile(faults)
    envs = SupervisedVectorEnv([Faults().make, make], autoreset_mode=mode)
    envs.reset(seed=1)
    last = envs.step([0, 0])[0]
    obs, reward, terminated, truncated, info = envs.step([0, 0])
    (report,) = envs.crashes
    final = info["final_obs"] if mode is AutoresetMode.SAME_STEP else obs
    assert np.array_equal(final[1], last[1])
    assert [reward[1], terminated[1], truncated[1]] == [0.0, False, True]
    assert info["crash_report"][1] is report
    assert report.cause is cause
    assert words in report.what
    assert (report.env, report.step) == (1, 2)
    assert np.isfinite(obs).all()


def test_nan_passes_without_check_finite() -> None:
    envs = two(Faults(step_1="nan observation"), check_finite=False)
    envs.reset()
    assert np.isnan(envs.step([0, 0])[0][1]).all()
    assert envs.crashes == []


def test_a_new_environment_with_other_spaces_is_a_crash() -> None:
    faults = Faults(step_1="raise")

    class Growing(Fragile):
        def __init__(self, faults: Faults):
            super().__init__(faults)
            if faults.made == 2:
                self.action_space = spaces.Discrete(9)

    envs = SupervisedVectorEnv([lambda: Growing(faults)])
    envs.reset()
    envs.step([0])
    envs.step([0])
    assert envs.crashes[-1].cause is Cause.WRONG_SHAPE
    assert "a new environment has different spaces from before" in envs.crashes[-1].what


class Bare(Fragile):
    """`reset` returns the observation alone: two numbers."""

    def reset(self, **given: Any) -> Any:
        return super().reset(**given)[0]


class Seedless(Fragile):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Unspaced(Fragile):
    action_space: Any = None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Bare, r"`reset` returned .* of shape \(2,\): it must return \(observation, info\)"),
        (Seedless, r"takes no seed or no options: define it as `def reset\(self, \*, seed=None"),
        (Unspaced, "has action_space None: set it in `__init__` to one of gymnasium.spaces"),
    ],
)
def test_an_environment_of_the_old_interface_is_refused(kind: type[Fragile], words: str) -> None:
    with pytest.raises(TrainingError, match=f"environment 0.* {words}"):
        SupervisedVectorEnv([lambda: kind(Faults())]).reset()


@pytest.mark.parametrize("wrapped", [False, True])
def test_one_object_for_two_environments_is_refused_even_for_a_new_one(
    wrapped: bool,
) -> None:
    one = Fragile(Faults(step_1="raise"))
    again = lambda: Autoreset(one) if wrapped else one
    with pytest.raises(TrainingError, match="environments 0 and 1 are the same object: the"):
        SupervisedVectorEnv([again, again])

    made = iter([one, Fragile(Faults(step_1="raise")), *[one] * 20])
    envs = SupervisedVectorEnv([lambda: next(made)] * 2)
    envs.reset()
    envs.step([0, 0])
    with pytest.raises(TrainingError, match="environments 0 and 1 are the same object"):
        envs.step([0, 0])


def test_environments_of_different_spaces_are_refused() -> None:
    class Other(Fragile):
        action_space = spaces.Discrete(9)

    with pytest.raises(TrainingError, match="environment 1 has different spaces from the first"):
        SupervisedVectorEnv([Faults().make, lambda: Other(Faults())])


def make() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


class Falls(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises when the cart leaves the middle; the error has the exact position."""

    def step(self, action: Any) -> Any:
        row = super().step(action)
        if abs(row[0][0]) > 0.2:
            raise RuntimeError(f"the pole is at {row[0][0]}")
        return row


def test_every_report_can_be_replayed_up_to_the_crash() -> None:
    envs = SupervisedVectorEnv([lambda: Falls(make())] * 3)
    envs.reset(seed=1)
    envs.action_space.seed(1)
    for _ in range(700):
        envs.step(envs.action_space.sample())
    assert len(envs.crashes) > 5
    for report in envs.crashes:
        with pytest.raises(RuntimeError) as again:
            report.replay(lambda: Falls(make()))
        assert f"RuntimeError: {again.value}" == report.what


def test_resets_of_other_environments_do_not_affect_a_report() -> None:
    class Ends(Fragile):
        length = 2

    faults = Faults(step_6="raise")
    envs = SupervisedVectorEnv(
        [lambda: Ends(Faults()), faults.make], autoreset_mode=AutoresetMode.DISABLED
    )
    envs.reset(seed=[1, 2], options={"level": 3})
    played: list[int] = []
    while not envs.crashes:
        action = len(played) % 4
        played.append(action)
        ended = envs.step([action, action])[2]
        if ended[0]:
            envs.reset(options={"reset_mask": np.array([True, False])})
    (report,) = envs.crashes
    assert (report.env, report.step, report.actions) == (1, 6, tuple(played))
    assert report.options == {"level": 3}
    assert report.is_complete


class Everything(Fragile):
    """Has a tree of all kinds of arrays and text as observation, and a tree of actions."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        image=spaces.Box(0, 255, (2, 3), np.uint8),
        parts=spaces.Tuple((spaces.Discrete(5, start=2), spaces.MultiBinary(3))),
        many=spaces.MultiDiscrete([2, 3]),
        word=spaces.Text(4),
    )
    action_space = spaces.Dict(  # type: ignore[assignment]
        turn=spaces.Box(-1, 1, (2,), np.float32), keys=spaces.Tuple((spaces.Discrete(300),))
    )
    length = 3

    def __init__(self) -> None:
        super().__init__(Faults())
        self.observation_space = copy.deepcopy(self.observation_space)
        self.observation_space.seed(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.asked = options
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"action_mask": np.array([1, 0, 1], np.int8), "n": self.now, "deep": {"t": "x"}}
        return obs, reward, terminated, truncated, {} if self.now == 2 else info

    def _obs(self) -> Any:
        return self.observation_space.sample()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and one.dtype == object:
        return one.shape == other.shape and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("kind", [make, Everything, lambda: gymnasium.make("Pendulum-v1")])
def test_without_episode_seeds_rows_are_those_of_gymnasium(
    mode: AutoresetMode, kind: Callable[[], Any]
) -> None:
    plain = SyncVectorEnv([kind] * 3, autoreset_mode=mode)
    ours = SupervisedVectorEnv([kind] * 3, autoreset_mode=mode, episode_seeds=False)
    plain.action_space.seed(1)
    assert same(plain.reset(seed=3), ours.reset(seed=3))
    for _ in range(60):
        actions = plain.action_space.sample()
        assert same(plain.step(actions), ours.step(actions))
    assert ours.crashes == []
    assert ours.metadata == plain.metadata
    assert ours.observation_space == plain.observation_space


def test_without_copies_the_next_step_does_not_overwrite_the_last_rows() -> None:
    envs = SupervisedVectorEnv([make] * 2, copy=False)
    first, _ = envs.reset(seed=1)
    kept = first.copy()
    second = envs.step([0, 1])[0]
    assert np.array_equal(first, kept)
    assert envs.step([0, 1])[0] is first
    assert second is not first


def test_attributes_are_also_set_in_a_new_environment() -> None:
    faults = Faults(step_1="raise")
    envs = two(faults)
    envs.set_attr("length", [7, 9])
    envs.reset()
    envs.step([0, 0])
    envs.step([0, 0])
    assert faults.made == 2
    assert envs.get_attr("length") == (7, 9)


def test_a_pickled_vector_env_continues_exactly() -> None:
    envs = SupervisedVectorEnv([make] * 2)
    envs.reset(seed=1)
    envs.action_space.seed(1)
    for _ in range(10):
        envs.step(envs.action_space.sample())
    again: SupervisedVectorEnv = pickle.loads(cloudpickle.dumps(envs))
    for _ in range(100):
        actions = envs.action_space.sample()
        assert same(envs.step(actions), again.step(actions))


def test_wrong_numbers_of_actions_seeds_and_values_are_refused() -> None:
    envs = two(Faults())
    with pytest.raises(ValueError, match="3 seeds for 2 environments"):
        envs.reset(seed=[1, 2, 3])
    envs.reset()
    with pytest.raises(ValueError, match="3 actions for 2 environments"):
        envs.step([0, 0, 0])
    with pytest.raises(ValueError, match="1 values for 2 environments"):
        envs.set_attr("length", [1])
    with pytest.raises(TypeError, match="must be a NumPy array"):
        envs.reset(options={"reset_mask": [True, False]})


def test_an_incomplete_report_cannot_be_replayed() -> None:
    report = CrashReport(0, Cause.RAISED, "it broke", step=2_000, seed=1, actions=(0,) * 1_000)
    with pytest.raises(ValueError, match="1,000 of 2,000 actions"):
        report.replay(Faults().make)


def test_system_exit_propagates() -> None:
    class Leaves(Fragile):
        def step(self, action: Any) -> Any:
            raise SystemExit(3)

    envs = SupervisedVectorEnv([lambda: Leaves(Faults())])
    envs.reset()
    with pytest.raises(SystemExit):
        envs.step([0])
