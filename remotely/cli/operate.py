"""The commands for operators of a cluster: `remotely drain` and `events`."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from remotely.cli.options import (
    HERE,
    DurationType,
    address_option,
    chosen_cluster,
    client_at,
    following,
    key_option,
    local_port_option,
)
from remotely.protocol.control import EventStatus
from remotely.reporting.cluster_status import duration, event_as_json
from remotely.reporting.terminal import shown

EVENTS_EVERY_S = 1.0


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
    for them: they finish the calls that they have, and no restart is counted. Pools and executors
    replace their members likewise. The others may work until the time is up. The machine leaves
    when it has no actor left. To have it back, let it join again. Actors begin no call in the last
    6 seconds, or half, of the time.

    With --undo, actors that were to move stay, but for those that end already. After SIGTERM of
    its worker, a machine cannot stay.
    """
    with client_at(chosen_cluster(address, port), key) as client:
        heard = client.drain(machine, within, undo)
    if undo:
        click.echo(f"{heard.machine} is used as before.")
        return
    actors, movable = heard.actors, heard.movable
    text = f"{heard.machine} is being drained: nothing new is placed there"
    if not actors:
        click.echo(f"{text}, and it leaves now.")
        return
    pools = "" if movable == actors else " Pools and executors replace their members."
    have = "actor has" if actors == 1 else f"{actors} actors have"
    click.echo(
        f"{text}. It leaves when its {have} ended or moved, or in {duration(within)}; {movable} of "
        f"{actors} can move.{pools} To see it: remotely status"
    )


@click.command(short_help="Show what has happened: joined, lost, sick, drained, died.")
@click.argument("address", required=False, metavar=HERE)
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object a line, as described above."
)
@local_port_option
@key_option
def events(
    address: str | None, follow: bool, as_json: bool, port: int | None, key: Path | None
) -> None:
    """Show what has happened to machines and actors: the last 1,000 events, oldest first.

    \b
    remotely events --follow
    remotely events --json | jq 'select(.kind == "died") | {at, actor, text}'

    The master remembers them as long as it runs. Of the JSON, fields may be added but none
    removed:

    \b
    number    counts from 1 for each master
    at        seconds since 1970
    kind      joined, left, lost     a machine; it left as it was told to, or it may return
              sick, well             starts of actors fail there; one has succeeded
              draining, undrained, drained
              revoked                keys
              died                   an actor has ended, and nobody asked it to
              moved                  an actor has ended because its machine is drained
              refused                requests for actors, for want of room say; it takes the
                                     place of an earlier one of that class and reason
    machine   its name; empty if there is none
    actor     the name of the actor, and class its class; empty if there is none
    text      all of it, for people
    """
    where = chosen_cluster(address, port)
    with following(where), client_at(where, key) as client:
        last = 0
        while True:
            found = client.events(last)
            _show(found.events, as_json)
            last = found.last
            if not follow:
                return
            time.sleep(EVENTS_EVERY_S)


def _show(events: Sequence[EventStatus], as_json: bool) -> None:
    now = time.time()
    for event in events:
        if as_json:
            click.echo(json.dumps(event_as_json(event, now)))
        else:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - event.ago_s))
            click.echo(shown(f"{at}  {event.kind:9}  {event.text}"))
