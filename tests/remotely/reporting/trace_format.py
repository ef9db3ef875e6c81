"""Chrome's Trace Event Format, as strictly as Perfetto's trace processor takes it."""

from collections import Counter, defaultdict
from typing import Any

NEEDED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "M": {"name", "pid", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    "b": {"name", "cat", "pid", "tid", "ts", "id"},
    "e": {"name", "cat", "pid", "tid", "ts", "id"},
}
Event = dict[str, Any]


def check(events: list[Event]) -> None:
    """Fail if a viewer would drop, misplace or leave unnamed any of the events."""
    for event in events:
        assert NEEDED[event["ph"]] <= event.keys(), event
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0
        assert isinstance(event.get("tid", 1), int)
        assert event.get("tid", 1) > 0
        assert min(event.get("ts", 0), event.get("dur", 0)) >= 0, event
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times)
    named = [e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    assert max(Counter(named).values(), default=1) == 1
    assert {event["pid"] for event in events} <= set(named)
    _check_slices(events)
    _check_flows(events)
    _check_waits(events)


def _check_slices(events: list[Event]) -> None:
    """Slices of a row are apart, or one within another."""
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((_ns(event["ts"]), _end_ns(event)))
    for slices in rows.values():
        open_until: list[int] = []
        for begin, end in slices:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (begin, end, open_until)
            open_until.append(end)


def _check_flows(events: list[Event]) -> None:
    """Each arrow has one beginning and one end, each of them in a slice."""
    ends: dict[str, dict[Any, Event]] = {"s": {}, "f": {}}
    for event in events:
        if event["ph"] in ends:
            assert event["id"] not in ends[event["ph"]]
            ends[event["ph"]][event["id"]] = event
    assert ends["s"].keys() == ends["f"].keys()
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((_ns(event["ts"]), _end_ns(event)))
    for id_, start in ends["s"].items():
        end = ends["f"][id_]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        for each in (start, end):
            at, row = _ns(each["ts"]), slices[each["pid"], each["tid"]]
            assert any(begin <= at <= until for begin, until in row), each


def _check_waits(events: list[Event]) -> None:
    """Asynchronous slices: each that begins ends, in its process and category."""
    begun: dict[Any, Event] = {}
    for event in events:
        key = event["pid"], event.get("cat"), event.get("id"), event["name"]
        if event["ph"] == "b":
            assert key not in begun
            begun[key] = event
        elif event["ph"] == "e":
            assert begun.pop(key)["ts"] <= event["ts"]
    assert not begun


def _ns(us: float) -> int:
    return round(us * 1000)


def _end_ns(event: Event) -> int:
    return _ns(event["ts"]) + _ns(event["dur"])
