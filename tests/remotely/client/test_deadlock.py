"""Actors that wait for each other are told so, and wait no longer."""

from typing import Any

import pytest

import remotely


@remotely.remote_class
class Node:
    def __init__(self) -> None:
        self.peer: Any = None

    def meet(self, peer: Any) -> None:
        self.peer = peer

    def ask(self, depth: int) -> int:
        """Call the peer, and it its own, `depth` times."""
        return 0 if depth == 0 else 1 + int(self.peer.ask(depth - 1))

    def ask_later(self, depth: int) -> int:
        return 1 + int(self.peer.ask.submit(depth).result())


def ring(size: int, **options: Any) -> list[Any]:
    nodes = [remotely.options(Node, cpus=0.1, **options)() for _ in range(size)]
    for node, after in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        node.meet(after)
    return nodes


@pytest.mark.promise("deadlocks")
@pytest.mark.parametrize("size", [2, 3])
def test_actors_that_wait_for_each_other_are_told_in_seconds(cluster: str, size: int) -> None:
    nodes = ring(size)
    with pytest.raises(remotely.Deadlock) as told:
        nodes[0].ask.submit(size).result(10)
    for number in range(1, size + 1):
        assert f"Node-{number}.ask" in str(told.value)
        assert f"Node-{number} waits for" in str(told.value)
    assert [node.ask(0) for node in nodes] == [0] * size  # all live on


@pytest.mark.parametrize("method", ["ask", "ask_later"])
def test_an_actor_that_calls_itself_is_told_at_once(here: None, method: str) -> None:
    (node,) = ring(1)
    with pytest.raises(remotely.Deadlock, match=r"Node-1\.ask is called by its own actor"):
        getattr(node, method).submit(1).result(1.5)


def test_actors_with_a_thread_to_spare_may_call_each_other(here: None) -> None:
    nodes = ring(2, concurrency=2)
    assert nodes[0].ask.submit(3).result(10) == 3
    (alone,) = ring(1, concurrency=2)
    assert alone.ask.submit(1).result(10) == 1
