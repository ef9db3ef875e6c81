"""What an actor remembers of its clients' connections."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from remotely.actor.payloads import ROUTE_CHECK_S, Payloads
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.values import arena


def open_memory(payloads: Payloads, route: bytes) -> None:
    ours = arena.ours()
    assert ours is not None
    message = Message(Kind.OPEN, 1, "", control.encode(ours.address), ())
    assert payloads.handlers[Kind.OPEN](route, message) is not None


def fetch(payloads: Payloads, route: bytes) -> None:
    payloads.handlers[Kind.STORE](route, Message(Kind.STORE, 1, "", wire.FETCHES, ()))


@pytest.mark.parametrize("use", [open_memory, fetch])
def test_each_connection_is_tried_at_growing_intervals_and_forgotten_when_it_has_ended(
    use: Any,
) -> None:
    store: Any = SimpleNamespace(
        waiting=lambda now: [], withdraw=lambda route: None, fetch_argument=None
    )
    payloads = Payloads("actor", store)
    routes = [f"route-{number}".encode() for number in range(3)]
    for route in routes:
        use(payloads, route)
    now = time.monotonic()
    assert payloads.waiting(now) == []
    later = now + ROUTE_CHECK_S + 1
    assert payloads.waiting(later) == routes
    payloads.forget(routes[0])
    assert payloads.waiting(later + 1) == []
    assert payloads.waiting(later + ROUTE_CHECK_S + 2) == routes[1:]
    assert payloads.waiting(later + 2 * ROUTE_CHECK_S) == []
