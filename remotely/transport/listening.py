"""Binding of ports for other machines, and the choice of addresses to connect to."""

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from remotely.errors import MasterLost, RemotelyError
from remotely.machine import interfaces, this_machine
from remotely.protocol.address import (
    is_ipv6,
    join_address,
    no_master,
    parse_address,
    unknown_host,
    unreachable,
)
from remotely.protocol.lease import CONNECT_S
from remotely.protocol.listening import Listening, Ports
from remotely.transport import sockets

Bound = TypeVar("Bound")  # the port, or a socket that is bound to it

RETRY_EVERY_S = 0.25  # between attempts to reach a master
NOTICE_AFTER_S = 2.5  # a cluster that is just starting is reachable before

_NOT_OURS = (errno.EADDRINUSE, errno.EACCES)


def bind_within(ports: Ports, bind: Callable[[int], Bound]) -> Bound:
    """Bind to the first free port of a range, and return what `bind` returns.

    `bind` takes a port, 0 for any.  It raises OSError or ZMQError with EADDRINUSE if the port is
    taken.  Raises RemotelyError if all of them are.
    """
    for port in ports.starting_at(os.getpid()):
        try:
            return bind(port)
        except (OSError, zmq.ZMQError) as error:
            if error.errno not in _NOT_OURS:
                raise
    raise RemotelyError(
        f"no port of {ports} is free on {this_machine.machine_name()}: each actor that other "
        "machines call needs one. Give its machine a larger range (--ports)"
    )


def listen(server: "zmq.Socket[bytes]", listening: Listening) -> str:
    """Bind a ZeroMQ socket for other machines; return its endpoints."""

    def bind(port: int) -> int:
        sockets.bind(server, f"tcp://{join_address(listening.host, port or '*')}")
        return int(server.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    return listening.endpoints(bind_within(listening.ports, bind))


def listen_for_bytes(listening: Listening) -> tuple[socket.socket, str]:
    """Return a plain TCP socket that listens for other machines, and its endpoints."""
    family = socket.AF_INET6 if is_ipv6(listening.host) else socket.AF_INET
    made: list[socket.socket] = []

    def bind(port: int) -> int:
        address = (listening.host, port)
        made.append(socket.create_server(address, family=family, backlog=sockets.BACKLOG))
        return int(made[0].getsockname()[1])

    port = bind_within(listening.ports, bind)
    return made[0], listening.endpoints(port)


def nearest(endpoints: str) -> str:
    """Return the endpoint to connect to: the first on a network of this machine, else the first."""
    first, *others = endpoints.split(" ")
    if not others:
        return first
    return next((e for e in (first, *others) if interfaces.is_near(parse_address(e)[0])), first)


def reach(host: str, port: int, or_else: str, patience_s: float = 0.0) -> str:
    """Return the address, "host:port", of a listening master.

    A name with one IPv4 address stays a name, because the address may change; a name with several
    becomes the address that answered.  Waits up to `patience_s` for the master to listen, with a
    line on the terminal.  Raises MasterLost, whose message ends with `or_else`.
    """
    begin, is_printed = time.monotonic(), False
    while True:
        try:
            return _reach(host, port, or_else)
        except MasterLost as error:
            waited_s = time.monotonic() - begin
            if waited_s + RETRY_EVERY_S > patience_s:
                waited = f" (waited for it for {patience_s:g} s)" if patience_s else ""
                raise MasterLost(f"{error}{waited}") from None
            if waited_s > NOTICE_AFTER_S and not is_printed:
                text = f"waiting for a cluster: {error} (giving up after {patience_s:g} s)"
                print(f"remotely: {text}", file=sys.stderr, flush=True)
                is_printed = True
        time.sleep(RETRY_EVERY_S)


def _reach(host: str, port: int, or_else: str) -> str:
    try:
        with socket.create_connection((host, port), CONNECT_S) as connection:
            found = str(connection.getpeername()[0])
        known = socket.getaddrinfo(host, port, socket.AF_INET) if ":" not in found else ()
    except (socket.gaierror, UnicodeError) as error:
        raise MasterLost(unknown_host(host, error)) from None
    except OSError as error:
        code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
        why = unreachable(here(host, port), host, port, code, str(error))
        raise MasterLost(no_master(join_address(host, port), why, or_else)) from None
    return join_address(host if {a[4][0] for a in known} == {found} else found, port)


def here(host: str, port: int) -> str:
    """Return this machine's address as `host` sees it, for firewall messages; else its name."""
    with contextlib.suppress(OSError):
        return this_machine.address_towards(host, port)
    return this_machine.machine_name()
