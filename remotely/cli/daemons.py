"""`remotely start`, `join` and `stop`."""

from pathlib import Path

import click

from remotely.cli.options import cpus_option, gpus_option, port_option, resource_option
from remotely.cli.which_cluster import other_ports, port_of_shell
from remotely.errors import RemotelyError
from remotely.protocol.address import DEFAULT_PORT, parse_address


@click.command(short_help="Start a cluster on this machine.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at; 0.0.0.0 is every address of this machine.",
)
@port_option
@cpus_option
@gpus_option
@resource_option
def start(
    host: str,
    port: int,
    cpus: int | None,
    gpus: int | list[str] | None,
    resources: tuple[tuple[str, float], ...],
) -> None:
    """Start a cluster on this machine; return when it takes calls.

    \b
    remotely start                        for scripts on this machine
    remotely start --host 192.168.0.10    for other machines too
    remotely start --port 8011            a second one, beside the first
    """
    from remotely.machine import interfaces
    from remotely.ops import cluster

    daemons = cluster.start(host, port, cpus, gpus, dict(resources))
    name = interfaces.own_address() if host == interfaces.EVERYWHERE else host
    pids = ", ".join(f"{daemon.role} pid {daemon.pid}" for daemon in daemons)
    click.echo(f"The cluster takes calls at {name}:{port} ({pids}).\n")
    click.echo(_how_to_go_on(name, port))


def _how_to_go_on(name: str, port: int) -> str:
    from remotely.machine import folders

    folder = folders.key_folder()
    at_port = "" if port == DEFAULT_PORT else f" --port {port}"
    alone = name.startswith("127.") or name == "localhost"
    note = (
        "\n  (This one listens to this machine alone. For others: 'remotely stop"
        f"{at_port}', then\n  'remotely start --host ADDRESS{at_port}' with an address of this "
        "machine, or 0.0.0.0.)"
    )
    return (
        f'In a script:      remotely.connect("{name}:{port}"), or REMOTELY_ADDRESS={name}:{port}\n'
        f"To see it:        remotely status{at_port}\n"
        f"To end it:        remotely stop{at_port}\n"
        f"To add a machine: copy {folder / 'worker.key'} to it, and there:\n"
        f"  remotely join {name}:{port} --key worker.key{note if alone else ''}\n"
        f"To call from another machine: copy {folder / 'client.key'} into its ~/.remotely/keys."
    )


@click.command(short_help="Add this machine to a cluster.")
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    envvar="REMOTELY_KEY",
    help="The cluster's worker.key, copied from its master's machine; by default the one in "
    "~/.remotely/keys.  [REMOTELY_KEY]",
)
@cpus_option
@gpus_option
@resource_option
@click.option(
    "--host",
    help="The address at which this machine's actors are reached; by default the one on the way "
    "to HOST.",
)
def join(
    address: str,
    key: Path | None,
    cpus: int | None,
    gpus: int | list[str] | None,
    resources: tuple[tuple[str, float], ...],
    host: str | None,
) -> None:
    """Add this machine to a cluster; return when the master has taken it.

    \b
    remotely join 192.168.0.10:8010 --key worker.key
    remotely join 192.168.0.10:8010 --key worker.key --cpus 4 --gpus 0
    """
    from remotely.machine import folders
    from remotely.ops import cluster
    from remotely.transport import key_files

    master, port = parse_address(address)
    member = key_files.load_member(key or folders.key_folder() / "worker.key", "worker")
    worker = cluster.join(master, port, member, host, cpus, gpus, dict(resources))
    click.echo(
        f"This machine has joined {worker.address} (worker pid {worker.pid}).\n"
        f"To leave it: remotely stop{'' if port == DEFAULT_PORT else f' --port {port}'}"
    )


@click.command(short_help="End the cluster of this machine at a port.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"Of a cluster on this machine.  [REMOTELY_ADDRESS, or {DEFAULT_PORT}]",
)
def stop(port: int | None) -> None:
    """End the cluster of this machine at a port, its workers elsewhere too; and no other.

    On a machine that has only joined, its worker leaves, and the cluster goes on.
    """
    from remotely.machine import pid_file
    from remotely.ops import cluster

    port = port or port_of_shell()
    ended = cluster.stop(port)
    if not ended:
        raise RemotelyError(f"no cluster runs at port {port} on this machine{other_ports(port)}")
    if stayed := [daemon for daemon in ended if daemon.alive]:
        pids = ", ".join(str(daemon.pid) for daemon in stayed)
        raise RemotelyError(f"pid {pids} did not end, not even by SIGKILL")
    if ended[0].role == "joined":
        click.echo(f"This machine has left {ended[0].address}; the cluster there goes on.")
        return
    click.echo(f"The cluster at {ended[0].address} has ended.")
    if pid_file.running(port):
        click.echo(
            "This machine has also joined another cluster of that port: "
            f"'remotely stop --port {port}' once more leaves it."
        )
