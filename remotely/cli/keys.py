"""`remotely keys`: list, make and revoke the keys of this machine's cluster."""

from pathlib import Path
from typing import Literal

import click


@click.group("keys", short_help="List, make and revoke the keys of this machine's cluster.")
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


@key_commands.command(
    "revoke",
    short_help="Cut off the holder of a key.",
    context_settings={"ignore_unknown_options": True},  # a key may begin with a dash
)
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
