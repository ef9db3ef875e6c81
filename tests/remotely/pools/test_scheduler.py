"""The pace of a pool's member: how many calls it is sent ahead."""

from remotely.pools.scheduler import AHEAD_S, MOST_AHEAD, Pace

MANY = 10_000


def paced(seconds: float, calls: int = 50, at_a_time: int = 1) -> Pace:
    pace = Pace(at_a_time)
    for i in range(calls):
        pace.note(i * seconds, (i + 1) * seconds)
    return pace


def test_a_new_member_gets_one_call_or_as_many_as_it_serves_at_a_time() -> None:
    assert Pace().limit(MANY, 1) == 1
    assert Pace(at_a_time=4).limit(MANY, 1) == 4


def test_a_member_is_sent_work_for_a_limited_time() -> None:
    assert paced(AHEAD_S / 4.5).limit(MANY, 1) == 4
    assert paced(AHEAD_S * 2).limit(MANY, 1) == 1
    assert paced(1e-7).limit(MANY, 1) == MOST_AHEAD


def test_near_the_end_no_member_gets_more_than_its_share() -> None:
    quick = paced(1e-6)
    assert quick.limit(30, 10) == 3
    assert quick.limit(31, 10) == 4
    assert quick.limit(0, 10) == 1


def test_a_call_that_was_sent_ahead_is_timed_from_the_reply_before_it() -> None:
    ahead = Pace()
    for answered in range(1, 50):  # all were sent at the beginning, and each takes a second
        ahead.note(0.0, float(answered))
    assert ahead.limit(MANY, 1) == 1


def test_a_member_that_slows_down_is_sent_less() -> None:
    pace = paced(AHEAD_S / 60)
    before = pace.limit(MANY, 1)
    now = 100.0
    for _ in range(20):
        pace.note(now, now + AHEAD_S)
        now += AHEAD_S
    assert before > 50
    assert pace.limit(MANY, 1) == 1
