"""The connection of a process that serves an object, without an actor or a worker."""

import socket

from remotely.errors import WorkerLost
from remotely.guest.line import Line
from remotely.protocol import control
from remotely.protocol.resources import Resources
from remotely.transport.keys import MemberKey, fresh_pair
from tests.clusters import free_port


def test_an_actor_whose_socket_is_full_is_told_to_leave_when_there_is_room() -> None:
    ours, actor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line = a_line(ours)
    sent = 0
    try:
        while True:
            ours.send(b"x")
            sent += 1
    except BlockingIOError:
        pass
    line._end(WorkerLost("the connection broke"))
    assert [actor.recv(100) for _ in range(sent)] == [b"x"] * sent
    actor.settimeout(0.01)
    heard = b""
    for _ in range(100):
        line._loop.turn(0.01)
        try:
            heard = actor.recv(100)
            break
        except TimeoutError:
            pass
    assert heard == control.encode(control.Leave())
    line.close("closed")
    actor.close()


def a_line(end: socket.socket) -> Line:
    """Return a line to a worker that is not there; its thread has not begun."""
    pair = fresh_pair()
    host = control.Host(f"tcp://127.0.0.1:{free_port()}", pair.public, is_near=True)
    request = control.Request(
        actor="a" * 32,
        name="a",
        class_name="A",
        owner="",
        job="",
        resources=Resources(cpus=0),
        python="3.11",
    )
    location = control.Location(
        actor=request.actor,
        name="a",
        class_name="A",
        life=0,
        pid=1,
        host="",
        machine="",
        ipc="",
        tcp="",
        public_key=pair.public,
    )
    key = MemberKey("worker", pair, pair.public)
    return Line(host, key, control.Arrive(request=request, location=location), end, "")
