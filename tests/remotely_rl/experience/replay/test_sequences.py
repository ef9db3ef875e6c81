"""Tests of sequences: a replay draws exactly those that a slow oracle finds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely_rl import trees
from remotely_rl.errors import ReplayError
from remotely_rl.experience.replay import Draw, Replay, Sequences
from tests.remotely_rl.experience.replay.test_replay import (
    GAMMA,
    assert_keeps_the_newest,
    feed,
    numbers_of,
)
from tests.remotely_rl.experience.replay.worlds import NEXT_STEP, SAME_STEP, Oracle, Row, World

WIDTH, STATE = 3, 4


def assert_is_as_fed(draw: Draw, oracle: Oracle, replay: Replay, form: Sequences) -> None:
    """Compare each drawn sequence with the oracle's."""
    assert draw.sequences is not None
    of, rows = draw.sequences, {}
    for i, handle in enumerate(draw.rows.tolist()):
        row, column = divmod(handle, replay.width)
        read = oracle.sequence(column, row, form, replay.n_step)
        assert read is not None, "this sequence must not be drawn"
        assert np.array_equal(of.state[i], read[0].state if read[0].valid else np.zeros(STATE))
        assert of.begins[:, i].tolist() == [r.begins for r in read] + [read[-1].next_begins]
        for step in range(len(read) + 1):
            assert_observed(trees.map_tree(lambda x: x[step, i], draw.obs), read, step)  # noqa: B023
        for step in range(form.burn_in, form.burn_in + form.length):
            if read[step].valid:
                rows[step, i] = column, row + step
    assert list(zip(of.step.tolist(), of.column.tolist(), strict=True)) == sorted(rows)
    for m, (column, row) in enumerate(rows[at] for at in sorted(rows)):
        fed = oracle.rows[column][row]
        window = oracle.window(column, row, replay.n_step, replay.gamma, replay.reward_clip)
        assert window is not None
        reward, discount, next_obs = window
        assert (draw.action[m], draw.version[m]) == (fed.action, fed.version)
        assert draw.reward[m] == pytest.approx(reward, abs=1e-5)
        assert draw.discount[m] == pytest.approx(discount)
        if discount:
            at = (of.next_step[m], of.column[m])
            assert_same(trees.map_tree(lambda x: x[at], draw.obs), next_obs)  # noqa: B023


def assert_observed(drawn: Any, read: list[Row], step: int) -> None:
    """Compare an observation; floats that no row reads are zeros."""
    fed = read[step].obs if step < len(read) else read[-1].next_obs
    before = read[step - 1] if step else None
    is_read = (step < len(read) and read[step].valid) or (
        before is not None and before.valid and not before.terminated
    )
    for path, leaf in trees.items(fed):
        is_float = np.issubdtype(leaf.dtype, np.floating)
        assert np.array_equal(trees.at(drawn, path), leaf if is_read or not is_float else 0 * leaf)


def assert_same(drawn: Any, fed: Any) -> None:
    for path, leaf in trees.items(fed):
        assert np.array_equal(trees.at(drawn, path), leaf)


def made(world: World, form: Sequences, **changes: Any) -> Replay:
    given = {"n_step": 2, "gamma": GAMMA, "say": pytest.fail, "sequences": form, **changes}
    return Replay(given.pop("rows", WIDTH * 40), world.width, world.play(2), **given)


@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from([NEXT_STEP, SAME_STEP]),
    as_tree=st.booleans(),
    alpha=st.sampled_from([0.0, 0.6]),
    n_step=st.integers(1, 4),
    clip=st.sampled_from([0.0, 0.5]),
    form=st.builds(
        Sequences, st.integers(1, 9), st.integers(0, 6), st.integers(1, 8), st.just(STATE)
    ),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    gaps=st.sets(st.integers(0, 11), max_size=2),
)
def test_sequences_are_those_of_a_slow_oracle(
    seed: int,
    mode: str,
    as_tree: bool,
    alpha: float,
    n_step: int,
    clip: float,
    form: Sequences,
    lengths: list[int],
    gaps: set[int],
) -> None:
    world = World(WIDTH, seed, mode, as_tree=as_tree, state_width=STATE)
    replay = made(world, form, n_step=n_step, reward_clip=clip, alpha=alpha)
    oracle = Oracle(WIDTH)
    for i, steps in enumerate(lengths):
        if i in gaps:  # a trajectory that was lost on its way, perhaps in the midst of an episode
            world.play(3)
        feed(replay, oracle, world.play(steps))
        if len(replay):
            assert_keeps_the_newest(replay, oracle.sequences(40, form, n_step))
            assert_is_as_fed(replay.draw(20), oracle, replay, form)


def test_one_begins_with_each_trajectory_of_stride_rows() -> None:
    form = Sequences(length=8, burn_in=4, stride=5, width=STATE)
    world, oracle = World(2, ends=0.0, state_width=STATE), Oracle(2)
    replay = made(world, form, rows=2 * 50)
    for _ in range(30):
        feed(replay, oracle, world.play(5))
    assert numbers_of(replay.draw(2_000), replay) == oracle.sequences(50, form, 2)
    assert len(replay) == 2 * 8  # of the last 50 rows; two begin too late for 13 rows


def test_an_n_step_that_is_changed_applies_to_the_next_draw() -> None:
    form = Sequences(length=4, burn_in=2, stride=3, width=STATE)
    world, oracle = World(WIDTH, state_width=STATE), Oracle(WIDTH)
    replay = made(world, form)
    for _ in range(6):
        feed(replay, oracle, world.play(3))
    for n_step in (6, 1, 3):
        replay.n_step = n_step
        assert len(replay) == len(oracle.sequences(40, form, n_step))
        assert_is_as_fed(replay.draw(20), oracle, replay, form)


def test_a_priority_is_nine_tenths_the_largest_error_and_one_tenth_the_mean() -> None:
    form = Sequences(length=2, burn_in=0, stride=2, width=STATE)
    world = World(1, ends=0.0, loses_life=0.0, state_width=STATE)
    replay = made(world, form, n_step=1, alpha=1.0)
    for _ in range(2):
        replay.append(world.play(2))
    draw = replay.draw(2)
    assert draw.sequences is not None
    errors = np.where(draw.rows[draw.sequences.column] == 0, [1.0, 1.0, 3.0, 3.0], 2.0)
    assert draw.priorities(errors) == pytest.approx([0.9 * 3 + 0.1 * 2, 2.0])
    replay.update(draw.rows, draw.priorities(errors))
    drawn = replay.draw(4_900).rows
    assert [(drawn == row).sum() for row in (0, 2)] == pytest.approx([2_900, 2_000], abs=2)


def test_a_state_takes_memory_once_in_a_trajectory() -> None:
    form = Sequences(length=16, burn_in=8, stride=8, width=256)
    world = World(1, state_width=256)
    rows = [
        Replay(10_000, 1, world.play(1), sequences=sequences).bytes_per_row
        for sequences in (None, form)
    ]
    assert rows[1] - rows[0] == pytest.approx(256 * 4 / 8 + 4, rel=0.01)


def test_a_state_of_another_width_and_a_draw_without_a_sequence_are_refused() -> None:
    form = Sequences(length=4, burn_in=2, stride=3, width=STATE)
    replay = made(World(WIDTH, state_width=STATE), form)
    with pytest.raises(ReplayError, match="the state is 5 numbers, but the replay was made for 4"):
        replay.append(World(WIDTH, state_width=5).play(3))
    with pytest.raises(ReplayError, match="no sequence to draw yet: one needs 7 rows"):
        replay.draw(1)
