"""Versions in shared memory: a process that is killed at any step leaves a whole version behind."""

import gc
import json
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from remotely.machine import byte_lock
from remotely.testing import faults
from remotely.values import arena, codec, published, versions
from remotely.values.published import Published
from remotely.values.shared_memory import MemoryAddress
from remotely.values.versions import MappedVersions, Version

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory is Linux's")

WRITER_STEPS = "12345678"
READER_STEPS = "abcd"
NBYTES = 100_000

Array = NDArray[np.uint8]


def value(number: int) -> Array:
    return np.full(NBYTES, number % 251, np.uint8)


def number_in(array: Array) -> int:
    """Return the number in every byte of an array, which is from one version."""
    assert (array == array[0]).all()
    return int(array[0])


def in_a_child(run: Callable[[], object]) -> int:
    """Run a function in a forked child; return its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def opened(source: Published[Any]) -> Published[Any]:
    """Return a reader of its own, as another process has it."""
    other: Published[Any] = Published.__new__(Published)
    held = MappedVersions(source._memory, writes=False)
    other._hold(source._memory, held, secrets.token_hex(16), None)
    return other


def received(address: MemoryAddress) -> Published[Any]:
    """Return what another process has published at this address."""
    return published._receive(address, address.token, None)


def locks() -> int:
    """Return how many locks of the kernel this process holds on published memory."""
    held = 0
    for fd in os.listdir("/proc/self/fdinfo"):
        try:
            held += Path(f"/proc/self/fdinfo/{fd}").read_text().count("OFDLCK")
        except OSError:
            pass
    return held


@pytest.mark.parametrize("step", WRITER_STEPS)
@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_writer_killed_at_any_step_leaves_a_whole_version(
    step: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_reader, from_writer = os.pipe()
    done, go_on = os.pipe()

    def write() -> None:
        source = Published(value(1))
        address = source._memory.address()
        os.write(from_writer, json.dumps(address).encode())
        os.read(done, 1)
        monkeypatch.setattr(faults, "ON", faults.parse(f"published.{step}:die@{version - 1}"))
        for number in range(2, 6):
            source.set(value(number))

    child = os.fork()
    if child == 0:
        try:
            write()
        finally:
            os._exit(1)
    fields = json.loads(os.read(to_reader, 10_000))
    reader = received(MemoryAddress(*fields))
    first = reader.latest()
    assert not first.is_final
    os.write(go_on, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    last = reader.latest()
    assert last.is_final
    assert last.version == (version if int(step) >= 6 else version - 1)
    assert number_in(last.value) == last.version
    assert number_in(first.value) == 1  # still held
    for end in (to_reader, from_writer, done, go_on):
        os.close(end)


@pytest.mark.parametrize("step", READER_STEPS)
def test_a_reader_killed_at_any_step_gives_its_version_back(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Published(value(1))

    def read() -> None:
        monkeypatch.setattr(faults, "ON", faults.parse(f"published.{step}:die"))
        source.latest()

    for number in range(2, 30):
        assert in_a_child(read) == -signal.SIGKILL
        source.set(value(number))
    assert source.held_bytes <= 2 * (NBYTES + 2 * 4096)


@pytest.mark.parametrize("step", READER_STEPS)
def test_a_reader_stopped_at_any_step_holds_up_nobody(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Published(value(1))
    child = os.fork()
    if child == 0:
        faults.ON.update(faults.parse(f"published.{step}:stop@1"))
        code = 1
        try:
            array, number = source.latest()
            code = 0 if number_in(array) == number else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    for number in range(2, 50):
        source.set(value(number))
        assert number_in(source.latest().value) == number
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("step", WRITER_STEPS)
def test_a_writer_stopped_at_any_step_holds_up_nobody(step: str) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            source = Published(value(1))
            os.write(told, json.dumps(source._memory.address()).encode())
            faults.ON.update(faults.parse(f"published.{step}:stop@3"))
            for number in range(2, 6):
                source.set(value(number))
        finally:
            os._exit(0)
    fields = json.loads(os.read(ready, 10_000))
    reader = received(MemoryAddress(*fields))
    os.waitpid(child, os.WUNTRACED)
    array, number = reader.latest()
    assert number_in(array) == number == (4 if int(step) >= 6 else 3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(told)


def test_a_version_that_is_held_stays_and_its_memory_is_taken_again_later() -> None:
    source = Published(value(1))
    readers = [opened(source) for _ in range(5)]
    held = []
    for number, reader in enumerate(readers, 1):
        held.append(reader.latest().value)
        source.set(value(number + 1))
    assert [number_in(array) for array in held] == [1, 2, 3, 4, 5]
    most = source.held_bytes
    assert 6 * NBYTES <= most <= 6 * (NBYTES + 2 * 4096)
    del readers, reader, held
    gc.collect()
    for number in range(7, 20):
        source.set(value(number))
    assert source.held_bytes == most


def test_memory_that_nobody_needs_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Published(value(1))
    readers = [opened(source) for _ in range(5)]
    for number, reader in enumerate(readers, 2):
        reader.latest()
        source.set(value(number))
    del readers, reader
    gc.collect()
    monkeypatch.setattr(arena, "IDLE_S", 0.0)
    source.set(value(7))
    assert source._memory.file is not None
    used = os.stat(source._memory.file.fd).st_blocks * 512
    assert source.held_bytes <= 2 * (NBYTES + 2 * 4096)
    assert used <= source.held_bytes + 20 * 4096
    monkeypatch.undo()
    for number in range(8, 12):  # and the space is used again
        source.set(value(number))
        assert number_in(source.latest().value) == number


def test_the_lock_leaves_with_the_last_view() -> None:
    source = Published(value(1))
    gc.collect()
    before = locks()
    reader = opened(source)
    view = reader.latest().value[5:10]
    assert locks() == before + 1
    del reader
    gc.collect()
    assert locks() == before + 1
    del view
    assert locks() == before


def test_a_forked_child_and_its_parent_hold_a_version_until_both_let_go() -> None:
    source = Published(value(1))
    reader = opened(source)
    array = reader.latest().value
    go, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.read(go, 1)
            code = 0 if number_in(array) == 1 else 2
        finally:
            os._exit(code)
    del array, reader
    gc.collect()
    for number in range(2, 20):
        source.set(value(number))
    os.write(told, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(go)
    os.close(told)


def test_a_forked_child_does_not_write_and_does_not_pass_for_the_writer() -> None:
    source = Published(value(1))
    file = source._memory.file
    assert file is not None

    def child(source: Published[Array] = source) -> None:
        assert not source._versions.is_writer()
        assert source._versions.has_writer()
        source.latest()

    assert in_a_child(child) == 0
    del child
    begun, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(begin, b"x")
        signal.pause()
    os.read(begun, 1)
    lock = versions._open_again(file)
    del source  # with the lock of the writer
    gc.collect()
    is_locked = byte_lock.is_locked(lock, versions.WRITER)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for fd in (lock, begun, begin):
        os.close(fd)
    assert not is_locked


def test_more_versions_than_slots_raise_and_the_next_one_after_that_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "SLOTS", 4)
    source = Published(value(1))
    held: list[Version] = [source._versions.read()]
    for number in range(2, 5):
        source.set(value(number))
        held.append(source._versions.read())
    with pytest.raises(MemoryError, match="held by readers"):
        source.set(value(5))
    assert number_in(source.latest().value) == 4
    del held[0]
    assert source.set(value(6)) == 5


def test_the_header_has_room_for_all_slots() -> None:
    source = Published(value(1))
    header = source._versions._header
    header.set_region(versions.SLOTS - 1, 3, 4, 5)
    assert header.slot(versions.SLOTS - 1)[1:] == [3, 4, 5]


def test_pieces_arrive_where_they_were_written() -> None:
    encoded = codec.encode(
        [np.arange(3), "text", np.zeros(0), np.ones((2, 2), "f4")], small_bytes=1
    )
    source = Published(0)
    source._versions.write(encoded)
    version = source._versions.read()
    first, text, empty, last = codec.decode(*version.unpacked())
    assert (first.tolist(), text, empty.size, last.tolist()) == ([0, 1, 2], "text", 0, [[1, 1]] * 2)
