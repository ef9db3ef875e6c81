"""Uploads of shipped files: each file goes to a worker once, also for concurrent actors."""

import itertools
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import remotely
from remotely.client import placing
from remotely.client.placing import FileUploads
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
    """Records what it is asked to send; `complete` completes the uploads."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.futures: list[CallFuture[None]] = []

    def __call__(self, digest: str, content: bytes, future: CallFuture[None]) -> None:
        self.sent.append(digest)
        self.futures.append(future)

    def complete(self) -> None:
        for future in self.futures:
            future.set_result(None)


def test_a_file_that_another_actor_is_uploading_is_waited_for_and_not_sent_again(
    shipment: Shipment,
) -> None:
    uploads, first, second = FileUploads(shipment), Sender(), Sender()
    missing = sorted(shipment.files.values())
    uploads.deliver("worker", missing[:2], first)
    waits = threading.Thread(target=uploads.deliver, args=("worker", missing, second))
    waits.start()
    first.complete()
    waits.join(40)
    assert not waits.is_alive()
    assert (first.sent, second.sent) == (missing[:2], missing[2:])


def test_a_file_that_another_actor_failed_to_store_is_sent_again(shipment: Shipment) -> None:
    uploads, first, second = FileUploads(shipment), Sender(), Sender()
    missing = sorted(shipment.files.values())
    uploads.deliver("worker", missing, first)
    for future in first.futures:
        future.set_exception(ActorDied("it died", exit=1, may_have_run=False))
    assert uploads.deliver("worker", missing, second) == second.futures
    assert second.sent == missing


def test_an_interrupt_at_any_point_of_an_upload_leaves_no_other_actor_waiting(
    shipment: Shipment,
) -> None:
    missing = sorted(shipment.files.values())
    for n in itertools.count(1):
        uploads, first, second = FileUploads(shipment), Sender(), Sender()
        with (
            suppress(KeyboardInterrupt),
            struck_after(n, signal.SIGINT, placing) as has_struck,
        ):
            uploads.deliver("worker", missing, first)
        for future in first.futures:
            if not future.done():
                future.set_result(None)
        thread = threading.Thread(
            target=uploads.deliver, args=("worker", missing, second), daemon=True
        )
        thread.start()
        thread.join(40)
        assert not thread.is_alive()
        assert {*first.sent, *second.sent} == {*missing}
        if not has_struck:
            break
    assert n > 3


def test_each_worker_gets_each_file(shipment: Shipment) -> None:
    uploads, first, second = FileUploads(shipment), Sender(), Sender()
    uploads.deliver("one", shipment.files.values(), first)
    uploads.deliver("another", shipment.files.values(), second)
    assert len(first.sent) == len(second.sent) == 3


def test_a_changed_file_fails_every_upload_of_it(shipment: Shipment, tmp_path: Path) -> None:
    uploads, sender = FileUploads(shipment), Sender()
    (tmp_path / "a").write_text("changed")
    for _ in range(2):
        with pytest.raises(RemotelyError, match="has changed since"):
            uploads.deliver("worker", [shipment.files["a"]], sender)


def test_the_bytes_of_files_in_memory_are_limited(
    shipment: Shipment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "MAX_UPLOAD_BYTES", 2500)
    uploads, most = FileUploads(shipment), 0
    futures: list[CallFuture[None]] = []

    def send(digest: str, content: bytes, future: CallFuture[None]) -> None:
        nonlocal most
        futures.append(future)
        most = max(most, sum(not future.done() for future in futures))
        if most > 2:
            futures[0].set_result(None)

    uploads.deliver("worker", shipment.files.values(), send)
    assert most == 3  # with the third, `deliver` waits until the first is stored
    assert futures[0].done()


@remotely.remote_class
class Reader:
    def read(self, name: str) -> str:
        return remotely.shipped(name).read_text()


def test_a_group_on_one_worker_uploads_each_file_once(
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
