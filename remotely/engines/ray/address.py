"""Addresses of Ray clusters.

ray:local        a new cluster of this process
ray:auto         the cluster that `ray start` has started on this machine, or that this machine has
                 joined, or RAY_ADDRESS
ray:HOST:PORT    the cluster whose head listens there
"""

import os
import socket

from remotely.errors import NotAllowed, RemotelyError
from remotely.machine import interfaces
from remotely.protocol.address import join_address, split_address

NO_LABELS = (
    "labels are for machines of 'remotely start' and 'remotely join'. On a Ray cluster give such "
    "machines a custom resource, and ask for a little of it: resources={'ssd': 0.001}"
)

NO_POST_MORTEM = (
    "post_mortem=True is for actors of 'remotely start' or a script's own cluster, which 'remotely "
    "debug' reaches. On Ray, set RAY_DEBUG_POST_MORTEM=1 and use Ray's own debugger"
)

PREFIX = "ray:"
GCS_PORT = 6379  # the port at which `ray start --head` listens

_CLIENT = (
    "{!r}: Ray Client (ray://) cannot stream and is no longer developed. Run the script on the "
    "head of the cluster with 'ray:auto', or as a Ray job: ray job submit -- python script.py "
    "(pip install 'ray[default]')"
)
_MISSING = (
    "{!r} needs Ray, which is not installed here: pip install '.[ray]' in a checkout of "
    "remotely, also on every machine of the Ray cluster"
)
_ADDRESSES = f"write ray:local, ray:auto or ray:HOST:{GCS_PORT}"
_OPEN = (
    "{!r} is another machine, and this process would send it code without authenticating it: set "
    "RAY_AUTH_MODE=token here and where 'ray start' runs, with the same ~/.ray/auth_token "
    "(ray get-auth-token --generate)"
)


def parse(address: str) -> str:
    """Return the address for `ray.init`: "local", "auto" or "host:port".

    Raises RemotelyError for ray://, ValueError for anything else that is not an address.
    """
    if address.startswith("ray://"):
        raise RemotelyError(_CLIENT.format(address))
    where = address.removeprefix(PREFIX)
    variable = os.environ.get("RAY_ADDRESS", "")
    if where == "auto" and variable not in ("", "auto", "local"):
        return parse(PREFIX + variable if "://" not in variable else variable)
    if where in ("local", "auto"):
        return where
    try:
        host, port = split_address(where)
    except ValueError:
        host, port = "", None
    if not host:
        raise ValueError(f"{address!r} is not the address of a Ray cluster: {_ADDRESSES}")
    return join_address(host, port or GCS_PORT)


def check_trust(where: str) -> None:
    """Raise NotAllowed for a head on another machine, unless Ray is set to check a token.

    Ray's default differs between versions.  Raises ValueError if the host name does not resolve.
    """
    if where in ("local", "auto") or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    host, _ = split_address(where)
    try:
        ip = str(socket.getaddrinfo(host, None)[0][4][0])
    except (OSError, UnicodeError):
        raise ValueError(
            f"'ray:{where}' names a Ray cluster on the host {host!r}, which does not resolve "
            f"here: {_ADDRESSES}"
        ) from None
    if not interfaces.is_here(ip):
        raise NotAllowed(_OPEN.format(where))


def check_installed(address: str) -> None:
    """Raise RemotelyError if Ray cannot be imported."""
    try:
        import ray  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise RemotelyError(_MISSING.format(address)) from None
