"""The connections of a process that serves an object, without an actor."""

import socket
from pathlib import Path
from typing import Any

import pytest

from remotely.errors import WorkerLost
from remotely.guest import line as line_module
from remotely.guest.line import Line
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources
from remotely.transport import key_files
from remotely.transport.keys import MemberKey
from tests.clusters import DEADLINE_S, free_port, wait_until
from tests.remotely.guest.played import Played


def test_an_actor_whose_socket_is_full_is_told_to_leave_when_there_is_room(played: Played) -> None:
    ours, actor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    actor.settimeout(DEADLINE_S)
    key = key_files.load_member(played.keys / "worker.key", "worker")
    line = Line(played.address, key, control.AskHost(nonce="a"), ours, "")
    sent = 0
    try:
        while True:
            ours.send(b"x")
            sent += 1
    except BlockingIOError:
        pass
    line.start(arrived(key))
    wait_until(lambda: played.worker.hosted, "it is hosted")
    played.worker.send_away()
    wait_until(lambda: line.why, "it hears that the cluster ends")
    heard = [actor.recv(100) for _ in range(sent + 1)]
    assert [one for one in heard if len(one) == 1] == [b"x"] * sent
    while (last := actor.recv(100)) != control.encode(control.Leave()):
        assert control.Decoder(control.ToActor).decode(last)
    line.close("closed")
    actor.close()


@pytest.mark.parametrize(
    "lie", [{"guests": "garbage"}, {"guests": "tcp://a:99999 b"}, {"guests_key": b"short"}]
)
def test_a_worker_that_cannot_be_is_lost(
    nothing_left: None, tmp_path: Path, lie: dict[str, Any]
) -> None:
    played = Played(tmp_path, **lie)
    ours, actor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    key = key_files.load_member(played.keys / "worker.key", "worker")
    try:
        with pytest.raises(WorkerLost, match="a worker cannot be at"):
            Line(played.address, key, control.AskHost(nonce="a"), ours, "")
    finally:
        ours.close()
        actor.close()
        played.close()


def test_a_worker_where_nobody_listens_is_lost_at_once(
    nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_module, "LEASE_S", 10 * DEADLINE_S)
    played = Played(tmp_path, guests=f"tcp://127.0.0.1:{free_port()}")
    ours, actor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    key = key_files.load_member(played.keys / "worker.key", "worker")
    line = Line(played.address, key, control.AskHost(nonce="a"), ours, "")
    try:
        line.start(arrived(key))
        wait_until(lambda: isinstance(line.why, WorkerLost), "its worker is lost")
    finally:
        line.close("closed")
        actor.close()
        played.close()


def arrived(key: MemberKey) -> control.Arrived:
    actor = bound_id("guest", key.pair.public, "a")
    request = control.Request(
        actor=actor,
        name="a",
        class_name="A",
        owner="",
        job="",
        resources=Resources(cpus=0),
        python="3.11",
    )
    location = control.Location(
        actor=actor,
        name="a",
        class_name="A",
        life=0,
        pid=1,
        host="",
        machine="",
        ipc="",
        tcp="",
        public_key=b"".ljust(40),
    )
    return control.Arrived(request=request, location=location)
