"""`remotely up` and `remotely down`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remotely.errors import RemotelyError
from remotely.protocol.address import join_address
from remotely.reporting.terminal import shown

if TYPE_CHECKING:
    from remotely.ops.host_file import HostFile
    from remotely.ops.ssh import Outcome

_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))


@click.command(short_help="Start a cluster on the machines of a file, by ssh.")
@_file
def up(file: Path) -> None:
    """Start a cluster here, and have the machines that FILE names join it, by ssh.

    \b
    remotely up hosts.toml

    \b
    address = "192.168.0.10"      # of this machine, as the others reach it; or HOST:PORT
    hosts = ["node1", "ada@node2"]

    \b
    [[host]]                      # one with settings of its own
    ssh = "node3"
    cpus = 4
    gpus = "0,1"

    Also for all: listen, ports, command; cpus and gpus are of this machine. For one: address,
    announce, ports, command.

    Your ~/.ssh/config, agent and known hosts hold. A machine that is on the cluster already stays
    as it is, so the same line adds those that were missing. One that fails is named, and the others
    are up; the exit code is then 1.
    """
    from remotely.ops import ssh

    hosts = _read(file)
    address = join_address(hosts.master, hosts.port)
    joined: list[str] = []
    try:
        _tell(ssh.up(hosts), len(hosts.all_hosts), f"have joined {address}", joined)
    except (RemotelyError, KeyboardInterrupt):
        if ssh.is_up(hosts):
            who = f"{', '.join(sorted(joined))} joined it" if joined else "no host joined it"
            click.echo(
                f"The cluster on this machine is up at {address}, and {who}; to end it: "
                f"remotely down {file}",
                err=True,
            )
        raise
    click.echo(f"REMOTELY_ADDRESS={address}; to end it: remotely down {file}")


@click.command(short_help="End a cluster that `remotely up` has started.")
@_file
def down(file: Path) -> None:
    """End the cluster here and on the machines that FILE names; no other one there."""
    from remotely.ops import ssh

    hosts = _read(file)
    address = join_address(hosts.master, hosts.port)
    if ssh.end_here(hosts):
        click.echo(f"The cluster at {address} has ended.")
    else:
        click.echo(f"No cluster ran at {address} on this machine.")
    _tell(ssh.leave(hosts), len(hosts.all_hosts), "have nothing of it", [])


def _read(file: Path) -> "HostFile":
    from remotely.ops.host_file import parse_hosts

    return parse_hosts(file.read_text(encoding="utf-8"), str(file))


def _tell(outcomes: "Iterator[Outcome]", count: int, what: str, done: list[str]) -> None:
    """Print each outcome as it comes, and add the hosts that are done to `done`."""
    failed: list[str] = []
    for outcome in outcomes:
        (done if outcome.is_done else failed).append(outcome.host)  # first: Ctrl-C tells of it
        click.echo(shown(f"{outcome.host}: {outcome.said}"), err=not outcome.is_done)
    if failed:
        raise RemotelyError(
            f"{count - len(failed)} of {count} machines {what}; not {', '.join(sorted(failed))}"
        )
    click.echo(f"{count} of {count} machines {what}.")
