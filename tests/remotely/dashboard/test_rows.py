"""The tables for the browser, over made-up clusters."""

from typing import Any

import msgspec
import pytest

from remotely.dashboard.prometheus import text
from remotely.dashboard.rows import ACTOR_COLUMNS, PAGE, overview, page, snapshot
from remotely.reporting.cluster_status import (
    ActorStatus,
    ClusterStatus,
    MachineStatus,
    WaitStatus,
)


def actor(name: str, **figures: Any) -> dict[str, Any]:
    known = {"name": name, "class": "Player", "actor": f"id of {name}", "machine": "m", "pid": 1}
    place = {"worker": "w", "cpus": 1.0, "gpu_ids": [], "memory_limit": 0, "since": 0.0}
    calls = {"calls": 0, "running": 0, "method": "", "method_s": 0.0, "queue": 0}
    return {
        **known,
        **place,
        **calls,
        "cpu_percent": 0.0,
        "rss": 0,
        "memory": 0,
        "owner": None,
        **figures,
    }


def status(actors: list[dict[str, Any]]) -> ClusterStatus:
    machine = MachineStatus(
        worker="w",
        machine="m",
        host="h",
        address="",
        python="3.11",
        cpus=8.0,
        free_cpus=6.0,
        gpus=0,
        free_gpus=0,
        memory=100,
        free_memory=90,
    )
    return ClusterStatus(
        address="here",
        waiting=0,
        clients=[],
        machines=[machine],
        actors=msgspec.convert(actors, list[ActorStatus]),
    )


def names(rows: list[dict[str, Any]], **asked: Any) -> list[str]:
    return [row["name"] for row in page(rows, ("name", "class", "memory"), **asked).rows]


def test_numbers_within_names_sort_as_numbers() -> None:
    rows = [actor(name) for name in ("Player-10", "learner", "Player-2", "player-1", "10", "9")]
    assert names(rows) == ["9", "10", "learner", "player-1", "Player-2", "Player-10"]
    assert names(rows, sort="-name") == names(rows)[::-1]


def test_rows_are_sorted_in_either_order_with_those_without_a_value_last() -> None:
    rows = [
        actor("a", memory=5),
        actor("b", memory=None),
        actor("c", memory="?"),
        actor("d", memory=7),
    ]
    assert names(rows, sort="memory") == ["a", "d", "c", "b"]
    assert names(rows, sort="-memory") == ["c", "d", "a", "b"]


def test_lists_and_mappings_sort_as_their_text() -> None:
    rows = [
        actor("a", memory={"x": 1}),
        actor("b", memory=["x"]),
        actor("c", memory={}),
        actor("d", memory=7),
    ]
    assert names(rows, sort="memory") == ["d", "b", "a", "c"]


def test_a_search_matches_all_words_in_any_case() -> None:
    rows = [actor("one", method="step"), actor("two", method="Step"), actor("three")]
    assert names(rows, search="STEP") == ["one", "two"]
    assert names(rows, search="step two") == ["two"]
    found = page(rows, ("name",), search="nothing")
    assert (found.total, found.found, found.rows) == (3, 0, [])


def test_a_page_has_at_most_200_rows() -> None:
    rows = [actor(f"a{n}") for n in range(500)]
    assert len(names(rows, limit=10_000)) == PAGE
    assert names(rows, after=498) == ["a498", "a499"]
    assert names(rows, after=500) == []
    assert names(rows, after=-5, limit=1) == ["a0"]


def test_an_unknown_column_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no column 'env' to sort by; there are: name, class"):
        page([actor("a")], ACTOR_COLUMNS, sort="-env")


def test_an_overview_makes_no_rows() -> None:
    now = snapshot(status([actor("a", running=2), actor("b")]), 10.0, None)
    assert overview(now)["running"] == 2
    assert "actors" not in vars(now)  # they take longer than all of the overview
    assert now.actors is now.actors


def test_the_overview_lists_sick_machines_with_their_last_error() -> None:
    found = status([])
    sick = msgspec.structs.replace(found.machines[0], sick="no space left", sick_s=7.0)
    found = msgspec.structs.replace(found, machines=[*found.machines, sick])
    (shown,) = overview(snapshot(found, 10.0, None))["sick"]
    assert shown == {"machine": "m", "sick": "no space left", "sick_s": 7.0}
    assert "remotely_machines_sick 1.0" in text(snapshot(found, 10.0, None)).decode()


def test_the_overview_counts_the_requests_that_wait_for_reasons_it_does_not_list() -> None:
    listed = msgspec.convert({"class": "C", "count": 2, "waits_s": 1.0, "why": ""}, WaitStatus)
    found = msgspec.structs.replace(status([]), waiting=5, waits=[listed])
    assert overview(snapshot(found, 10.0, None))["more_wait"] == 3


def test_the_overview_lists_machines_that_are_drained() -> None:
    found = status([])
    drained = msgspec.structs.replace(found.machines[0], drains_s=60.0)
    now = snapshot(msgspec.structs.replace(found, machines=[drained]), 10.0, None)
    assert overview(now)["draining"] == [{"machine": "m", "drains_s": 60.0}]
    assert "remotely_machines_draining 1.0" in text(now).decode()


def test_the_main_method_of_an_actor_is_the_one_that_took_the_most_time() -> None:
    methods = [
        {"method": "step", "calls": 9, "mean_s": 0.5, "p99_s": 0.8},
        {"method": "get", "calls": 90, "mean_s": 0.001, "p99_s": 0.002},
    ]
    now = snapshot(status([actor("a", methods=methods), actor("b")]), 0.0, None)
    seen = [(a["p99_method"], a["mean_s"], a["p99_s"]) for a in now.actors]
    assert seen == [("step", 0.5, 0.8), ("", None, None)]
    assert [row["name"] for row in page(now.actors, ACTOR_COLUMNS, "-p99_s").rows] == ["a", "b"]


def test_the_actor_that_is_stuck_in_a_call_is_the_slowest() -> None:
    step = {"method": "step", "calls": 9, "mean_s": 0.5, "p99_s": 0.8}
    actors = [
        actor("slow", methods=[step], running=1, method="learn", method_s=0.7),
        actor("stuck", running=1, method="learn", method_s=60.0),
        actor("idle"),
    ]
    found = page(snapshot(status(actors), 0.0, None).actors, ACTOR_COLUMNS, "-p99_s").rows
    assert [(row["name"], row["p99_s"], row["p99_method"], row["p99_runs"]) for row in found] == [
        ("stuck", 60.0, "learn", True),
        ("slow", 0.8, "step", False),
        ("idle", None, "", False),
    ]


def test_items_of_streams_are_no_method() -> None:
    items = {"method": "(an item of a stream)", "calls": 9, "mean_s": 9.0, "p99_s": 9.0}
    closest = {"method": "closest", "calls": 1, "mean_s": 0.5, "p99_s": 0.8}
    now = snapshot(status([actor("a", methods=[items, closest])]), 0.0, None)
    (row,) = now.actors
    assert row["p99_method"] == "closest"
    assert "an item" not in text(now).decode()


def test_prometheus_has_what_the_calls_of_each_class_took() -> None:
    slow = {"method": "step", "calls": 1, "mean_s": 0.4, "p99_s": 0.8}
    fast = {"method": "step", "calls": 3, "mean_s": 0.2, "p99_s": 0.3}
    both = [
        actor("a", methods=[slow], busy_percent=50.0, received=7, sent=1),
        actor("b", methods=[fast], busy_percent=25.0, received=1),
    ]
    lines = text(snapshot(status(both), 0.0, None)).decode().splitlines()
    for line in (
        'remotely_busy{class="Player"} 0.75',
        'remotely_bytes{class="Player",way="received"} 8.0',
        'remotely_bytes{class="Player",way="sent"} 1.0',
        'remotely_method_seconds{class="Player",figure="mean",method="step"} 0.25',
        'remotely_method_seconds{class="Player",figure="p99",method="step"} 0.8',
    ):
        assert line in lines


@pytest.mark.parametrize("what", ["calls", "errors"])
def test_calls_and_errors_are_counted_from_the_previous_snapshot(what: str) -> None:
    first = snapshot(status([actor("a", **{what: 100}), actor("b", **{what: 7})]), 10.0, None)
    again = [actor("a", **{what: 150}), actor("b", **{what: 3}), actor("new", **{what: 9})]
    second = snapshot(status(again), 20.0, first)
    # b has restarted and counts from zero; the age of `new` is not known.
    counter = f'remotely_{what}_total{{class="Player"}} 53.0'
    assert counter in text(second).decode().splitlines()
    third = snapshot(status([]), 30.0, second)
    assert counter in text(third).decode().splitlines()  # a counter of Prometheus never falls


def test_the_overview_stays_small_with_many_actors() -> None:
    many = [
        actor(f"a{n}", **{"class": f"C{n % 50}", "memory": 2, "running": 1}) for n in range(5000)
    ]
    summary = overview(snapshot(status(many), 0.0, None))
    assert (summary["actors"], summary["memory"], summary["running"]) == (5000, 10_000, 5000)
    assert (summary["total_cpus"], summary["total_free_cpus"]) == (8.0, 6.0)
    assert (len(summary["classes"]), summary["all_classes"]) == (12, 50)
    assert len(str(summary)) < 5000


# --- users' own metrics ---------------------------------------------------------------------------


def metric(kind: str, name: str, value: float | None, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "value": value, **more}


def scraped(*looks: list[dict[str, Any]]) -> list[str]:
    """Return the lines about users' metrics after these looks."""
    seen = None
    for actors in looks:
        seen = snapshot(status(actors), 0.0, seen)
    assert seen is not None
    lines = text(seen).decode().splitlines()
    return [each for each in lines if not each.startswith(("remotely", "#"))]


def test_a_counter_is_summed_over_actors_and_never_goes_down() -> None:
    two = [metric("counter", "episodes", 2.0, labels={"env": "Pong"})]
    five = [metric("counter", "episodes", 5.0, labels={"env": "Pong"})]
    one = [metric("counter", "episodes", 1.0, labels={"env": "Pong"})]
    lines = scraped(
        [actor("a", metrics=two), actor("b", metrics=two)],
        [actor("a", metrics=five)],  # b has ended
        [actor("a", metrics=one, since=9.0)],  # restarted
    )
    assert lines == ['episodes_total{class="Player",env="Pong"} 8.0']


def test_a_gauge_is_the_mean_of_those_with_the_same_labels() -> None:
    lines = scraped(
        [
            actor("a", metrics=[metric("gauge", "loss", 1.0), metric("gauge", "nan", None)]),
            actor("b", metrics=[metric("gauge", "loss", 2.0)]),
        ]
    )
    assert lines == ['loss{class="Player"} 1.5', 'nan{class="Player"} NaN']


def test_a_histogram_has_the_same_bounds_always() -> None:
    first = [metric("histogram", "length", 3.0, count=3, buckets=[(1.0, 2), (None, 1)])]
    later = [metric("histogram", "length", 7.0, count=4, buckets=[(1.0, 2), (4.0, 1), (None, 1)])]
    lines = scraped([actor("a", metrics=first)], [actor("a", metrics=later)])
    assert len(lines) == 26 + 1 + 2
    assert 'length_bucket{class="Player",le="0.25"} 0.0' in lines
    assert 'length_bucket{class="Player",le="1"} 2.0' in lines
    assert 'length_bucket{class="Player",le="4"} 3.0' in lines
    assert 'length_bucket{class="Player",le="+Inf"} 4.0' in lines
    assert 'length_sum{class="Player"} 7.0' in lines


def test_two_metrics_with_one_name_do_not_spoil_the_page() -> None:
    actors = [
        actor("a", metrics=[metric("gauge", "length", 1.0)]),
        actor("b", metrics=[metric("histogram", "length", 1.0, count=1, buckets=[(1.0, 1)])]),
    ]
    assert scraped(actors) == ['length{class="Player"} 1.0']
    page = text(snapshot(status(actors), 0.0, None)).decode()
    assert "\nremotely_own_metrics_left_out 1.0\n" in page


def test_sums_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remotely.dashboard.own_sums.MOST_SUMS", 2)

    def look(*names: str) -> list[dict[str, Any]]:
        return [actor("a", metrics=[metric("counter", name, 1.0) for name in names])]

    lines = scraped(look("a", "b"), look("c", "d"), look("b", "e"))
    assert sorted(lines) == ['a_total{class="Player"} 1.0', 'b_total{class="Player"} 2.0']


def test_the_browser_gets_no_buckets() -> None:
    metrics = [metric("histogram", "length", 1.0, count=1, buckets=[(1.0, 1)])]
    (shown,) = snapshot(status([actor("a", metrics=metrics)]), 0.0, None).actors
    assert [each["name"] for each in shown["metrics"]] == ["length"]
    assert "buckets" not in shown["metrics"][0]
