"""Parsing of addresses, and the errors if there is no connection to one."""

import errno

import pytest

from remotely.protocol.address import (
    RUNS_ALREADY,
    join_address,
    no_master,
    parse_address,
    split_address,
    unreachable,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1", "node1", None),
        ("node1:9000", "node1", 9000),
        ("tcp://10.0.0.1:9000", "10.0.0.1", 9000),
        ("::1", "::1", None),
        ("fd00::2", "fd00::2", None),
        ("[fd00::2]", "fd00::2", None),
        ("[fd00::2]:9000", "fd00::2", 9000),
        ("tcp://[::1]:9000", "::1", 9000),
    ],
)
def test_addresses_with_and_without_port_and_brackets_are_parsed(
    text: str, host: str, port: int | None
) -> None:
    assert split_address(text) == (host, port)
    assert parse_address(text) == (host, port or 8010)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node1:",
        "node1:x",
        ":8010",
        "a:b:c",
        "[::1",
        "[::1]9000",
        "[::1]:",
        "[node1]:9000",
        "[]:1",
        "node1:8010:8011",
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address; write it as host:8010"):
        split_address(text)


@pytest.mark.parametrize("text", ["node1:0", "node1:99999", "[fd00::2]:65536", "tcp://node1:0"])
def test_a_port_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ports go from 1 to 65535"):
        split_address(text)


def test_an_ipv6_address_is_joined_in_brackets() -> None:
    assert join_address("node1", 9000) == "node1:9000"
    assert join_address("fd00::2", "*") == "[fd00::2]:*"
    assert parse_address(join_address("fd00::2", 9000)) == ("fd00::2", 9000)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (errno.ECONNREFUSED, "nothing listens"),
        (errno.ETIMEDOUT, "a firewall drops"),
        (errno.EINPROGRESS, "a firewall drops"),
        (errno.EHOSTUNREACH, "no route"),
        (errno.ENETUNREACH, "no route"),
        (0, "answers"),
    ],
)
def test_the_reason_for_no_connection_names_both_ends_and_the_port(code: int, word: str) -> None:
    error = unreachable("10.0.0.1", "10.0.0.2", 9001, code)
    assert all(part in error for part in ("10.0.0.1", "10.0.0.2", "port 9001", word))


def test_another_failure_is_reported_with_the_message_of_the_system() -> None:
    assert unreachable("a", "b", 1, errno.EMFILE, "Too many open files") == "Too many open files"
    assert unreachable("a", "b", 1, None) == "there is no connection from a to port 1 of b"


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("tcp://node0:8011", "node0", "8011"), ("[fd00::2]:8012", "fd00::2", "8012")],
)
def test_without_a_master_the_error_says_how_to_start_one(
    address: str, host: str, port: str
) -> None:
    error = no_master(address, "silent", RUNS_ALREADY)
    assert f"'remotely start --host {host} --port {port}'" in error
    assert error.endswith("may admit its own machine only")
