"""The options that several commands share, and the choice of the cluster.

A command uses the cluster that is named, by an address or by the pid of a script that runs one of
its own; the one at a port of this machine; or that of REMOTELY_ADDRESS.  If none of these is given,
it uses the one that `remotely start` has started here, or else that of the only script.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from remotely.errors import MasterLost, RemotelyError
from remotely.protocol.address import DEFAULT_PORT, join_address, parse_address
from remotely.protocol.lease import LEAVE_GRACE_S
from remotely.protocol.listening import ANY_PORT, Ports, parse_ports

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from remotely.client.carrier import ClusterCarrier
    from remotely.client.viewer import Viewer
    from remotely.ops.script_cluster import ScriptCluster


cpus_option = click.option(
    "--cpus", type=click.IntRange(min=0), help="CPUs to offer; by default all cores."
)


class NotEmptyType(click.ParamType):  # type: ignore[type-arg]
    """A text or path that names something: an empty one does not, and is not the same as none."""

    def __init__(self, given: "click.ParamType[Any]") -> None:
        self.name = given.name
        self._given = given

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            self.fail("an empty text names nothing: leave it out", param, ctx)
        return self._given.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        return self._given.shell_complete(ctx, param, incomplete)


def refuse_empty_texts(command: click.Command) -> None:
    """Have no option or argument of a command, and of those in a group, take an empty text.

    Of a path, it would be the working folder.
    """
    for param in command.params:
        if param.type is click.STRING or isinstance(param.type, click.Path):
            param.type = NotEmptyType(param.type)
    for inner in getattr(command, "commands", {}).values():
        refuse_empty_texts(inner)


class DurationType(click.ParamType):  # type: ignore[type-arg]
    name = "TIME"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not a time: write 90s, 10m or 2h", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


_DURATION = re.compile(r"(\d{1,9}(?:\.\d+)?)(s|m|h|d|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


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
    help="GPUs to offer: how many, or which (2,3; a single one: 2,); by default all.",
)


class ResourceType(click.ParamType):  # type: ignore[type-arg]
    name = "NAME=AMOUNT"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, float]:
        from remotely.protocol.resources import parse_others

        name, _, amount = value.partition("=")
        try:
            parse_others({name: float(amount)})
        except ValueError as error:
            self.fail(f"{value!r} is not NAME=AMOUNT, such as license=2 ({error})", param, ctx)
        return name, float(amount)


resource_option = click.option(
    "--resource",
    "resources",
    type=ResourceType(),
    multiple=True,
    help="A custom resource to offer, such as license=2; may be repeated.",
)


class MemoryType(click.ParamType):  # type: ignore[type-arg]
    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        from remotely.protocol.resources import parse_memory

        try:
            return parse_memory(int(value) if str(value).isdecimal() else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


memory_option = click.option(
    "--memory",
    type=MemoryType(),
    help="Memory to offer, such as 48GiB; by default all but 5 %, at most 2 GiB, which are kept "
    "for the system.",
)


class LabelType(click.ParamType):  # type: ignore[type-arg]
    name = "NAME[=VALUE]"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        from remotely.protocol.resources import parse_labels

        try:
            return parse_labels([value])[0]
        except ValueError as error:
            self.fail(str(error), param, ctx)


label_option = click.option(
    "--label",
    "labels",
    type=LabelType(),
    multiple=True,
    help="What is true of this machine, such as ssd or zone=a, for classes that ask for it with "
    "labels=; may be repeated.",
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
    help="The range of ports at which all processes here listen, to open in a firewall; by default "
    "the kernel chooses them.",
)
announce_option = click.option(
    "--announce",
    multiple=True,
    metavar="HOST",
    help="The address at which other machines reach this one, if it differs from the one at which "
    "it listens, as in a container; may be repeated for several networks.",
)
foreground_option = click.option(
    "--foreground",
    is_flag=True,
    help="Run until Ctrl-C, SIGTERM, or the end of the cluster, with the log on standard error.",
)
grace_option = click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=LEAVE_GRACE_S,
    show_default=True,
    metavar="SECONDS",
    envvar="REMOTELY_GRACE",
    help="How long this machine is drained after SIGTERM, so that calls can finish; it has left "
    "by then. A second one ends it at once.  [REMOTELY_GRACE]",
)
key_option = click.option(
    "--key",
    type=click.Path(path_type=Path),
    envvar="REMOTELY_KEY",
    help="The key file; by default client.key in ~/.remotely/keys.  [REMOTELY_KEY]",
)
HERE = "[HOST:PORT|PID]"
local_port_option = click.option(
    "--port", type=click.IntRange(1, 65535), help="The port of a cluster on this machine.  [8010]"
)
address_option = click.option(
    "--address",
    metavar="HOST:PORT|PID",
    help="The address of the master, or the pid of a script with a cluster of its own.  "
    "[REMOTELY_ADDRESS]",
)

_OF_RAY = (
    "{!r} is a Ray cluster, but this command is for clusters of 'remotely start' (HOST:PORT or "
    "--port). Use 'ray status', 'ray logs' and 'ray debug', or remotely.status() in a script"
)


class ChosenCluster(NamedTuple):
    """The cluster that a command uses; `script` is the one that runs it for itself, if any."""

    address: str
    script: "ScriptCluster | None" = None

    @property
    def shown(self) -> str:
        """How people know it."""
        return str(self.script or self.address)


def chosen_cluster(address: str | None, port: int | None) -> ChosenCluster:
    """Return the cluster that these options name, as described above."""
    from remotely.machine import pid_file
    from remotely.ops import script_cluster

    if address is None and port is None:
        address = os.environ.get("REMOTELY_ADDRESS") or None
    if address is not None and (address.isdecimal() or address.startswith("ipc://")):
        scripts = script_cluster.running()
        for script in scripts:
            if address in (str(script.pid), script.address):
                return ChosenCluster(script.address, script)
        raise MasterLost(
            f"no script of yours runs a cluster of its own at {address}{_all(scripts)}"
        )
    if address is not None:
        name, number = parse_own_address(address)
        return ChosenCluster(join_address(name, number))
    if daemons := pid_file.running(port or DEFAULT_PORT):
        return ChosenCluster(daemons[0].address)
    scripts = [] if port is not None else script_cluster.running()
    if len(scripts) == 1:
        return ChosenCluster(scripts[0].address, scripts[0])
    if scripts:
        raise RemotelyError(
            f"{len(scripts)} scripts run clusters of their own; name one by its pid, "
            f"where HOST:PORT goes or as --address{_all(scripts)}"
        )
    no_script = "" if port is not None else ", and no script of yours runs one of its own"
    raise MasterLost(
        f"no cluster runs at port {port or DEFAULT_PORT} on this machine{no_script}"
        f"{other_ports(port or DEFAULT_PORT)}; 'remotely start' starts one; for one elsewhere "
        "give HOST:PORT or set REMOTELY_ADDRESS"
    )


def _all(scripts: "Sequence[ScriptCluster]") -> str:
    """Return the list of these scripts as the end of a sentence; "" if there are none."""
    return f": {', '.join(f'{each.pid} ({each.script})' for each in scripts)}" if scripts else ""


def other_scripts(cluster: ChosenCluster) -> str:
    """Return a sentence about the scripts that run other clusters here; "" if none do."""
    from remotely.ops import script_cluster

    others = [each for each in script_cluster.running() if each.address != cluster.address]
    return f"Scripts with a cluster of their own, by pid{_all(others)}" if others else ""


def parse_own_address(address: str) -> tuple[str, int]:
    """Return the host and the port of a cluster.  Raises RemotelyError if it is one of Ray."""
    name, colon, port = address.partition(":")
    if name == "ray" and colon and not port.isdecimal():  # a host may be named ray
        raise RemotelyError(_OF_RAY.format(address))
    return parse_address(address)


@contextlib.contextmanager
def client_at(cluster: ChosenCluster, key: Path | None) -> Iterator["ClusterCarrier"]:
    """Connect to a cluster for the length of a block."""
    from remotely.client.carrier import ClusterCarrier, client_of
    from remotely.values.shipping import Shipment

    address, script = cluster
    if script is None:
        client = client_of(address, key)
    else:
        client = ClusterCarrier(address, script.client_key, Shipment(()))
    try:
        if script:
            client.end_with(script.pid, script.ended)
        yield client
    finally:
        client.shutdown()


@contextlib.contextmanager
def viewer_at(cluster: ChosenCluster, key: Path | None) -> Iterator["Viewer"]:
    """Look at a cluster for the length of a block."""
    from remotely.client.viewer import Viewer, viewer_of

    address, script = cluster
    viewer = Viewer(address, script.viewer_key) if script else viewer_of(address, key)
    with contextlib.closing(viewer):
        if script:
            say = lambda: click.echo(
                f"{script.ended}. The page keeps what was seen last.", err=True
            )
            viewer.end_with(script.pid, script.ended, say)
        yield viewer


@contextlib.contextmanager
def following(cluster: ChosenCluster) -> Iterator[None]:
    """Let a block that follows a cluster go on until Ctrl-C, or the end of the cluster's script."""
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    except MasterLost:
        if cluster.script is None or cluster.script.alive:
            raise
        click.echo(f"{cluster.script.ended}.", err=True)


def port_of_shell() -> int:
    """Return the port of REMOTELY_ADDRESS.  Raises RemotelyError if it is on another machine."""
    from remotely.machine import interfaces, pid_file

    if not (address := os.environ.get("REMOTELY_ADDRESS")):
        return DEFAULT_PORT
    name, port = parse_own_address(address)
    joined = {daemon.address for daemon in pid_file.running(port)}
    if not interfaces.is_here(name) and join_address(name, port) not in joined:
        raise RemotelyError(
            f"REMOTELY_ADDRESS is {address}, and {name} is not an address of this machine: run "
            "'remotely stop' there, or give the port of a cluster here with --port"
        )
    return port


def other_ports(port: int) -> str:
    """Return a hint with the other ports that have a cluster on this machine; "" if none do."""
    from remotely.machine import pid_file

    ports = [str(other) for other in pid_file.ports() if other != port]
    return f"; there is one at --port {', '.join(ports)}" if ports else ""
