"""The plan of a transfer to several machines."""

import itertools
from collections import deque

import hypothesis.strategies as st
from hypothesis import given

from remotely.client.spread import Spread


def test_the_sender_brings_it_to_the_first_machine_and_a_chain_passes_it_on() -> None:
    spread = Spread(["a", "b", "c"])

    assert spread.next() == ["a", "b", "c"]
    assert spread.next() == []
    for machine in "abc":
        assert not spread.is_over
        spread.arrived(machine)
    assert spread.is_over
    assert spread.here == {"a", "b", "c"}


def test_a_machine_to_which_it_did_not_come_gets_it_from_the_sender() -> None:
    spread = Spread(["a", "b", "c"])
    spread.next()
    spread.arrived("a")

    spread.broke("c")

    assert spread.next() == ["c"]
    spread.arrived("c")
    spread.arrived("b")
    assert spread.is_over


def test_a_break_of_what_has_arrived_another_way_is_old_news() -> None:
    spread = Spread(["a", "b"])
    spread.next()
    spread.arrived("a")
    spread.arrived("b")

    spread.broke("b")

    assert spread.is_over
    assert spread.next() == []


def test_a_new_chain_begins_where_a_machine_does_not_reach_the_next() -> None:
    spread = Spread(["a", "b", "c"], unusable=[("a", "b")])

    assert spread.next() == ["a"]
    assert spread.next() == ["b", "c"]


def test_a_machine_that_the_sender_cannot_reach_does_without() -> None:
    spread = Spread(["a", "b", "c"])
    first, *onward = spread.next()

    spread.lose(first, onward)

    assert spread.next() == ["b", "c"]
    spread.arrived("c")  # it had come that far before
    spread.lose("b", ["c"])
    assert spread.is_over
    assert spread.here == {"c"}


def test_a_value_that_is_for_no_machine_is_over_at_once() -> None:
    assert Spread[str]([]).is_over


@given(
    count=st.integers(1, 6),
    unusable=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))),
    dead=st.sets(st.integers(0, 5)),
    data=st.data(),
)
def test_whoever_breaks_every_machine_that_can_be_reached_gets_it(
    count: int, unusable: set[tuple[int, int]], dead: set[int], data: st.DataObject
) -> None:
    """`dead` machines can be reached by nobody; relays break at random."""
    spread = Spread(range(count), unusable)
    waiting: deque[int] = deque()  # for a relay
    pushes = 0
    broken: set[int] = set()
    while not spread.is_over:
        if chain := spread.next():
            pushes += 1
            assert pushes <= 2 * count, "it goes on for ever"
            assert len(chain) == 1 or not broken & set(chain)
            assert not any(pair in unusable for pair in itertools.pairwise(chain))
            first, *onward = chain
            if first in dead:
                spread.lose(first, onward)
            else:
                spread.arrived(first)
                waiting.extend(onward)
            continue
        machine = waiting.popleft()
        if machine in dead or data.draw(st.booleans()):
            spread.broke(machine)
            broken.add(machine)
        else:
            spread.arrived(machine)
    assert spread.here == set(range(count)) - dead
