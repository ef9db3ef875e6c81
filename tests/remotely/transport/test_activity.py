"""The activity page: no begun call is missing, whenever the process is killed."""

import mmap
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from remotely.protocol.numbers import MOST
from remotely.transport import activity
from remotely.transport.activity import SLOTS, BegunCalls, begun


def route(number: int) -> bytes:
    return b"r%011d" % number


@pytest.fixture
def page() -> Iterator[mmap.mmap]:
    with activity.new() as (_, memory):
        yield memory


def test_the_last_call_of_each_connection_is_listed(page: mmap.mmap) -> None:
    writer = BegunCalls(page)
    assert begun(page) == ({}, True)
    for call_id in (1, 3, 2):
        writer.note(route(1), call_id)
    writer.note(route(2), 9)
    assert begun(page) == ({route(1): 3, route(2): 9}, True)
    assert [writer.last_of(route(n)) for n in (1, 2, 3)] == [3, 9, 0]


def test_a_new_connection_takes_the_oldest_slot(
    page: mmap.mmap,
) -> None:
    writer = BegunCalls(page)
    for number in range(SLOTS + 1):
        writer.note(route(number), 5)
    table, is_all = begun(page)
    assert (table, is_all) == ({route(n): 5 for n in range(1, SLOTS + 1)}, False)
    assert writer.last_of(route(0)) == 5
    writer.note(route(0), 4)  # late, on another thread
    table, _ = begun(page)
    assert table[route(0)] == 5
    assert route(1) not in table
    assert writer.last_of(route(1)) == 5


def test_a_route_of_another_size_is_known_but_not_listed(
    page: mmap.mmap,
) -> None:
    writer = BegunCalls(page)
    writer.note(route(1)[:5], 5)
    writer.note(route(1) + b"and more", 6)
    assert begun(page) == ({}, True)
    assert writer.last_of(route(1)[:5]) == 5
    assert writer.last_of(route(1)) == 0


def test_a_running_call_is_never_missed_wherever_the_process_is_killed(page: mmap.mmap) -> None:
    """The page is read before each line that writes to it, as if the line had never run."""
    writer = BegunCalls(page)
    noted: dict[bytes, int] = {}
    looks = 0

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal looks
        if frame.f_code.co_filename != activity.__file__:
            return None
        looks += 1
        sys.settrace(None)
        table, is_all = begun(page)
        sys.settrace(look)
        for each, call_id in noted.items():
            assert table.get(each, 0 if is_all else MOST) >= call_id, (each, frame.f_lineno)
        return look

    for number in [*range(SLOTS + 2), 0, 5, 1]:
        call_id = noted.get(route(number), 10_000 - 10 * number) + 1
        sys.settrace(look)
        try:
            writer.note(route(number), call_id)
        finally:
            sys.settrace(None)
        noted[route(number)] = call_id
    assert looks > 5 * SLOTS


def test_any_page_can_be_read(page: mmap.mmap) -> None:
    page[80:] = b"\xff" * (len(page) - 80)
    assert begun(page) == ({b"\xff" * 12: MOST}, False)
    page.close()
    assert begun(page) == ({}, False)
