"""What an actor remembers of its clients' connections, and what it lends to them."""

import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from remotely.actor.payloads import ROUTE_CHECK_S, Payloads
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.values import arena
from remotely.values.arena import Arena
from remotely.values.borrowing import Lender
from remotely.values.payload import Invitation, Reads


@pytest.fixture
def payloads() -> Payloads:
    store: Any = SimpleNamespace(
        waiting=lambda now: [], withdraw=lambda route: None, fetch_argument=None
    )
    return Payloads("actor", store, memoryview(bytearray(16)).cast("Q"))


def meet(payloads: Payloads, route: bytes, reads: Reads) -> Any:
    message = Message(Kind.READS, 1, "", control.encode(reads), ())
    return payloads.handlers[Kind.READS](route, message)


def is_lent(payloads: Payloads, route: bytes) -> bool:
    reply = payloads.returned(route, Message(Kind.CALL, 2, "make", b"", ()), np.ones(100_000))
    return bool(wire.decode(reply.frames, "actor").loan)


@pytest.fixture
def client() -> Arena:
    """The arena of a client."""
    return Arena(1 << 20)


@pytest.mark.parametrize("distance", ["here", "elsewhere"])
def test_each_connection_is_tried_at_growing_intervals_and_forgotten_when_it_has_ended(
    payloads: Payloads, client: Arena, distance: str
) -> None:
    reads = Reads(client.address) if distance == "here" else Reads(fetches=True)
    routes = [f"route-{number}".encode() for number in range(3)]
    for route in routes:
        meet(payloads, route, reads)
    now = time.monotonic()
    assert payloads.waiting(now) == []
    later = now + ROUTE_CHECK_S + 1
    assert payloads.waiting(later) == routes
    payloads.forget(routes[0])
    assert payloads.waiting(later + 1) == []
    assert payloads.waiting(later + ROUTE_CHECK_S + 2) == routes[1:]
    assert payloads.waiting(later + 2 * ROUTE_CHECK_S) == []


def test_results_are_lent_on_each_connection_once_its_invitation_is_accepted(
    payloads: Payloads, client: Arena
) -> None:
    """The same client may have opened the memory on an earlier connection."""
    assert not is_lent(payloads, b"one")
    for route in (b"one", b"two"):
        invitation = meet(payloads, route, Reads(client.address))
        assert isinstance(invitation, Invitation)
        assert not is_lent(payloads, route)
        Lender(invitation.arena).decline(invitation.loan)
        assert is_lent(payloads, route)
        payloads.forget(route)


def test_a_client_whose_memory_cannot_be_opened_is_lent_nothing(
    payloads: Payloads, client: Arena
) -> None:
    gone = arena.ArenaAddress(1, os.getpid(), 999_999, 4096)
    assert meet(payloads, b"route", Reads(gone)) is None
    assert not is_lent(payloads, b"route")


def test_loans_that_an_ended_connection_has_not_received_end_with_it(
    payloads: Payloads, client: Arena
) -> None:
    ours = arena.ours()
    assert ours is not None
    before = ours.lent_bytes
    invitation = meet(payloads, b"route", Reads(client.address))
    Lender(invitation.arena).decline(invitation.loan)
    assert is_lent(payloads, b"route")
    assert ours.lent_bytes > before
    payloads.forget(b"route")
    assert ours.lent_bytes == before
