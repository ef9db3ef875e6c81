"""`remotely status`."""

import json
import time
from pathlib import Path

import click

from remotely.cli.options import key_option, local_port_option
from remotely.cli.which_cluster import client_at, cluster_address
from remotely.reporting.cluster_status import status_facts, tables
from remotely.reporting.terminal import shown


@click.command(short_help="Show machines, actors, and what is free.")
@click.argument("address", required=False, metavar="[HOST:PORT]")
@click.option("--json", "as_json", is_flag=True, help="For programs; see above.")
@local_port_option
@key_option
def status(address: str | None, as_json: bool, port: int | None, key: Path | None) -> None:
    """Show machines, actors, and what is free.

    \b
    remotely status                     the cluster of this machine, or of REMOTELY_ADDRESS
    remotely status 192.168.0.10:8010
    remotely status --json | jq '.actors[] | {name, calls}'

    The JSON is one object. Names are only ever added to it while "format" is 1:

    \b
    format      1
    address     of the master
    waiting     how many requests wait for room
    machines    a list: worker (its id), machine, host (the same for workers that share a
                machine and its memory), address, python, away_s (for how long it
                cannot be reached, else 0), cpus, gpus, memory, free_cpus, free_gpus,
                free_memory (memory in bytes), resources and free_resources (of the
                user's: name to amount)
    actors      a list: name, class, actor (its id), machine, worker (an id), pid,
                cpus, gpus (below 1, a part of one), gpu_ids (as CUDA knows them),
                memory_limit (bytes, 0 is none), resources      what it was given
                cpu_percent, rss (bytes), calls                 what it uses and has done
                running, method, method_s, queue                how many calls run, the method
                of the one that has run longest and for how long, how many calls wait
                since                                           seconds since 1970
                owner   {pid, machine, actor} of the client whose end is its end, actor being
                        the name if that is one; null if it is detached
    clients     a list: pid, machine, actor (its name, if the client is one), actors (how
                many it owns); this command is left out
    """
    where = cluster_address(address, port)
    with client_at(where, key) as client:
        found = client.status()
    facts = status_facts(found, where, client.session_id)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(shown(tables(facts, time.time())))
