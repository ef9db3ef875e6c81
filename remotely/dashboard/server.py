"""The dashboard's server process: its listener, TLS, first link, and shutdown."""

import asyncio
import gc
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from remotely.dashboard import app
from remotely.dashboard.access import LOOPBACK_NAMES, Access
from remotely.dashboard.connections import LimitedProtocol
from remotely.errors import RemotelyError
from remotely.machine.interfaces import EVERYWHERE, ip_of, is_loopback
from remotely.protocol.address import join_address, split_address

DEFAULT_PORT = 8020
# A status is a tree of many objects, which reference counting frees: the cycle collector would
# take as long as its decoding.
GC_THRESHOLD = 100_000
GRACE_S = 1.0  # for responses in progress when the dashboard ends
MIN_TOKEN = 16  # characters


class Where(NamedTuple):
    """The address, names and credentials of a dashboard."""

    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    names: tuple[str, ...] = ()  # besides the address itself
    certificate: Path | None = None
    private_key: Path | None = None
    metrics_token: Path | None = None


def serve(
    where: Where,
    cluster: app.Cluster | None = None,
    panels: Sequence[app.Panel] = (),
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> None:
    """Serve until SIGINT or SIGTERM.  Raises RemotelyError if it cannot."""
    host, port = _parse_listen(where.listen)
    _check_tls(host, where)
    bearer = _token(where.metrics_token)
    with _bind(host, port) as listener:
        port = listener.getsockname()[1]
        names = [*LOOPBACK_NAMES, host, *where.names]
        access = Access(names, f"remotely-{port}", bearer)
        scheme = "https" if where.certificate else "http"
        shown = "127.0.0.1" if host in EVERYWHERE else host
        at = f"{scheme}://{join_address(where.names[0] if where.names else shown, port)}"
        stopping = asyncio.Event()
        opened = lambda: say(f"Opened. For another browser: {at}/open?link={access.link}")
        application = app.make(access, cluster, panels, stopping, opened)
        say(f"The dashboard: {at}/open?link={access.link}\n(The link works once. Ctrl-C ends it.)")
        _run(application, listener, where, stopping)


def _parse_listen(listen: str) -> tuple[str, int]:
    """Return the host and the port to listen at; port 0 is any free port."""
    if listen.endswith(":0"):
        return split_address(listen.removesuffix(":0"))[0], 0
    host, port = split_address(listen)
    return host, DEFAULT_PORT if port is None else port


def _check_tls(host: str, where: Where) -> None:
    if bool(where.certificate) != bool(where.private_key):
        raise RemotelyError("--certificate and --private-key belong together: give both")
    if not (where.certificate or is_loopback(host) or host == "localhost"):
        raise RemotelyError(
            f"other machines can reach {host}, so the dashboard needs TLS there: give "
            "--certificate and --private-key, or leave out --listen and use a tunnel: "
            f"`ssh -L {DEFAULT_PORT}:127.0.0.1:{DEFAULT_PORT} THIS-MACHINE`"
        )
    for file in (where.certificate, where.private_key):
        if file and not file.is_file():
            raise RemotelyError(f"there is no file {file}")


def _token(file: Path | None) -> str:
    """Return the bearer token of `/metrics`; "" without a file."""
    if file is None:
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise RemotelyError(f"cannot read the token {file}: {error.strerror}") from None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable():
        raise RemotelyError(
            f"{file} must hold one line of at least {MIN_TOKEN} printable ASCII characters: "
            f"`(umask 077; openssl rand -hex 24 > {file})` makes one"
        )
    return token


def _bind(host: str, port: int) -> socket.socket:
    try:
        ip = ip_of(host)
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        return socket.create_server((ip, port), family=family)
    except OSError as error:
        raise RemotelyError(
            f"cannot listen at {join_address(host, port)}: {error.strerror}. --listen "
            f"{join_address(host, 0)} chooses a free port"
        ) from None


class _Server(uvicorn.Server):
    """A uvicorn server that ends the event streams when it shuts down."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping.set()  # uvicorn polls its own flag every 0.1 s
        super().handle_exit(sig, frame)


def _run(
    application: ASGIApp, listener: socket.socket, where: Where, stopping: asyncio.Event
) -> None:
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=LimitedProtocol,
        loop="remotely.dashboard.connections:LimitedLoop",
        proxy_headers=False,
        timeout_graceful_shutdown=int(GRACE_S),
        ssl_certfile=where.certificate,
        ssl_keyfile=where.private_key,
    )
    try:
        config.load()
    except OSError as error:  # also ssl.SSLError
        raise RemotelyError(f"{where.certificate} cannot be used for TLS: {error}") from None
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    try:
        _Server(config, stopping).run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again after its graceful shutdown
        print(file=sys.stderr)
