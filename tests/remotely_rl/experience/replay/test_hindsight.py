"""Tests of hindsight: rows with goals that were achieved later, as a slow oracle finds them."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely_rl import trees
from remotely_rl.errors import ReplayError, TrainingError
from remotely_rl.experience.replay import Draw, Hindsight, Replay, Sequences
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.supervision.judgement import Judgement
from tests.remotely_rl.experience.replay.test_replay import GAMMA, feed
from tests.remotely_rl.experience.replay.worlds import NEXT_STEP, SAME_STEP, Oracle, Row, World

LENGTH = 40  # of each column


def judge(achieved: np.ndarray, desired: np.ndarray) -> Judgement:
    """Judge by a number that depends on both goals."""
    number = (achieved * 7).sum(1) + 3 * (desired * 7).sum(1)
    return Judgement((number % 11 / 11).astype(np.float32), number % 4 < 1)


def judge_rewards(achieved: np.ndarray, desired: np.ndarray) -> Judgement:
    return judge(achieved, desired)._replace(terminated=None)


def episode_from(rows: list[Row], row: int) -> list[Row]:
    """Return the rows from this one to the last of its episode whose outcome was observed."""
    found = []
    for each in rows[row:]:
        if not each.valid:
            break
        if each.next_begins:  # it reset in this step, and its outcome is lost
            break
        found.append(each)
        if each.terminated or each.truncated:
            break
    return found


def with_goal(rows: list[Row], row: int, goal: np.ndarray, asks: Any) -> list[Row]:
    """Return the column's rows from this one on, as judged by this goal."""
    known = episode_from(rows, row)
    judged = []
    for each in known:
        reward, terminated = asks(each.next_obs["achieved_goal"][None], goal[None])
        ends = each.terminated or each.truncated
        if terminated is None:
            is_over = each.terminated, each.truncated
        else:
            is_over = bool(terminated[0]), ends and not terminated[0]
        judged.append(
            dataclasses.replace(
                each, reward=float(reward[0]), terminated=is_over[0], truncated=is_over[1]
            )
        )
    rest = rows[row + len(known) :]
    if (
        rest
        and rest[0].next_begins
        and not (known and (known[-1].terminated or known[-1].truncated))
    ):
        rest = [dataclasses.replace(rest[0], valid=False), *rest[1:]]
    return judged + rest


def assert_is_as_judged(draw: Draw, oracle: Oracle, replay: Replay, asks: Any = judge) -> int:
    """Compare each drawn row with the oracle's; return how many have goals of later rows."""
    count = 0
    for i, handle in enumerate(draw.rows.tolist()):
        row, column = divmod(handle, replay.width)
        rows, goal = oracle.rows[column], draw.obs["desired_goal"][i]
        seen = Oracle(1)
        seen.rows = [rows[row:]]
        own = rows[row].obs["desired_goal"]
        if not np.array_equal(goal, own):
            count += 1
            later = [each.next_obs["achieved_goal"] for each in episode_from(rows, row)]
            assert any(np.array_equal(goal, each) for each in later)
            seen.rows = [with_goal(rows, row, goal, asks)]
        window = seen.window(0, 0, replay.n_step, replay.gamma, replay.reward_clip)
        assert window is not None
        reward, discount, next_obs = window
        assert draw.reward[i] == pytest.approx(reward, abs=1e-5)
        assert draw.discount[i] == pytest.approx(discount)
        assert_is(draw.obs, i, rows[row].obs | {"desired_goal": goal})
        if discount:
            assert_is(draw.next_obs, i, next_obs | {"desired_goal": goal})
    return count


def assert_is(drawn: Any, index: int, fed: Any) -> None:
    for path, leaf in trees.items(fed):
        assert np.array_equal(trees.at(drawn, path)[index], leaf)


def made(world: World, goals: int = 4, asks: Any = judge, **changes: Any) -> Replay:
    given = {"n_step": 2, "gamma": GAMMA, "say": pytest.fail, **changes}
    rows = world.width * LENGTH
    return Replay(rows, world.width, world.play(2), hindsight=Hindsight(goals, asks), **given)


@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from([NEXT_STEP, SAME_STEP]),
    asks=st.sampled_from([judge, judge_rewards]),
    n_step=st.integers(1, 5),
    alpha=st.sampled_from([0.0, 0.6]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
)
def test_rows_with_goals_of_later_rows_are_those_of_a_slow_oracle(
    seed: int, mode: str, asks: Any, n_step: int, alpha: float, lengths: list[int]
) -> None:
    world = World(3, seed, mode, as_tree=True, has_goals=True)
    replay = made(world, asks=asks, n_step=n_step, alpha=alpha)
    oracle = Oracle(3)
    for steps in lengths:
        feed(replay, oracle, world.play(steps))
        if len(replay):
            assert_is_as_judged(replay.draw(100), oracle, replay, asks)


def test_of_five_rows_four_have_a_goal_that_any_later_row_may_have_achieved() -> None:
    world = World(1, ends=0.0, loses_life=0.0, as_tree=True, has_goals=True)
    replay, oracle = made(world, n_step=1), Oracle(1)
    feed(replay, oracle, world.play(LENGTH))
    draw = replay.draw(20_000)
    is_own = (draw.obs["desired_goal"] <= 0).all(1)
    assert is_own.mean() == pytest.approx(1 / 5, abs=0.01)
    achieved = [tuple(row.next_obs["achieved_goal"]) for row in oracle.rows[0]]
    row = draw.rows[~is_own]
    goal = np.array([achieved.index(tuple(one)) for one in draw.obs["desired_goal"][~is_own]])
    place = (goal - row + 0.5) / (LENGTH - row)  # in the rest of the episode
    assert (goal >= row).all()
    assert np.histogram(place, 4, (0, 1))[0] / len(place) == pytest.approx([0.25] * 4, abs=0.02)


def test_a_goal_is_of_the_same_episode_however_long_it_is() -> None:
    world = World(1, ends=0.0, loses_life=0.0, as_tree=True, has_goals=True)
    replay, oracle = made(world), Oracle(1)
    for steps in (3, LENGTH, 7):  # longer than what is looked at at once
        feed(replay, oracle, world.play(steps))
        assert assert_is_as_judged(replay.draw(200), oracle, replay) > 100


def test_a_judge_sees_no_row_whose_outcome_is_unknown() -> None:
    seen: list[np.ndarray] = []

    def remember(achieved: np.ndarray, desired: np.ndarray) -> Judgement:
        seen.append(achieved)
        return judge(achieved, desired)

    world = World(2, 5, SAME_STEP, as_tree=True, has_goals=True)
    replay, oracle = made(world, asks=remember, n_step=3), Oracle(2)
    feed(replay, oracle, world.play(LENGTH))
    replay.draw(500)
    known = {
        tuple(row.next_obs["achieved_goal"])
        for rows in oracle.rows
        for row in rows
        if not row.next_begins
    }
    assert {tuple(one) for each in seen for one in each} <= known


def as_judged(world: World, steps: int) -> Trajectory:
    """Return steps of which each that was observed is rewarded by its own goals."""
    played = world.play(steps)
    is_known = played.valid & ~played.begins[1:]
    goals = (played.obs[name][1:].reshape(-1, 4) for name in ("achieved_goal", "desired_goal"))
    reward, terminated = map(np.asarray, judge(*goals))
    return dataclasses.replace(
        played,
        reward=np.where(is_known, reward.reshape(is_known.shape), played.reward),
        terminated=np.where(is_known, terminated.reshape(is_known.shape), played.terminated),
    )


def check(judge: Any, *trajectories: Trajectory) -> None:
    hindsight = Hindsight(4, judge)
    for trajectory in trajectories:
        hindsight.compare(trajectory)
    hindsight.check()


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_steps_that_a_judge_judges_alike_pass_but_for_rounding(mode: str) -> None:
    played = as_judged(World(3, mode=mode, as_tree=True, has_goals=True), 50)
    rounded = np.nextafter(played.reward, np.float32(9))
    check(judge, dataclasses.replace(played, reward=rounded))


def distance(achieved: np.ndarray, desired: np.ndarray) -> Judgement:
    return Judgement(-np.abs(achieved - desired).max(1).astype(np.float32), None)


def is_far(achieved: np.ndarray, desired: np.ndarray) -> Judgement:
    far = np.abs(achieved - desired).max(1) >= 0.1
    return Judgement(-far.astype(np.float32), ~far)


@pytest.mark.parametrize(
    ("asks", "near"),
    [
        (distance, 5 + np.arange(61) * 1e-4),  # rounding changes it by up to 0.3 %
        (is_far, np.arange(61) * 0.1),  # a step is as long as the threshold
    ],
)
def test_an_environment_may_compute_in_more_digits_than_the_replay_has(
    asks: Any, near: np.ndarray
) -> None:
    played = World(3, ends=0.0, loses_life=0.0, as_tree=True, has_goals=True).play(20)
    places = near.repeat(4).reshape(61, 4)
    judged = asks(places[:-1], places[1:])
    stored = dict(played.obs)
    for name, goals in (("achieved_goal", places[:-1]), ("desired_goal", places[1:])):
        stored[name][1:] = goals.reshape(20, 3, 4)
    terminated = played.terminated if judged.terminated is None else judged.terminated
    exact = dataclasses.replace(
        played,
        obs=stored,
        reward=judged.reward.reshape(20, 3),
        terminated=terminated.reshape(20, 3),
    )
    assert stored["achieved_goal"].dtype == np.float32
    check(asks, exact)


OTHERWISE = [
    (
        lambda played: {"reward": played.reward + 9},
        r"desired_goal .* had the reward \d\.\d*, and compute_reward says 0\.\d*\. A wrapper",
    ),
    (
        lambda played: {"terminated": ~played.terminated},
        r"had terminated \w+, and compute_terminated says \w+\. A wrapper",
    ),
]


@pytest.mark.parametrize(("change", "says"), OTHERWISE)
def test_steps_most_of_which_a_judge_judges_otherwise_are_refused(change: Any, says: str) -> None:
    world = World(3, as_tree=True, has_goals=True)
    alike, played = as_judged(world, 40), as_judged(world, 60)
    otherwise = dataclasses.replace(played, **change(played))
    check(judge, otherwise, as_judged(world, 60), alike)
    with pytest.raises(TrainingError, match=says):
        check(judge, otherwise, alike)


def test_sequences_have_no_hindsight() -> None:
    world = World(2, as_tree=True, has_goals=True, state_width=3)
    with pytest.raises(ReplayError, match="memory has seen the goal"):
        made(world, sequences=Sequences(4, 2, 2, 3))
