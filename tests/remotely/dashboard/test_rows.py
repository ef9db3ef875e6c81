"""Tables as the browser asks for them, of clusters that a test makes up."""

from typing import Any

import pytest

from remotely.dashboard.rows import ACTOR_COLUMNS, PAGE, overview, page, snapshot


def actor(name: str, **figures: Any) -> dict[str, Any]:
    return {
        "name": name, "class": "Player", "actor": f"id of {name}", "machine": "m", "worker": "w",
        "pid": 1, "cpus": 1.0, "gpus": 0, "cpu_percent": 0.0, "rss": 0, "calls": 0, "running": 0,
        "method": "", "method_s": 0.0, "queue": 0, "since": 0.0, "owner": None, **figures,
    }  # fmt: skip


def facts(actors: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    machine = {
        "worker": "w", "machine": "m", "host": "h", "address": "", "python": "3.11", "away_s": 0.0,
        "cpus": 8.0, "free_cpus": 6.0, "gpus": 0, "free_gpus": 0, "memory": 100, "free_memory": 90,
    }  # fmt: skip
    return {
        "address": "here", "waiting": 0, "waits": [], "ends": [], "clients": [],
        "machines": [machine], "actors": actors, **more,
    }  # fmt: skip


def names(rows: list[dict[str, Any]], **asked: Any) -> list[str]:
    return [row["name"] for row in page(rows, ("name", "class", "rss"), **asked).rows]


def test_names_are_sorted_as_people_count() -> None:
    rows = [actor(name) for name in ("Player-10", "learner", "Player-2", "player-1", "10", "9")]
    assert names(rows) == ["9", "10", "learner", "player-1", "Player-2", "Player-10"]
    assert names(rows, sort="-name") == names(rows)[::-1]


def test_a_column_of_numbers_is_sorted_either_way() -> None:
    rows = [actor("a", rss=5), actor("b", rss=50), actor("c", rss=7)]
    assert names(rows, sort="rss") == ["a", "c", "b"]
    assert names(rows, sort="-rss") == ["b", "c", "a"]


def test_rows_without_a_value_come_last_in_either_direction() -> None:
    rows = [actor("a", rss=5), actor("b", rss=None), actor("c", rss="?"), actor("d", rss=7)]
    assert names(rows, sort="rss") == ["a", "d", "c", "b"]
    assert names(rows, sort="-rss") == ["c", "d", "a", "b"]


def test_a_search_is_for_all_words_in_any_case() -> None:
    rows = [actor("one", method="step"), actor("two", method="Step"), actor("three")]
    assert names(rows, search="STEP") == ["one", "two"]
    assert names(rows, search="step two") == ["two"]
    found = page(rows, ("name",), search="nothing")
    assert (found.total, found.found, found.rows) == (3, 0, [])


def test_a_page_is_never_larger_than_a_page() -> None:
    rows = [actor(f"a{n}") for n in range(500)]
    assert len(names(rows, limit=10_000)) == PAGE
    assert names(rows, after=498) == ["a498", "a499"]
    assert names(rows, after=500) == []
    assert names(rows, after=-5, limit=1) == ["a0"]


def test_a_column_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no column 'env' to sort by; there are: name, class"):
        page([actor("a")], ACTOR_COLUMNS, sort="-env")


def test_calls_a_second_are_those_since_the_snapshot_before() -> None:
    first = snapshot(facts([actor("a", calls=100), actor("b", calls=7)]), 10.0, None)
    assert [each["calls_per_s"] for each in first.actors] == [0.0, 0.0]
    again = facts([actor("a", calls=150), actor("b", calls=3), actor("new", calls=9)])
    second = snapshot(again, 20.0, first)
    # b has begun another life and counts from zero; how long `new` has been there is not known.
    assert [each["calls_per_s"] for each in second.actors] == [5.0, 0.0, 0.0]
    assert second.calls_by_class == {"Player": 50}
    third = snapshot(facts([]), 30.0, second)
    assert third.calls_by_class == {"Player": 50}  # a counter of Prometheus never falls


def test_the_overview_stays_small_however_many_actors_there_are() -> None:
    many = [actor(f"a{n}", **{"class": f"C{n % 50}", "rss": 2, "running": 1}) for n in range(5000)]
    told = overview(snapshot(facts(many), 0.0, None))
    assert (told["actors"], told["rss"], told["running"]) == (5000, 10_000, 5000)
    assert (told["total_cpus"], told["total_free_cpus"]) == (8.0, 6.0)
    assert len(told["classes"]) == 12
    assert len(str(told)) < 5000
