"""The commands that inspect a cluster and its actors: `remotely status`, `logs` and `kill`."""

import gzip
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remotely.calling.engine import CallEngine
from remotely.cli.options import (
    HERE,
    address_option,
    chosen_cluster,
    client_at,
    following,
    key_option,
    local_port_option,
    other_scripts,
)
from remotely.errors import RemotelyError
from remotely.protocol import control
from remotely.protocol.spans import LONGEST_TIMELINE_S
from remotely.reporting.chrome_trace import summary, trace
from remotely.reporting.cluster_status import as_json as status_json
from remotely.reporting.cluster_status import cluster_status, field_help, tables
from remotely.reporting.terminal import shown

if TYPE_CHECKING:
    from remotely.client.carrier import ClusterCarrier


class _StatusCommand(click.Command):
    """Its help ends with all fields of the JSON."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Fields of the JSON"):
            for line in field_help():
                formatter.write(f"  {line}\n")


@click.command(cls=_StatusCommand, short_help="Show machines, actors, and what is free.")
@click.argument("address", required=False, metavar=HERE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as described below.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing; fail if the master is silent.")
@local_port_option
@key_option
def status(
    address: str | None, as_json: bool, quiet: bool, port: int | None, key: Path | None
) -> None:
    """Show machines, actors, and what is free.

    \b
    remotely status                     the cluster of this machine, or of REMOTELY_ADDRESS
    remotely status 192.168.0.10:8010
    remotely status 4711                the cluster that the script with this pid runs for itself
    remotely status --quiet             a probe: exit status 0 if the master answers, else 1
    remotely status --json | jq '.actors[] | {name, calls}'

    The JSON is one object. While "format" is 1, fields may be added but none removed.
    """
    where = chosen_cluster(address, port)
    with client_at(where, key) as client:
        found = client.status()
    status = cluster_status(found, where.address, client.session_id)
    if quiet:
        return
    if as_json:
        click.echo(json.dumps(status_json(status), indent=2))
    else:
        if where.script:
            click.echo(shown(f"The cluster of {where.script}"))
        click.echo(shown(tables(status, time.time())))
        if others := other_scripts(where):
            click.echo(shown(f"\n{others}"))


FOLLOW_EVERY_S = 0.25


@click.command(short_help="Show what actors print.")
@click.argument("actor", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C, or the actor has ended.")
@address_option
@local_port_option
@key_option
def logs(
    actor: str | None, follow: bool, address: str | None, port: int | None, key: Path | None
) -> None:
    """Show the last output of an actor, or of all actors, with their names in front.

    ACTOR is the name of an actor, living or ended, or its id.

    \b
    remotely logs
    remotely logs Counter-1 --follow
    """
    where = chosen_cluster(address, port)
    with following(where), client_at(where, key) as client:
        if actor is None:
            _show_all(client, follow)
        else:
            _show_one(client, actor, follow)


def _show_one(client: "ClusterCarrier", name: str, follow: bool) -> None:
    living = [actor.location for actor in living_actors(client)]
    actor = id_of(name, living)
    piece = client.read_log(actor, -1).result()
    if not piece.known:
        names = ", ".join(sorted({location.name for location in living})) or "none now"
        raise RemotelyError(
            f"no actor of this cluster is or was named {name!r}; there are: {names}"
        )
    click.echo(_readable(piece.text), nl=False)
    while follow and not (piece.ended and not piece.text):
        if not piece.text:
            time.sleep(FOLLOW_EVERY_S)
        piece = client.read_log(actor, piece.offset).result()
        click.echo(_readable(piece.text), nl=False)


def _readable(text: str) -> str:
    """Return text that is safe for a terminal, with each state of a progress bar on a line."""
    return shown(text.replace("\r\n", "\n").replace("\r", "\n"))


def id_of(name: str, living: Sequence[control.Location]) -> str:
    """Return the id of the living actor with this name; `name` itself if there is none."""
    named = [location for location in living if location.name == name]
    if len(named) > 1:  # in several scripts
        ids = ", ".join(f"{where.actor} (pid {where.pid})" for where in named)
        raise RemotelyError(f"{len(named)} actors are named {name}; name one by its id: {ids}")
    return named[0].actor if named else name


def _show_all(client: "ClusterCarrier", follow: bool) -> None:
    offsets: dict[str, int] = {}
    unfinished: dict[str, str] = {}
    while True:
        locations = [actor.location for actor in living_actors(client)]
        futures = [client.read_log(at.actor, offsets.get(at.actor, -1)) for at in locations]
        for location, future in zip(locations, futures, strict=True):
            actor, piece = location.actor, future.result()
            offsets[actor] = piece.offset
            *lines, unfinished[actor] = (unfinished.get(actor, "") + piece.text).split("\n")
            if not follow and unfinished[actor]:
                lines.append(unfinished[actor])
            for line in lines:
                click.echo(_readable(f"[{location.name}] {line}"))
        if not follow:
            if not locations:
                _show_ended(client)
            return
        time.sleep(FOLLOW_EVERY_S)


def _show_ended(client: "ClusterCarrier") -> None:
    """Show the last lines of the actors that ended last: none lives."""
    piece = client.read_log("", -1).result()
    if piece.text:
        click.echo("No actor lives. The last lines of those that ended last:", err=True)
        click.echo(_readable(piece.text), nl=False)
    else:
        click.echo("No actor lives, and none that has ended here has printed anything.", err=True)


def living_actors(client: "ClusterCarrier", fresh: bool = False) -> Iterable[control.ActorStatus]:
    return [actor for worker in client.status(fresh).workers for actor in worker.actors]


@click.command(short_help="Record what all processes do, for Perfetto.")
@click.argument("address", required=False, metavar=HERE)
@click.option(
    "--seconds",
    type=click.FloatRange(0, LONGEST_TIMELINE_S, min_open=True),
    default=10.0,
    show_default=True,
    help="How long to record.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("trace.json"),
    show_default=True,
    help="The file to write; compressed if its name ends with .gz.",
)
@local_port_option
@key_option
def timeline(
    address: str | None, seconds: float, output: Path, port: int | None, key: Path | None
) -> None:
    """Record the calls of all processes for some seconds, and write them to a file.

    \b
    remotely timeline --seconds 10 -o trace.json
    remotely timeline 4711            the cluster that the script with this pid runs for itself

    The file is in the format of Chrome's traces: open it in https://ui.perfetto.dev, or in
    chrome://tracing. It shows the calls that each actor serves, how long each has waited, arrows
    from the process that has made it, bytes, and actors that begin and end. A process keeps 50,000
    calls of a recording, and says how many more there were.
    """
    if not output.parent.is_dir():  # before a long recording, not after it
        raise RemotelyError(f"there is no folder {output.parent} to write {output.name} to")
    where = chosen_cluster(address, port)
    with client_at(where, key) as client:
        click.echo(f"Recording for {seconds:g} s. Ctrl-C drops it.", err=True)
        found = client.timeline(seconds)
    text = json.dumps(trace(found), separators=(",", ":"))
    if output.suffix == ".gz":
        output.write_bytes(gzip.compress(text.encode()))
    else:
        output.write_text(text)
    click.echo(f"{output}: {summary(found)}")


@click.command(short_help="End an actor at once, whatever it is doing.")
@click.argument("actor")
@address_option
@local_port_option
@key_option
def kill(actor: str, address: str | None, port: int | None, key: Path | None) -> None:
    """End an actor at once: its calls fail, its `close` is not called, it is not restarted.

    ACTOR is a name that `remotely status` shows, or an id.
    """
    with client_at(chosen_cluster(address, port), key) as client:
        living = [found.location for found in living_actors(client)]
        actor_id = id_of(actor, living)
        for location in living:
            if location.actor == actor_id:
                engine = CallEngine(client)
                engine.end([engine.borrow(actor_id, location.name)], 0.0)
                click.echo(f"{location.name} (pid {location.pid}) has ended.")
                return
    names = ", ".join(sorted({location.name for location in living})) or "none now"
    raise RemotelyError(f"no actor of this cluster is named {actor!r}; there are: {names}")
