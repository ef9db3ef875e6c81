"""Restarts: a restarted actor is reached through every handle of it."""

import gc
import os
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.client.channels import ActorState
from tests.clusters import wait_until


@remotely.remote_class(max_restarts=2)
class Keeper:
    def __init__(self, start: Any = 0) -> None:
        self.count = start

    def pid(self) -> int:
        return os.getpid()

    def add(self) -> Any:
        self.count = self.count + 1
        return self.count


@remotely.remote_class
class Borrower:
    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    def pid_of_keeper(self) -> int:
        return self.keeper.pid()

    def add(self) -> Any:
        return self.keeper.add()


def survived(pid: Callable[[], int]) -> int:
    """Return the pid of a restarted actor; the first calls may still see its death."""
    for _ in range(3):
        try:
            return pid()
        except (remotely.ActorDied, remotely.WorkerLost):
            pass
    return pid()


def test_a_borrowed_handle_follows_restarts(any_cluster: None) -> None:
    keeper = Keeper()
    borrower = Borrower(keeper)
    pids = [borrower.pid_of_keeper()]

    for _ in range(2):
        os.kill(pids[-1], signal.SIGKILL)
        pids.append(survived(borrower.pid_of_keeper))
        assert borrower.add() == 1
        assert keeper.add() == 2

    assert len(set(pids)) == 3
    os.kill(pids[-1], signal.SIGKILL)
    with pytest.raises(remotely.ActorDied):
        survived(borrower.pid_of_keeper)


def test_a_detached_actor_is_restarted_without_its_maker(started: Any, nothing_left: None) -> None:
    start = np.arange(100_000.0)
    remotely.connect(started.address, key=started.key)
    pid = remotely.options(Keeper, name="store", detached=True)(start).pid()
    remotely.shutdown()

    remotely.connect(started.address, key=started.key)
    found = remotely.get_actor("store")
    for _ in range(2):
        os.kill(pid, signal.SIGKILL)
        reborn = survived(found.pid)
        assert reborn != pid
        assert np.array_equal(found.add(), start + 1)
        assert np.array_equal(remotely.get_actor("store").add(), start + 2)
        pid = reborn

    os.kill(pid, signal.SIGKILL)
    with pytest.raises(remotely.ActorDied):
        survived(found.pid)
    wait_until(lambda: not restart_files(), "the end of its constructor arguments")


def test_a_closed_detached_actor_is_not_restarted(started: Any, nothing_left: None) -> None:
    remotely.connect(started.address, key=started.key)
    keeper = remotely.options(Keeper, name="closed", detached=True)()
    pid = keeper.pid()
    os.kill(pid, signal.SIGKILL)
    assert survived(keeper.pid) != pid

    remotely.close(keeper)

    with pytest.raises(NameError):
        remotely.get_actor("closed")
    wait_until(lambda: not restart_files(), "the end of its constructor arguments")


def test_a_constructor_that_raises_on_restart_ends_the_actor(
    started: Any, nothing_left: None, tmp_path: Any
) -> None:
    @remotely.remote_class(max_restarts=5)
    class Once:
        def __init__(self) -> None:
            (tmp_path / "made").mkdir()

        def pid(self) -> int:
            return os.getpid()

    remotely.connect(started.address, key=started.key)
    once = remotely.options(Once, detached=True)()
    os.kill(once.pid(), signal.SIGKILL)

    with pytest.raises(remotely.ActorDied, match="FileExistsError"):
        survived(once.pid)


def test_an_actor_that_died_while_it_was_restarted_ends_with_its_last_handle(
    here: None, tmp_path: Path
) -> None:
    @remotely.remote_class(max_restarts=5)
    class DiesTwice:
        def __init__(self, folder: Path) -> None:
            (folder / str(os.getpid())).touch()
            if len(list(folder.iterdir())) == 2:
                os._exit(1)

        def pid(self) -> int:
            return os.getpid()

    gc.disable()  # a handle must not wait for it
    try:
        twice = DiesTwice(tmp_path)
        os.kill(twice.pid(), signal.SIGKILL)
        survived(twice.pid)
        assert len(list(tmp_path.iterdir())) == 3

        del twice
        wait_until(lambda: not remotely.status().actors, "its end")
    finally:
        gc.enable()


def test_calls_to_an_actor_killed_while_its_restart_waits_for_resources_fail(
    here: None,
) -> None:
    keeper = remotely.options(Keeper, cpus=16)()
    pid = keeper.pid()
    with ThreadPoolExecutor() as pool:
        other = pool.submit(remotely.options(Keeper, cpus=1))
        wait_until(lambda: remotely.status().waiting == 1, "a request that waits")
        os.kill(pid, signal.SIGKILL)
        taker = other.result()
        call = pool.submit(keeper.pid)
        wait_until(lambda: remotely.status().waiting == 1, "its restart waits for resources")

        remotely.kill(keeper)
        remote = cast(ActorState, remote_of(keeper))
        assert remote.gone  # `kill` got its reply and did not time out

        with pytest.raises(remotely.ActorDied):
            call.result()
    with pytest.raises(remotely.ActorDied):
        keeper.pid()
    assert remotely.status().waiting == 0
    assert taker.add() == 1


def restart_files() -> list[Path]:
    """Return the constructor arguments that workers keep for restarts."""
    return list(Path(tempfile.gettempdir()).glob("remotely-*/restart/*"))
