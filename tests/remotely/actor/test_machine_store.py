"""Memory that an actor has offered to the store is not reused while the store may read it."""

import os
import socket
import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from remotely.actor import machine_store
from remotely.actor.machine_store import MachineStore
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.control import MAX_MESSAGE, BulkAddress
from remotely.values import arena, codec
from remotely.values.arena import Arena


class SlowStore:
    """Shares memory with an actor, and does not answer its offers."""

    def __init__(self) -> None:
        self._arena = Arena(1 << 20)
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        decode = control.Decoder("actor > store").decode
        while data := self._ours.recv(MAX_MESSAGE):
            if isinstance(decode(data), control.Share):
                shared = control.Shared(
                    arena=msgspec.msgpack.encode(self._arena.address),
                    bulk=BulkAddress("tcp://127.0.0.1:1", b"1" * 32),
                )
                self._ours.send(control.encode(shared))

    def close(self) -> None:
        self.theirs.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.theirs.close()
        self._ours.close()


@pytest.fixture
def slow_store() -> Iterator[SlowStore]:
    store = SlowStore()
    yield store
    store.close()


def test_memory_lent_to_a_store_that_answers_late_is_not_reused(
    slow_store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may read the offer later, and would see the memory change."""
    ours = Arena(64 << 20)
    monkeypatch.setattr(arena, "ours", lambda: ours)
    monkeypatch.setattr(machine_store, "STORE_ANSWER_S", 0.2)
    actor = MachineStore(lambda: None)
    actor.introduced(OwnedFd(os.dup(slow_store.theirs.fileno())))

    offered = codec.encode(np.ones(500_000))
    assert actor.offer(offered, b"route", "Peer-1.make") is None

    assert ours.lent_bytes > 0
