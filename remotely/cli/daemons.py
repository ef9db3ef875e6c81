"""`remotely start`, `join`, `stop` and `keys`: the cluster of this machine."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from remotely.cli.options import (
    announce_option,
    cpus_option,
    foreground_option,
    gpus_option,
    grace_option,
    label_option,
    memory_option,
    other_ports,
    parse_own_address,
    port_of_shell,
    port_option,
    ports_option,
    resource_option,
)
from remotely.errors import RemotelyError
from remotely.protocol.address import DEFAULT_PORT, join_address, split_address
from remotely.protocol.listening import Ports

if TYPE_CHECKING:
    from remotely.ops.foreground import Foreground


@click.command(short_help="Start a cluster on this machine.")
@click.option(
    "--host",
    help="The address to listen at: 0.0.0.0 is every IPv4 address of this machine, :: those of "
    "IPv6 too.  [127.0.0.1; with --announce 0.0.0.0]",
)
@port_option
@ports_option
@announce_option
@cpus_option
@gpus_option
@memory_option
@resource_option
@label_option
@grace_option
@foreground_option
def start(
    host: str | None,
    port: int | None,
    ports: Ports,
    announce: tuple[str, ...],
    cpus: int | None,
    gpus: int | list[str] | None,
    memory: int | None,
    resources: tuple[tuple[str, float], ...],
    labels: tuple[str, ...],
    grace: float,
    foreground: bool,
) -> None:
    """Start a cluster on this machine; return when it takes calls.

    \b
    remotely start                        for scripts on this machine
    remotely start --host 192.168.0.10    for other machines too
    remotely start --port 8011            a second cluster beside the first
    remotely start --host 0.0.0.0 --ports 8010-8110          behind a firewall
    remotely start --announce node0.example:9010             in a container, with -p 9010:8010

    With --ports the master uses the first port of the range, unless --port names another.
    --announce HOST:PORT also gives the master's port as other machines see it.
    """
    from remotely.machine import interfaces
    from remotely.machine.gpus import OfferedResources
    from remotely.ops import cluster

    seen = [split_address(address) for address in announce]
    host = host or ("0.0.0.0" if announce else "127.0.0.1")
    port = port or ports.low or DEFAULT_PORT
    network = cluster.Network(host, tuple(name for name, _ in seen), ports)
    with _foreground(foreground, grace) as keeper:
        offer = OfferedResources(cpus, gpus, dict(resources), labels, memory)
        daemons = cluster.start(network, port, offer, keeper, grace_s=grace)
        name, outer_port = seen[0] if seen else (host, None)
        if name in interfaces.EVERYWHERE:
            name = interfaces.own_address()
        address = join_address(name, outer_port or port)
        pids = ", ".join(f"{daemon.role} pid {daemon.pid}" for daemon in daemons)
        click.echo(f"The cluster takes calls at {address} ({pids}).\n")
        click.echo(_next_steps(name, address, port, foreground))


def _next_steps(name: str, address: str, port: int, foreground: bool) -> str:
    from remotely.machine import folders, interfaces

    folder = folders.key_folder()
    at_port = "" if port == DEFAULT_PORT else f" --port {port}"
    is_local = interfaces.is_loopback(name) or name == "localhost"
    note = (
        "\n  (Other machines cannot reach this cluster. To admit them: 'remotely stop"
        f"{at_port}', then\n  'remotely start --host ADDRESS{at_port}' with an address of this "
        "machine, or 0.0.0.0.)"
    )
    stop = "Ctrl-C" if foreground else f"remotely stop{at_port}"
    return (
        f'In a script:      remotely.connect("{address}"), or REMOTELY_ADDRESS={address}\n'
        f"To see it:        remotely status{at_port}\n"
        f"To end it:        {stop}\n"
        f"To add a machine: copy {folder / 'worker.key'} to it, and run there:\n"
        f"  remotely join {address} --key worker.key{note if is_local else ''}\n"
        f"To call from another machine: copy {folder / 'client.key'} into its ~/.remotely/keys."
    )


@contextlib.contextmanager
def _foreground(is_wanted: bool, grace_s: float) -> Iterator["Foreground | None"]:
    """Run the block; if wanted, then stay until the daemons that it started end."""
    if not is_wanted:
        yield None
        return
    from remotely.ops.foreground import Foreground, drained_at_sigterm, exiting_on_signals

    keeper = Foreground()
    with exiting_on_signals():
        try:
            with drained_at_sigterm(keeper, grace_s):
                yield keeper
                sys.stdout.flush()
                keeper.wait()
        except SystemExit:
            if not keeper.keeps_any:  # with daemons, a signal is the regular end
                raise
        finally:
            ended_well = keeper.close()
    if not ended_well:
        raise RemotelyError("a daemon of this command did not end gracefully")


@click.command(short_help="Add this machine to a cluster.")
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--key",
    type=click.Path(path_type=Path, allow_dash=True),
    envvar="REMOTELY_KEY",
    help="The cluster's worker.key, copied from the master's machine; - reads it from standard "
    "input; by default the one in ~/.remotely/keys.  [REMOTELY_KEY]",
)
@cpus_option
@gpus_option
@memory_option
@resource_option
@label_option
@click.option(
    "--host",
    help="The address at which this machine's actors listen; by default the one from which it "
    "reaches HOST.",
)
@ports_option
@announce_option
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for a master that has not started yet.",
)
@click.option(
    "--end-without-master",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Leave after this time without a message from the master; by default wait for its return.",
)
@click.option("--once", is_flag=True, help="Succeed if this machine is on that cluster already.")
@grace_option
@foreground_option
def join(
    address: str,
    key: Path | None,
    cpus: int | None,
    gpus: int | list[str] | None,
    memory: int | None,
    resources: tuple[tuple[str, float], ...],
    labels: tuple[str, ...],
    host: str | None,
    ports: Ports,
    announce: tuple[str, ...],
    patience: float,
    end_without_master: float,
    once: bool,
    grace: float,
    foreground: bool,
) -> None:
    """Add this machine to a cluster; return when the master has registered it.

    \b
    remotely join 192.168.0.10:8010 --key worker.key
    remotely join 192.168.0.10:8010 --key worker.key --cpus 4 --gpus 0 --memory 32GiB
    remotely join 192.168.0.10:8010 --key worker.key --label ssd --label zone=a
    ssh node1 remotely join node0:8010 --key - < ~/.remotely/keys/worker.key
    """
    from remotely.machine import folders
    from remotely.machine.gpus import OfferedResources
    from remotely.ops import cluster
    from remotely.transport import key_files

    master, port = parse_own_address(address)
    if any(split_address(name)[1] for name in announce):
        raise ValueError(
            "--announce takes no port here: each actor has a port of its own. Forward a range of "
            "ports unchanged, and give it with --ports"
        )
    if key == Path("-"):
        member = key_files.member_of(sys.stdin.buffer.read(), "standard input", "worker")
    else:
        member = key_files.load_member(key or folders.key_folder() / "worker.key", "worker")
    with _foreground(foreground, grace) as keeper:
        worker = cluster.join(
            master,
            port,
            member,
            cluster.Network(host, tuple(split_address(name)[0] for name in announce), ports),
            OfferedResources(cpus, gpus, dict(resources), labels, memory),
            patience,
            end_without_master,
            keeper,
            once,
            grace,
        )
        at_port = "" if port == DEFAULT_PORT else f" --port {port}"
        leave = "Ctrl-C" if foreground else f"remotely stop{at_port}"
        click.echo(
            f"This machine has joined {worker.address} (worker pid {worker.pid}).\n"
            f"To leave it: {leave}"
        )


@click.command(short_help="End the cluster of this machine at a port.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"The port of a cluster on this machine.  [REMOTELY_ADDRESS, or {DEFAULT_PORT}]",
)
@click.option(
    "--joined",
    metavar="HOST:PORT",
    help="Leave only this cluster, if this machine has joined it; else succeed and do nothing.",
)
def stop(port: int | None, joined: str | None) -> None:
    """End the cluster of this machine at a port, with its workers on other machines.

    On a machine that has only joined, its worker leaves and the cluster goes on.
    """
    from remotely.machine import pid_file
    from remotely.ops import cluster

    address = ""
    if joined:
        name, port = parse_own_address(joined)
        address = join_address(name, port)
    port = port or port_of_shell()
    ended = cluster.stop(port, address)
    if joined and not ended:
        click.echo(f"This machine is not on {joined}.")
        return
    if not ended:
        raise RemotelyError(f"no cluster runs at port {port} on this machine{other_ports(port)}")
    if alive := [daemon for daemon in ended if daemon.alive]:
        pids = ", ".join(str(daemon.pid) for daemon in alive)
        raise RemotelyError(f"pid {pids} did not end, even by SIGKILL")
    if ended[0].role == "joined":
        left = " and ".join(sorted({daemon.address for daemon in ended}))
        click.echo(f"This machine has left {left}; the cluster there goes on.")
        return
    click.echo(f"The cluster at {ended[0].address} has ended.")
    if not joined and pid_file.running(port):
        click.echo(
            "This machine has also joined another cluster with that port: "
            f"'remotely stop --port {port}' again leaves it."
        )


_master_option = click.option(
    "--master",
    metavar="HOST:PORT",
    help="The master to ask whether the change is in force; by default those that were started "
    "with these keys.",
)


@click.group("keys", short_help="List, make and revoke the keys of this machine's cluster.")
def key_commands() -> None:
    """List, make and revoke the keys of this machine's cluster.

    \b
    remotely keys list
    remotely keys add client ada.key     one more key, to copy to its user
    remotely keys add viewer wall.key    one for a dashboard, with read-only access
    remotely keys revoke ada.key         cut off its holder at once
    """


@key_commands.command("list", short_help="Show which keys the master admits.")
def list_keys() -> None:
    """Show which keys the master admits: their public halves."""
    from remotely.machine import folders
    from remotely.transport import key_files
    from remotely.transport.keys import ROLES

    master = key_files.load_master(folders.key_folder() / "master.key")
    for role in ROLES:
        for key in master.keys_of(role):
            click.echo(f"{role}  {key.decode()}")


@key_commands.command("add", short_help="Make a new key.")
@click.argument("role", type=click.Choice(["client", "worker", "viewer"]))
@click.argument("file", type=click.Path(path_type=Path))
@_master_option
def add_key(role: Literal["client", "worker", "viewer"], file: Path, master: str | None) -> None:
    """Make a new key, which the master admits from now on, and write it to FILE."""
    from remotely.ops import key_list

    public, _ = key_list.add(role, file, master)
    click.echo(f"{file} is the key of a {role} ({public.decode()}).")


@key_commands.command(
    "revoke",
    short_help="Cut off the holder of a key.",
    context_settings={"ignore_unknown_options": True},  # a key may begin with a dash
)
@click.argument("key", metavar="FILE-OR-KEY")
@_master_option
def revoke_key(key: str, master: str | None) -> None:
    """Cut off the holder of a key: no new connections, no more calls on existing ones.

    Name the key by its file, or by its public half as `remotely keys list` shows it.

    Returns when the master and each machine of the cluster refuse the key.  Fails if the master
    cannot be asked or none is known here, or if a machine, which it names, did not answer; with the
    file, the same command asks again.
    """
    from remotely.ops import key_list

    public, masters = key_list.revoke(key, master)
    click.echo(f"The key {public.decode()} is no longer admitted at {' and '.join(masters)}.")
