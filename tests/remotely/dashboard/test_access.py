"""The access decisions, pure; test_app.py tests them over HTTP."""

import pytest

from remotely.dashboard.access import MAX_COOKIES, Access


@pytest.fixture
def access() -> Access:
    return Access(["localhost", "127.0.0.1", "::1", "Node0.example"], "remotely-8020", "a token")


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        ("localhost", True),
        ("LOCALHOST:9999", True),  # the local end of a tunnel may have any port
        ("127.0.0.1:8020", True),
        ("[::1]:8020", True),
        ("node0.example:8020", True),
        ("", False),
        ("evil.example", False),
        ("evil.example:8020", False),
        ("127.0.0.1.evil.example:8020", False),
        ("localhost.evil.example", False),
        ("[::1", True),
        ("[::2]:8020", False),
    ],
)
def test_a_host_is_known_by_its_name_alone(access: Access, header: str, is_known: bool) -> None:
    assert access.knows_host(header) == is_known


def test_a_link_works_once_and_is_replaced(access: Access) -> None:
    link = access.link
    cookie = access.use_link(link)
    assert access.admits(cookie)
    assert access.use_link(link) == ""
    assert access.link != link
    other = access.use_link(access.link)
    assert other != cookie
    assert access.admits(cookie)
    assert access.admits(other)


@pytest.mark.parametrize("guess", ["", "guess", "\u2603", "é" * 40])
def test_a_guessed_link_is_refused_and_does_not_use_the_link_up(access: Access, guess: str) -> None:
    link = access.link
    assert access.use_link(guess) == ""
    assert not access.admits(guess)
    assert access.link == link


def test_the_oldest_browser_is_forgotten_beyond_the_limit(access: Access) -> None:
    first = access.use_link(access.link)
    for _ in range(MAX_COOKIES):
        assert access.admits(first)
        newest = access.use_link(access.link)
    assert not access.admits(first)
    assert access.admits(newest)


def test_metrics_accept_only_the_token_and_none_without_a_token(access: Access) -> None:
    assert access.admits_bearer("Bearer a token")
    for wrong in ("", "Bearer ", "Bearer a tokem", "a token", "Basic a token"):
        assert not access.admits_bearer(wrong)
    assert not Access([], "", "").admits_bearer("Bearer ")
