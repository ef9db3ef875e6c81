"""The commands for operators of a cluster: `remotely drain`."""

from pathlib import Path

import click

from remotely.cli.options import (
    DurationType,
    address_option,
    client_at,
    cluster_address,
    key_option,
    local_port_option,
)
from remotely.reporting.cluster_status import duration


@click.command(short_help="Take a machine out of a cluster, and let its calls finish.")
@click.argument("machine")
@click.option(
    "--within",
    type=DurationType(),
    default="10m",
    show_default=True,
    help="When the machine leaves at the latest, such as 90s, 10m or 2h.",
)
@click.option("--undo", is_flag=True, help="Use the machine as before.")
@address_option
@local_port_option
@key_option
def drain(
    machine: str,
    within: float,
    undo: bool,
    address: str | None,
    port: int | None,
    key: Path | None,
) -> None:
    """Take a machine out of a cluster, and let its calls finish.

    \b
    remotely drain node3
    remotely drain node3 --within 2h
    remotely drain node3 --undo

    Nothing new is placed on MACHINE, which is a name, an address, or the id of a worker, as
    `remotely status` shows them. Actors with max_restarts move as soon as another machine has room
    for them: they finish the calls that they have, and no restart is counted. The others may work
    until the time is up. The machine leaves when it has no actor left. To have it back, let it
    join again.
    """
    with client_at(cluster_address(address, port), key) as client:
        heard = client.drain(machine, within, undo)
    if undo:
        click.echo(f"{heard.machine} is used as before.")
        return
    actors, movable = heard.actors, heard.movable
    text = f"{heard.machine} is being drained: nothing new is placed there"
    if not actors:
        click.echo(f"{text}, and it leaves now.")
        return
    have = "actor has" if actors == 1 else f"{actors} actors have"
    click.echo(
        f"{text}. It leaves when its {have} ended or moved, or in {duration(within)}; {movable} of "
        f"{actors} can move. To see it: remotely status"
    )
