"""A file goes to a worker once, whichever actors are made there at the same time."""

import itertools
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import remotely
from remotely.client import actors
from remotely.client.actors import FileUploads
from remotely.errors import ActorDied, RemotelyError
from remotely.futures.future import CallFuture
from remotely.values.shipping import Shipment
from tests.striking import struck_after


@pytest.fixture
def shipment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shipment:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        (tmp_path / name).write_text(name * 1000)
    return Shipment(["a", "b", "c"])


class Sender:
    """Sends what it is handed, and completes it when it is told to."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.futures: list[CallFuture[None]] = []

    def __call__(self, digest: str, content: bytes, future: CallFuture[None]) -> None:
        self.sent.append(digest)
        self.futures.append(future)

    def completes(self) -> None:
        for future in self.futures:
            future.set_result(None)


def test_what_another_actor_is_sending_there_is_waited_for_and_not_sent_again(
    shipment: Shipment,
) -> None:
    freight, first, second = FileUploads(shipment), Sender(), Sender()
    missing = sorted(shipment.files.values())
    freight.deliver("worker", missing[:2], first)
    waits = threading.Thread(target=freight.deliver, args=("worker", missing, second))
    waits.start()
    first.completes()
    waits.join(40)
    assert not waits.is_alive()
    assert (first.sent, second.sent) == (missing[:2], missing[2:])


def test_what_another_actor_failed_to_store_is_sent_again(shipment: Shipment) -> None:
    freight, first, second = FileUploads(shipment), Sender(), Sender()
    missing = sorted(shipment.files.values())
    freight.deliver("worker", missing, first)
    for future in first.futures:
        future.set_exception(ActorDied("it died", exit=1, may_have_run=False))
    assert freight.deliver("worker", missing, second) == second.futures
    assert second.sent == missing


def test_an_interrupted_upload_leaves_no_other_actor_waiting(shipment: Shipment) -> None:
    """Wherever it strikes."""
    missing = sorted(shipment.files.values())
    for n in itertools.count(1):
        freight, first, second = FileUploads(shipment), Sender(), Sender()
        with (
            suppress(KeyboardInterrupt),
            struck_after(n, signal.SIGINT, actors) as has_struck,
        ):
            freight.deliver("worker", missing, first)
        for future in first.futures:
            if not future.done():
                future.set_result(None)
        thread = threading.Thread(
            target=freight.deliver, args=("worker", missing, second), daemon=True
        )
        thread.start()
        thread.join(40)
        assert not thread.is_alive()
        assert {*first.sent, *second.sent} == {*missing}
        if not has_struck:
            break
    assert n > 3


def test_each_worker_is_sent_its_own(shipment: Shipment) -> None:
    freight, first, second = FileUploads(shipment), Sender(), Sender()
    freight.deliver("one", shipment.files.values(), first)
    freight.deliver("another", shipment.files.values(), second)
    assert len(first.sent) == len(second.sent) == 3


def test_a_file_that_cannot_be_read_fails_every_upload_of_it(
    shipment: Shipment, tmp_path: Path
) -> None:
    freight, sender = FileUploads(shipment), Sender()
    (tmp_path / "a").unlink()
    for _ in range(2):
        with pytest.raises(RemotelyError, match="has changed since"):
            freight.deliver("worker", [shipment.files["a"]], sender)


def test_the_bytes_of_files_in_memory_are_limited(
    shipment: Shipment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "UNDER_WAY_BYTES", 2500)
    freight, most = FileUploads(shipment), 0
    futures: list[CallFuture[None]] = []

    def send(digest: str, content: bytes, future: CallFuture[None]) -> None:
        nonlocal most
        futures.append(future)
        most = max(most, sum(not future.done() for future in futures))
        if most > 2:
            futures[0].set_result(None)

    freight.deliver("worker", shipment.files.values(), send)
    assert most == 3  # the third is waited with, until the first is stored
    assert futures[0].done()


@remotely.remote_class
class Reader:
    def read(self, name: str) -> str:
        return remotely.shipped(name).read_text()


def test_a_group_of_four_on_a_worker_is_sent_ten_files_once_each(
    nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for n in range(10):
        (tmp_path / f"{n}.txt").write_text(str(n))
    read: list[str] = []
    plain = Shipment.read

    def reading(shipment: Shipment, digest: str) -> bytes:
        read.append(digest)
        return plain(shipment, digest)

    monkeypatch.setattr(Shipment, "read", reading)
    remotely.connect(cpus=8, ship="*.txt")

    assert remotely.group(Reader, 4).read("7.txt") == ["7"] * 4
    assert Reader().read("3.txt") == "3"
    assert len(read) == 10


def test_a_file_that_changed_after_connect_is_named_where_the_actor_is_made(
    nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").write_text("old")
    remotely.connect(cpus=1, ship=["weights"])
    (tmp_path / "weights").write_text("new")

    with pytest.raises(RemotelyError, match="weights has changed since"):
        Reader()
