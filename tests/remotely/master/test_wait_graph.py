"""Cycles of waits are reported once, if all members have waited at the same time."""

from remotely.master.wait_graph import Wait, WaitGraph


def wait(number: int, target: str, now: float, sentence: str = "") -> Wait:
    return Wait(number, target, sentence, "a session", now, now)


def record(graph: WaitGraph, actor: str, reported: Wait) -> list[str]:
    return [member.sentence for member in graph.record(actor, reported)]


def test_a_cycle_is_reported_once_after_each_member_has_repeated_its_wait() -> None:
    graph = WaitGraph()
    assert record(graph, "a", wait(1, "b", 0.0, "a waits for b")) == []
    assert record(graph, "b", wait(1, "a", 0.5, "b waits for a")) == []
    assert record(graph, "a", wait(1, "b", 1.0)) == []
    assert record(graph, "b", wait(1, "a", 1.5)) == ["b waits for a", "a waits for b"]
    assert record(graph, "a", wait(1, "b", 2.0)) == []
    assert record(graph, "b", wait(1, "a", 2.5)) == []


def test_the_end_of_a_reported_cycle_is_reported_once() -> None:
    graph = WaitGraph()
    assert graph.end("a") is None
    for now in (0.0, 1.0):
        record(graph, "a", wait(1, "b", now, "a waits for b"))
        record(graph, "b", wait(1, "a", now + 0.5, "b waits for a"))
    ended = graph.end("a")
    assert ended is not None
    assert ended.sentence == "a waits for b"
    assert graph.end("b") is None


def test_a_new_wait_of_an_actor_ends_the_previous_one() -> None:
    """Its end may be lost, or a signal handler waits within a wait."""
    graph = WaitGraph()
    for now in (0.0, 1.0):
        record(graph, "a", wait(1, "b", now, "a waits for b"))
        record(graph, "b", wait(1, "a", now + 0.5))
    assert graph.end("a", unless=1) is None
    record(graph, "a", wait(2, "c", 2.0))
    assert graph.end("b") is None  # that cycle is open

    for now in (3.0, 4.0):
        record(graph, "a", wait(3, "b", now, "a waits for b"))
        record(graph, "b", wait(2, "a", now + 0.5))
    ended = graph.end("a", unless=4)
    assert ended is not None
    assert ended.sentence == "a waits for b"


def test_an_ended_wait_is_in_no_cycle() -> None:
    graph = WaitGraph()
    record(graph, "a", wait(1, "b", 0.0))
    record(graph, "b", wait(1, "a", 0.5))
    assert record(graph, "b", wait(1, "a", 1.5)) == []  # a has not repeated its report
    record(graph, "a", wait(2, "b", 1.6))  # another wait
    assert record(graph, "b", wait(1, "a", 2.5)) == []
    graph.end("a")
    assert record(graph, "b", wait(1, "a", 3.5)) == []


def test_a_wait_for_a_cycle_of_others_is_not_reported() -> None:
    graph = WaitGraph()
    for now in (0.0, 1.0, 2.0):
        assert record(graph, "c", wait(1, "a", now)) == []
        record(graph, "a", wait(1, "b", now))
        record(graph, "b", wait(1, "a", now))


def test_the_cost_of_a_chain_of_waits_is_linear() -> None:
    graph, n = WaitGraph(), 5_000  # each report of the first follows the chain
    for now in (0.0, 1.0):
        record(graph, "0", wait(1, "1", now))
    for i in range(1, n):
        record(graph, str(i), wait(1, str(i + 1), 0.0))
    assert record(graph, "0", wait(1, "1", 2.0)) == []
