"""Fences: actors stop serving and end when their worker is cut off from its master."""

import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from remotely.protocol.lease import FENCE_S
from remotely.transport import fence as fence_module
from remotely.transport.fence import LOOK_EVERY_S, PROBE_BEFORE_S, Fence, WorkerFence, now
from tests.clusters import free_port


@pytest.fixture
def fence(tmp_path: Path) -> Fence:
    return Fence(tmp_path, make=True)


def test_a_fence_without_a_lease_never_passes(fence: Fence) -> None:
    assert not fence.has_passed
    assert not fence.look()


def test_an_actor_sees_a_move_of_its_workers_fence(fence: Fence, tmp_path: Path) -> None:
    of_the_actor = Fence(tmp_path)
    at = now()
    fence.move(at - 1)
    assert of_the_actor.has_passed
    fence.move(at + 60)
    assert of_the_actor.deadline == at + 60
    assert not of_the_actor.has_passed


def test_a_fence_must_have_passed_at_two_checks(
    fence: Fence,
) -> None:
    fence.move(0.0)
    assert not fence.look()
    fence.move(now() + 60)
    assert not fence.look()
    fence.move(0.0)
    assert not fence.look()
    assert fence.look()


def test_a_fence_is_checked_when_it_is_due(fence: Fence, tmp_path: Path) -> None:
    assert fence.until_look_s() == float("inf")
    fence.move(now() + 3.0)
    assert 2.0 < fence.until_look_s() <= 3.0
    fence.move(now() - 5.0)
    assert fence.until_look_s() == LOOK_EVERY_S
    worker = tmp_path / "worker"
    worker.mkdir()
    of_the_worker = WorkerFence(worker, "tcp://127.0.0.1:9")
    assert of_the_worker.until_look_s() <= FENCE_S  # not registered yet
    of_the_worker.renew(now())
    assert of_the_worker.until_look_s() <= FENCE_S - PROBE_BEFORE_S


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock counts suspended time")
def test_the_clock_counts_suspended_time(fence: Fence, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_BOOTTIME: 100.0}
    monkeypatch.setattr(fence_module, "time", SimpleNamespace(clock_gettime=clocks.get))
    fence.move(now() + FENCE_S)
    assert not fence.has_passed
    clocks[time.CLOCK_BOOTTIME] += 3600.0
    assert fence.has_passed


def test_two_workers_cannot_share_a_fence(fence: Fence, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        Fence(tmp_path, make=True)


# --- the fence of a worker -----------------------------------------------------------------------


def test_the_fence_moves_from_the_time_of_the_request_and_never_back(
    tmp_path: Path,
) -> None:
    fence = WorkerFence(tmp_path, "tcp://127.0.0.1:9")
    fence.renew(100.0)
    assert fence.deadline == 100.0 + FENCE_S
    fence.renew(104.0)
    assert fence.deadline == 104.0 + FENCE_S
    fence.renew(102.0)
    assert fence.deadline == 104.0 + FENCE_S


def test_an_embedded_worker_has_no_lease(tmp_path: Path) -> None:
    fence = WorkerFence(tmp_path, "ipc:///tmp/somewhere")
    fence.renew(100.0)
    assert fence.deadline == float("inf")


def test_the_fence_moves_while_the_master_refuses_connections(tmp_path: Path) -> None:
    fence = WorkerFence(tmp_path, f"tcp://127.0.0.1:{free_port()}")
    begun = now()
    for _ in range(3):
        fence.move(begun + PROBE_BEFORE_S / 2)
        assert not fence.look()  # starts a probe
        assert not fence.look()  # reads its outcome
        assert fence.deadline >= begun + FENCE_S


def test_the_fence_passes_while_the_master_is_silent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        fence = WorkerFence(tmp_path, f"tcp://127.0.0.1:{master.getsockname()[1]}")
        deadline = now() - 0.1
        fence.move(deadline)
        assert not fence.look()
        assert fence.look()
        assert fence.deadline == deadline
