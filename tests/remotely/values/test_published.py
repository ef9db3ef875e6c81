"""Published within one process: what is read, copied and refused.

Memory, locks and kills are tested in test_versions.py, other processes in
tests/remotely/test_published.py.
"""

import asyncio
import copy
import gc
import pickle
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import remotely
from remotely import NotPicklable, NotShared, Published, PublisherGone, RemotelyError
from remotely.machine import memory_file, this_machine
from remotely.values import versions
from tests.clusters import wait_until
from tests.remotely.values.test_versions import in_a_child, opened


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:remotely-published-")


class Pair(NamedTuple):
    mean: Any
    steps: int


VALUES: list[Any] = [
    {"w": np.arange(6.0).reshape(2, 3), "b": [np.float32(2), {"deep": np.zeros((0, 3))}]},
    (np.arange(5, dtype=">i4"), np.array("2026-01-01", "M8[D]"), np.array([True, False])),
    Pair(np.asfortranarray(np.arange(12).reshape(3, 4)), 7),
    np.arange(100)[::3],
    np.array(["text", None], object),
    {"t": torch.arange(6.0).view(2, 3), "h": torch.ones(3, dtype=torch.bfloat16)},
    [torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), torch.tensor(3), torch.zeros(0, 2)],
    nn.Linear(3, 4).state_dict(),
    "no arrays at all",
    17,
    None,
]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and bool((left == right).all())
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("how", [{}, {"copy": True}])
def test_a_value_is_read_as_it_was_published(value: Any, how: Any) -> None:
    params = Published(value)
    read, version = params.latest(**how)
    assert version == params.version == 1
    assert same(value, read)


def test_what_the_caller_changes_afterwards_is_not_published() -> None:
    array, tensor = np.zeros(3), torch.zeros(3)
    params = Published([array, tensor])
    array[:] = tensor[:] = 7
    assert [part.tolist() for part in params.latest().value] == [[0] * 3] * 2


def test_arrays_are_read_only_views_of_any_size_and_the_same_version_is_the_same_objects() -> None:
    params = Published({"small": np.zeros(1), "large": np.zeros(100_000)})
    value = params.latest().value
    assert not value["small"].flags.writeable
    assert not value["large"].flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        value["small"][0] = 1
    assert params.latest().value is value
    params.set({"small": np.ones(1), "large": np.ones(100_000)})
    assert (params.latest().value["small"][0], value["small"][0]) == (1, 0)


def test_tensors_share_the_memory_and_what_is_written_to_them_reaches_nobody() -> None:
    params = Published(torch.zeros(10_000))
    other = opened(params)
    mine = other.latest().value
    mine += 5
    assert params.latest().value.sum() == 0
    assert opened(params).latest().value.sum() == 0
    del mine
    for number in range(1, 6):  # the slot is used again, and what was written is gone
        params.set(torch.full((10_000,), float(number)))
        assert other.latest().value.sum() == number * 10_000


def test_reading_allocates_nothing_of_the_size_of_the_arrays() -> None:
    params = Published([np.zeros(1 << 22), torch.zeros(1 << 20)])
    before = mappings()
    array, tensor = params.latest().value
    assert mappings() == before + 1
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    for address in (array.__array_interface__["data"][0], tensor.data_ptr()):
        (name,) = (
            line[-1]
            for line in ([*words[:1], " ".join(words[5:])] for words in maps)
            if int(line[0].split("-")[0], 16) <= address < int(line[0].split("-")[1], 16)
        )
        assert "remotely-published" in name


def test_a_copy_is_private_and_writable() -> None:
    params = Published[list[Any]]([np.zeros(4), torch.zeros(4)])
    array, tensor = params.latest(copy=True).value
    array += 1
    tensor += 1
    assert [part.sum() for part in params.latest().value] == [0, 0]


def test_into_a_module_copies_in_place() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    params = Published(source.state_dict())
    weight = target.weight
    value, version = params.latest(into=target)
    assert value is target
    assert version == 1
    assert target.weight is weight
    assert torch.equal(weight, source.weight)


def test_into_a_structure_copies_in_place() -> None:
    params = Published({"a": np.ones(2), "b": [torch.ones(3), (np.full(1, 2.0), 5)], "n": 4})
    array, tensor, deep = np.zeros(2), torch.zeros(3), np.zeros(1)
    target = {"a": array, "b": [tensor, (deep, 0)], "n": 0}
    params.latest(into=target)
    assert (array.tolist(), tensor.tolist(), deep.tolist()) == ([1, 1], [1, 1, 1], [2])
    assert target["n"] == 4
    assert target["a"] is array


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        ({"a": np.zeros(3)}, ValueError, r"\['a'\] has the shape \(2,\).*\(3,\)"),
        ({"c": np.zeros(2)}, ValueError, "other keys: 'a', 'c'"),
        (torch.nn.Linear(2, 2), ValueError, "(?s)no state of this Linear: .*Missing key"),
        ([1, 2], ValueError, "1 items.*2"),
        (object(), TypeError, "is a object, which has no arrays"),
    ],
)
def test_into_another_structure_raises(target: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Published({"a": np.zeros(2)}).latest(into=target)


def test_another_structure_is_another_layout() -> None:
    params = Published({"a": np.zeros(2)})
    layouts = [params.latest().layout]
    for value in ({"a": np.ones(2)}, {"a": np.ones(3)}, {"a": np.ones(3)}, {"b": np.ones(3)}):
        params.set(value)
        layouts.append(params.latest().layout)
    assert layouts == [1, 1, 2, 2, 3]


def test_a_larger_and_a_smaller_value_take_other_memory() -> None:
    params = Published(np.zeros(10))
    for size in (1_000_000, 10, 500, 2_000_000, 1):
        params.set(np.full(size, float(size)))
        assert (params.latest().value == size).all()
        assert len(params.latest().value) == size
    assert params.held_bytes < 2_000_000 * 8 * 1.5
    assert "MiB held" in repr(params)
    assert "version 6" in repr(params)


def test_a_value_that_does_not_pickle_is_refused_and_publishes_nothing() -> None:
    params = Published[Any]({"a": 1})
    with pytest.raises(NotPicklable, match="the published value"):
        params.set({"a": threading.Lock()})
    assert params.latest() == ({"a": 1}, 1)


def test_only_its_maker_sets_it() -> None:
    params = Published(1)
    reader = opened(params)
    with pytest.raises(RemotelyError, match="only the process that created"):
        reader.set(2)

    def child() -> None:
        with pytest.raises(RemotelyError, match="only the process that created"):
            params.set(2)

    assert in_a_child(child) == 0
    assert params.set(3) == 2


def test_wait_returns_once_there_is_a_newer_version() -> None:
    params = Published(1)
    reader = opened(params)
    assert reader.wait(newer_than=0, timeout=0)
    assert not reader.wait(newer_than=1, timeout=0.01)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(reader.wait(newer_than=1)))
    waiting.start()
    params.set(2)
    waiting.join()
    assert found == [True]


def test_wait_says_that_the_publisher_is_gone_and_the_last_version_stays() -> None:
    params = Published(np.ones(3))
    reader = opened(params)
    assert not reader.latest().is_final
    del params
    gc.collect()
    with pytest.raises(PublisherGone, match="Its last version, 1, can still be read"):
        reader.wait(newer_than=1)
    assert reader.wait(newer_than=0)
    latest = reader.latest()
    assert latest.is_final
    assert latest.value.sum() == 3


def test_a_coroutine_waits_and_others_run_meanwhile() -> None:
    params = Published(1)
    reader = opened(params)

    async def publish() -> None:
        params.set(2)

    async def wait() -> tuple[bool, bool, bool]:
        first = await reader.wait_async(newer_than=1, timeout=0.01)
        waiting = asyncio.create_task(reader.wait_async(newer_than=1))
        cancelled = asyncio.create_task(reader.wait_async(newer_than=9))
        await asyncio.sleep(0)
        await publish()
        cancelled.cancel()
        return first, await waiting, await reader.wait_async(newer_than=1)

    assert asyncio.run(wait()) == (False, True, True)


def test_its_pickle_is_an_address_which_becomes_the_same_object_in_its_process() -> None:
    params = Published(np.zeros(1 << 20))
    data = pickle.dumps(params)
    assert len(data) < 1000
    assert pickle.loads(data) is params
    assert copy.deepcopy([params])[0] is params


def test_the_memory_is_freed_with_its_last_view() -> None:
    gc.collect()
    wait_until(lambda: not mappings(), "threads of other tests have ended")
    before = mappings()
    params = Published[list[Any]]([np.zeros(10_000), torch.zeros(10)])
    array = params.latest().value[0][5:]
    del params
    gc.collect()
    assert mappings() == before + 1
    assert array.sum() == 0
    del array
    gc.collect()
    assert mappings() == before


def test_the_pickle_of_a_published_that_is_gone_raises() -> None:
    params = Published(3)
    data = pickle.dumps(params)
    del params
    gc.collect()
    with pytest.raises(NotShared, match="memory of a Published is gone"):
        pickle.loads(data)


def test_without_memory_files_it_is_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_file, "SUPPORTED", False)
    params = Published({"a": np.zeros(2)})
    assert params.wait(newer_than=0)
    assert not params.wait(newer_than=1, timeout=0.01)
    before = params.latest()
    assert params.set({"a": np.ones(3)}) == 2
    latest = params.latest()
    assert (latest.value["a"].tolist(), latest.layout, latest.is_final) == ([1, 1, 1], 2, False)
    assert before.value["a"].tolist() == [0, 0]
    assert not latest.value["a"].flags.writeable
    assert params.latest(copy=True).value["a"].flags.writeable
    with pytest.raises(NotShared):
        pickle.dumps(params)


def test_more_than_this_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    params = Published(np.zeros(10))
    monkeypatch.setattr(this_machine, "memory", lambda: 1000)
    with pytest.raises(MemoryError, match="this machine has"):
        params.set(np.zeros(1000))
    assert params.latest().version == 1


def test_threads_read_and_write_at_once() -> None:
    params = Published(np.zeros(1000))
    torn: list[int] = []

    def read() -> None:
        while (latest := params.latest()).version < 300:
            if not (latest.value == latest.version - 1).all():
                torn.append(latest.version)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 300):
        params.set(np.full(1000, float(number)))
    for reader in readers:
        reader.join()
    assert torn == []


def test_the_public_names_say_what_they_are() -> None:
    assert remotely.Published is Published
    assert versions.SLOTS * 4 * 8 < versions.HEADER_BYTES


def test_tensors_of_another_device_are_published_as_tensors_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[str] = []

    def to(self: torch.Tensor, device: str) -> torch.Tensor:
        moved.append(f"{self.device.type} to {device}")
        return torch.ones(self.shape)

    elsewhere = nn.Linear(2, 2, device="meta")
    monkeypatch.setattr(torch.Tensor, "to", to)
    value = Published({"w": elsewhere.weight, "b": elsewhere.bias.detach()}).latest().value
    assert moved == ["meta to cpu"] * 2
    assert value["w"].tolist() == [[1, 1], [1, 1]]
    assert type(value["w"]) is nn.Parameter
    assert (value["b"].device.type, type(value["b"])) == ("cpu", torch.Tensor)
