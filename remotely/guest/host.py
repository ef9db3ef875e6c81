"""Finds the worker at which a process dials in: the master says which."""

import time

from remotely.errors import MasterLost, RemotelyError
from remotely.protocol import control
from remotely.protocol.address import join_address, nobody, parse_address
from remotely.transport import sockets
from remotely.transport.keys import MemberKey
from remotely.transport.listening import nearest, reach
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink


def find_host(address: str, key: MemberKey, within_s: float) -> control.Host:
    """Ask the master at "host:port".  Raises MasterLost if it does not answer, NotAllowed, ..."""
    master, port = parse_address(address)
    reached = reach(master, port, or_else="")
    answers: list[object] = []
    loop = Loop()
    context = sockets.new_context()
    deadline = time.monotonic() + within_s
    try:
        link = MasterLink(
            loop,
            context,
            f"tcp://{reached}",
            key,
            control.AskHost,
            answers.append,
            answers.append,
        )
        while not answers and (left_s := deadline - time.monotonic()) > 0:
            loop.turn(left_s)
        link.close()
    finally:
        context.destroy(linger=0)
        loop.close()
    for answer in answers:
        if isinstance(answer, RemotelyError):
            raise answer
        if isinstance(answer, control.Host):
            return _as_reached(answer, master)
    raise MasterLost(nobody(reached, "it does not answer as a master", or_else=""))


def _as_reached(host: control.Host, master: str) -> control.Host:
    """Return it with the one address at which to dial it.

    On the master's machine that is the name by which the master was reached: from outside of its
    network, its own addresses may lead nowhere.
    """
    address = nearest(host.address)
    if host.is_near:
        _, port = parse_address(address)
        address = f"tcp://{join_address(master, port)}"
    return control.Host(address=address, public_key=host.public_key, is_near=host.is_near)
