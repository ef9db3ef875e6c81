"""Memory files: other processes can open them, and no process can resize them."""

import os
import tempfile

import pytest

from remotely.machine import memory_file


def test_a_memory_file_is_opened_by_pid_descriptor_and_name() -> None:
    fd = memory_file.create("remotely-test", 4096)
    other = memory_file.open_of(os.getpid(), fd, "remotely-test")
    assert other is not None
    os.pwrite(fd, b"hello", 7)
    assert os.pread(other, 5, 7) == b"hello"
    assert not os.get_inheritable(other)
    os.close(fd)
    os.close(other)


def test_a_memory_file_cannot_be_resized() -> None:
    fd = memory_file.create("remotely-test", 4096)
    for nbytes in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, nbytes)
    os.close(fd)


def test_another_file_with_that_descriptor_is_not_opened() -> None:
    fd = memory_file.create("remotely-test", 4096)
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    assert memory_file.open_of(os.getpid(), fd, "remotely-other") is None
    assert memory_file.open_of(os.getpid(), read, "remotely-test") is None
    assert memory_file.open_of(os.getpid(), 9999, "remotely-test") is None
    assert memory_file.open_of(1 << 22, fd, "remotely-test") is None
    assert len(os.listdir("/proc/self/fd")) == before
    for each in (fd, read, write):
        os.close(each)


def test_files_pipes_and_closed_descriptors_are_not_memory_files() -> None:
    fd = memory_file.create("remotely-test", 4096)
    read, write = os.pipe()
    assert memory_file.is_memory_file(fd)
    assert not memory_file.is_memory_file(read)
    with tempfile.TemporaryFile(dir=".") as file:
        assert not memory_file.is_memory_file(file.fileno()) or _is_tmpfs(file.fileno())
    for each in (fd, read, write):
        os.close(each)
    assert not memory_file.is_memory_file(9999)


def _is_tmpfs(fd: int) -> bool:
    return os.fstatvfs(fd).f_fsid == os.statvfs("/dev/shm").f_fsid
