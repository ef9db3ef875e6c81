"""How much may be in flight to one actor."""

import logging
import threading

import pytest

from remotely.futures import in_flight
from remotely.futures.future import CallFuture
from remotely.futures.in_flight import InFlight


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MAX_CALLS", 2)
    monkeypatch.setattr(in_flight, "MAX_BYTES", 100)


def waits(flight: InFlight, nbytes: int, until: CallFuture[None]) -> bool:
    """Return whether a call had to wait for the outcome of another."""
    has_waited = threading.Event()

    def wait() -> None:
        flight.wait_for_room(nbytes)
        has_waited.set()

    thread = threading.Thread(target=wait)
    thread.start()
    had_room = has_waited.wait(0.2)
    until.set_result(None)
    thread.join(10)
    assert has_waited.is_set()
    return not had_room


@pytest.mark.parametrize(
    ("there", "next_one", "must_wait"),
    [
        ([0], 0, False),
        ([0, 0], 0, True),
        ([60], 40, False),
        ([60], 41, True),
        ([0], 101, False),  # by itself it may be larger than the limit
    ],
)
def test_a_call_waits_while_too_many_or_too_large_ones_have_no_outcome(
    there: list[int], next_one: int, must_wait: bool
) -> None:
    flight = InFlight("Echo-1")
    futures: list[CallFuture[None]] = [CallFuture("a call") for _ in there]
    for future, nbytes in zip(futures, there, strict=True):
        flight.add(future, nbytes)

    assert waits(flight, next_one, futures[0]) is must_wait


def test_an_actor_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    flight = InFlight("Echo-1")
    caplog.set_level(logging.WARNING, "remotely")
    for _ in range(2):
        futures: list[CallFuture[None]] = [CallFuture("a call") for _ in range(2)]
        for future in futures:
            flight.add(future, 0)
        assert waits(flight, 0, futures[0])
        futures[1].set_result(None)

    assert len(caplog.records) == 1
    assert "2 calls to Echo-1" in caplog.text
