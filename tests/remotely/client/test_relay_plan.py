"""The plan of a transfer to several machines."""

from collections import deque

import hypothesis.strategies as st
from hypothesis import given

from remotely.client.relay_plan import Path, RelayPlan


def plan(machines: str, direct: str = "") -> RelayPlan[str]:
    return RelayPlan({m: Path.DIRECT if m in direct else Path.CHAIN for m in machines})


def test_the_sender_sends_to_the_first_machine_of_one_chain() -> None:
    made = plan("abc")

    assert made.next() == ["a", "b", "c"]
    assert made.next() == []
    for machine in "abc":
        assert not made.is_over
        made.arrived(machine)
    assert made.is_over
    assert made.here == {"a", "b", "c"}


def test_a_machine_to_which_it_was_not_relayed_gets_it_from_the_sender() -> None:
    made = plan("abc")
    made.next()
    made.arrived("a")

    made.not_relayed("c")

    assert made.next() == ["c"]
    made.arrived("c")
    made.arrived("b")
    assert made.is_over


def test_the_machines_after_a_break_in_the_chain_form_another_chain() -> None:
    made = plan("abcd")
    made.next()
    made.arrived("a")

    made.not_relayed("b")

    assert made.next() == ["c", "d"]
    assert made.next() == ["b"]


def test_a_break_after_the_value_has_arrived_changes_nothing() -> None:
    made = plan("ab")
    made.next()
    made.arrived("a")
    made.arrived("b")

    made.not_relayed("b")

    assert made.is_over
    assert made.next() == []


def test_a_machine_whose_path_is_direct_is_in_no_chain() -> None:
    made = plan("abc", direct="b")

    assert made.next() == ["a", "c"]
    assert made.next() == ["b"]


def test_a_machine_that_the_sender_cannot_reach_is_left_out() -> None:
    made = plan("abc")
    first, *onward = made.next()

    made.unreachable(first, onward)

    assert made.next() == ["b", "c"]
    made.arrived("c")  # it had been relayed that far before
    made.unreachable("b", ["c"])
    assert made.is_over
    assert made.here == {"c"}


@given(
    direct=st.lists(st.booleans(), min_size=1, max_size=6),
    dead=st.sets(st.integers(0, 5)),
    data=st.data(),
)
def test_every_reachable_machine_gets_it_whatever_breaks(
    direct: list[bool], dead: set[int], data: st.DataObject
) -> None:
    """No machine can reach a `dead` one; relays break at random."""
    made = RelayPlan({m: Path.DIRECT if d else Path.CHAIN for m, d in enumerate(direct)})
    waiting: deque[int] = deque()  # for a relay
    alone = {machine for machine, is_direct in enumerate(direct) if is_direct}
    pushes = 0
    while not made.is_over:
        if chain := made.next():
            pushes += 1
            assert pushes <= 2 * len(direct), "it goes on forever"
            assert len(chain) == 1 or not alone & set(chain)
            first, *onward = chain
            if first in dead:
                made.unreachable(first, onward)
            else:
                made.arrived(first)
                waiting.extend(onward)
            continue
        machine = waiting.popleft()
        if machine in dead or data.draw(st.booleans()):
            made.not_relayed(machine)
            alone.add(machine)
        else:
            made.arrived(machine)
    assert made.here == set(range(len(direct))) - dead
