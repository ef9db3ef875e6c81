"""Addresses that name a Ray cluster.

ray:local        one of this process alone
ray:auto         the one that `ray start` has started on this machine, or that this machine has
                 joined, or RAY_ADDRESS
ray:HOST:PORT    the one whose head listens there
"""

import os
import socket

from remotely.errors import NotAllowed, RemotelyError
from remotely.machine import interfaces
from remotely.protocol.address import join_address, split_address

PREFIX = "ray:"
GCS_PORT = 6379  # what `ray start --head` listens at

_CLIENT = (
    "{!r}: Ray Client (ray://) cannot stream and is not developed further. Run the script on the "
    "head of the cluster with 'ray:auto', or as a Ray job: ray job submit -- python script.py "
    "(pip install 'ray[default]')"
)
_MISSING = (
    "{!r} needs Ray, which is not installed here: pip install '.[ray]' in a checkout of "
    "remotely, on every machine of the Ray cluster too"
)
_ADDRESSES = f"write ray:local, ray:auto or ray:HOST:{GCS_PORT}"
_OPEN = (
    "{!r} is another machine, and this process would send it code without proof of who it is: set "
    "RAY_AUTH_MODE=token here and where 'ray start' runs, with the same ~/.ray/auth_token "
    "(ray get-auth-token --generate)"
)


def parse(address: str) -> str:
    """Return what `ray.init` takes as its address: "local", "auto" or "host:port".

    Raises RemotelyError for ray://, ValueError for anything else that is no address.
    """
    if address.startswith("ray://"):
        raise RemotelyError(_CLIENT.format(address))
    where = address.removeprefix(PREFIX)
    told = os.environ.get("RAY_ADDRESS", "")
    if where == "auto" and told not in ("", "auto", "local"):
        return parse(PREFIX + told if "://" not in told else told)
    if where in ("local", "auto"):
        return where
    try:
        host, port = split_address(where)
    except ValueError:
        host, port = "", None
    if not host:
        raise ValueError(f"{address!r} is no address of a Ray cluster: {_ADDRESSES}")
    return join_address(host, port or GCS_PORT)


def check_trust(where: str) -> None:
    """Refuse a head on another machine unless Ray was told to check a token.  Raises NotAllowed.

    What Ray does without being told differs from version to version.  Raises ValueError if the
    name of the host is not known.
    """
    if where in ("local", "auto") or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    host, _ = split_address(where)
    try:
        ip = str(socket.getaddrinfo(host, None)[0][4][0])
    except (OSError, UnicodeError):
        raise ValueError(
            f"'ray:{where}' names a Ray cluster on the host {host!r}, which is not known here: "
            f"{_ADDRESSES}"
        ) from None
    if not interfaces.is_here(ip):
        raise NotAllowed(_OPEN.format(where))


def check_installed(address: str) -> None:
    """Raise RemotelyError if Ray cannot be imported."""
    try:
        import ray  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise RemotelyError(_MISSING.format(address)) from None
