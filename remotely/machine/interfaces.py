"""The addresses and ports of this machine: which are free, and which process holds a port."""

import contextlib
import errno
import functools
import socket
import time

import psutil

from remotely.errors import RemotelyError
from remotely.machine import this_machine

PORT_FREE_S = 2.0  # a killed process may hold its port until its last thread has ended
EVERYWHERE = ("0.0.0.0", "::")  # IPv4 only; IPv4 and IPv6


def own_address() -> str:
    """Return an address at which other machines may reach this one; loopback if there is none."""
    with contextlib.suppress(OSError):
        return this_machine.address_towards("192.0.2.1", 9)  # TEST-NET-1: takes the default route
    return next((a for a in addresses_here() if not is_loopback(a)), "127.0.0.1")


def everywhere() -> str:
    """Return the wildcard address to bind: IPv4, or both if this machine has only IPv6."""
    others = [a for a in addresses_here() if not is_loopback(a)]
    return EVERYWHERE[bool(others) and all(":" in a for a in others)]


def is_here(name: str) -> bool:
    """Return whether a name or an address is one of this machine."""
    try:
        ip = ip_of(name)
    except ValueError:
        return False
    return is_loopback(ip) or ip in (*EVERYWHERE, *addresses_here())


def is_loopback(ip: str) -> bool:
    return ip.startswith("127.") or ip == "::1"


def is_near(ip: str) -> bool:
    """Return whether the address of another machine is on a network of this machine.

    False for an address that this machine has too: each has its own 172.17.0.1 of Docker.
    """
    family, theirs = _number_of(ip)
    networks = [(ours, mask) for of, ours, mask in _networks() if of == family]
    is_ours = any(theirs == ours for ours, _ in networks)
    return not is_ours and any(theirs & mask == ours & mask for ours, mask in networks)


@functools.cache
def _networks() -> list[tuple[int, int, int]]:
    """Return the family, own address and mask of each network of this machine."""
    return [
        (*_number_of(address.address), _number_of(address.netmask)[1])
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.netmask and not is_loopback(address.address)
    ]


def _number_of(ip: str) -> tuple[int, int]:
    """Return the family and the number of an address; (0, 0) for a name."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with contextlib.suppress(OSError):
        return family, int.from_bytes(socket.inet_pton(family, ip))
    return 0, 0


def ip_of(name: str) -> str:
    """Resolve a name of this machine, to IPv4 if possible.  Raises ValueError."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, UnicodeError):
            return str(socket.getaddrinfo(name, None, family)[0][4][0])
    has = ", ".join(addresses_here())
    raise ValueError(f"{name!r} is not an address of this machine, which has {has}")


def check_port(name: str, ip: str, port: int) -> None:
    """Raise an error with advice if a port cannot be bound: RemotelyError or ValueError."""
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
        raise RemotelyError(f"only root may use port {port}; choose one from 1024 up")
    raise ValueError(
        f"{name} is not an address of this machine, which has {', '.join(addresses_here())}; "
        f"{' or '.join(EVERYWHERE)} stands for all of them"
    )


def check_range(ip: str, low: int, high: int) -> None:
    """Raise RemotelyError if no port from `low` to `high` can be bound."""
    codes = [_bind_error(ip, port) for port in range(low, high + 1)]
    if None in codes:
        return
    if set(codes) == {errno.EACCES}:
        raise RemotelyError(f"only root may use the ports {low}-{high}; choose some from 1024 up")
    raise RemotelyError(
        f"no port of {low}-{high} is free on this machine: port {low} is in use by "
        f"{_holder_of(low) or 'another program'}; choose another range: --ports"
    )


def free_port(ip: str, low: int, high: int) -> int:
    """Return a port of a range that is free now; for 0 to 0, one that the kernel chooses."""
    if low:
        check_range(ip, low, high)
        return next(port for port in range(low, high + 1) if _bind_error(ip, port) is None)
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        probe.bind((ip, 0))
        return int(probe.getsockname()[1])


def is_taken(ip: str, port: int) -> bool:
    return _bind_error(ip, port) == errno.EADDRINUSE


def _bind_error(ip: str, port: int) -> int | None:
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            return error.errno
    return None


def _holder_of(port: int) -> str:
    """Return the pid and command of the process that listens at a port; "" if unknown."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.pid and tuple(connection.laddr)[1] == port:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"pid {connection.pid} ({command[:60]})"
    return ""


def addresses_here() -> list[str]:
    """Return the addresses of this machine, IPv4 first, loopback last, no link-local IPv6."""
    found = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6) and "%" not in address.address
    }
    return sorted(found, key=lambda a: (is_loopback(a), ":" in a, a))
