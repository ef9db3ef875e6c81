"""Which calls of a connection may have begun, by what is told of the end of their actor."""

from remotely.client.end_errors import last_begun
from remotely.protocol.control import Obituary
from remotely.protocol.numbers import MOST

ROUTE = b"r-our-client"


def test_calls_after_the_last_that_has_begun_have_not() -> None:
    obituary = Obituary(actor="a", life=2, begun={ROUTE: 7, b"other": 9}, all_begun=True)
    assert last_begun(obituary, 2, ROUTE) == 7
    assert last_begun(obituary, 2, b"r-not-listed") == 0


def test_where_it_is_not_known_all_may_have() -> None:
    some = Obituary(actor="a", life=2, begun={b"other": 9})
    assert last_begun(some, 2, ROUTE) == MOST
    assert last_begun(None, 2, ROUTE) == MOST


def test_the_end_of_another_life_says_nothing() -> None:
    obituary = Obituary(actor="a", life=2, begun={ROUTE: 7}, all_begun=True)
    assert last_begun(obituary, 1, ROUTE) == MOST
