"""The addresses and ports of this machine: which it has, which are free, and who holds one."""

import contextlib
import errno
import functools
import socket
import time

import psutil

from remotely.errors import RemotelyError
from remotely.machine import this_machine

PORT_FREE_S = 2.0  # a process that was killed may hold its port until its last thread has ended
EVERYWHERE = ("0.0.0.0", "::")  # of IPv4; of both


def own_address() -> str:
    """Return an address by which other machines may know this one; loopback if there is none."""
    with contextlib.suppress(OSError):
        return this_machine.address_towards("192.0.2.1", 9)  # of no machine: the default route
    return next((a for a in addresses_here() if not is_loopback(a)), "127.0.0.1")


def everywhere() -> str:
    """Return what to bind for all machines: IPv4, or both if this machine has an IPv6 only."""
    others = [a for a in addresses_here() if not is_loopback(a)]
    return EVERYWHERE[bool(others) and all(":" in a for a in others)]


def is_here(name: str) -> bool:
    """Tell whether a name or an address is one of this machine."""
    try:
        ip = ip_of(name)
    except ValueError:
        return False
    return is_loopback(ip) or ip in (*EVERYWHERE, *addresses_here())


def is_loopback(ip: str) -> bool:
    return ip.startswith("127.") or ip == "::1"


def is_near(ip: str) -> bool:
    """Tell whether the address of another machine is on a network of this machine.

    Not if it is one that this machine has itself: each has its own 172.17.0.1, of Docker.
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
    """Return the family and the number of an address; a family without networks for a name."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with contextlib.suppress(OSError):
        return family, int.from_bytes(socket.inet_pton(family, ip))
    return 0, 0


def ip_of(name: str) -> str:
    """Return the address of a name of this machine, of IPv4 if it has one."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, UnicodeError):
            return str(socket.getaddrinfo(name, None, family)[0][4][0])
    has = ", ".join(addresses_here())
    raise ValueError(f"{name!r} is no address of this machine; it has {has}")


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
        f"and {' or '.join(EVERYWHERE)} stands for all of them"
    )


def check_range(ip: str, low: int, high: int) -> None:
    """Raise RemotelyError if no port from `low` to `high` can be bound."""
    codes = [_bind_error(ip, port) for port in range(low, high + 1)]
    if None in codes:
        return
    if set(codes) == {errno.EACCES}:
        raise RemotelyError(f"the ports {low}-{high} are for root alone; choose some from 1024 up")
    raise RemotelyError(
        f"no port of {low}-{high} is free on this machine: port {low} is in use by "
        f"{_holder_of(low) or 'another program'}; choose another range: --ports"
    )


def free_port(ip: str, low: int, high: int) -> int:
    """Return a port that is free now, of a range; of 0 to 0 one that the kernel chooses."""
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
    """Return who listens at a port of this machine; nothing if that cannot be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.pid and tuple(connection.laddr)[1] == port:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"pid {connection.pid} ({command[:60]})"
    return ""


def addresses_here() -> list[str]:
    """Return the addresses of this machine: IPv4 first, its own loopback last.

    Without those of IPv6 that hold for one cable alone (fe80:...).
    """
    found = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6) and "%" not in address.address
    }
    return sorted(found, key=lambda a: (is_loopback(a), ":" in a, a))
