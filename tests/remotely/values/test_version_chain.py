"""The order in which the followers of a published value get a version from each other."""

import hypothesis.strategies as st
from hypothesis import given

from remotely.values.version_chain import MOST_FAILED, VersionChain


def source(chain: VersionChain[str], follower: str | None, version: int, failed: str = "") -> str:
    """Return where a follower gets a version; "" for the writer."""
    found = chain.source(follower, version, failed)
    return found.relay if found else ""


def test_the_first_has_it_from_the_writer_and_each_other_from_the_one_before() -> None:
    chain = VersionChain[str]()
    assert [source(chain, follower, 1) for follower in "abc"] == ["", "a", "b"]


def test_who_asks_first_makes_no_difference_to_those_that_wait() -> None:
    chain = VersionChain[str]()
    for follower in "abc":
        chain.wait(follower)
    assert [source(chain, follower, 1) for follower in "cab"] == ["b", "", "a"]


def test_the_next_version_keeps_the_order_of_those_that_wait_for_it() -> None:
    chain = VersionChain[str]()
    for follower in "abcd":
        source(chain, follower, 1)
    for follower in "dca":
        chain.wait(follower)
    assert [source(chain, follower, 2) for follower in "dcab"] == ["c", "a", "", "d"]


def test_one_that_does_not_ask_for_a_version_is_not_in_its_chain() -> None:
    chain = VersionChain[str]()
    for follower in "ab":
        chain.wait(follower)
    chain.leave("a")
    assert source(chain, "b", 1) == ""


def test_one_that_waits_twice_waits_until_it_has_left_twice() -> None:
    chain = VersionChain[str]()
    for follower in "aab":
        chain.wait(follower)
    chain.leave("a")
    assert source(chain, "b", 1) == "a"


def test_one_that_cannot_relay_has_it_from_the_last_and_none_has_it_from_it() -> None:
    chain = VersionChain[str]()
    chain.wait(None)
    assert [source(chain, f, 1) for f in ("a", "b", None, "c")] == ["", "a", "b", "b"]
    chain.leave(None)


def test_a_follower_goes_round_those_that_have_failed_it() -> None:
    chain = VersionChain[str]()
    for follower in "abc":
        source(chain, follower, 1)
    assert source(chain, "d", 1, failed="cb") == "a"
    assert source(chain, "e", 1) == "d"
    assert source(chain, "b", 1, failed="a") == ""


def test_a_follower_that_several_have_failed_has_it_from_the_writer() -> None:
    chain = VersionChain[str]()
    for follower in "abcd":
        source(chain, follower, 1)
    assert source(chain, "e", 1, failed="xyz"[:MOST_FAILED]) == ""


def test_one_whose_source_has_failed_has_it_from_the_writer_and_keeps_its_place() -> None:
    chain = VersionChain[str]()
    for follower in "abc":
        source(chain, follower, 1)
    assert chain.source("b", 1, again=True) is None
    assert source(chain, "c", 1) == "b"


def test_the_depth_is_the_number_of_those_before() -> None:
    chain = VersionChain[str]()
    depths = [found.depth for f in "abcd" if (found := chain.source(f, 1)) is not None]
    assert depths == [1, 2, 3]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "again", "wait", "leave", "new"]),
        st.sampled_from("abcdef"),
        st.sets(st.sampled_from("abcdef"), max_size=2),
    ),
    max_size=60,
)


@given(STEPS)
def test_nobody_waits_for_itself_whatever_happens(steps: list[tuple[str, str, set[str]]]) -> None:
    chain, version = VersionChain[str](), 1
    waiting: list[str] = []
    sources: dict[str, str] = {}  # of this version
    for what, follower, failed in steps:
        if what == "new":
            version, sources = version + 1, {}
        elif what == "wait":
            chain.wait(follower)
            waiting.append(follower)
        elif what == "leave" and follower in waiting:
            chain.leave(follower)
            waiting.remove(follower)
        elif what in ("ask", "again"):
            found = chain.source(follower, version, failed, again=what == "again")
            sources.pop(follower, None)
            if found is not None:
                assert found.relay not in failed
                sources[follower] = found.relay
        for begin in sources:
            seen, at = {begin}, begin
            while (at := sources.get(at, "")) != "":
                assert at not in seen
                seen.add(at)
