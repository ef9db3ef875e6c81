"""Tests of Replay: it draws exactly the rows that were appended."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely_rl import trees
from remotely_rl.errors import ReplayError
from remotely_rl.experience.replay import Draw, Replay
from remotely_rl.experience.trajectory import Trajectory
from tests.remotely_rl.experience.replay.worlds import NEXT_STEP, SAME_STEP, Oracle, World

GAMMA = 0.9


def assert_is_as_fed(draw: Draw, oracle: Oracle, replay: Replay) -> None:
    """Compare each drawn row with the oracle's."""
    for i, handle in enumerate(draw.rows.tolist()):
        row, column = divmod(handle, replay.width)
        fed = oracle.rows[column][row]
        window = oracle.window(column, row, replay.n_step, replay.gamma, replay.reward_clip)
        assert window is not None, "this row must not be drawn"
        reward, discount, next_obs = window
        assert_same(draw.obs, i, fed.obs)
        assert draw.action[i] == fed.action
        assert draw.version[i] == fed.version
        assert draw.reward[i] == pytest.approx(reward, abs=1e-5)
        assert draw.discount[i] == pytest.approx(discount)
        if discount:
            assert_same(draw.next_obs, i, next_obs)


def assert_same(drawn: Any, index: int, fed: Any) -> None:
    for path, leaf in trees.items(fed):
        assert np.array_equal(trees.at(drawn, path)[index], leaf)


def feed(replay: Replay, oracle: Oracle, trajectory: Trajectory, column: int = 0) -> None:
    replay.append(trajectory, column)
    oracle.append(trajectory, column)


def numbers_of(draw: Draw, replay: Replay) -> set[tuple[int, int]]:
    """Return column and number of each row of a draw."""
    return {(handle % replay.width, handle // replay.width) for handle in draw.rows.tolist()}


def assert_keeps_the_newest(replay: Replay, drawable: set[tuple[int, int]]) -> None:
    """Check that in each column exactly the drawable rows from some row on are drawn."""
    drawn = numbers_of(replay.draw(2_000), replay)  # enough to draw every row
    assert drawn <= drawable
    first = dict(sorted(drawn, reverse=True))  # the lowest row of each column
    assert len(replay) == sum(row >= first.get(column, row + 1) for column, row in drawable)


@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from([NEXT_STEP, SAME_STEP]),
    as_tree=st.booleans(),
    pads_with_zeros=st.booleans(),
    alpha=st.sampled_from([0.0, 0.6]),
    n_step=st.integers(1, 5),
    clip=st.sampled_from([0.0, 0.5]),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
)
def test_draws_are_those_of_a_slow_oracle(
    seed: int,
    mode: str,
    as_tree: bool,
    pads_with_zeros: bool,
    alpha: float,
    n_step: int,
    clip: float,
    lengths: list[int],
) -> None:
    width, length = 3, 20
    world = World(width, seed, mode, pads_with_zeros=pads_with_zeros, as_tree=as_tree)
    replay = Replay(
        width * length, width, world.play(3), n_step, GAMMA, clip, alpha, say=pytest.fail
    )
    oracle = Oracle(width)
    for steps in lengths:
        feed(replay, oracle, world.play(steps))
        drawable = oracle.drawable(length, n_step)
        if len(replay):
            assert_keeps_the_newest(replay, drawable)
            assert_is_as_fed(replay.draw(300), oracle, replay)


@given(seed=st.integers(0, 10_000), mode=st.sampled_from([NEXT_STEP, SAME_STEP]))
def test_short_episodes_only_drop_old_rows(seed: int, mode: str) -> None:
    world = World(2, seed, mode, ends=0.3)
    replay = Replay(2 * 30, 2, world.play(2), n_step=2, gamma=GAMMA)
    oracle = Oracle(2)
    for steps in (1, 2, 3, 5, 8, 13, 21, 34, 55):  # the last are longer than the replay
        feed(replay, oracle, world.play(steps))
        if len(replay):
            draw = replay.draw(200)
            assert numbers_of(draw, replay) <= oracle.drawable(30, 2)
            assert_is_as_fed(draw, oracle, replay)
    assert len(replay) > 5


def test_exactly_the_last_rows_are_stored() -> None:
    world = World(2, ends=0.0)
    replay = Replay(2 * 50, 2, world.play(2), n_step=3, gamma=GAMMA)
    oracle = Oracle(2)
    for _ in range(40):
        feed(replay, oracle, world.play(5))
    assert len(replay) == 2 * (50 - 2)  # the last two windows per column are open
    assert numbers_of(replay.draw(5_000), replay) == oracle.drawable(50, 3)


def test_columns_may_be_fed_separately_and_at_different_speeds() -> None:
    worlds = [World(2, seed=1, as_tree=True), World(3, seed=2, as_tree=True)]
    replay = Replay(5 * 40, 5, worlds[0].play(2), n_step=3, gamma=GAMMA, alpha=0.5)
    oracle = Oracle(5)
    for turn in range(12):
        feed(replay, oracle, worlds[0].play(7), column=0)
        if turn % 3 == 0:
            feed(replay, oracle, worlds[1].play(4), column=2)
    draw = replay.draw(2_000)
    assert {column for column, _ in numbers_of(draw, replay)} == {0, 1, 2, 3, 4}
    assert_is_as_fed(draw, oracle, replay)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_windows_end_where_an_actor_was_replaced(alpha: float) -> None:
    replay = Replay(100, 1, World(1).play(2), n_step=3, gamma=GAMMA, alpha=alpha)
    oracle = Oracle(1)
    for seed in (1, 2, 3):
        world = World(1, seed=seed, ends=0.0, loses_life=0.0)
        world.clock = 1_000 * seed
        world.move(0)
        feed(replay, oracle, world.play(6))
    assert len(replay) == 6 + 6 + 4
    draw = replay.draw(200)
    assert_is_as_fed(draw, oracle, replay)
    last = draw.rows == 5
    assert last.any()
    assert draw.discount[last] == pytest.approx(GAMMA)


@given(
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.0, 0.6]),
    steps=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=3, max_size=10),
)
def test_n_step_may_change_between_draws(
    seed: int, alpha: float, steps: list[tuple[int, int]]
) -> None:
    world = World(2, seed)
    replay = Replay(2 * 25, 2, world.play(3), n_step=3, gamma=GAMMA, alpha=alpha)
    oracle = Oracle(2)
    for count, n_step in steps:
        feed(replay, oracle, world.play(count))
        replay.n_step = n_step
        drawable = oracle.drawable(25, n_step)
        if len(replay):
            assert_keeps_the_newest(replay, drawable)
            assert_is_as_fed(replay.draw(100), oracle, replay)


def test_images_that_are_not_stacks_are_stored_whole_and_reported_once() -> None:
    said: list[str] = []
    zeros = World(2).play(3)
    zeros.obs[:] = 0
    replay = Replay(2 * 30, 2, zeros, n_step=2, gamma=GAMMA, say=said.append)
    oracle = Oracle(2)
    world = World(2, ends=0.0, newest_first=True)
    for _ in range(20):
        feed(replay, oracle, world.play(4))
        if len(replay):
            assert_is_as_fed(replay.draw(100), oracle, replay)
    (sentence,) = said
    assert sentence.startswith("images [4, 2, 2] are not stacks of which each continues the one")
    assert sentence.endswith("stores them whole, 16 bytes a row")


def test_a_discontinuous_stack_is_stored_whole() -> None:
    world = World(1, ends=0.0, loses_life=0.0)
    replay = Replay(100, 1, world.play(3), n_step=2, gamma=GAMMA, say=pytest.fail)
    oracle = Oracle(1)
    trajectory = world.play(30)
    trajectory.obs[14:] = np.roll(trajectory.obs[14:], 1, axis=3)
    feed(replay, oracle, trajectory)
    assert_is_as_fed(replay.draw(300), oracle, replay)
    assert len(replay) == 29


def test_stacks_in_colour_are_recognized() -> None:
    world = World(1, colours=3, ends=0.0)
    replay = Replay(100, 1, world.play(5), n_step=1, gamma=GAMMA, say=pytest.fail)
    assert replay.layout.obs.frame == 3
    oracle = Oracle(1)
    feed(replay, oracle, world.play(30))
    assert_is_as_fed(replay.draw(50), oracle, replay)


def prioritised(priorities: list[float], alpha: float) -> tuple[Replay, np.ndarray[Any, Any]]:
    """Return a replay of one column with these priorities, and its handles in order."""
    world = World(1, ends=0.0, loses_life=0.0)
    replay = Replay(100, 1, world.play(2), n_step=1, gamma=GAMMA, alpha=alpha)
    replay.append(world.play(len(priorities)))
    handles = np.arange(len(priorities))
    replay.update(handles, np.array(priorities))
    return replay, handles


@pytest.mark.parametrize(
    ("alpha", "shares", "weights"),
    [
        (1.0, [0.1, 0.2, 0.3, 0.4], [1, 0.757858, 0.644394, 0.574349]),
        (0.5, [0.1627, 0.230093, 0.281805, 0.325401], [1, 0.870551, 0.802742, 0.757858]),
        (0.6, [0.14823, 0.224674, 0.286555, 0.340542], None),
    ],
)
def test_rows_are_drawn_by_priority_with_importance_weights(
    alpha: float, shares: list[float], weights: list[float] | None
) -> None:
    replay, _ = prioritised([1, 2, 3, 4], alpha)
    draw = replay.draw(20_000, beta=0.4)
    assert np.bincount(draw.rows) / 20_000 == pytest.approx(np.array(shares), abs=2e-4)
    if weights:
        first = [int(np.flatnonzero(draw.rows == row)[0]) for row in range(4)]
        assert draw.weight[first] == pytest.approx(np.array(weights), abs=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_bad_priorities_are_refused_and_change_nothing(wrong: float) -> None:
    replay, handles = prioritised([1, 2, 3, 4], alpha=1.0)
    with pytest.raises(ReplayError, match="priorities must be finite and at least 0, not"):
        replay.update(handles, np.array([9.0, wrong, 9.0, 9.0]))
    draw = replay.draw(20_000)
    assert np.bincount(draw.rows) / 20_000 == pytest.approx(
        np.array([0.1, 0.2, 0.3, 0.4]), abs=2e-4
    )


def test_new_rows_have_the_greatest_priority_so_far() -> None:
    world = World(1, ends=0.0, loses_life=0.0)
    replay = Replay(100, 1, world.play(2), n_step=1, gamma=GAMMA, alpha=1.0)
    replay.append(world.play(2))
    replay.update(np.array([0, 1]), np.array([7.0, 1.0]))
    replay.append(world.play(1))
    draw = replay.draw(15_000)
    assert np.bincount(draw.rows) / 15_000 == pytest.approx(np.array([7, 1, 7]) / 15, abs=2e-4)


def test_updates_of_overwritten_rows_are_ignored() -> None:
    world = World(1, ends=0.0, loses_life=0.0)
    replay = Replay(10, 1, world.play(2), n_step=1, gamma=GAMMA, alpha=1.0)
    replay.append(world.play(10))
    old = replay.draw(50).rows
    replay.append(world.play(10))
    replay.update(old, np.full(50, 1_000.0))
    assert set(replay.draw(1_000).weight) == {1.0}


def test_a_uniform_replay_draws_all_rows_equally_with_weight_1() -> None:
    world = World(4, ends=0.0)
    replay = Replay(4 * 10, 4, world.play(2), n_step=1, gamma=GAMMA)
    replay.append(world.play(10))
    draw = replay.draw(40_000)
    replay.update(draw.rows, np.zeros(40_000))
    counts = np.bincount(draw.rows, minlength=40)
    assert counts.min() > 800
    assert counts.max() < 1_200
    assert set(draw.weight) == {1.0}


def test_a_few_drawable_rows_among_many_are_found() -> None:
    world = World(1, ends=0.0)
    replay = Replay(3_000, 1, world.play(2), n_step=1, gamma=GAMMA)
    trajectory = world.play(3_000)
    trajectory.valid[:] = False
    trajectory.valid[[5, 2_000]] = True
    replay.append(trajectory)
    assert set(replay.draw(50).rows.tolist()) == {5, 2_000}


def test_equal_seeds_draw_equal_rows() -> None:
    world = World(2)
    replays = [Replay(200, 2, world.play(2), alpha=alpha, seed=7) for alpha in (0.0, 0.0, 0.5, 0.5)]
    trajectory = world.play(60)
    for replay in replays:
        replay.append(trajectory)
    uniform, again, by_priority, by_priority_again = (replay.draw(40).rows for replay in replays)
    assert np.array_equal(uniform, again)
    assert np.array_equal(by_priority, by_priority_again)


@pytest.mark.parametrize(("side", "most"), [(84, 7_200), (42, 1_850)])
def test_a_row_of_atari_takes_little_more_than_one_frame(side: int, most: int) -> None:
    obs = np.zeros((2, 1, 4, side, side), np.uint8)
    example = dataclasses.replace(World(1).play(1), obs=obs)
    assert Replay(15_625, 1, example, alpha=0.5).bytes_per_row <= most


class TestBadInput:
    def test_nothing_to_draw(self) -> None:
        world = World(1, ends=0.0, loses_life=0.0)
        replay = Replay(10, 1, world.play(2), n_step=3)
        replay.append(world.play(2))
        with pytest.raises(ReplayError, match="no row to draw yet: a window of 3 steps"):
            replay.draw(4)

    def test_more_memory_than_is_free(self) -> None:
        with pytest.raises(
            ReplayError, match=r"takes [\d.]+ GiB, and [\d.]+ GiB of memory are free"
        ):
            Replay(10**13, 1, World(1).play(2))

    def test_fewer_rows_than_environments(self) -> None:
        with pytest.raises(ReplayError, match="3 rows for 4 environments has no row for each"):
            Replay(3, 4, World(4).play(2))

    def test_columns_that_do_not_exist(self) -> None:
        world = World(2)
        replay = Replay(30, 3, world.play(2))
        with pytest.raises(ReplayError, match="2 environments from column 2 on"):
            replay.append(world.play(2), column=2)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"stack": 3}, r"obs is uint8 \[3, 2, 2\], but .* \[4, 2, 2\]"),
            ({"as_tree": True}, r"has the leaves .*'vector'"),
        ],
    )
    def test_another_layout(self, changes: dict[str, Any], words: str) -> None:
        replay = Replay(30, 2, World(2).play(2))
        with pytest.raises(ReplayError, match=words):
            replay.append(World(2, **changes).play(2))
