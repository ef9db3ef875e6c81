"""The commands `remotely run`, `up` and `down`: a cluster on the machines of a job or host file."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remotely.cli.options import cpus_option, gpus_option, grace_option, ports_option
from remotely.errors import RemotelyError
from remotely.protocol.address import join_address
from remotely.protocol.listening import Ports
from remotely.reporting.terminal import shown

if TYPE_CHECKING:
    from remotely.ops.host_file import HostFile
    from remotely.ops.ssh import JoinOutcome


@click.command(
    short_help="Run a command on a cluster of all ranks of a job.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--wait-for",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of ranks, including rank 0, if the launcher does not set it.",
)
@click.option(
    "--rendezvous",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="A folder on a disk that all machines share; its parent must exist.  [~/.remotely/jobs]",
)
@click.option("--job", help="A unique name for this job, if the launcher does not set one.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the ranks wait for each other.",
)
@ports_option
@cpus_option
@gpus_option
@grace_option
def run(
    command: tuple[str, ...],
    wait_for: int | None,
    rendezvous: Path | None,
    job: str | None,
    patience: float,
    ports: Ports,
    cpus: int | None,
    gpus: int | list[str] | None,
    grace: float,
) -> None:
    """Run COMMAND on a cluster that lasts as long as it.

    Have your launcher start this same line on every machine. Rank 0 starts a cluster and runs
    COMMAND there, once all other ranks have joined; its exit code is that of COMMAND. The others
    offer their machines until COMMAND ends.

    \b
    srun remotely run -- python train.py                              Slurm
    mpirun -n 8 remotely run -- python train.py                       Open MPI, MPICH, Intel MPI
    torchrun --no-python ... remotely run -- python train.py
    remotely run --wait-for 8 --rendezvous /shared -- python train.py   an indexed Job

    COMMAND finds the cluster by REMOTELY_ADDRESS and REMOTELY_KEY: a script runs unchanged, with
    or without remotely.connect(). The keys are made for this job alone.

    Ranks on one machine split its cores and GPUs, unless --cpus and --gpus, or Slurm's
    --cpus-per-task and --gpus-per-task, set the share of each.
    """
    from remotely.machine import interfaces, this_machine
    from remotely.machine.gpus import OfferedResources, visible
    from remotely.ops import job as jobs
    from remotely.ops import launchers
    from remotely.ops.cluster import Network
    from remotely.ops.rendezvous import jobs_folder

    rank = launchers.rank_of(os.environ, wait_for, job or "")
    name = rank.job or f"alone-{os.getpid()}"
    if rank.size == 1:  # no other rank looks for it, and other machines may run a job of that name
        name = f"{name}-{launchers.folder_name(this_machine.machine_name())}"
    folder = jobs_folder(rendezvous) / name
    if cpus is None:
        cores = this_machine.cores()
        cpus = launchers.cpus_of(rank, cores, os.environ)
        if not rank.rank and (warning := launchers.core_warning(rank, cores, os.environ)):
            click.echo(f"remotely run: {warning}", err=True)
    if gpus is None:
        gpus = launchers.gpus_of(rank, visible(), os.environ)
    offer = OfferedResources(cpus, gpus)
    if rank.rank:
        jobs.follow(rank, folder, Network(ports=ports), offer, patience, grace)
        return
    if rank.launcher is launchers.ALONE:
        click.echo("remotely run: no launcher found: using this machine alone", err=True)
    host = interfaces.everywhere() if rank.size > 1 else "127.0.0.1"
    sys.exit(jobs.lead(rank, folder, Network(host, (), ports), offer, patience, list(command)))


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
    [[host]]                      # a machine with its own settings
    ssh = "node3"
    cpus = 4
    gpus = "0,1"

    Other fields of the file: listen, ports, command, and this machine's cpus and gpus. Of a host:
    address, announce, ports, command.

    Your ~/.ssh/config, agent and known hosts apply. Machines that are on the cluster already stay
    as they are, so you can repeat the command to add missing ones. If a machine fails, it is named,
    the others are up, and the exit code is 1.
    """
    from remotely.ops import ssh

    hosts = _read(file)
    address = join_address(hosts.master, hosts.port)
    joined: list[str] = []
    try:
        _print_outcomes(ssh.up(hosts), len(hosts.all_hosts), f"have joined {address}", joined)
    except (RemotelyError, KeyboardInterrupt):
        if ssh.is_up(hosts):
            members = f"{', '.join(sorted(joined))} joined it" if joined else "no host joined it"
            click.echo(
                f"The cluster on this machine is up at {address}, and {members}; to end it: "
                f"remotely down {file}",
                err=True,
            )
        raise
    click.echo(f"REMOTELY_ADDRESS={address}; to end it: remotely down {file}")


@click.command(short_help="End a cluster that `remotely up` has started.")
@_file
def down(file: Path) -> None:
    """End the cluster here and on the machines that FILE names, and no other cluster there."""
    from remotely.ops import ssh

    hosts = _read(file)
    address = join_address(hosts.master, hosts.port)
    if ssh.end_here(hosts):
        click.echo(f"The cluster at {address} has ended.")
    else:
        click.echo(f"No cluster ran at {address} on this machine.")
    _print_outcomes(ssh.leave(hosts), len(hosts.all_hosts), "have no worker of it", [])


def _read(file: Path) -> "HostFile":
    from remotely.ops.host_file import parse_hosts

    return parse_hosts(file.read_text(encoding="utf-8"), str(file))


def _print_outcomes(
    outcomes: "Iterator[JoinOutcome]", count: int, what: str, done: list[str]
) -> None:
    """Print each outcome as it arrives, and append the successful hosts to `done`."""
    failed: list[str] = []
    for outcome in outcomes:
        (done if outcome.is_done else failed).append(outcome.host)  # before Ctrl-C can interrupt
        click.echo(shown(f"{outcome.host}: {outcome.message}"), err=not outcome.is_done)
    if failed:
        raise RemotelyError(
            f"{count - len(failed)} of {count} machines {what}; not {', '.join(sorted(failed))}"
        )
    click.echo(f"{count} of {count} machines {what}.")
