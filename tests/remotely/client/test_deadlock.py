"""Actors that wait for each other: people are told.  One that waits for itself is told at once."""

import functools
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import remotely
from remotely.client import client, deadlock
from remotely.client.bulk_transfer import Stores
from remotely.client.master_session import MasterSession
from remotely.protocol import control
from remotely.values.payload import SEND_FROM_BYTES, Parcel
from tests.clusters import Started, wait_until

LARGE = 2 * SEND_FROM_BYTES


@remotely.remote_class
class Node:
    def __init__(self) -> None:
        self.peer: Any = None

    def meet(self, peer: Any) -> None:
        self.peer = peer

    def ask(self, depth: int) -> int:
        """Call the peer, and it its own, `depth` times."""
        return 0 if depth == 0 else 1 + int(self.peer.ask(depth - 1))

    def large(self, once: Path) -> bytes:
        wait_until(once.exists, "the word of the caller")
        return bytes(LARGE)

    def ask_later(self, depth: int) -> int:
        return 1 + int(self.peer.ask.submit(depth).result())


def ring(size: int, **options: Any) -> list[Any]:
    nodes = [remotely.options(Node, cpus=0.1, **options)() for _ in range(size)]
    for node, after in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        node.meet(after)
    return nodes


def test_a_deadlock_is_reported_on_the_terminal_and_fails_no_call(
    here: None, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = ring(2)
    call = nodes[0].ask.submit(2)
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "a deadlock" in said

    wait_until(is_told, "the line")

    assert said.startswith("remotely: ")
    for one, other in ((1, 2), (2, 1)):
        assert f"Node-{one} waits in ask for Node-{other}.ask" in said
    assert not call.done()
    remotely.kill(nodes[1])  # and so the wait of the other ends
    with pytest.raises(remotely.ActorDied):
        call.result(40)
    assert nodes[0].ask(0) == 0


def test_fetching_the_bytes_of_a_result_is_not_reported_as_a_wait(
    started: Started, nothing_left: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reply is there, and its value is not: as if this client lived in an actor."""
    told: list[object] = []
    send, fetch = MasterSession.send, Stores.fetch
    arrives = threading.Event()

    def hear(session: MasterSession, message: msgspec.Struct) -> None:
        told.append(message)
        if isinstance(message, control.Blocked):  # it waits for the actor
            (tmp_path / "told").touch()
        if isinstance(message, control.Unblocked):
            arrives.set()
        send(session, message)

    def fetch_slowly(stores: Stores, wanted: Parcel) -> Any:
        told.clear()
        assert arrives.wait(40)
        return fetch(stores, wanted)

    monkeypatch.setattr(MasterSession, "send", hear)
    monkeypatch.setattr(Stores, "fetch", fetch_slowly)
    monkeypatch.setattr(deadlock, "REPORT_AFTER_S", 0.0)
    monkeypatch.setattr(deadlock, "REPORT_EVERY_S", 0.001)
    monkeypatch.setattr(client, "Client", functools.partial(client.Client, inside="an actor"))
    remotely.connect(started.address, key=started.key)
    node = Node()

    assert len(node.large(tmp_path / "told")) == LARGE

    assert not [said for said in told if isinstance(said, control.Blocked)]


@pytest.mark.promise("deadlocks")
@pytest.mark.parametrize("method", ["ask", "ask_later"])
def test_an_actor_that_calls_itself_gets_an_error_at_once(cluster: str, method: str) -> None:
    (node,) = ring(1)
    with pytest.raises(remotely.Deadlock, match=r"Node-1\.ask is called by its own actor"):
        getattr(node, method).submit(1).result(40)


def test_actors_with_a_thread_to_spare_may_call_each_other(here: None) -> None:
    nodes = ring(2, concurrency=2)
    assert nodes[0].ask.submit(3).result(40) == 3
    (alone,) = ring(1, concurrency=2)
    assert alone.ask.submit(1).result(40) == 1
