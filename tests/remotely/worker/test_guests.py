"""How a worker ends an actor whose process has dialled in; master, process and caller are played
here."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import zmq

from remotely.protocol import control
from remotely.protocol.address import parse_address
from remotely.protocol.listening import Listening
from remotely.protocol.resources import Resources
from remotely.transport import sockets
from remotely.transport.keys import fresh_keys
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect
from remotely.transport.tunnel import WINDOW_BYTES, Part, head_of
from remotely.worker.guests import LOOK_EVERY_S, Guests
from remotely.worker.nursery import Home

DEADLINE_S = 10.0
REPLY = bytes(WINDOW_BYTES)


class Played:
    """One guest of a worker, and one caller, whose sockets have room for little."""

    def __init__(self, folder: Path) -> None:
        _, _, key = fresh_keys()
        home = Home("w", folder, "", b"", Listening(host="127.0.0.1"), [], "host", "machine", False)
        self.said: list[msgspec.Struct] = []  # to the master
        self.loop = Loop()
        self.context = sockets.new_context()
        self.guests = Guests(self.loop, self.context, home, self.said.append)
        self.guests.list_keys([key.pair.public])
        self.guest_context = sockets.new_context()
        public = self.guests.public_key
        self.guest = sockets.client(self.guest_context, key.pair, public, Reconnect.NEVER)
        sockets.connect(self.guest, self.guests.address)
        request, location = about("a")
        self.says(control.Arrived(request=request, location=location))
        self.turn_until(lambda: self.said)
        self.guests.hear_hosted(control.Hosted(actor="a", request=request, seal=b"s"))
        port = self.guests._guests["a"].port
        port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.caller = socket.socket()
        self.caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.caller.connect(port.getsockname())
        self.caller.setblocking(False)
        self.tunnel = self.guests._guests["a"].tunnel
        self.turn_until(lambda: len(self.tunnel) == 1)

    def says(self, message: msgspec.Struct) -> None:
        """Say something as the guest."""
        self.sends(Part.LINE, 0, control.encode(message))

    def sends(self, part: Part, number: int, body: bytes) -> None:
        sockets.send(self.guest, (head_of(part, number), body))

    def turn_until(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline
            self.loop.turn(0.01)

    def obituary(self) -> control.Obituary:
        """Return it when the master was told."""
        self.turn_until(lambda: isinstance(self.said[-1], control.Died))
        death = self.said[-1]
        assert isinstance(death, control.Died)
        return death.obituary

    def read(self) -> tuple[int, bool]:
        """Read what has come to the caller: how much, and whether it is at its end."""
        came = 0
        while True:
            try:
                data = self.caller.recv(1 << 16)
            except BlockingIOError:
                return came, False
            except ConnectionResetError:
                return came, True
            if not data:
                return came, True
            came += len(data)

    def read_all(self) -> int:
        """Return how many bytes come to the caller until the end."""
        total = 0

        def is_at_end() -> bool:
            nonlocal total
            came, at_end = self.read()
            total += came
            return at_end

        self.turn_until(is_at_end)
        return total

    def close(self) -> None:
        self.caller.close()
        self.guests.close(for_good=True)
        self.turn_until(lambda: len(self.tunnel) == 0)  # nothing is left behind
        self.guest_context.destroy(linger=0)
        self.context.destroy(linger=0)
        self.loop.close()


def about(actor: str) -> tuple[control.Request, control.Location]:
    request = control.Request(
        actor=actor,
        name=actor,
        named=True,
        class_name="Simulator",
        owner="",
        job="",
        resources=Resources(cpus=0),
        python="3.12",
    )
    location = control.Location(
        actor=actor,
        name=actor,
        class_name="Simulator",
        life=0,
        pid=1,
        host="elsewhere",
        machine="elsewhere",
        ipc="",
        tcp="",
        public_key=b"".ljust(40),
    )
    return request, location


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.close()


def test_a_slow_caller_gets_the_last_reply_of_one_that_has_exited(played: Played) -> None:
    played.sends(Part.DATA, 1, REPLY)
    played.sends(Part.CLOSE, 1, b"")
    played.says(control.Ending(why="closed"))
    played.says(control.Exiting(calls=1))
    obituary = played.obituary()
    assert (obituary.asked, obituary.exited, obituary.why) == (True, True, "closed")
    assert played.read_all() == len(REPLY)


@pytest.mark.parametrize("cause", ["kill", "cut"])
def test_callers_of_one_that_was_killed_or_lost_are_cut_off_at_once(
    played: Played, cause: str
) -> None:
    played.sends(Part.DATA, 1, REPLY)
    stream = played.tunnel._streams[1]
    played.turn_until(lambda: stream.unsent)
    if cause == "kill":
        played.guests.end(control.End(actor="a", kill=True, grace_s=0, by="pid 7"))
    else:
        played.guest.setsockopt(zmq.LINGER, 0)
        played.guest.close()
    assert not played.obituary().exited
    assert stream.socket.fileno() < 0
    assert played.read_all() < len(REPLY)


def test_strangers_that_come_and_go_have_no_guest_looked_at(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0
    send = sockets.send

    def counted(to: "zmq.Socket[bytes]", frames: Sequence[bytes | memoryview]) -> None:
        nonlocal ticks
        ticks += frames[-1] == control.encode(control.Tick())
        send(to, frames)

    monkeypatch.setattr(sockets, "send", counted)
    begun = time.monotonic()
    for _ in range(100):
        with socket.create_connection(parse_address(played.guests.address)):
            played.loop.turn(0)
    played.guest.setsockopt(zmq.LINGER, 0)
    played.guest.close()
    played.obituary()  # of what was cut after the strangers
    assert ticks <= 2 + (time.monotonic() - begun) / LOOK_EVERY_S


def test_of_one_that_has_ended_before_the_master_has_taken_it_the_master_is_told(
    played: Played,
) -> None:
    request, _ = about("gone")
    played.guests.hear_hosted(control.Hosted(actor="gone", request=request, seal=b"s"))
    (death,) = [one for one in played.said if isinstance(one, control.Died)]
    assert death.obituary.actor == "gone"
