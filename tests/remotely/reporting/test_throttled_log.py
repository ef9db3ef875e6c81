"""A flood of the same complaint is a line a minute."""

from remotely.reporting import throttled_log
from remotely.reporting.throttled_log import EVERY_S, ThrottledLog


def test_the_first_is_told_and_the_next_a_minute_later_with_how_many_were_between() -> None:
    told: list[str] = []
    about = ThrottledLog(told.append)
    for now in (0.0, 1.0, 2.0, EVERY_S - 0.1):
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


def test_a_source_for_each_complaint_does_not_fill_memory() -> None:
    about = ThrottledLog(lambda sentence: None)
    for number in range(throttled_log.MAX_SOURCES + 100):
        about.add(f"source {number}", "it", 0.0)
    assert len(about._told) == throttled_log.MAX_SOURCES
    told: list[str] = []
    about._tell = told.append
    about.add(f"source {throttled_log.MAX_SOURCES + 99}", "it", 1.0)
    assert told == []  # the newest are remembered
