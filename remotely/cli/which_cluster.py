"""Which cluster a command is about: the one named, that of a port here, or the shell's."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from remotely.errors import MasterLost, RemotelyError
from remotely.protocol.address import DEFAULT_PORT, join_address, parse_address

if TYPE_CHECKING:
    from remotely.client.client import Client

_OF_RAY = (
    "{!r} is a Ray cluster, and this command is for clusters of 'remotely start', which HOST:PORT "
    "or --port names: use 'ray status' and 'ray logs', or remotely.status() in a script"
)


def cluster_address(address: str | None, port: int | None) -> str:
    """Return the address of the cluster that is meant: named, of a port here, or of the shell."""
    if address is None and port is None:
        address = os.environ.get("REMOTELY_ADDRESS") or None
    if address is not None:
        name, number = address_of_ours(address)
        return join_address(name, number)
    from remotely.machine import pid_file

    daemons = pid_file.running(port or DEFAULT_PORT)
    if not daemons:
        raise MasterLost(
            f"no cluster runs at port {port or DEFAULT_PORT} on this machine"
            f"{other_ports(port or DEFAULT_PORT)}; 'remotely start' starts one, HOST:PORT or "
            "REMOTELY_ADDRESS names one elsewhere"
        )
    return daemons[0].address


def address_of_ours(address: str) -> tuple[str, int]:
    """Return the host and the port of a cluster of our own.

    Raises RemotelyError for one of Ray, which the commands do not know.
    """
    name, colon, port = address.partition(":")
    if name == "ray" and colon and not port.isdecimal():  # a host may be called ray
        raise RemotelyError(_OF_RAY.format(address))
    return parse_address(address)


@contextlib.contextmanager
def client_at(address: str, key: Path | None) -> Iterator["Client"]:
    """Connect to a cluster for the length of a block."""
    from remotely.client.client import client_of

    client = client_of(address, key)
    try:
        yield client
    finally:
        client.shutdown()


def port_of_shell() -> int:
    """Return the port of REMOTELY_ADDRESS, if that cluster is of this machine."""
    from remotely.machine import interfaces, pid_file

    if not (address := os.environ.get("REMOTELY_ADDRESS")):
        return DEFAULT_PORT
    name, port = address_of_ours(address)
    joined = {daemon.address for daemon in pid_file.running(port)}
    if not interfaces.is_here(name) and join_address(name, port) not in joined:
        raise RemotelyError(
            f"REMOTELY_ADDRESS is {address}, and {name} is no address of this machine: run "
            "'remotely stop' there, or name the port of a cluster here with --port"
        )
    return port


def other_ports(port: int) -> str:
    from remotely.machine import pid_file

    ports = [str(other) for other in pid_file.ports() if other != port]
    return f"; there is one at --port {', '.join(ports)}" if ports else ""
