"""The store process, with an actor of its machine and a client."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from remotely.actor.machine_store import MachineStore
from remotely.client.bulk_transfer import Stores
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.control import StoreAddress
from remotely.protocol.listening import Listening
from remotely.transport import bulk, sockets
from remotely.transport.bulk import ValueGone
from remotely.transport.keys import fresh_pair
from remotely.transport.loop import Loop
from remotely.values import arena, codec
from remotely.values.arena import Arena
from remotely.values.payload import Parcel
from tests.clusters import wait_until

QUICK_STORE = """
from remotely.store import store
store.CLAIM_S, store.ASK_EVERY_S = 0.3, 0.05
store.main()
"""


class Machine:
    """A store that waits for claims for 0.3 s; this class plays its worker, actor and client."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.context = sockets.new_context()
        pair, own = fresh_pair(), fresh_pair()
        self._worker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        port = socket.create_server(("127.0.0.1", 0))
        birth = control.StoreBirth(
            listening=Listening(host="127.0.0.1"),
            machine="here",
            public_key=own.public,
            secret_key=own.secret,
        )
        self._worker.send(control.encode(birth))
        self._worker.send(control.encode(control.Caller(key=pair.public, admitted=True)))
        with theirs, port:
            fds = theirs.fileno(), port.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", QUICK_STORE, *map(str, fds)], pass_fds=fds
            )
            self.address = StoreAddress(
                tcp=f"tcp://127.0.0.1:{port.getsockname()[1]}", public_key=own.public
            )
        self.actor = MachineStore(self._meet)
        self.stores = Stores(self.context, self.loop, pair, "here")

    def _meet(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._worker, [control.encode(control.Meet())], [theirs.fileno()])
        self.actor.introduced(OwnedFd(os.dup(self.line.fileno())))

    def offer(self) -> Parcel:
        offered = self.actor.offer(codec.encode(np.ones(100_000)), b"route", "Peer-1.make")
        assert offered is not None
        return offered

    def has(self, wanted: Parcel) -> bool:
        self.loop.turn(0.0)
        assert wanted.store is not None
        try:
            bulk.fetch(wanted.store, wanted.value, memoryview(bytearray(wanted.nbytes)))
        except ValueGone:
            return False
        return True

    def close(self) -> None:
        self.actor.close()
        self._worker.close()  # ends the store
        self.process.wait(40)
        self.stores.close()
        self.context.destroy(linger=0)
        self.loop.close()
        self.line.close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    ours = Arena(64 << 20)
    monkeypatch.setattr(arena, "ours", lambda: ours)
    started = Machine()
    yield started
    started.close()


def test_a_claimed_result_outlives_its_actor_until_it_is_released(machine: Machine) -> None:
    claimed, unclaimed = machine.offer(), machine.offer()
    held = machine.stores.claim(claimed, machine.address)
    assert machine.has(claimed)
    machine.line.shutdown(socket.SHUT_RDWR)  # the actor ends

    wait_until(lambda: not machine.has(unclaimed), "the end of the unclaimed result")
    assert machine.has(claimed)
    del held
    wait_until(lambda: not machine.has(claimed), "the end of the released result")
