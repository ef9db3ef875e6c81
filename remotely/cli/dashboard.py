"""The command `remotely dashboard`: a cluster in the browser."""

from pathlib import Path
from typing import Any

import click

from remotely.cli.options import HERE, chosen_cluster, local_port_option, viewer_at
from remotely.dashboard.options import check_is_installed, listening_options


@click.command(short_help="Show a cluster in the browser.")
@click.argument("address", required=False, metavar=HERE)
@local_port_option
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="The cluster's viewer.key; by default the one beside the key of REMOTELY_KEY, or in "
    "~/.remotely/keys.",
)
@listening_options
def dashboard(address: str | None, port: int | None, key: Path | None, **where: Any) -> None:
    """Show a cluster in the browser: machines, actors and what they print.

    \b
    remotely dashboard                     the cluster of this machine, or of REMOTELY_ADDRESS
    remotely dashboard 192.168.0.10:8010 --key viewer.key
    remotely dashboard 4711                the cluster that the script with this pid runs for itself

    It prints a link that works once. It is read-only, and sends the cluster no requests while no
    browser shows it.
    """
    check_is_installed()
    from remotely.dashboard import app, server

    cluster = chosen_cluster(address, port)
    with viewer_at(cluster, key) as viewer:
        server.serve(server.Where(**where), app.Cluster(cluster.shown, viewer))
