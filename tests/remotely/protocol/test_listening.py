"""Ranges of ports, and endpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely.protocol.listening import ANY_PORT, Listening, Ports, parse_ports


def test_a_range_includes_both_ends() -> None:
    assert parse_ports("9000-9002") == Ports(9000, 9002)
    assert str(parse_ports("9000-9000")) == "9000-9000"


@pytest.mark.parametrize("text", ["9000", "9000-", "-1", "9002-9000", "0-5", "1-70000", "a-b", ""])
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of ports"):
        parse_ports(text)


@given(st.integers(1, 65535), st.integers(0, 50), st.integers(0, 1 << 22))
def test_each_port_of_a_range_is_tried_once_from_any_start(
    low: int, more: int, number: int
) -> None:
    high = min(low + more, 65535)
    tried = list(Ports(low, high).starting_at(number))
    assert sorted(tried) == list(range(low, high + 1))
    assert tried[0] == low + number % len(tried)


def test_without_a_range_the_kernel_chooses() -> None:
    assert list(ANY_PORT.starting_at(77)) == [0]


def test_endpoints_use_the_announced_addresses() -> None:
    assert Listening(host="10.0.0.1").endpoints(9) == "tcp://10.0.0.1:9"
    both = Listening(host="0.0.0.0", announced=["node1", "fd00::2"])
    assert both.endpoints(9) == "tcp://node1:9 tcp://[fd00::2]:9"
    assert both.address == "node1, fd00::2"
    assert Listening(host="10.0.0.1").address == "10.0.0.1"
    assert Listening().address == ""
