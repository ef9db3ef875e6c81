"""SharedArray within one process: shapes, dtypes, views, pickles, and the lifetime of its memory.

Sharing between processes is tested in tests/remotely/test_shared_array.py.
"""

import copy
import gc
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.client.ref import Ref
from remotely.errors import NotShared
from remotely.machine import memory_file, this_machine
from remotely.values import codec, in_transit
from remotely.values.owned import own
from remotely.values.shared_array import SharedArray


def mappings() -> int:
    """Return how many shared arrays this process has mapped."""
    return Path("/proc/self/maps").read_text().count("/memfd:remotely-shared-")


def descriptors() -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += "remotely-shared-" in os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return found


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 4), "float32"),
        (5, np.int64),
        ((), "u1"),
        ((0,), float),
        ((2, 0, 3), "f2"),
        ((1025,), "f4"),
        ([np.int64(2), 3], bool),
        ((2,), [("obs", "u1", (4, 4)), ("reward", "f4")]),
        ((2,), ">i4"),
    ],
)
def test_it_starts_as_zeros_of_its_shape_and_dtype(shape: Any, dtype: Any) -> None:
    shared = SharedArray(shape, dtype)
    like = np.zeros(shape, dtype)
    assert shared.shape == shared.array.shape == like.shape
    assert shared.dtype == shared.array.dtype == like.dtype
    assert shared.nbytes == like.nbytes
    assert (shared.array == like).all()
    assert shared.array.flags.writeable


def test_asarray_returns_the_memory_itself_without_a_copy() -> None:
    shared = SharedArray(4, "f4")
    np.asarray(shared)[1] = 2
    assert shared.array.tolist() == [0, 2, 0, 0]
    assert np.asarray(shared) is shared.array
    np.array(shared)[1] = 9  # a copy
    assert np.asarray(shared, dtype="f8").dtype == "f8"
    assert shared.array[1] == 2
    with pytest.raises(ValueError, match="without a copy"):
        shared.__array__("f8", copy=False)


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "says"),
    [
        ((-1, 2), float, ValueError, "must not be negative"),
        ((1.5,), float, TypeError, "must be an integer"),
        ("ab", float, TypeError, "must be an integer"),
        (3, "no such", TypeError, "NumPy dtype"),
        (3, object, TypeError, "without objects"),
        (3, [("a", object)], TypeError, "without objects"),
        ((1 << 40, 1 << 10), float, MemoryError, "this machine has"),
    ],
)
def test_an_invalid_shape_or_dtype_raises_and_leaves_no_memory(
    shape: Any, dtype: Any, error: type[Exception], says: str
) -> None:
    before = descriptors()
    with pytest.raises(error, match=says):
        SharedArray(shape, dtype)
    assert descriptors() == before


def test_its_pickle_is_an_address_which_becomes_the_same_object_in_its_process() -> None:
    shared = SharedArray(1 << 20, "u1")
    data = pickle.dumps(shared)
    assert len(data) < 1000
    assert pickle.loads(data) is shared
    assert copy.deepcopy({"a": [shared]})["a"][0] is shared


def test_the_memory_is_freed_with_its_last_view() -> None:
    gc.collect()
    mapped, opened = mappings(), descriptors()
    shared = SharedArray(10, "f4")
    part = shared.array[3:5]
    shared.array[3] = 7
    del shared
    assert mappings() == mapped + 1
    assert part[0] == 7
    del part
    assert (mappings(), descriptors()) == (mapped, opened)


def test_the_pickle_of_an_array_that_is_gone_raises() -> None:
    shared = SharedArray(3)
    data = pickle.dumps(shared)
    del shared
    with pytest.raises(NotShared, match="ended or released it before it arrived"):
        pickle.loads(data)
    other = SharedArray(3)  # takes the descriptor of the first
    with pytest.raises(NotShared):
        pickle.loads(data)
    assert (other.array == 0).all()


def test_unpickling_on_another_machine_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(SharedArray(3))
    other = this_machine.identity() + "2"
    monkeypatch.setattr(this_machine, "identity", lambda: other)
    with pytest.raises(NotShared, match="cannot leave its machine"):
        pickle.loads(data)


def test_an_encoded_value_holds_its_arrays_also_through_a_ref() -> None:
    shared = SharedArray(3)
    owned = own(codec.encode({"deep": [shared, shared]}))
    assert len(owned.travelling) == 1  # pickled once
    outer = codec.encode([Ref(owned)])
    assert outer.travelling == owned.travelling
    assert codec.encode("nothing").travelling == ()


def test_a_result_keeps_its_arrays_until_they_are_acknowledged() -> None:
    encoded = codec.encode([SharedArray(3)])
    in_transit.keep_result(encoded.travelling, 0.0)
    (sent,) = encoded.travelling
    del encoded
    in_transit.tidy(1.0)
    assert descriptors() > 0
    sent.acknowledge()
    del sent
    in_transit.tidy(2.0)
    assert descriptors() == 0


def test_a_forked_child_shares_it() -> None:
    shared = SharedArray(3, "i4")
    child = os.fork()
    if child == 0:
        shared.array[1] = 5
        os._exit(0)
    os.waitpid(child, 0)
    assert shared.array[1] == 5


def test_without_memory_files_it_is_plain_memory_that_does_not_pickle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_file, "SUPPORTED", False)
    shared = remotely.SharedArray((2, 2))
    shared.array[0] = 1
    with pytest.raises(NotShared):
        pickle.dumps(shared)
