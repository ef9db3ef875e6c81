"""Finds the worker at which a process dials in: the master says which."""

import time

from remotely.errors import MasterLost, RemotelyError
from remotely.protocol import control
from remotely.protocol.address import nobody, parse_address
from remotely.transport import sockets
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink


def find_host(address: str, key: MemberKey, within_s: float) -> control.Host:
    """Ask the master at "host:port".  Raises MasterLost if it does not answer, NotAllowed, ..."""
    master, port = parse_address(address)
    answers: list[object] = []
    loop = Loop()
    context = sockets.new_context()
    deadline = time.monotonic() + within_s
    try:
        link = MasterLink(
            loop,
            context,
            f"tcp://{master}:{port}",
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
            return answer if not answer.is_near else _as_reached(answer, master)
    raise MasterLost(nobody(f"{master}:{port}", "it does not answer as a master"))


def _as_reached(host: control.Host, master: str) -> control.Host:
    """Return it under the name by which the master was reached, which may not be its own."""
    _, _, port = host.address.rpartition(":")
    return control.Host(address=f"tcp://{master}:{port}", public_key=host.public_key, is_near=True)
