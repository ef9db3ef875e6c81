"""The addresses and ports of this machine: which it has, which are free, and who holds one."""

import contextlib
import errno
import socket
import time

import psutil

from remotely.errors import RemotelyError
from remotely.machine import this_machine

PORT_FREE_S = 2.0  # a process that was killed may hold its port until its last thread has ended
EVERYWHERE = "0.0.0.0"


def own_address() -> str:
    """Return an address by which other machines may know this one; loopback if there is none."""
    with contextlib.suppress(OSError):
        return this_machine.address_towards("192.0.2.1", 9)  # of no machine: the default route
    return next((a for a in addresses_here() if not a.startswith("127.")), "127.0.0.1")


def is_here(name: str) -> bool:
    """Tell whether a name or an address is one of this machine."""
    try:
        ip = ip_of(name)
    except ValueError:
        return False
    return ip.startswith("127.") or ip in (EVERYWHERE, *addresses_here())


def ip_of(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
    except (OSError, UnicodeError):
        raise ValueError(
            f"{name!r} is no address of this machine; it has {', '.join(addresses_here())}"
        ) from None


def check_port(name: str, ip: str, port: int) -> None:
    """Raise in words what binding there would raise."""
    deadline = time.monotonic() + PORT_FREE_S
    while (code := _bind_error(ip, port)) == errno.EADDRINUSE:
        holder = _holder_of(port)
        if holder or time.monotonic() > deadline:
            raise RemotelyError(
                f"port {port} is in use by {holder or 'another program'}; choose another: "
                f"'remotely start --port {port + 1 if port < 65535 else port - 1}'"
            )
        time.sleep(0.05)
    if code is None:
        return
    if code == errno.EACCES:
        raise RemotelyError(f"port {port} is for root alone; choose one from 1024 up")
    raise ValueError(
        f"{name} is no address of this machine; it has {', '.join(addresses_here())}, "
        f"and {EVERYWHERE} stands for all of them"
    )


def _bind_error(ip: str, port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            return error.errno
    return None


def _holder_of(port: int) -> str:
    """Return who listens at a port of this machine; nothing if that cannot be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.pid and tuple(connection.laddr)[1:] == (port,):
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"pid {connection.pid} ({command[:60]})"
    return ""


def addresses_here() -> list[str]:
    """Return the IPv4 addresses of this machine, its own loopback last."""
    found = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    }
    return sorted(found, key=lambda a: (a.startswith("127."), a))
