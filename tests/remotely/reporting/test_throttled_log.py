"""A repeated warning is logged once a minute."""

from remotely.reporting.throttled_log import MAX_SOURCES, SAME_AGAIN_S, ThrottledLog


def test_the_first_warning_is_logged_and_the_next_after_a_minute_with_a_count() -> None:
    told: list[str] = []
    about = ThrottledLog(told.append)
    for now in (0.0, 1.0, 2.0, SAME_AGAIN_S - 0.1):
        about.add("10.0.0.1", "refused a connection from 10.0.0.1", now)
    assert told == ["refused a connection from 10.0.0.1"]
    about.add("10.0.0.1", "refused a connection from 10.0.0.1", 60.0)
    assert told[1:] == ["refused a connection from 10.0.0.1 (and 3 times in the 60 s before)"]
    about.add("10.0.0.1", "refused a connection from 10.0.0.1", 180.0)
    assert told[2:] == ["refused a connection from 10.0.0.1"]


def test_one_source_does_not_hide_another() -> None:
    told: list[str] = []
    about = ThrottledLog(told.append)
    about.add("10.0.0.1", "the first", 0.0)
    about.add("10.0.0.2", "the second", 0.0)
    assert told == ["the first", "the second"]


def test_the_oldest_sources_are_forgotten() -> None:
    told: list[str] = []
    about = ThrottledLog(told.append)
    for number in range(MAX_SOURCES + 100):
        about.add(f"source {number}", "it", 0.0)
    told.clear()
    about.add(f"source {MAX_SOURCES + 99}", "the newest", 1.0)
    about.add("source 0", "the oldest", 1.0)
    assert told == ["the oldest"]
