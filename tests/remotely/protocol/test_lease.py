"""Leases, and the table of times."""

import hypothesis
import hypothesis.strategies as st
import pytest

from remotely.protocol import lease
from remotely.protocol.lease import Leases


def test_a_lease_expires_at_its_deadline() -> None:
    leases = Leases(10)
    leases.renew("worker", now=5)
    assert leases.expired(14.9) == []
    assert leases.expired(15) == ["worker"]
    assert "worker" not in leases


def test_a_renewed_lease_lasts_from_its_renewal() -> None:
    leases = Leases(10)
    leases.renew("early", now=0)
    leases.renew("late", now=1)
    leases.renew("early", now=5)
    assert leases.expired(10.9) == []
    assert leases.expired(14) == ["late"]
    assert leases.expired(15) == ["early"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["renew", "end", "expired"]),
        st.sampled_from("abcde"),
        st.integers(0, 7),
    ),
    max_size=60,
)


@hypothesis.given(steps)
def test_leases_behave_like_a_table_of_deadlines(
    steps: list[tuple[str, str, int]],
) -> None:
    leases, now = Leases(10), 0
    table: dict[str, float] = {}
    for step, holder, pause in steps:
        now += pause
        if step == "renew":
            leases.renew(holder, now)
            table[holder] = now + 10
        elif step == "end":
            leases.end(holder)
            table.pop(holder, None)
        else:
            ended = leases.expired(now)
            deadlines = [table[name] for name in ended]
            assert deadlines == sorted(deadlines)
            assert set(ended) == {name for name, deadline in table.items() if deadline <= now}
            for name in ended:
                del table[name]
        for name, deadline in table.items():
            assert leases.silent_s(name, now) == now - (deadline - leases.lease_s)
        assert len(leases) == len(table)


@pytest.mark.parametrize("time", lease.TIMES, ids=lambda time: time.name)
def test_every_row_of_the_table_is_a_constant_with_a_reason(
    time: lease.Time,
) -> None:
    assert getattr(lease, time.name) == time.seconds > 0
    assert time.reason


def test_the_table_names_every_constant() -> None:
    constants = {name for name in vars(lease) if name.endswith("_S")}
    assert constants == {time.name for time in lease.TIMES}


def test_the_times_are_consistent() -> None:
    assert 4 * lease.BEAT_EVERY_S < lease.LEASE_S, "four beats may be lost"
    assert lease.HEARTBEAT_IVL_S * 2 < lease.HEARTBEAT_TIMEOUT_S < lease.LEASE_S
    assert lease.TICK_EVERY_S <= lease.BEAT_EVERY_S
    assert lease.HEARTBEAT_TIMEOUT_S < 65, "libzmq keeps it as a 16-bit number of tenths"


def test_extended_leases_expire_later_by_that_time() -> None:
    leases = Leases(10.0)
    leases.renew("first", now=0.0)
    leases.renew("second", now=1.0)
    leases.extend(5.0)
    assert leases.silent_s("first", now=5.0) == 0
    assert leases.expired(now=15.5) == ["first"]
    assert leases.expired(now=16.0) == ["second"]


def test_holders_that_were_not_heard_for_a_while_are_known() -> None:
    leases = Leases(lease_s=10)
    for holder, now in (("a", 0.0), ("b", 3.0), ("c", 6.0)):
        leases.renew(holder, now)
    assert leases.unheard(4, now=7.0) == {"a", "b"}
    assert leases.unheard(8, now=7.0) == set()
