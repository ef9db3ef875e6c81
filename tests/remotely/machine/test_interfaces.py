"""The addresses and ports of this machine, IPv4 and IPv6."""

import socket

import pytest

from remotely.errors import RemotelyError
from remotely.machine import interfaces
from tests.clusters import free_port


def test_a_port_whose_holder_is_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    holder = socket.create_server(("127.0.0.1", port))
    checks: list[int] = []

    def no_holder(port: int) -> str:
        checks.append(port)
        if len(checks) == 2:
            holder.close()
        return ""

    monkeypatch.setattr(interfaces, "_holder_of", no_holder)
    interfaces.check_port("127.0.0.1", "127.0.0.1", port)
    assert checks == [port, port]


def test_a_port_with_an_unknown_holder_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(interfaces, "_holder_of", lambda port: "")
    monkeypatch.setattr(interfaces, "PORT_FREE_S", 0.0)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(RemotelyError, match="in use by another program"),
    ):
        interfaces.check_port("127.0.0.1", "127.0.0.1", port)


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_a_taken_port_is_reported_for_ipv4_and_ipv6(ip: str) -> None:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    port = interfaces.free_port(ip, 0, 0)
    interfaces.check_port(ip, ip, port)
    with socket.create_server((ip, port), family=family):
        assert interfaces.is_taken(ip, port)
        with pytest.raises(RemotelyError, match=f"port {port} is in use by pid"):
            interfaces.check_port(ip, ip, port)
        with pytest.raises(RemotelyError, match=f"no port of {port}-{port} is free"):
            interfaces.check_range(ip, port, port)
    assert not interfaces.is_taken(ip, port)


def test_the_first_free_port_of_a_range_is_found() -> None:
    low = free_port()
    with socket.create_server(("127.0.0.1", low)):
        assert low < interfaces.free_port("127.0.0.1", low, low + 20) <= low + 20


def test_names_and_addresses_of_this_machine_are_recognised() -> None:
    assert interfaces.ip_of("localhost") == "127.0.0.1"
    assert interfaces.ip_of("::1") == "::1"
    for name in ("localhost", "127.0.0.5", "::1", "0.0.0.0", "::", interfaces.own_address()):
        assert interfaces.is_here(name)
    for name in ("192.0.2.77", "no.such.invalid"):
        assert not interfaces.is_here(name)


@pytest.mark.parametrize(
    ("here", "bound"),
    [
        (["127.0.0.1"], "0.0.0.0"),
        (["10.0.0.1", "fd00::1", "127.0.0.1"], "0.0.0.0"),
        (["fd00::1", "127.0.0.1"], "::"),
    ],
)
def test_the_wildcard_address_covers_ipv6_if_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, here: list[str], bound: str
) -> None:
    monkeypatch.setattr(interfaces, "addresses_here", lambda: here)
    assert interfaces.everywhere() == bound
