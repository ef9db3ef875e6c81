"""What a timeline records in one process: calls that are served, and calls that are made."""

import itertools
import mmap
import threading
import tracemalloc
from types import SimpleNamespace

import pytest

from remotely.protocol.spans import (
    LEAST_SPANS,
    MOST_SPANS,
    NAMES,
    SERVER_SPAN,
    client_spans,
    server_spans,
)
from remotely.transport import activity, spans
from remotely.transport.spans import ClientSpans, ServerSpanWriter, read, size_of

ROUTE = b"r" * 12


@pytest.fixture
def page() -> mmap.mmap:
    return mmap.mmap(-1, activity.SIZE)


def memory_for(calls: int) -> mmap.mmap:
    return mmap.mmap(-1, size_of(calls))


def test_a_call_is_recorded_with_its_times_and_bytes(page: mmap.mmap) -> None:
    memory = memory_for(1)
    writer = ServerSpanWriter(memory, page)
    traffic = activity.traffic_of(page)
    traffic[0], traffic[1] = 3, 1 << 40
    writer.note(ROUTE, 7, "step", 1.5)
    (call,) = server_spans(read(memory).spans)
    assert (call.route, call.call, call.began, call.received, call.sent) == (
        ROUTE,
        7,
        1.5,
        3,
        1 << 40,
    )
    assert call.ended > call.began
    assert read(memory).names[call.name] == "step"


def test_what_answers_is_recorded_even_if_it_raises(page: mmap.mmap) -> None:
    memory = memory_for(1)

    def answer(route: bytes, message: object) -> str:
        if message is wrong:
            raise ZeroDivisionError
        return "answer"

    recorded = ServerSpanWriter(memory, page).around(answer, {"get": "(an attribute)"})
    wrong = SimpleNamespace(kind="call", call_id=1, name="divide")
    with pytest.raises(ZeroDivisionError):
        recorded(ROUTE, wrong)
    get = SimpleNamespace(kind="get", call_id=2, name="x")
    assert recorded(ROUTE, get) == "answer"
    found = read(memory)
    assert [(call.call, found.names[call.name]) for call in server_spans(found.spans)] == [
        (1, "divide"),
        (2, "(an attribute)"),
    ]


def test_calls_without_room_are_counted(page: mmap.mmap) -> None:
    memory = memory_for(1)
    writer = ServerSpanWriter(memory, page)
    for call_id in range(LEAST_SPANS + 5):
        writer.note(ROUTE, call_id, "step", 1.0)
    found = read(memory)
    assert (len(list(server_spans(found.spans))), found.missing) == (LEAST_SPANS, 5)


def test_methods_without_a_place_share_the_last_name(page: mmap.mmap) -> None:
    memory = memory_for(1)
    writer = ServerSpanWriter(memory, page)
    for number in range(2 * NAMES):
        writer.note(ROUTE, number, f"m{number}", 1.0)
    names = read(memory).names
    assert (len(names), names[-1]) == (NAMES, activity.OTHERS)


def test_threads_record_side_by_side(page: mmap.mmap) -> None:
    memory = memory_for(1)
    writer = ServerSpanWriter(memory, page)

    def note(first: int) -> None:
        for call_id in range(first, first + 200):
            writer.note(ROUTE, call_id, "step", 1.0)

    threads = [threading.Thread(target=note, args=(200 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(call.call for call in server_spans(read(memory).spans)) == list(range(800))


def test_any_memory_can_be_read() -> None:
    memory = memory_for(1)
    memory[:] = b"\xff" * len(memory)
    found = read(memory)
    assert list(server_spans(found.spans)) == []
    assert list(server_spans(b"x" * (SERVER_SPAN.size + 1))) == []
    assert list(client_spans(b"\xff" * 50)) == []


def test_the_calls_of_a_channel_are_numbered_on_and_timed() -> None:
    ids = itertools.count(5)
    made = ClientSpans(ids)
    taken = [next(made.timed_ids) for _ in range(3)]
    made.note_answers([taken[1], 4])
    made.end()
    assert next(ids) > taken[-1]
    calls = list(client_spans(made.packed()))
    assert [(call.call, call.answered > 0) for call in calls] == [
        (taken[0], False),
        (taken[1], True),
        (taken[2], False),
    ]
    assert made.missing == 0


def test_calls_that_are_made_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST_SPANS", 10)
    ids = itertools.count(1)
    made = ClientSpans(ids)
    for _ in range(10):
        next(made.timed_ids)
    assert made.is_full
    next(ids)
    made.end()
    assert made.missing == 1
    assert MOST_SPANS >= LEAST_SPANS


def test_answers_to_calls_that_found_no_room_are_not_kept() -> None:
    ids = itertools.count(1)
    made = ClientSpans(ids)
    recorded = next(made.timed_ids)
    others = [[next(ids)] for _ in range(10_000)]  # full: the channel numbers its calls without it
    made.note_answers([recorded])
    tracemalloc.start()
    try:
        for each in others:
            made.note_answers(each)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10_000
    made.end()
    assert [call.answered > 0 for call in client_spans(made.packed())] == [True]
