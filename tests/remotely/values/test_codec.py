"""Values arrive equal, with their buffers in band or out of band.

Tensors are in test_tensors.py, classes and functions in test_ways.py, and unpicklable values in
test_not_picklable.py.
"""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

from remotely.errors import NotPicklable
from remotely.values import codec
from remotely.values.codec import Encoded, decode, encode
from remotely.values.picklers import SMALL_BUFFER_BYTES

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parents[3]
LARGE = SMALL_BUFFER_BYTES  # an array of this many elements has a buffer of its own


def arrived(encoded: Encoded) -> Any:
    """Decode as a receiver does: from buffers in new, writable memory."""
    return decode(encoded.payload, [memoryview(bytearray(b)) for b in encoded.buffers])


def sent(value: object) -> Any:
    return arrived(encode(value))


# --- plain values ---------------------------------------------------------------------------------

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.builds(bytearray, st.binary()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@hypothesis.settings(max_examples=60)
@hypothesis.given(plain)
def test_plain_values_arrive_equal_and_of_the_same_type(value: Any) -> None:
    back = sent(value)
    assert back == value
    assert repr(back) == repr(value)


@hypothesis.settings(max_examples=20)
@hypothesis.given(plain)
def test_in_band_the_payload_has_everything(value: Any) -> None:
    encoded = encode([value, np.ones(LARGE)], in_band=True)
    assert encoded.buffers == []
    back = decode(encoded.payload)
    assert back[0] == value
    assert back[1].flags.writeable
    assert (back[1] == 1).all()


def test_shared_and_cyclic_references_are_kept() -> None:
    inner = [1]
    cyclic: list[object] = [inner, inner]
    cyclic.append(cyclic)
    back = sent(cyclic)
    assert back[0] is back[1]
    assert back[2] is back


# --- arrays ---------------------------------------------------------------------------------------


def same_array(left: Array, right: Array) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
    )


dtypes = (
    hnp.scalar_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.array_dtypes(hnp.scalar_dtypes(), allow_subarrays=True)
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=5))


@hypothesis.settings(max_examples=60)
@hypothesis.given(arrays, st.sampled_from(["C", "F", "strided", "read-only", "reversed"]))
def test_any_array_arrives_equal_and_writable(array: Array, form: str) -> None:
    if form == "F":
        array = np.asfortranarray(array)
    elif form == "strided" and array.ndim:
        array = array[..., ::2]
    elif form == "reversed" and array.ndim:
        array = array[::-1].T
    elif form == "read-only":
        array.flags.writeable = False
    back = sent(array)
    if array.dtype.kind in "mM":  # numpy pickles dates in native byte order
        array = array.astype(array.dtype.newbyteorder("="))
    assert same_array(back, array)
    assert back.flags.writeable
    if form == "F":
        assert back.flags.f_contiguous


grid = np.arange(3 * LARGE, dtype=np.float64).reshape(3, LARGE)
read_only = grid.copy()
read_only.flags.writeable = False

LARGE_ARRAYS: dict[str, Array] = {
    "C": grid,
    "F": np.asfortranarray(grid),
    "strided": grid[:, ::2],
    "transposed": grid.T,
    "read-only": read_only,
    "read-only F": read_only.T,
    "read-only strided": read_only[:, ::2],
    "broadcast": np.broadcast_to(np.float32(7), (200, 200)),
    "big-endian": grid.astype(">f8"),
    "structured": np.zeros(LARGE, [("a", "i1"), ("b", ">f8")]),
    "padded": np.zeros(LARGE, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "bool": grid > 5,
    "half": grid.astype(np.float16),
    "complex": grid.astype(np.complex64),
    "text": np.full(LARGE, "é", "U3"),
    "long double": grid.astype(np.longdouble),
}


@pytest.mark.parametrize("array", LARGE_ARRAYS.values(), ids=LARGE_ARRAYS)
def test_a_large_array_is_sent_out_of_band_as_flat_bytes(array: Array) -> None:
    was_writeable = array.flags.writeable
    encoded = encode({"array": array})
    assert len(encoded.payload) < 1000
    (buffer,) = encoded.buffers
    assert (buffer.format, buffer.ndim, buffer.contiguous) == ("B", 1, True)
    assert buffer.nbytes == array.nbytes
    back = arrived(encoded)["array"]
    assert same_array(back, array)
    assert back.flags.writeable
    assert array.flags.writeable == was_writeable


@pytest.mark.parametrize("form", ["C", "F", "read-only", "read-only F"])
def test_a_contiguous_array_is_not_copied_on_either_side(form: str) -> None:
    array = LARGE_ARRAYS[form]
    encoded = encode(array)
    assert np.shares_memory(np.asarray(encoded.buffers[0]), array)
    assert np.shares_memory(decode(encoded.payload, encoded.buffers), array)


def test_an_array_keeps_its_memory_order() -> None:
    small = np.arange(6).reshape(2, 3)
    small_read_only = small.copy()
    small_read_only.flags.writeable = False
    large = [LARGE_ARRAYS[form] for form in ("C", "F", "read-only", "read-only F")]
    cubes: list[Array] = [
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.ones((9, 9, 99)).swapaxes(1, 2),
    ]
    smalls: list[Array] = [small, small.T, small_read_only, small_read_only.T]
    for array in large + cubes + smalls:
        assert sent(array).strides == array.strides
        assert same_array(sent(array), array)


@pytest.mark.parametrize("array", [grid, read_only, np.asfortranarray(grid)])
def test_an_array_decoded_from_a_read_only_buffer_is_read_only(array: Array) -> None:
    encoded = encode(array)
    back = decode(encoded.payload, [bytes(b) for b in encoded.buffers])
    assert same_array(back, array)
    assert not back.flags.writeable


def test_small_buffers_stay_in_the_payload() -> None:
    below, at = np.zeros(SMALL_BUFFER_BYTES - 1, np.uint8), np.zeros(SMALL_BUFFER_BYTES, np.uint8)
    assert [buffer.nbytes for buffer in encode([below, at]).buffers] == [SMALL_BUFFER_BYTES]


def test_an_array_of_objects_arrives_with_its_items() -> None:
    back = sent(np.array([grid, "text", None], dtype=object))
    assert same_array(back[0], grid)
    assert list(back[1:]) == ["text", None]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(LARGE, "M8[s]"),
        np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.ma.masked_array([1, 2, 3], [False, True, False]),
        np.float32(1.5),
    ],
    ids=["dates", "record", "masked", "scalar"],
)
def test_other_numpy_objects_arrive_as_numpy_pickles_them(array: Array) -> None:
    back = sent(array)
    assert type(back) is type(array)
    assert back.tobytes() == array.tobytes()


def test_the_same_array_twice_is_sent_once() -> None:
    encoded = encode([grid, grid])
    assert len(encoded.buffers) == 1
    back = arrived(encoded)
    assert back[0] is back[1]


@pytest.mark.parametrize("mode", ["r", "rb", "w", "wb", "r+", "a"])
def test_an_open_file_is_refused_however_it_was_opened(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    with path.open(mode) as file, pytest.raises(NotPicklable, match=r"\['log'\] in the value"):
        encode({"log": file, "printer": lambda: None})


def test_an_output_stream_arrives_as_that_of_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    assert sent(sys.stderr) is sys.stderr


def test_the_codec_imports_neither_numpy_nor_torch() -> None:
    script = """
        import sys
        from remotely.values.codec import decode, encode
        encoded = encode([lambda x: x, {"a": 1}])
        decode(encoded.payload, encoded.buffers)
        assert not {"numpy", "torch", "zmq"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, cwd=ROOT)


# --- an encoded value within another, as of a ref -------------------------------------------------


class Nested:
    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded

    def __reduce__(self) -> tuple[object, ...]:
        return codec.decode, codec.parts(self.encoded.payload, self.encoded.buffers)


def test_a_nested_value_arrives_as_the_value_and_is_not_copied() -> None:
    inner = encode({"grid": grid, "small": np.zeros(3)})
    outer = encode([Nested(inner), Nested(inner)])
    assert all(np.shares_memory(np.asarray(buffer), grid) for buffer in outer.buffers)
    back = arrived(outer)
    assert same_array(back[0]["grid"], grid)
    assert back[0]["small"].flags.writeable


@pytest.mark.parametrize("part", [slice(None), slice(100, 100 + LARGE)], ids=["whole", "a slice"])
@pytest.mark.parametrize("of", [bytearray, bytes])
def test_the_views_of_a_nested_value_are_not_exported(
    of: type[bytes | bytearray], part: slice
) -> None:
    content = of(range(256)) * LARGE
    view = memoryview(content)[part]

    encoded = encode(Nested(Encoded((b"",), [view])))

    view.release()  # raises BufferError if it is exported
    assert bytes(encoded.buffers[0]) == content[part]


def test_garbage_cycles_with_a_nested_value_do_not_crash_the_process() -> None:
    code = """
        import gc
        from remotely.values import codec
        from tests.remotely.values.test_codec import LARGE, Nested
        for _ in range(20):
            view = memoryview(bytearray(LARGE))
            cycle = [view, codec.encode(Nested(codec.Encoded((b"",), [view])))]
            cycle.append(cycle)
            del view, cycle
            gc.collect()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=True)
