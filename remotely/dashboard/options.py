"""The options of `remotely dashboard` and `remotely-rl dashboard`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from remotely.errors import RemotelyError

NEEDS = ("starlette", "uvicorn", "prometheus_client")


def listening_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that set where a dashboard listens: the fields of `server.Where`."""
    file = click.Path(path_type=Path)
    for option in reversed(
        (
            click.option(
                "--listen",
                metavar="HOST:PORT",
                default="127.0.0.1:8020",
                show_default=True,
                help="Where it listens; addresses other than 127.0.0.1 need TLS.",
            ),
            click.option(
                "--name",
                "names",
                metavar="NAME",
                multiple=True,
                help="A name by which browsers know this machine; may be repeated.",
            ),
            click.option(
                "--certificate", type=file, metavar="FILE", help="The certificate for TLS, as PEM."
            ),
            click.option(
                "--private-key",
                type=file,
                metavar="FILE",
                help="The private key of the certificate.",
            ),
            click.option(
                "--metrics-token",
                type=file,
                metavar="FILE",
                help="The token with which Prometheus may scrape /metrics.",
            ),
        )
    ):
        command = option(command)
    return command


def check_is_installed() -> None:
    """Raise RemotelyError, which says what to install, if the extra `dashboard` is missing."""
    from importlib.util import find_spec  # noqa: PLC0415 - only needed here

    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise RemotelyError(
            f"the dashboard needs {' and '.join(missing)}, from the extra `dashboard`: "
            "pip install '.[dashboard]' in a checkout of remotely"
        )
