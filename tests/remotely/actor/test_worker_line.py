"""Sending to a stopped worker blocks, except on the background thread."""

import socket
import threading
from collections.abc import Iterator

import pytest

from remotely.actor.actor import WorkerLine
from remotely.protocol import control
from tests.clusters import wait_until


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_a_full_socket_does_not_block_the_background_thread_and_its_messages_keep_their_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    actor, worker = pair
    line = WorkerLine(actor)
    sent = threading.Semaphore(0)

    def fill() -> None:
        for _ in range(2000):
            line.send(b"a record" * 100)
            sent.release()

    waits = threading.Thread(target=fill, daemon=True)
    waits.start()
    while sent.acquire(timeout=1.0):
        pass  # until it blocks

    line.never_block()  # this thread is the background thread
    line.tell(control.Count(calls=1))
    line.tell(control.Count(calls=2))
    assert not line.flush()

    read: list[bytes] = []
    reads = threading.Thread(
        target=lambda: read.extend(worker.recv(4096) for _ in range(2002)), daemon=True
    )
    reads.start()
    wait_until(line.flush, "there is room")
    waits.join()
    reads.join()
    told = [data for data in read if not data.startswith(b"a record")]
    assert told == [control.encode(control.Count(calls=n)) for n in (1, 2)]


def test_messages_to_a_dead_worker_are_dropped(pair: tuple[socket.socket, socket.socket]) -> None:
    actor, worker = pair
    worker.close()
    line = WorkerLine(actor)
    line.tell(control.Count(calls=1))
    line.never_block()
    line.tell(control.Count(calls=2))
    assert line.flush()
