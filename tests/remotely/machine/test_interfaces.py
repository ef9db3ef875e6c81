"""Which addresses and ports this machine has."""

import socket

import pytest

from remotely.errors import RemotelyError
from remotely.machine import interfaces
from tests.clusters import free_port


def test_a_port_whose_holder_is_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    holder = socket.create_server(("127.0.0.1", port))
    looks: list[int] = []

    def nobody(port: int) -> str:
        looks.append(port)
        if len(looks) == 2:
            holder.close()
        return ""

    monkeypatch.setattr(interfaces, "_holder_of", nobody)
    interfaces.check_port("127.0.0.1", "127.0.0.1", port)
    assert looks == [port, port]


def test_a_port_that_nobody_can_be_seen_to_hold_is_told_of_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setattr(interfaces, "_holder_of", lambda port: "")
    monkeypatch.setattr(interfaces, "PORT_FREE_S", 0.0)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(RemotelyError, match="in use by another program"),
    ):
        interfaces.check_port("127.0.0.1", "127.0.0.1", port)
