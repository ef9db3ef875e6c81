"""Any value arrives equal, or a sentence says which part of it could not be sent."""

import ast
import collections
import copy
import dataclasses
import enum
import functools
import pickle
import subprocess
import sys
import textwrap
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from remotely import by_value as rule
from remotely import codec
from remotely.by_value import travels_by_value
from remotely.codec import SMALL_BUFFER_BYTES, Encoded, decode, encode
from remotely.errors import NotPicklable

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parents[2]
LARGE = SMALL_BUFFER_BYTES  # bytes; as elements of a byte each, and of more, it is large enough


def arrived(encoded: Encoded) -> Any:
    """Decode as after a journey: every buffer is other memory, and may be written to."""
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
def test_in_band_everything_is_one_piece(value: Any) -> None:
    encoded = encode([value, np.ones(LARGE)], in_band=True)
    assert encoded.buffers == []
    back = decode(encoded.payload)
    assert back[0] == value
    assert back[1].flags.writeable
    assert (back[1] == 1).all()


def test_what_is_the_same_object_stays_the_same_object() -> None:
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
    if array.dtype.kind in "mM":  # numpy sends dates in the byte order of the machine
        array = array.astype(array.dtype.newbyteorder("="))
    assert same_array(back, array)
    assert back.flags.writeable
    if form == "F":
        assert back.flags.f_contiguous


grid = np.arange(3 * LARGE, dtype=np.float64).reshape(3, LARGE)
read_only = grid.copy()
read_only.flags.writeable = False

LARGE_ARRAYS = {
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
def test_a_large_array_rides_beside_the_pickle_and_arrives_equal(array: Array) -> None:
    encoded = encode({"array": array})
    assert len(encoded.payload) < 1000
    assert [buffer.nbytes for buffer in encoded.buffers] == [array.nbytes]
    back = arrived(encoded)["array"]
    assert same_array(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("form", ["C", "F", "read-only", "read-only F"])
def test_a_contiguous_array_is_not_copied_on_either_side(form: str) -> None:
    array = LARGE_ARRAYS[form]
    encoded = encode(array)
    assert np.shares_memory(np.asarray(encoded.buffers[0]), array)
    assert np.shares_memory(decode(encoded.payload, encoded.buffers), array)


def test_the_order_of_an_array_is_kept() -> None:
    for form in ("C", "F", "read-only", "read-only F"):
        assert sent(LARGE_ARRAYS[form]).strides == LARGE_ARRAYS[form].strides


@pytest.mark.parametrize("array", [grid, read_only, np.asfortranarray(grid)])
def test_from_read_only_buffers_come_read_only_arrays(array: Array) -> None:
    encoded = encode(array)
    back = decode(encoded.payload, [bytes(b) for b in encoded.buffers])
    assert same_array(back, array)
    assert not back.flags.writeable


def test_sending_a_read_only_array_does_not_make_it_writable() -> None:
    encode(read_only)
    assert not read_only.flags.writeable


def test_buffers_are_flat_bytes() -> None:
    for buffer in encode(list(LARGE_ARRAYS.values())).buffers:
        assert (buffer.format, buffer.ndim, buffer.contiguous) == ("B", 1, True)


def test_small_buffers_stay_in_the_payload() -> None:
    below, at = np.zeros(SMALL_BUFFER_BYTES - 1, np.uint8), np.zeros(SMALL_BUFFER_BYTES, np.uint8)
    assert [buffer.nbytes for buffer in encode([below, at]).buffers] == [SMALL_BUFFER_BYTES]


def test_an_array_of_objects_arrives_with_what_it_holds() -> None:
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
def test_other_things_of_numpy_arrive_as_numpy_sends_them(array: Array) -> None:
    back = sent(array)
    assert type(back) is type(array)
    assert back.tobytes() == array.tobytes()


def test_the_same_array_twice_is_sent_once() -> None:
    encoded = encode([grid, grid])
    assert len(encoded.buffers) == 1
    back = arrived(encoded)
    assert back[0] is back[1]


# --- tensors --------------------------------------------------------------------------------------

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 5), (150, 200)], ids=str)
def test_a_tensor_arrives_equal_and_private(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 9 - 4).to(dtype)
    encoded = encode(tensor)
    assert bool(encoded.buffers) == (tensor.nbytes >= SMALL_BUFFER_BYTES)
    back = arrived(encoded)
    assert type(back) is torch.Tensor
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert tensor_bytes(back) == tensor_bytes(tensor)
    back.zero_()


def view_of_imaginary_parts() -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 + 4j]).conj().imag  # its sign is a flag, not in its memory


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(200, 100).T,
        torch.rand(200, 100)[:, ::3],
        torch.rand(1).expand(5000),
        torch.rand(4, 3, 32, 32).to(memory_format=torch.channels_last),
        torch.tensor([1 + 2j]).conj(),
        view_of_imaginary_parts(),
        torch.rand(10**6)[:3],
    ],
    ids=["transposed", "strided", "expanded", "channels last", "conjugate", "negative", "slice"],
)
def test_a_view_arrives_as_a_contiguous_tensor_of_its_own(tensor: torch.Tensor) -> None:
    encoded = encode(tensor)
    assert len(encoded.payload) + sum(b.nbytes for b in encoded.buffers) < tensor.nbytes + 1000
    back = arrived(encoded)
    assert back.is_contiguous()
    assert torch.equal(back, tensor)


def test_a_contiguous_tensor_is_not_copied_on_either_side() -> None:
    tensor = torch.rand(5000)
    encoded = encode(tensor)
    assert decode(encoded.payload, encoded.buffers).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("size", [3, 5000])
def test_from_read_only_buffers_a_tensor_is_copied_without_a_warning(size: int) -> None:
    tensor = torch.rand(size)
    encoded = encode(tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = decode(encoded.payload, [bytes(b) for b in encoded.buffers])
    assert torch.equal(back, tensor)
    back.zero_()


def test_a_tensor_from_a_crooked_buffer_is_aligned() -> None:
    tensor = torch.rand(5000, dtype=torch.float64)
    encoded = encode(tensor)
    crooked = memoryview(bytearray(b"x" + bytes(encoded.buffers[0])))[1:]
    back = decode(encoded.payload, [crooked])
    assert back.data_ptr() % 8 == 0
    assert torch.equal(back, tensor)


def test_whether_a_tensor_needs_its_gradient_is_kept() -> None:
    leaf = torch.rand(3, requires_grad=True)
    frozen = torch.nn.Parameter(torch.rand(3), requires_grad=False)
    result, back, parameter = sent([leaf * 2, leaf, frozen])
    assert result.requires_grad
    assert result.is_leaf
    assert back.requires_grad
    assert type(parameter) is torch.nn.Parameter
    assert not parameter.requires_grad


def test_a_model_arrives_and_computes_the_same() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    encoded = encode(model)
    assert len(encoded.buffers) == 1
    back = arrived(encoded)
    x = torch.rand(5, 64)
    assert torch.equal(back(x), model(x))
    assert all(type(p) is torch.nn.Parameter for p in back.parameters())
    back(x).sum().backward()
    with torch.no_grad():
        back[0].weight -= back[0].weight.grad


def test_a_state_dict_arrives_as_one() -> None:
    model = torch.nn.LSTM(32, 64)
    back = sent(model.state_dict())
    assert isinstance(back, collections.OrderedDict)
    torch.nn.LSTM(32, 64).load_state_dict(back)


def test_tied_weights_stay_tied() -> None:
    first, second = torch.nn.Linear(50, 50), torch.nn.Linear(50, 50)
    second.weight = first.weight
    back = sent([first, second])
    assert back[0].weight is back[1].weight


def test_tensors_that_share_storage_arrive_as_copies() -> None:
    base = torch.zeros(10)
    back = sent([base, base[2:]])
    back[1].fill_(1)
    assert back[0].sum() == 0


def tensor_with_attribute() -> torch.Tensor:
    tensor = torch.rand(3)
    tensor.note = "mine"
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        tensor_with_attribute(),
    ],
    ids=["sparse", "meta", "with an attribute"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # torch's own
def test_other_tensors_arrive_as_torch_sends_them(tensor: torch.Tensor) -> None:
    back = sent(tensor)
    assert (back.layout, back.device, back.dtype) == (tensor.layout, tensor.device, tensor.dtype)
    assert vars(back) == vars(tensor)
    if tensor.device.type == "cpu":
        assert torch.equal(back.to_dense(), tensor.to_dense())


def test_tensors_ride_beside_the_pickle_by_value_too() -> None:
    tensor, array = torch.rand(5000), LARGE_ARRAYS["read-only strided"]
    encoded = encode(lambda: (tensor, array))
    assert {buffer.nbytes for buffer in encoded.buffers} == {tensor.nbytes, array.nbytes}
    back = arrived(encoded)()
    assert torch.equal(back[0], tensor)
    assert same_array(back[1], array)


def test_the_codec_imports_neither_numpy_nor_torch() -> None:
    script = """
        import sys
        from remotely.codec import decode, encode
        decode(*encode([lambda x: x, {"a": 1}]))
        assert not {"numpy", "torch", "zmq"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, cwd=ROOT)


# --- by value and by reference --------------------------------------------------------------------

COUNT = 3


class Point:
    x: int

    def __init__(self, x: int) -> None:
        self.x = x

    def more(self) -> int:
        return self.x + COUNT


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    names: list[str] = dataclasses.field(default_factory=list)


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("name", "by_value"),
    [
        ("__main__", True),
        (__name__, True),
        ("never_imported", True),
        ("json.decoder", False),
        ("builtins", False),
        ("_thread", False),
        ("numpy", False),
        ("numpy._core._multiarray_umath", False),
        ("torch.nn.modules.linear", False),
        ("pytest", False),
        ("remotely.codec", False),
        ("remotely", False),
        ("remotely_rl.returns", False),
    ],
)
def test_what_no_worker_has_travels_by_value(name: str, by_value: bool) -> None:
    assert travels_by_value(name) is by_value
    assert travels_by_value(name) is by_value


def test_a_module_made_by_hand_travels_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_by_hand")
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    assert travels_by_value("made_by_hand")


def module_at(path: Path, name: str) -> types.ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    module = types.ModuleType(name)
    module.__file__ = str(path)
    return module


@pytest.mark.parametrize(
    ("metadata", "place", "name", "by_value"),
    [
        ({"top_level.txt": "mine\n"}, "mine/core.py", "mine.core", False),
        ({}, "my_project/core.py", "my_project.core", False),
        ({"mine.pth": "src"}, "src/mine/core.py", "mine.core", False),
        ({"mine.pth": ""}, "tests/test_core.py", "tests.test_core", True),
        ({"top_level.txt": "tests\n"}, "../elsewhere/tests/core.py", "tests.core", True),
        ({"not editable": ""}, "my_project/core.py", "my_project.core", True),
    ],
    ids=["declared", "same name", "src", "tests beside it", "same name elsewhere", "not editable"],
)
def test_an_editable_install_counts_as_installed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    metadata: dict[str, str],
    place: str,
    name: str,
    by_value: bool,
) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    info = site / "my_project-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-project\nVersion: 1\n")
    editable = str("not editable" not in metadata).lower()
    url = f'{{"url": "{project.as_uri()}", "dir_info": {{"editable": {editable}}}}}'
    (info / "direct_url.json").write_text(url)
    (info / "RECORD").write_text("mine.pth,,\n" if "mine.pth" in metadata else "")
    if (text := metadata.get("top_level.txt")) is not None:
        (info / "top_level.txt").write_text(text)
    if (text := metadata.get("mine.pth")) is not None:
        (site / "mine.pth").write_text(f"{project / text}\n")
    found = [by_value_distribution(info)]
    monkeypatch.setattr(rule, "distributions", lambda: found)
    monkeypatch.setattr(rule, "_known", {})
    monkeypatch.setitem(sys.modules, name, module_at(project / place, name))
    rule._editable_installs.cache_clear()
    try:
        assert travels_by_value(name) is by_value
    finally:
        rule._editable_installs.cache_clear()


def by_value_distribution(info: Path) -> object:
    from importlib.metadata import PathDistribution

    return PathDistribution(info)


class Unfamiliar:
    """Decodes in a process that has never heard of this module, and calls what comes out."""

    def __init__(self, tmp_path: Path) -> None:
        self._folder = tmp_path

    def result_of(self, value: object) -> Any:
        encoded = encode(value, in_band=True)
        (self._folder / "value").write_bytes(encoded.payload)
        script = """
            import sys
            from remotely.codec import decode, encode
            value = decode(open("value", "rb").read())
            assert "tests" not in sys.modules
            open("result", "wb").write(encode(value(), in_band=True).payload)
        """
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            check=True,
            cwd=self._folder,
            env={"PYTHONPATH": str(self._folder / "lib"), "HOME": str(self._folder)},
        )
        return decode((self._folder / "result").read_bytes())


@pytest.fixture
def unfamiliar(tmp_path: Path) -> Unfamiliar:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "remotely").symlink_to(ROOT / "remotely")
    return Unfamiliar(tmp_path)


def everything_here() -> tuple[object, ...]:
    return Point(4).more(), Point(5), Colour.RED, Config(0.2, ["a"]), Pair(1, 2), Point, helper()


def helper() -> int:
    return COUNT


def test_this_modules_code_runs_where_this_module_is_not_and_comes_back_as_ours(
    unfamiliar: Unfamiliar,
) -> None:
    more, point, colour, config, pair, cls, count = unfamiliar.result_of(everything_here)
    assert (more, count) == (7, COUNT)
    assert type(point) is Point
    assert point.x == 5
    assert colour is Colour.RED
    assert config == Config(0.2, ["a"])
    assert pair == Pair(1, 2)
    assert type(pair) is Pair
    assert cls is Point


def test_a_script_travels_with_the_modules_around_it(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(
        textwrap.dedent("""
            import helpers as myself
            FACTOR = 6
            def scale(x): return x * myself.FACTOR + offset()
            def offset(): return FACTOR
        """)
    )
    script = """
        import sys, helpers
        from remotely.codec import encode
        class Task:
            def run(self): return helpers.scale(5)
        sys.stdout.buffer.write(encode(Task().run).payload)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    payload = subprocess.run(
        [sys.executable, "script.py"],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
    ).stdout
    assert "helpers" not in sys.modules
    assert decode(payload)() == 36


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[types.ModuleType]:
    """A module beside the script, whose functions use what cannot be sent."""
    (tmp_path / "stubborn.py").write_text(
        textwrap.dedent("""
            import threading
            LOCK = threading.Lock()
            class Guarded:
                lock = LOCK
            def locked():
                with LOCK:
                    return 5
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import stubborn  # type: ignore[import-not-found]

    yield stubborn
    del sys.modules["stubborn"]


def test_a_module_that_cannot_travel_goes_by_reference(stubborn: Any) -> None:
    assert travels_by_value("stubborn")
    assert sent(stubborn.locked) is stubborn.locked
    assert sent(stubborn.Guarded) is stubborn.Guarded
    assert sent(lambda: stubborn.locked())() == 5


def test_what_is_defined_in_a_function_arrives() -> None:
    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

        def doubled(self) -> int:
            return 2 * self.x

    assert sent(Local(4)).doubled() == 8
    assert type(sent(Local(4))) is Local
    assert sent(lambda x: x + COUNT)(1) == 4
    assert sent(functools.partial(Local, 3))().x == 3


def test_classes_of_installed_modules_arrive_as_themselves() -> None:
    assert sent(collections.Counter) is collections.Counter
    assert sent([torch.nn.Linear, np.dot, len, NotPicklable]) == [
        torch.nn.Linear,
        np.dot,
        len,
        NotPicklable,
    ]


def test_an_error_arrives_with_its_arguments() -> None:
    back = sent(NotPicklable("no"))
    assert type(back) is NotPicklable
    assert back.args == ("no",)


# --- values within values -------------------------------------------------------------------------


class Put:
    """Pickles as what was encoded; how a ref travels."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded

    def __reduce__(self) -> tuple[object, ...]:
        return codec.decode_parts, codec.parts(self.encoded)


def test_an_encoded_value_within_another_arrives_as_the_value_and_is_not_copied() -> None:
    inner = encode({"grid": grid, "small": np.zeros(3)})
    outer = encode([Put(inner), Put(inner)])
    assert all(np.shares_memory(np.asarray(buffer), grid) for buffer in outer.buffers)
    back = arrived(outer)
    assert same_array(back[0]["grid"], grid)
    assert back[0]["small"].flags.writeable


# --- what cannot be sent --------------------------------------------------------------------------


class Model:
    def __init__(self) -> None:
        self.weights = [0.0] * 1000
        self.lock = threading.Lock()


class Agent:
    def __init__(self) -> None:
        self.name = "agent"
        self.model = Model()


class Slotted:
    __slots__ = ("fine", "lock")

    def __init__(self) -> None:
        self.fine = 1
        self.lock = threading.Lock()


class Raises:
    def __reduce__(self) -> str:
        raise ValueError("never")


class RaisesInState:
    def __getstate__(self) -> object:
        raise OSError("no state")


class Nonsense:
    def __reduce__(self) -> object:  # type: ignore[override]
        return 42


class RaisesWhatCannotBeShown:
    def __reduce__(self) -> str:
        class Hidden(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even this")

        raise Hidden


class HugeRepr(Raises):
    def __repr__(self) -> str:
        return "x" * 10_000_000


class RaisesAtRepr(Raises):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class LiesAboutItsClass(Raises):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


class Endless:
    def __reduce__(self) -> tuple[object, ...]:
        return Endless, (Endless(),)


class GrowsWhenAsked(Raises):
    def __getattr__(self, name: str) -> object:
        return GrowsWhenAsked()


def deep() -> list[object]:
    value: list[object] = []
    for _ in range(200_000):
        value = [value]
    return value


def deep_within() -> object:
    return {"tree": deep()}


LOCK = threading.Lock()


uses_a_lock = lambda: LOCK  # not importable, as a function of a script is not


def closes_over(lock: object) -> object:
    return lambda: lock


locks: list[Any] = [LOCK]

CULPRITS = [
    (Agent(), "arg.model.lock cannot be sent: it is a _thread.lock"),
    ([1, {"x": (2, Agent())}], "arg[1]['x'][1].model.lock"),
    ({"a": 1, Raises(): 2}, "the key <"),
    ({1, Raises()}, "an item of arg"),
    ([*range(100_000), LOCK, 1], "arg[100000]"),
    (Slotted(), "arg.lock"),
    (collections.OrderedDict(a=LOCK), "arg['a']"),
    (collections.deque([0, LOCK]), "arg[1]"),
    (Config(names=locks), "arg.names[0]"),
    (functools.partial(print, LOCK), "_thread.lock"),
    (np.array([1, LOCK], dtype=object), "_thread.lock"),
    (ValueError("x", LOCK), "_thread.lock"),
    (uses_a_lock, "the global 'LOCK' (used in arg)"),
    (closes_over(LOCK), "'lock' (used in arg)"),
    ((i for i in range(3)), "arg cannot be sent: it is a generator"),
    (sys._getframe(), "arg cannot be sent: it is a frame"),
]


@pytest.mark.parametrize(("value", "words"), CULPRITS, ids=[words for _, words in CULPRITS])
def test_the_part_that_cannot_be_sent_is_named(value: Any, words: str) -> None:
    with pytest.raises(NotPicklable) as refused:
        encode(value, "arg")
    assert words in str(refused.value)
    assert refused.value.__cause__ is not None


HOSTILE = [
    Raises,
    RaisesInState,
    Nonsense,
    RaisesWhatCannotBeShown,
    HugeRepr,
    RaisesAtRepr,
    LiesAboutItsClass,
    GrowsWhenAsked,
    Endless,
    deep,
    deep_within,
]


@pytest.mark.parametrize("make", HOSTILE, ids=[make.__name__ for make in HOSTILE])
@pytest.mark.parametrize("within", [lambda v: v, lambda v: [1, {"k": v}]], ids=["bare", "within"])
def test_a_hostile_value_is_refused_in_a_short_sentence(
    make: Callable[[], object], within: Callable[[object], object]
) -> None:
    with pytest.raises(NotPicklable) as refused:
        encode(within(make()))
    assert "cannot be sent" in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_value_that_ends_the_process_is_let_through() -> None:
    class Exits:
        def __reduce__(self) -> str:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        encode(Exits())


def test_the_names_of_several_values_begin_their_paths() -> None:
    with pytest.raises(NotPicklable, match=r"^args\[0\]\.model\.lock cannot"):
        encode(((Agent(),), {}), ("args", "kwargs"))
    with pytest.raises(NotPicklable, match=r"^kwargs\['agent'\]\.model\.lock cannot"):
        encode(((), {"agent": Agent()}), ("args", "kwargs"))


def test_a_value_that_is_named_by_words_is_named_behind_the_path() -> None:
    with pytest.raises(NotPicklable, match=r"^\[0\]\.lock in the result of make cannot"):
        encode([Model()], "the result of make")
    with pytest.raises(NotPicklable, match=r"^the result of make cannot be sent: it is a _thread"):
        encode(LOCK, "the result of make")


def test_nothing_is_found_in_a_value_that_pickles() -> None:
    assert codec.find_unpicklable({"a": [1, Point(2)]}, "arg") is None


def test_a_value_that_was_refused_is_unharmed() -> None:
    agent = Agent()
    before = copy.copy(vars(agent))
    with pytest.raises(NotPicklable):
        encode(agent)
    assert vars(agent) == before


# --- the shape of the code ------------------------------------------------------------------------


def calls_of(tree: ast.AST) -> list[str]:
    return [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_there_is_one_place_that_unpickles() -> None:
    loaders = {"pickle.loads", "pickle.load", "pickle.Unpickler", "cloudpickle.loads", "loads"}
    found = [
        f"{path.name}: {call}"
        for path in sorted((ROOT / "remotely").rglob("*.py"))
        for call in calls_of(ast.parse(path.read_text(encoding="utf-8")))
        if call in loaders
    ]
    assert found == ["codec.py: pickle.loads"]


PURE = ["codec.py", "by_value.py", "placement.py", "lease.py", "errors.py", "wire.py"]


@pytest.mark.parametrize("name", PURE)
def test_a_pure_file_has_no_way_to_the_world(name: str) -> None:
    tree = ast.parse((ROOT / "remotely" / name).read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert not imported & {"zmq", "time", "os", "socket", "subprocess", "asyncio", "select"}


def test_pickles_are_of_the_protocol_that_has_buffers() -> None:
    assert encode(1).payload[:2] == pickle.PROTO + bytes([5])
