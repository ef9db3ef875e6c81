"""Tests of the semi-asynchronous rule."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from tests.remotely_rl.sync.quadratic import descent, play, round_robin, start


def test_semi_async_gives_the_trace_computed_by_hand() -> None:
    played = play("semi_async:n=2", 3, [0, 1, 2, 0, 0, 1, 2, 2])

    assert played.staleness == [0, 0, 1, 1, 0, 1, 2, 0]
    assert played.w[1::2] == pytest.approx([0.9, 0.8, 0.715, 0.63425], abs=1e-12)
    assert played.pulls == [False, True, True, True, False, True, True, True]
    assert played.rule.version == 4


def test_old_gradients_are_weak_and_older_ones_are_dropped() -> None:
    order = [0] * 4 + [1] + [0] * 5 + [1] + [0] * 6 + [1, 1]
    played = play("semi_async:n=1", 2, order)
    of_the_slow = [
        (reply.staleness, reply.accepted.value)
        for reply, client in zip(played.replies, order, strict=True)
        if client == 1
    ]

    assert of_the_slow == [(4, "weak"), (5, "weak"), (6, "dropped"), (0, "counted")]
    assert played.w[:4] == pytest.approx([0.9, 0.81, 0.729, 0.6561], abs=1e-12)
    assert played.w[5] == pytest.approx(0.573295, abs=1e-12)
    assert played.rule.version == 16


def test_one_client_is_descent_on_n_gradients_and_never_stale() -> None:
    played = play("semi_async:n=4", 1, [0] * 20)

    assert played.w[3::4] == pytest.approx(descent(5), abs=1e-15)
    assert set(played.staleness) == {0}


def test_with_n_equal_to_the_clients_staleness_is_at_most_1() -> None:
    played = play("semi_async:n=4,counted=99,weak=99", 4, round_robin(4, 40))

    assert sorted(set(played.staleness)) == [0, 1]


@pytest.mark.parametrize(("merge", "scale"), [("mean", 1.0), ("sum", 3.0), ("sum_n", 1.5)])
def test_merge_sets_the_scale_of_a_step(merge: str, scale: float) -> None:
    rule = sync.make(f"semi_async:n=2,counted=0,weak=9,merge={merge}", start(), 3, sync.sgd(0.1))
    for client in (0, 1):
        rule.push(client, start(), 0)
    before = float(rule.parameters)
    rule.push(2, start(), 0)  # weak
    rule.push(0, start(), 1)
    rule.push(1, start(), 1)

    assert float(rule.parameters) == pytest.approx(before - 0.1 * scale)


orders = st.integers(1, 8).flatmap(
    lambda clients: st.tuples(
        st.just(clients), st.lists(st.integers(0, clients - 1), min_size=1, max_size=200)
    )
)


@settings(deadline=None)
@given(orders, st.integers(1, 10), st.integers(0, 4), st.integers(0, 4))
def test_no_order_prevents_merges(
    drawn: tuple[int, list[int]], n: int, counted: int, more: int
) -> None:
    clients, order = drawn
    played = play(f"semi_async:n={n},counted={counted},weak={counted + more}", clients, order)

    since = 0
    version = 0
    for reply in played.replies:
        since += 1
        assert reply.staleness >= 0
        assert not reply.waits
        if reply.version > version:
            assert since <= (clients - 1) + n
            version, since = reply.version, 0


def test_with_pull_counts_a_stale_client_stays_stale() -> None:
    order = [0] * 10 + [1] * 5

    fresh = play("semi_async:n=1", 2, order)
    literal = play("semi_async:n=1,pull=counts", 2, order)

    assert fresh.accepted[10:] == ["dropped", "counted", "counted", "counted", "counted"]
    assert literal.accepted[10:] == ["dropped"] * 5
    assert literal.staleness[10:] == [10, 9, 8, 7, 6]


def test_the_proposals_settings_count_and_drop_the_expected_shares() -> None:
    played = play("semi_async:n=20", 100, round_robin(100, 40_000))
    late = played.accepted[20_000:]

    assert played.rule.version == 1344
    assert late.count("counted") / len(late) == pytest.approx(0.672, abs=5e-4)
    assert late.count("dropped") == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("semi_async:n=0", "n must be at least 1"),
        ("semi_async:counted=4,weak=3", r"weak \(3\) must be at least counted \(4\)"),
        ("semi_async:counted=-1", "counted must be at least 0"),
        ("semi_async:merge=median", "merge must be mean, sum, sum_n, not 'median'"),
        ("semi_async:pull=push", "pull must be version or counts, not 'push'"),
    ],
)
def test_settings_that_cannot_progress_are_refused(spec: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        sync.make(spec, start(), 2)


def test_semi_async_does_not_wait_for_a_dead_client() -> None:
    rule = sync.make("semi_async:n=2", start(), 3)
    rule.leave(2)
    rule.push(0, start(), 0)
    rule.push(1, start(), 0)

    assert rule.version == 1
    assert math.isfinite(float(rule.parameters))
