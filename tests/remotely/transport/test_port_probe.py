"""Probes of ports, without blocking."""

import errno
import resource
import socket

import pytest

from remotely.transport.port_probe import UNKNOWN, PortProbe
from tests.clusters import free_port, wait_until


def test_a_port_without_a_listener_refuses() -> None:
    assert PortProbe("127.0.0.1", free_port()).refused()


def test_a_listener_or_a_silent_port_does_not_refuse() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert not PortProbe(*listening.getsockname()).refused()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        socket.create_connection(silent.getsockname()),  # fills the backlog
    ):
        assert PortProbe(*silent.getsockname()).code() == errno.EINPROGRESS
    assert not PortProbe("no.such.machine.invalid", 9).refused()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_listener_is_found_on_either_family(family: int) -> None:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        wait_until(lambda: PortProbe(host, port).code() == 0, "the listener answers")


def test_a_probe_without_a_free_descriptor_is_unknown() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert PortProbe("127.0.0.1", 9).code() == UNKNOWN
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_outcome_does_not_change_once_read() -> None:
    probe = PortProbe("127.0.0.1", free_port())
    assert probe.code() == probe.code() == errno.ECONNREFUSED
