"""The command `remotely environments`: what this machine has made for actors with `packages`."""

import time

import click

from remotely.reporting.cluster_status import duration
from remotely.reporting.terminal import shown

MIB = 1 << 20


@click.command(short_help="Show or remove the environments made for actors.")
@click.option("--remove", multiple=True, metavar="KEY", help="Remove this one; may be repeated.")
@click.option("--remove-all", is_flag=True, help="Remove all that no actor runs in.")
def environments(remove: tuple[str, ...], remove_all: bool) -> None:
    """Show or remove the environments of this machine that were made for actors with `packages`.

    \b
    remotely environments
    remotely environments --remove 92e1858090e09214

    An environment is made once, by the first actor that asks for its packages, and kept. Of those
    that no actor runs in, the 20 used last are kept without being asked.
    """
    from remotely.machine import environments as made

    known = made.made()
    unknown = sorted(set(remove) - {one.key for one in known})
    if unknown:
        raise click.ClickException(
            f"there is no environment {unknown[0]!r}: remotely environments lists all"
        )
    for one in known:
        if not (remove_all or one.key in remove):
            continue
        nbytes = one.nbytes
        if made.remove(one.key):
            click.echo(f"{one.key} is removed: {nbytes // MIB} MiB")
        else:
            click.echo(f"{one.key} is in use, and stays", err=True)
    if remove or remove_all:
        return
    if not known:
        click.echo(f"no environment has been made in {made.folder()}")
    for one in known:
        used = "in use" if one.is_used else f"used {duration(time.time() - one.used_at)} ago"
        packages = shown(" ".join(one.packages))
        click.echo(
            f"{one.key}  Python {one.python}  {one.nbytes // MIB:>5} MiB  {used}  {packages}"
        )
