"""Shared arrays between real processes: the same memory in all, and no leaks."""

import gc
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import remotely
from tests.clusters import wait_until


@remotely.remote_class(cpus=0)
class Holder:
    def __init__(self, given: Any = None) -> None:
        self.kept = given

    def keep(self, shared: remotely.SharedArray) -> None:
        self.kept = shared

    def fill(self, value: float, shared: remotely.SharedArray | None = None) -> None:
        (self.kept if shared is None else shared).array[:] = value

    def total(self, shared: remotely.SharedArray | None = None) -> float:
        return float((self.kept if shared is None else shared).array.sum())

    def make(self, count: int) -> remotely.SharedArray:
        shared = remotely.SharedArray(count, "f4")
        shared.array[:] = 1
        return shared

    def give(self) -> dict[str, list[remotely.SharedArray]]:
        return {"in": [self.kept]}

    def is_kept(self, shared: remotely.SharedArray) -> bool:
        return shared is self.kept

    def hand_to(self, other: "Holder") -> None:
        other.keep(self.kept)

    def drop(self) -> None:
        self.kept = None

    def yielded(self, count: int) -> Any:
        for i in range(count):
            shared = remotely.SharedArray(1, "i4")
            shared.array[0] = i
            yield shared

    def busy(self, gate: str) -> None:
        wait_until(Path(gate).exists, "the gate")

    def pid(self) -> int:
        return os.getpid()


def holders() -> int:
    """Return how many shared arrays this process and its children have mapped."""
    count = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            count += maps.read_text().count("/memfd:remotely-shared-")
    return count


def test_actors_and_the_script_write_the_same_memory(here: None) -> None:
    shared = remotely.SharedArray((2, 3), "f4")
    first, second = Holder(), Holder(shared)
    first.keep(shared)
    first.fill(2)
    assert shared.array.tolist() == [[2] * 3] * 2
    shared.array[0, 0] = 10
    assert second.total() == 20


def test_a_shared_array_may_be_anywhere_in_a_value(here: None) -> None:
    shared = remotely.SharedArray(4, "f4")
    actors = remotely.group(Holder, 2, given=shared)
    actors[0].fill(3)
    assert actors.total() == [12, 12]
    assert actors[0].give()["in"][0] is shared
    assert actors[1].is_kept(shared)
    assert actors.total(shared=shared) == [12, 12]
    ref = remotely.put(shared)
    del shared
    assert actors[0].total(ref) == 12
    assert [int(s.array[0]) for s in actors[0].yielded(5)] == [0, 1, 2, 3, 4]


def test_a_shared_result_arrives_after_its_actor_dropped_it(here: None) -> None:
    actor = Holder()
    assert all(actor.make(n).array.sum() == n for n in (0, 1, 5000))
    futures = [actor.make.submit(n) for n in range(20)]
    gc.collect()
    assert [future.result().array.sum() for future in futures] == list(range(20))


def test_a_shared_argument_dropped_by_the_caller_lives_until_its_call(
    here: None, tmp_path: Path
) -> None:
    actors = remotely.group(Holder, 2)
    gate = tmp_path / "gate"
    busy = actors.busy.submit(str(gate))
    shared = remotely.SharedArray(3, "f4")
    shared.array[:] = 2
    kept = actors.keep.submit(shared)
    del shared
    gc.collect()
    gate.touch()
    for future in (*busy, *kept):
        future.result()
    del busy, kept, future
    assert actors.total() == [6, 6]
    actors[0].fill(1)
    assert actors[1].total() == 3


def test_a_shared_array_outlives_its_maker(here: None) -> None:
    maker, heir, late = Holder(), Holder(), Holder()
    shared = maker.make(8)
    maker.keep(shared)
    maker.hand_to(heir)
    os.kill(maker.pid(), signal.SIGKILL)
    with pytest.raises(remotely.ActorDied):
        maker.pid()
    heir.fill(2)
    assert shared.array.sum() == 16
    del shared
    gc.collect()
    heir.hand_to(late)  # neither its maker nor the script has it any more
    late.fill(3)
    assert heir.total() == 24


def test_killing_all_holders_leaves_nothing_behind(here: None) -> None:
    gc.collect()
    before = holders()
    shared = remotely.SharedArray(1 << 20, "u1")
    actors = remotely.group(Holder, 3, shared)
    actors.fill(1)
    remotely.kill(actors)
    del shared, actors
    gc.collect()
    wait_until(lambda: holders() == before, "every mapping is gone")


def test_a_restarted_actor_gets_the_same_shared_array(here: None) -> None:
    shared = remotely.SharedArray(2, "f4")
    actor = remotely.options(Holder, max_restarts=1)(shared)
    os.kill(actor.pid(), signal.SIGKILL)
    wait_until(lambda: _survived(actor), "the restart")
    actor.fill(4)
    assert shared.array.sum() == 8


def _survived(actor: Any) -> bool:
    try:
        return bool(actor.pid())
    except remotely.ActorDied:
        return False


def test_in_one_process_a_shared_array_is_the_same_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.shutdown()
    actor = Holder()
    shared = remotely.SharedArray(2)
    actor.keep(shared)
    assert actor.is_kept(shared)
    remotely.shutdown()


def test_a_shared_result_is_released_once_it_has_arrived(here: None) -> None:
    actor = Holder()
    pid = actor.pid()
    for _ in range(3):
        actor.make(10)
    maps = Path(f"/proc/{pid}/maps")
    wait_until(lambda: "remotely-shared-" not in maps.read_text(), "the actor has none left")
    assert np.asarray(actor.make(2)).tolist() == [1, 1]
