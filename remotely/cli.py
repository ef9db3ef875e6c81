"""The command `remotely`: start, join, watch and stop a cluster.

Whatever a user does wrong ends in one sentence on stderr and exit code 1 (2 where the command
itself was written wrongly).  Modules that take time to import are imported by the command that
needs them, so that --help is there at once.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import remotely
from remotely.client.client import client_of
from remotely.errors import MasterLost, RemotelyError
from remotely.protocol import control
from remotely.protocol.address import DEFAULT_PORT, parse_address
from remotely.reporting.cluster_status import status_facts, tables
from remotely.reporting.terminal import shown

if TYPE_CHECKING:
    from remotely.client.client import Client

FOLLOW_EVERY_S = 0.25


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they are used, not of the alphabet

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise  # `remotely logs | head`: click ends quietly
        except OSError as error:
            what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            raise click.ClickException(what) from None
        except (RemotelyError, ValueError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(remotely.__version__, message="remotely %(version)s")
def main() -> None:
    """Start, join, watch and stop a cluster of remote objects.

    \b
    remotely start                                  a cluster of this machine
    remotely start --host 192.168.0.10              one that others may join
    remotely join 192.168.0.10:8010 --key worker.key
    remotely status                                 who is there, what is free
    remotely logs Counter-1 --follow                what an actor prints
    remotely kill Counter-1                         end an actor at once
    remotely keys                                   who may come in
    remotely stop

    REMOTELY_ADDRESS is the cluster to use, REMOTELY_KEY the key file, REMOTELY_HOME where keys and
    pid files are (~/.remotely).
    """


_cpus = click.option(
    "--cpus", type=click.IntRange(min=0), help="CPUs to give away; by default all cores."
)


class _Gpus(click.ParamType):  # type: ignore[type-arg]
    name = "N|ID,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> int | list[str]:
        from remotely.machine import gpus

        try:
            return gpus.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_gpus = click.option(
    "--gpus",
    type=_Gpus(),
    help="GPUs to give away: how many, or which (2,3; one alone: 2,); by default all there are.",
)
_port = click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port of the cluster on this machine.",
)
_key = click.option(
    "--key",
    type=click.Path(path_type=Path),
    envvar="REMOTELY_KEY",
    help="The key file; by default client.key in ~/.remotely/keys.  [REMOTELY_KEY]",
)


# --- start, join ----------------------------------------------------------------------------------


@main.command(short_help="Start a cluster on this machine.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at; 0.0.0.0 is every address of this machine.",
)
@_port
@_cpus
@_gpus
def start(host: str, port: int, cpus: int | None, gpus: int | list[str] | None) -> None:
    """Start a cluster on this machine; return when it takes calls.

    \b
    remotely start                        for scripts on this machine
    remotely start --host 192.168.0.10    for other machines too
    remotely start --port 8011            a second one, beside the first
    """
    from remotely.machine import interfaces
    from remotely.ops import cluster

    daemons = cluster.start(host, port, cpus, gpus)
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


@main.command(short_help="Add this machine to a cluster.")
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    envvar="REMOTELY_KEY",
    help="The cluster's worker.key, copied from its master's machine; by default the one in "
    "~/.remotely/keys.  [REMOTELY_KEY]",
)
@_cpus
@_gpus
@click.option(
    "--host",
    help="The address at which this machine's actors are reached; by default the one on the way "
    "to HOST.",
)
def join(
    address: str, key: Path | None, cpus: int | None, gpus: int | list[str] | None, host: str | None
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
    worker = cluster.join(master, port, member, host, cpus, gpus)
    click.echo(
        f"This machine has joined {worker.address} (worker pid {worker.pid}).\n"
        f"To leave it: remotely stop{'' if port == DEFAULT_PORT else f' --port {port}'}"
    )


# --- keys -----------------------------------------------------------------------------------------


@main.group("keys", short_help="List, make and revoke the keys of this machine's cluster.")
def key_commands() -> None:
    """List, make and revoke the keys of this machine's cluster.

    \b
    remotely keys list
    remotely keys add client ada.key     one more key, to be copied to whom it is for
    remotely keys revoke ada.key         its holder is cut off, at once
    """


@key_commands.command("list", short_help="Show which keys the master admits.")
def list_keys() -> None:
    """Show which keys the master admits: their public halves."""
    from remotely.machine import folders
    from remotely.transport import key_files

    master = key_files.load_master(folders.key_folder() / "master.key")
    for role, admitted in (("client", master.client_keys), ("worker", master.worker_keys)):
        for key in admitted:
            click.echo(f"{role}  {key.decode()}")


@key_commands.command("add", short_help="Make one more key.")
@click.argument("role", type=click.Choice(["client", "worker"]))
@click.argument("file", type=click.Path(path_type=Path))
def add_key(role: Literal["client", "worker"], file: Path) -> None:
    """Make one more key, which the master admits from now on, and write it to FILE."""
    from remotely.machine import folders
    from remotely.ops import cluster
    from remotely.transport import key_files

    member = key_files.add_key(folders.key_folder(), role, file)
    cluster.read_keys_again()
    click.echo(f"{file} is the key of a {role} ({member.pair.public.decode()}).")


@key_commands.command("revoke", short_help="Cut off the holder of a key.")
@click.argument("key", metavar="FILE-OR-KEY")
def revoke_key(key: str) -> None:
    """Cut off the holder of a key: no new connection, no further call on those there are.

    The key is named by its file, or by its public half as `remotely keys list` shows it.
    """
    from remotely.machine import folders
    from remotely.ops import cluster
    from remotely.transport import key_files

    public = key_files.load_member(Path(key)).pair.public if Path(key).exists() else key.encode()
    role = key_files.revoke_key(folders.key_folder(), public)
    running = cluster.read_keys_again()
    told = "" if running else " No master runs on this machine now."
    click.echo(f"The {role} with the key {public.decode()} is admitted no more.{told}")


# --- status ---------------------------------------------------------------------------------------


@main.command(short_help="Show machines, actors, and what is free.")
@click.argument("address", required=False, metavar="[HOST:PORT]")
@click.option("--json", "as_json", is_flag=True, help="For programs; see above.")
@click.option("--port", type=click.IntRange(1, 65535), help="Of a cluster on this machine.  [8010]")
@_key
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
                machine and its memory), address, python, cpus, gpus, memory,
                free_cpus, free_gpus, free_memory (memory in bytes)
    actors      a list: name, class, actor (its id), machine, worker (an id), pid,
                cpus, gpu_ids (as CUDA knows them), memory_limit (bytes, 0 is none)
                                                                what it was given
                cpu_percent, rss (bytes), calls                 what it uses and has done
                running, method, method_s, queue                how many calls run, the method
                of the one that has run longest and for how long, how many calls wait
                since                                           seconds since 1970
                owner   {pid, machine, actor} of the client whose end is its end, actor being
                        the name if that is one; null if it is detached
    clients     a list: pid, machine, actor (its name, if the client is one), actors (how
                many it owns); this command is left out
    """
    where = _where(address, port)
    with _client(where, key) as client:
        found = client.status()
    facts = status_facts(found, where, client.session)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(shown(tables(facts, time.time())))


# --- logs -----------------------------------------------------------------------------------------


@main.command(short_help="Show what actors print.")
@click.argument("actor", required=False)
@click.option("--follow", "-f", is_flag=True, help="Until Ctrl-C, or the actor has ended.")
@click.option("--address", metavar="HOST:PORT", help="Of the master.  [REMOTELY_ADDRESS]")
@click.option("--port", type=click.IntRange(1, 65535), help="Of a cluster on this machine.  [8010]")
@_key
def logs(
    actor: str | None, follow: bool, address: str | None, port: int | None, key: Path | None
) -> None:
    """Show the last output of an actor, or of all, with their names in front.

    ACTOR is a name that `remotely status` shows, or that of an actor that has ended, or an id.

    \b
    remotely logs
    remotely logs Counter-1 --follow
    """
    with contextlib.suppress(KeyboardInterrupt), _client(_where(address, port), key) as client:
        if actor is None:
            _show_all(client, follow)
        else:
            _show_one(client, actor, follow)


def _show_one(client: "Client", name: str, follow: bool) -> None:
    living = [actor.location for actor in _actors(client)]
    actor = _id_of(name, living)
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
    """Return what can be sent to a terminal; each state of a progress bar is a line of its own."""
    return shown(text.replace("\r\n", "\n").replace("\r", "\n"))


def _id_of(name: str, living: Sequence[control.Location]) -> str:
    """Return the id of the actor of a name; the name itself if none that lives has it."""
    named = [location for location in living if location.name == name]
    if len(named) > 1:  # of several scripts
        ids = ", ".join(f"{where.actor} (pid {where.pid})" for where in named)
        raise RemotelyError(f"{len(named)} actors are named {name}; name one by its id: {ids}")
    return named[0].actor if named else name


def _show_all(client: "Client", follow: bool) -> None:
    offsets: dict[str, int] = {}
    unfinished: dict[str, str] = {}
    while True:
        locations = [actor.location for actor in _actors(client)]
        asked = [client.read_log(at.actor, offsets.get(at.actor, -1)) for at in locations]
        for location, future in zip(locations, asked, strict=True):
            known, name, piece = location.actor, location.name, future.result()
            offsets[known] = piece.offset
            *lines, unfinished[known] = (unfinished.get(known, "") + piece.text).split("\n")
            if not follow and unfinished[known]:
                lines.append(unfinished[known])
            for line in lines:
                click.echo(_readable(f"[{name}] {line}"))
        if not follow:
            return
        time.sleep(FOLLOW_EVERY_S)


def _actors(client: "Client") -> Iterable[control.ActorStatus]:
    return [actor for worker in client.status(fresh=False).workers for actor in worker.actors]


# --- kill, stop -----------------------------------------------------------------------------------


@main.command(short_help="End an actor at once, whatever it is doing.")
@click.argument("actor")
@click.option("--address", metavar="HOST:PORT", help="Of the master.  [REMOTELY_ADDRESS]")
@click.option("--port", type=click.IntRange(1, 65535), help="Of a cluster on this machine.  [8010]")
@_key
def kill(actor: str, address: str | None, port: int | None, key: Path | None) -> None:
    """End an actor at once: its calls fail, its own `close` is not called, it is not restarted.

    ACTOR is a name that `remotely status` shows, or an id.
    """
    with _client(_where(address, port), key) as client:
        living = [found.location for found in _actors(client)]
        meant = _id_of(actor, living)
        for location in living:
            if location.actor == meant:
                client.end([client.borrow(meant, location.name)], 0.0)
                click.echo(f"{location.name} (pid {location.pid}) has ended.")
                return
    names = ", ".join(sorted({location.name for location in living})) or "none now"
    raise RemotelyError(f"no actor of this cluster is named {actor!r}; there are: {names}")


@main.command(short_help="End the cluster of this machine at a port.")
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

    port = port or _port_of_shell()
    ended = cluster.stop(port)
    if not ended:
        raise RemotelyError(f"no cluster runs at port {port} on this machine{_others(port)}")
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


def _port_of_shell() -> int:
    """Return the port of REMOTELY_ADDRESS, if that cluster is of this machine."""
    from remotely.machine import interfaces, pid_file

    if not (address := os.environ.get("REMOTELY_ADDRESS")):
        return DEFAULT_PORT
    name, port = parse_address(address)
    joined = {daemon.address for daemon in pid_file.running(port)}
    if not interfaces.is_here(name) and f"{name}:{port}" not in joined:
        raise RemotelyError(
            f"REMOTELY_ADDRESS is {address}, and {name} is no address of this machine: run "
            "'remotely stop' there, or name the port of a cluster here with --port"
        )
    return port


def _others(port: int) -> str:
    from remotely.machine import pid_file

    ports = [str(other) for other in pid_file.ports() if other != port]
    return f"; there is one at --port {', '.join(ports)}" if ports else ""


# --- which cluster --------------------------------------------------------------------------------


def _where(address: str | None, port: int | None) -> str:
    """Return the address of the cluster that is meant: named, of a port here, or of the shell."""
    if address is None and port is None:
        address = os.environ.get("REMOTELY_ADDRESS") or None
    if address is not None:
        name, number = parse_address(address)
        return f"{name}:{number}"
    from remotely.machine import pid_file

    daemons = pid_file.running(port or DEFAULT_PORT)
    if not daemons:
        raise MasterLost(
            f"no cluster runs at port {port or DEFAULT_PORT} on this machine"
            f"{_others(port or DEFAULT_PORT)}; 'remotely start' starts one, HOST:PORT or "
            "REMOTELY_ADDRESS names one elsewhere"
        )
    return daemons[0].address


@contextlib.contextmanager
def _client(address: str, key: Path | None) -> Iterator["Client"]:
    client = client_of(address, key)
    try:
        yield client
    finally:
        client.shutdown()
