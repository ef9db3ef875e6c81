"""A cycle of waits is told when it is certain, and only then."""

from remotely.master.wait_graph import WaitGraph


def test_a_cycle_is_told_when_each_has_said_again_that_it_waits() -> None:
    graph = WaitGraph()
    assert graph.hear("a", 1, "b", "a waits for b", 0.0) == []
    assert graph.hear("b", 1, "a", "b waits for a", 0.5) == []
    assert graph.hear("a", 1, "b", "a waits for b", 1.0) == []
    assert graph.hear("b", 1, "a", "b waits for a", 1.5) == ["b waits for a", "a waits for b"]


def test_who_has_had_its_answer_meanwhile_is_in_no_cycle() -> None:
    graph = WaitGraph()
    graph.hear("a", 1, "b", "", 0.0)
    graph.hear("b", 1, "a", "", 0.5)
    assert graph.hear("b", 1, "a", "", 1.5) == []  # of a, nothing was heard again
    graph.hear("a", 2, "b", "", 1.6)  # another wait
    assert graph.hear("b", 1, "a", "", 2.5) == []
    graph.end("a")
    assert graph.hear("b", 1, "a", "", 3.5) == []


def test_who_waits_for_a_cycle_of_others_is_not_told() -> None:
    graph = WaitGraph()
    for now in (0.0, 1.0, 2.0):
        assert graph.hear("c", 1, "a", "", now) == []
        graph.hear("a", 1, "b", "", now)
        graph.hear("b", 1, "a", "", now)


def test_a_long_chain_of_waits_costs_what_it_is_long() -> None:
    graph, n = WaitGraph(), 5_000  # each word about the first looks along all of it
    for now in (0.0, 1.0):
        graph.hear("0", 1, "1", "", now)
    for i in range(1, n):
        graph.hear(str(i), 1, str(i + 1), "", 0.0)
    assert graph.hear("0", 1, "1", "", 2.0) == []
