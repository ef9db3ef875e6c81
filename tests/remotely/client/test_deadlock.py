"""Deadlocks: cycles of actors are reported on the terminal; an actor's own call raises Deadlock."""

import functools
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import remotely
from remotely.client import carrier, deadlock
from remotely.client.bulk_transfer import RemoteValue, Stores
from remotely.client.master_session import MasterSession
from remotely.protocol import control
from remotely.values.payload import SEND_FROM_BYTES
from tests.clusters import Started, wait_until

LARGE = 2 * SEND_FROM_BYTES


@remotely.remote_class
class Node:
    def __init__(self) -> None:
        self.peer: Any = None

    def meet(self, peer: Any) -> None:
        self.peer = peer

    def ask(self, depth: int) -> int:
        """Call the peer, which calls its own peer, `depth` times."""
        return 0 if depth == 0 else 1 + int(self.peer.ask(depth - 1))

    def large(self, once: Path) -> bytes:
        wait_until(once.exists, "the caller's sign")
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
    printed = ""

    def is_reported() -> bool:
        nonlocal printed
        printed += capfd.readouterr().err
        return "a deadlock" in printed

    wait_until(is_reported, "the report")

    assert printed.startswith("remotely: ")
    for one, other in ((1, 2), (2, 1)):
        assert f"Node-{one} waits in ask for Node-{other}.ask" in printed
    assert not call.done()
    remotely.kill(nodes[1])  # this ends the other's wait
    with pytest.raises(remotely.ActorDied):
        call.result(40)
    assert nodes[0].ask(0) == 0


def test_fetching_the_bytes_of_a_result_is_not_reported_as_a_wait(
    started: Started, nothing_left: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reply has arrived, and its value has not.  This client acts as one in an actor."""
    sent: list[object] = []
    send, fetch = MasterSession.send, Stores.fetch
    arrives = threading.Event()

    def record(session: MasterSession, message: msgspec.Struct) -> None:
        sent.append(message)
        if isinstance(message, control.Blocked):  # it waits for the actor
            (tmp_path / "reported").touch()
        if isinstance(message, control.Unblocked):
            arrives.set()
        send(session, message)

    def fetch_slowly(stores: Stores, wanted: RemoteValue) -> Any:
        sent.clear()
        assert arrives.wait(40)
        return fetch(stores, wanted)

    monkeypatch.setattr(MasterSession, "send", record)
    monkeypatch.setattr(Stores, "fetch", fetch_slowly)
    monkeypatch.setattr(deadlock, "REPORT_AFTER_S", 0.0)
    monkeypatch.setattr(deadlock, "REPORT_EVERY_S", 0.001)
    inside = functools.partial(carrier.ClusterCarrier, inside="an actor")
    monkeypatch.setattr(carrier, "ClusterCarrier", inside)
    remotely.connect(started.address, key=started.key)
    node = Node()

    assert len(node.large(tmp_path / "reported")) == LARGE

    assert not [message for message in sent if isinstance(message, control.Blocked)]


@pytest.mark.promise("deadlocks")
@pytest.mark.parametrize("method", ["ask", "ask_later"])
def test_an_actor_that_calls_itself_gets_a_deadlock_error(cluster: str, method: str) -> None:
    (node,) = ring(1)
    with pytest.raises(remotely.Deadlock, match=r"Node-1\.ask is called by its own actor"):
        getattr(node, method).submit(1).result(40)


def test_actors_with_a_free_thread_may_call_each_other_and_themselves(here: None) -> None:
    nodes = ring(2, concurrency=2)
    assert nodes[0].ask.submit(3).result(40) == 3
    (alone,) = ring(1, concurrency=2)
    assert alone.ask.submit(1).result(40) == 1
