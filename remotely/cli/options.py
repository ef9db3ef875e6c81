"""Options that several commands have."""

from pathlib import Path
from typing import Any

import click

from remotely.protocol.address import DEFAULT_PORT
from remotely.protocol.listening import ANY_PORT, Ports, parse_ports

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
