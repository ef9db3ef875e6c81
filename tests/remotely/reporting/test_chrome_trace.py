"""The timeline of a cluster as Chrome's trace, from made-up records."""

from typing import Any

import msgspec
import pytest

from remotely.protocol.control import ProcessTimeline
from remotely.protocol.spans import CLIENT_SPAN, MOST_SPANS, SERVER_SPAN
from remotely.reporting import chrome_trace
from remotely.reporting.chrome_trace import bars, by_actor, summary, trace
from tests.remotely.reporting.trace_format import check

ROUTE = b"r" * 12


def record(host: str, pid: int, **more: Any) -> ProcessTimeline:
    return ProcessTimeline(timeline="t", host=host, machine=host, pid=pid, clock=200.0, **more)


def served(call: int, began: float, ended: float, received: int = 0, sent: int = 0) -> bytes:
    return SERVER_SPAN.pack(ROUTE, 0, call, began, ended, received, sent)


CALLER = record(
    "here",
    1,
    name="train.py",
    made={ROUTE: CLIENT_SPAN.pack(1, 100.0, 101.0) + CLIENT_SPAN.pack(2, 100.1, 0.0)},
)
ACTOR = record(
    "there",
    2,
    name="Player-1",
    class_name="Player",
    actor="a",
    names=["step"],
    served=served(1, 0.5, 0.75, received=10),
    running="rest",
    running_s=1.0,
    offset_s=100.0,
    error_s=0.001,
)


@pytest.fixture(autouse=True)
def every_trace_is_well_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = chrome_trace.trace

    def made(recorded: Any) -> dict[str, Any]:
        found = make(recorded)
        check(found["traceEvents"])
        return found

    monkeypatch.setitem(globals(), "trace", made)


def of(phase: str, recorded: list[ProcessTimeline]) -> list[dict[str, Any]]:
    return [each for each in trace(recorded)["traceEvents"] if each["ph"] == phase]


def test_clocks_are_aligned_and_a_call_is_joined_with_its_caller() -> None:
    bar, _ = bars([CALLER, ACTOR])
    assert (bar.sent, bar.began, bar.ended, bar.method) == (100.0, 100.5, 100.75, "step")
    (start,), (end,) = of("s", [CALLER, ACTOR]), of("f", [CALLER, ACTOR])
    assert start["id"] == end["id"]
    assert end["ts"] - start["ts"] == 500_000
    assert start["pid"] != end["pid"]
    assert trace([CALLER, ACTOR])["otherData"]["clock error in us, by machine"] == {"there": 1000}
    assert "within 1 ms" in summary([CALLER, ACTOR])


def test_a_call_without_a_reply_and_a_method_that_goes_on_are_shown() -> None:
    names = [each["name"] for each in of("X", [CALLER, ACTOR])]
    assert "rest, which goes on" in names
    assert "an actor: has no reply yet" in names


def test_a_call_that_seems_to_begin_before_it_was_sent_is_shown_from_its_beginning() -> None:
    early = msgspec.structs.replace(ACTOR, offset_s=99.0, running="")
    (call,) = (each for each in of("X", [CALLER, early]) if each["cat"] == "call")
    assert call["ts"] == 0  # and no other event is before that


def test_each_process_is_named_once_whoever_tells_of_it() -> None:
    inside = msgspec.structs.replace(CALLER, actor="b", name="Boss-1")  # its worker is silent
    again = msgspec.structs.replace(CALLER, made={b"s" * 12: CLIENT_SPAN.pack(1, 100.0, 101.0)})
    for processes in ([inside], [inside, again]):
        assert [each["pid"] for each in of("M", processes) if "tid" not in each] == [1]


def test_an_actor_whose_caller_is_unknown_is_shown() -> None:
    step, _ = of("X", [ACTOR])
    assert (step["name"], step["dur"]) == ("step", 250_000)
    assert of("s", [ACTOR]) == []


def test_calls_at_the_same_time_have_rows_of_their_own() -> None:
    data = served(1, 1.0, 3.0) + served(2, 2.0, 4.0) + served(3, 3.0, 5.0)
    several = record("here", 2, name="a", class_name="A", names=["wait"], served=data)
    rows = [(each["args"]["call"], each["tid"]) for each in of("X", [several])]
    assert rows == [(1, 1), (2, 2), (3, 1)]


def test_bytes_are_those_of_a_call_if_no_other_ran() -> None:
    data = served(1, 1.0, 2.0, 5) + served(2, 3.0, 4.0, 2005, 7) + served(3, 3.5, 5.0, 3000, 8)
    mixed = record("here", 2, name="a", class_name="A", names=["step"], served=data)
    assert [(bar.received, bar.returned) for bar in bars([mixed])] == [(0, 0), (2000, 7), (0, 0)]


def test_any_records_make_a_trace() -> None:
    odd = record("x", 3, served=b"\xff" * 200, made={ROUTE: b"\xff" * 100}, name="a")
    assert trace([odd])["traceEvents"]
    assert trace([])["traceEvents"] == []


def test_bars_that_are_close_are_drawn_as_one() -> None:
    data = b"".join(served(n, 1.0 + n / 1000, 1.0009 + n / 1000) for n in range(100))
    data += served(200, 3.0, 11.0)
    one = record("here", 2, name="a", class_name="A", actor="a", names=["step"], served=data)
    one = msgspec.structs.replace(one, clock=11.0)
    (row,) = by_actor([one])["actors"]
    close, alone = row["bars"]
    assert (row["calls"], close[2:4], alone) == (101, ["step", 100], [0.2, 0.8, "step", 1, 8.0])


def test_calls_for_whose_bars_there_is_no_room_are_counted() -> None:
    data = b"".join(served(call, 100.0, 200.0) for call in range(45))
    actor = record("here", 2, name="a", class_name="A", actor="a", names=["step"], served=data)
    (row,) = by_actor([actor], most=10)["actors"]
    assert (row["calls"], len(row["bars"]), row["more"]) == (45, 40, 5)


def test_a_call_that_goes_on_fills_the_bars_of_a_timeline_that_it_has_outlasted() -> None:
    data = served(1, 198.5, 199.0)
    quick = record("here", 2, name="a", class_name="A", actor="a", names=["step"], served=data)
    stuck = record("here", 3, name="b", class_name="B", actor="b", running="rest", running_s=60.0)
    drawn = by_actor([quick, stuck], seconds=2.0)
    one, other = drawn["actors"]
    assert (one["bars"], other["name"]) == ([[0.25, 0.25, "step", 1, 0.5]], "b")
    assert other["bars"] == [[0.0, 1.0, "rest, which goes on", 1, 60.0]]
    assert drawn["seconds"] == 2.0
    assert drawn["text"].startswith("2 calls of 2 actors")


def test_calls_that_overlap_have_a_row_each_and_the_first_that_is_free_is_used_again() -> None:
    times = [(1.0, 4.0), (2.0, 3.0), (2.5, 5.0), (3.0, 9.0), (4.0, 6.0)]
    data = b"".join(served(call, began, ended) for call, (began, ended) in enumerate(times))
    actor = record("here", 2, name="Player-1", class_name="Player", names=["step"], served=data)
    assert [each["tid"] for each in of("X", [actor])] == [1, 2, 3, 2, 1]


def test_a_great_many_calls_at_a_time_are_drawn() -> None:
    data = b"".join(served(call, 1.0, 2.0) for call in range(MOST_SPANS))  # not 1e9 comparisons
    actor = record("here", 2, name="Player-1", class_name="Player", names=["step"], served=data)
    assert {each["tid"] for each in of("X", [actor])} == set(range(1, MOST_SPANS + 1))


def test_a_call_that_goes_on_beside_others_has_a_row_of_its_own() -> None:
    data = served(1, 198.0, 198.5) + served(2, 199.5, 199.8)
    several = record("here", 2, name="a", class_name="A", names=["wait"], served=data)
    rest = msgspec.structs.replace(several, running="rest", running_s=1.6)
    rows = [(each["name"], each["tid"]) for each in of("X", [rest])]
    assert rows == [("wait", 1), ("rest, which goes on", 2), ("wait", 1)]


def test_calls_that_are_made_at_almost_the_same_time_do_not_overlap() -> None:
    sent = [100.0, 100.0 + 1e-7, 100.0 + 2e-7, 100.0 + 2e-7]
    made = b"".join(CLIENT_SPAN.pack(call, at, 101.0) for call, at in enumerate(sent))
    data = b"".join(served(call, 100.5 + call, 101.0 + call) for call in range(4))
    actor = record("here", 2, name="a", class_name="A", names=["step"], served=data)
    caller = record("here", 1, name="train.py", made={ROUTE: made})
    assert len(of("s", [caller, actor])) == 4
