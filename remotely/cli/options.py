"""Options that several commands have, and which cluster a command is about.

That is the one named, that of a port here, or the shell's.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remotely.errors import MasterLost, RemotelyError
from remotely.protocol.address import DEFAULT_PORT, join_address, parse_address
from remotely.protocol.listening import ANY_PORT, Ports, parse_ports

if TYPE_CHECKING:
    from remotely.client.client import Client


cpus_option = click.option(
    "--cpus", type=click.IntRange(min=0), help="CPUs to give away; by default all cores."
)


class GpusType(click.ParamType):  # type: ignore[type-arg]
    name = "N|ID,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> int | list[str]:
        from remotely.machine import gpus

        try:
            return gpus.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


gpus_option = click.option(
    "--gpus",
    type=GpusType(),
    help="GPUs to give away: how many, or which (2,3; one alone: 2,); by default all there are.",
)


class ResourceType(click.ParamType):  # type: ignore[type-arg]
    name = "NAME=AMOUNT"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, float]:
        from remotely.protocol.resources import parse_others

        name, _, amount = value.partition("=")
        try:
            parse_others({name: float(amount)})
        except ValueError as error:
            self.fail(f"{value!r} is not NAME=AMOUNT, as license=2 ({error})", param, ctx)
        return name, float(amount)


resource_option = click.option(
    "--resource",
    "resources",
    type=ResourceType(),
    multiple=True,
    help="A resource of your own to give away, as license=2; may be given several times.",
)
port_option = click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"The port of the cluster on this machine; by default {DEFAULT_PORT}, or the first of "
    "--ports.",
)


class PortsType(click.ParamType):  # type: ignore[type-arg]
    name = "LOW-HIGH"

    def convert(self, value: Any, param: Any, ctx: Any) -> Ports:
        if isinstance(value, Ports):
            return value
        try:
            return parse_ports(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


ports_option = click.option(
    "--ports",
    type=PortsType(),
    default=ANY_PORT,
    help="The ports at which all that runs here listens, to be opened in a firewall; by default "
    "those that the kernel chooses.",
)
announce_option = click.option(
    "--announce",
    multiple=True,
    metavar="HOST",
    help="The address by which other machines reach this one, if that is not the one at which it "
    "listens, as in a container; several times for several networks.",
)
foreground_option = click.option(
    "--foreground",
    is_flag=True,
    help="Stay, with the log on standard error, until Ctrl-C, SIGTERM, or the end of the cluster.",
)
key_option = click.option(
    "--key",
    type=click.Path(path_type=Path),
    envvar="REMOTELY_KEY",
    help="The key file; by default client.key in ~/.remotely/keys.  [REMOTELY_KEY]",
)
local_port_option = click.option(
    "--port", type=click.IntRange(1, 65535), help="Of a cluster on this machine.  [8010]"
)
address_option = click.option(
    "--address", metavar="HOST:PORT", help="Of the master.  [REMOTELY_ADDRESS]"
)

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
