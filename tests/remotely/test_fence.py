"""An actor whose worker is cut off from its master serves nobody any more, and ends."""

import socket
import time
from pathlib import Path

import pytest

from remotely.fence import Fence, Probe
from tests.clusters import free_port


@pytest.fixture
def fence(tmp_path: Path) -> Fence:
    return Fence(tmp_path, make=True)


def test_without_a_lease_it_never_passes(fence: Fence) -> None:
    assert not fence.has_passed
    assert not fence.look()


def test_an_actor_sees_at_once_what_its_worker_writes(fence: Fence, tmp_path: Path) -> None:
    of_the_actor = Fence(tmp_path)
    now = time.monotonic()
    fence.move(now - 1)
    assert of_the_actor.has_passed
    fence.move(now + 60)
    assert of_the_actor.moment == now + 60
    assert not of_the_actor.has_passed


def test_one_look_after_it_passed_ends_nobody_since_a_machine_may_have_been_paused(
    fence: Fence,
) -> None:
    fence.move(0.0)
    assert not fence.look()
    fence.move(time.monotonic() + 60)
    assert not fence.look()
    fence.move(0.0)
    assert not fence.look()
    assert fence.look()


def test_two_workers_never_share_one(fence: Fence, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        Fence(tmp_path, make=True)


def test_where_nobody_listens_a_machine_of_ours_refuses() -> None:
    assert Probe(("127.0.0.1", free_port())).refused()


def test_who_listens_or_is_silent_has_not_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert not Probe(listening.getsockname()).refused()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        socket.create_connection(silent.getsockname()),  # the one that it has room for
    ):
        assert not Probe(silent.getsockname()).refused()
    assert not Probe(("no.such.machine.invalid", 9)).refused()
