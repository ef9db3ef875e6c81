"""Binding of ports, and the choice of an address to connect to."""

import errno
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from remotely.errors import MasterLost, RemotelyError
from remotely.machine import interfaces
from remotely.protocol.listening import ANY_PORT, Listening, Ports
from remotely.transport import listening as module
from remotely.transport.keys import fresh_pair
from remotely.transport.listening import bind_within, listen, nearest, reach
from remotely.transport.sockets import new_context, server
from tests.clusters import free_port, printed, wait_until


@pytest.fixture
def low() -> int:
    """Return the first of three ports that are free."""
    while True:
        port = free_port()
        try:
            for next_one in range(port, port + 3):
                socket.create_server(("127.0.0.1", next_one)).close()
        except OSError:
            continue
        return port


@pytest.fixture
def new_server() -> Iterator[Callable[[], "zmq.Socket[bytes]"]]:
    context = new_context()
    made: list[zmq.Socket[bytes]] = []

    def make() -> "zmq.Socket[bytes]":
        made.append(server(context, fresh_pair()))
        return made[-1]

    yield make
    for each in made:
        each.close(linger=0)
    context.term()


def test_sockets_share_a_range_until_it_is_full(
    new_server: Callable[[], "zmq.Socket[bytes]"], low: int
) -> None:
    listening = Listening(host="127.0.0.1", ports=Ports(low, low + 2))
    found = {listen(new_server(), listening) for _ in range(3)}
    assert found == {f"tcp://127.0.0.1:{port}" for port in range(low, low + 3)}
    with pytest.raises(RemotelyError, match=f"no port of {low}-{low + 2} is free"):
        listen(new_server(), listening)


def test_a_socket_listens_on_an_ipv6_address(
    new_server: Callable[[], "zmq.Socket[bytes]"],
) -> None:
    endpoint = listen(new_server(), Listening(host="::1"))
    port = int(endpoint.removeprefix("tcp://[::1]:"))
    socket.create_connection(("::1", port)).close()


def test_bind_within_tries_the_ports_of_a_range(low: int) -> None:
    with socket.create_server(("127.0.0.1", low)) as taken, socket.socket() as mine:

        def bind(port: int) -> int:
            mine.bind(("127.0.0.1", port))
            return int(mine.getsockname()[1])

        assert taken.getsockname()[1] == low
        assert bind_within(Ports(low, low + 1), bind) == low + 1
    with socket.socket() as mine:
        assert bind_within(ANY_PORT, bind) > 0


def test_an_error_that_another_port_does_not_fix_is_raised() -> None:
    def bind(port: int) -> int:
        raise OSError(errno.EADDRNOTAVAIL, "no such address")

    with pytest.raises(OSError, match="no such address"):
        bind_within(Ports(9000, 9100), bind)


def test_the_endpoint_on_our_network_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        interfaces,
        "_networks",
        lambda: [(*interfaces._number_of(ip), mask) for ip, mask in NETWORKS],
    )
    far, near = "tcp://203.0.113.7:9", "tcp://10.1.2.3:9"
    docker = "tcp://172.17.0.1:9"  # of another machine; this one has the same address
    assert nearest(far) == far
    assert nearest(f"{far} {near}") == near
    assert nearest(f"{docker} {far} {near}") == near
    assert nearest(f"{far} {docker}") == far
    assert nearest(f"tcp://name:9 {far}") == "tcp://name:9"
    assert nearest(f"{far} tcp://[fd00::9]:9") == "tcp://[fd00::9]:9"


NETWORKS = [
    ("10.1.0.1", 0xFFFF0000),
    ("172.17.0.1", 0xFFFF0000),
    ("fd00::2", ((1 << 64) - 1) << 64),
]


def test_the_networks_of_this_machine_are_known() -> None:
    interfaces._networks.cache_clear()
    for own in interfaces.addresses_here():
        assert not interfaces.is_near(own)
    assert not interfaces.is_near("a.name")


def test_a_name_with_one_address_stays_a_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert reach("127.0.0.1", port, "") == f"127.0.0.1:{port}"
        assert reach("localhost", port, "") == f"localhost:{port}"
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        port = listening.getsockname()[1]
        assert reach("::1", port, "") == f"[::1]:{port}"


def test_a_name_with_several_addresses_becomes_the_one_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = socket.getaddrinfo

    def two(host: str, *rest: object, **more: object) -> object:
        return known("127.0.0.2", *rest, **more) + known("127.0.0.1", *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert reach("node0", port, "") == f"127.0.0.1:{port}"


def test_a_patient_client_waits_for_a_listener_with_a_notice(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "RETRY_EVERY_S", 0.001)
    monkeypatch.setattr(module, "NOTICE_AFTER_S", 0.0)
    port = free_port()
    with ThreadPoolExecutor() as script:
        found = script.submit(reach, "127.0.0.1", port, "", 20.0)
        wait_until(lambda: printed().endswith("(giving up after 20 s)\n"), "the line")
        with socket.create_server(("127.0.0.1", port)):
            assert found.result(40) == f"127.0.0.1:{port}"
    assert printed().count("remotely: waiting for a cluster: no master at 127.0.0.1") == 1
    with pytest.raises(MasterLost, match=r"waited for it for 0\.01 s"):
        reach("127.0.0.1", port, "", 0.01)


def test_an_unreachable_master_is_reported_with_advice() -> None:
    port = free_port()
    with pytest.raises(MasterLost) as lost:
        reach("127.0.0.1", port, "; or else")
    text = str(lost.value)
    assert f"nothing listens at port {port} of 127.0.0.1" in text
    assert "rejects packets from 127.0.0.1" in text
    assert f"remotely start --host 127.0.0.1 --port {port}" in text
    assert text.endswith("; or else")
    with pytest.raises(MasterLost, match=r"cannot resolve the machine name 'no\.such\.invalid'"):
        reach("no.such.invalid", port, "")
