"""Code that is sent by value runs in a process that cannot import its module.

This module is one of these, since pytest rewrites it.
"""

import abc
import collections
import contextvars
import dataclasses
import enum
import functools
import importlib.metadata
import importlib.util
import pickle
import string
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NewType, ParamSpec, TypeVar

import cloudpickle
import numpy as np
import pytest

from remotely.errors import NotPicklable
from remotely.values import picklers as rule
from remotely.values.codec import decode, encode
from remotely.values.picklers import Way, way_of

if TYPE_CHECKING:
    from decimal import Decimal

ROOT = Path(__file__).resolve().parents[3]


def sent(value: object) -> Any:
    """Encode and decode, in this process."""
    encoded = encode(value)
    return decode(encoded.payload, encoded.buffers)


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
    ("name", "way"),
    [
        ("__main__", Way.VALUE),
        (__name__, Way.VALUE),
        ("never_imported", Way.VALUE),
        ("tests", Way.VALUE),
        ("tests.clusters", Way.SOURCE),
        ("json.decoder", Way.INSTALLED),
        ("builtins", Way.INSTALLED),
        ("_thread", Way.INSTALLED),
        ("numpy", Way.INSTALLED),
        ("numpy._core._multiarray_umath", Way.INSTALLED),
        ("pytest", Way.INSTALLED),
        ("remotely.values.codec", Way.INSTALLED),
        ("remotely", Way.INSTALLED),
        ("remotely_rl.functions.returns", Way.INSTALLED),
    ],
)
def test_the_way_of_a_module(name: str, way: Way) -> None:
    assert way_of(name) is way
    assert way_of(name) is way  # from the cache


def module_at(path: Path, name: str) -> types.ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.__spec__ = importlib.util.spec_from_file_location(name, path)
    return module


@pytest.mark.parametrize(
    ("metadata", "place", "name", "is_installed"),
    [
        ({"top_level.txt": "mine\n"}, "mine/core.py", "mine.core", True),
        ({}, "my_project/core.py", "my_project.core", True),
        ({"mine.pth": "src"}, "src/mine/core.py", "mine.core", True),
        ({"mine.pth": ""}, "tests/test_core.py", "tests.test_core", False),
        ({"top_level.txt": "tests\n"}, "../elsewhere/tests/core.py", "tests.core", False),
        ({"not editable": ""}, "my_project/core.py", "my_project.core", False),
    ],
    ids=["declared", "same name", "src", "its tests", "same name elsewhere", "not editable"],
)
def test_an_editable_install_counts_as_installed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    metadata: dict[str, str],
    place: str,
    name: str,
    is_installed: bool,
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
    found = [importlib.metadata.PathDistribution(info)]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    monkeypatch.setattr(rule, "_known", {})
    monkeypatch.setitem(sys.modules, name, module_at(project / place, name))
    rule._editable_installs.cache_clear()
    try:
        assert way_of(name) is (Way.INSTALLED if is_installed else Way.SOURCE)
    finally:
        rule._editable_installs.cache_clear()


class Receiver:
    """A process that cannot import this module.  Each value is decoded in a fork of it."""

    SCRIPT = """
        import os, sys, traceback
        from remotely.values.codec import decode, encode
        def result_of(data):
            value = decode(data)
            assert "tests" not in sys.modules
            return bytes(encode(value(), in_band=True).payload)
        while size := sys.stdin.buffer.read(8):
            data = sys.stdin.buffer.read(int.from_bytes(size, "big"))
            if os.fork() == 0:
                try:
                    result = result_of(data)
                except BaseException:
                    traceback.print_exc()
                    result = b""
                sys.stdout.buffer.write(len(result).to_bytes(8, "big") + result)
                sys.stdout.flush()
                os._exit(0)
            os.wait()
    """

    def __init__(self, folder: Path) -> None:
        (folder / "remotely").symlink_to(ROOT / "remotely")
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(self.SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={"PYTHONPATH": str(folder), "HOME": str(folder)},
        )

    def result_of(self, value: object) -> Any:
        """Call the value there, and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        data = encode(value, in_band=True).payload
        self._process.stdin.write(len(data).to_bytes(8, "big") + data)
        self._process.stdin.flush()
        size = int.from_bytes(self._process.stdout.read(8), "big")
        assert size, "the error is on stderr"
        return decode(self._process.stdout.read(size))

    def close(self) -> None:
        self._process.communicate(timeout=40)


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    process = Receiver(tmp_path_factory.mktemp("receiver"))
    yield process
    process.close()


def everything_here() -> tuple[object, ...]:
    return Point(4).more(), Point(5), Colour.RED, Config(0.2, ["a"]), Pair(1, 2), Point, helper()


def helper() -> int:
    return COUNT


def test_classes_sent_by_value_return_as_the_same_classes(receiver: Receiver) -> None:
    more, point, colour, config, pair, cls, count = receiver.result_of(everything_here)
    assert (more, count) == (7, COUNT)
    assert type(point) is Point
    assert point.x == 5
    assert colour is Colour.RED
    assert config == Config(0.2, ["a"])
    assert pair == Pair(1, 2)
    assert type(pair) is Pair
    assert cls is Point


def test_a_class_that_comes_home_is_as_it_was(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> tuple[object, ...]:
        Point.more = lambda _: 0  # type: ignore[method-assign, assignment]
        Point.added = 1
        return Point(5), Point

    more = Point.more
    monkeypatch.setattr(Point, "made", 3, raising=False)
    point, cls = receiver.result_of(change)
    assert type(point) is cls is Point
    assert Point.more is more
    assert Point.made == 3
    assert not hasattr(Point, "added")


class Shape(abc.ABC):
    sides = 0

    @abc.abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    def area(self) -> float:
        return 1.0


def test_a_class_that_has_arrived_is_pickled_by_others_as_any_class(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> bytes:
        Shape.sides = 9
        return cloudpickle.dumps(Square())  # type: ignore[no-any-return]

    pickled = receiver.result_of(change)
    monkeypatch.setattr(Shape, "sides", Shape.sides)
    assert type(pickle.loads(pickled)) is Square

    def change_again() -> type:
        Shape.sides = 8
        return Shape

    sides = Shape.sides
    assert receiver.result_of(change_again) is Shape
    assert Shape.sides == sides


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module without a file, whose functions use each other and it."""
    module = types.ModuleType("by_hand")
    monkeypatch.setitem(sys.modules, "by_hand", module)
    text = """
        import threading, by_hand as myself
        LOCK, HELD = threading.Lock(), threading.BoundedSemaphore(2)
        FACTOR = 6
        def scale(x): return x * myself.FACTOR + offset()
        def offset(): return FACTOR
        def lock(): return LOCK
        def hold(): return LOCK.acquire(blocking=False) and HELD.acquire(blocking=False)
        class Guarded:
            lock = LOCK
        """
    exec(textwrap.dedent(text), vars(module))  # noqa: S102
    return module


def test_a_module_created_by_hand_is_sent_as_a_whole(by_hand: Any, receiver: Receiver) -> None:
    assert way_of("by_hand") is Way.VALUE
    assert receiver.result_of(lambda: by_hand.scale(5)) == 36
    assert receiver.result_of(functools.partial(by_hand.scale, 5)) == 36


def test_locks_of_a_module_sent_by_value_become_new_locks(by_hand: Any, receiver: Receiver) -> None:
    by_hand.HELD.acquire()
    with by_hand.LOCK:
        assert receiver.result_of(lambda: (by_hand.hold(), by_hand.hold())) == (True, False)
        assert receiver.result_of(lambda: by_hand.Guarded.lock is by_hand.lock())
    by_hand.HELD.release()
    # In its own process a lock stays the same one.
    assert sent(by_hand.Guarded).lock is by_hand.LOCK
    assert sent(by_hand.lock)() is by_hand.LOCK


WITH_DEFAULT = contextvars.ContextVar("WITH_DEFAULT", default=3)
BARE: contextvars.ContextVar[int] = contextvars.ContextVar("BARE")


def read() -> int:
    return WITH_DEFAULT.get()


def uses_variables() -> tuple[int, int, int]:
    token = WITH_DEFAULT.set(7)
    inner = read()
    WITH_DEFAULT.reset(token)
    return inner, read(), BARE.get(0)


def test_a_context_variable_becomes_a_new_one_with_its_default(receiver: Receiver) -> None:
    BARE.set(1)
    assert receiver.result_of(uses_variables) == (7, 3, 0)
    assert sent(uses_variables).__globals__["WITH_DEFAULT"] is WITH_DEFAULT


@functools.cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.lru_cache(maxsize=3, typed=True)
def double(x: float) -> float:
    return 2 * x


class Cached:
    def __init__(self, x: int) -> None:
        self.x = x

    @functools.cached_property
    def squared(self) -> int:
        return self.x**2

    @functools.lru_cache(maxsize=5)  # noqa: B019
    def times(self, y: int) -> int:
        return self.x * y

    @classmethod
    @functools.cache
    def named(cls) -> str:
        return cls.__name__


class CachedMore(Cached):
    @functools.cached_property
    def squared(self) -> int:
        return super().squared + 1


@functools.singledispatch
def kind(x: object) -> str:
    return "object"


@kind.register
def _(x: int) -> str:
    return "integer"


def test_cached_functions_arrive_with_an_empty_cache(receiver: Receiver) -> None:
    def calls() -> tuple[Any, ...]:
        before = fibonacci.cache_info().currsize
        return before, fibonacci(30), fibonacci.cache_info().misses, fibonacci.__name__

    fibonacci(10)
    assert receiver.result_of(calls) == (0, 832_040, 31, "fibonacci")
    assert receiver.result_of(functools.partial(fibonacci, 30)) == 832_040
    assert receiver.result_of(lambda: (double(3), double.cache_parameters())) == (
        6,
        {"maxsize": 3, "typed": True},
    )
    local = functools.lru_cache(lambda x: x + COUNT)
    assert receiver.result_of(lambda: local(1)) == 4


def test_cached_members_and_singledispatch_functions_arrive(receiver: Receiver) -> None:
    def members() -> tuple[Any, ...]:
        cached, more = Cached(3), CachedMore(3)
        return cached.squared, more.squared, more.times(4), CachedMore.named()

    assert receiver.result_of(members) == (9, 10, 12, "CachedMore")
    assert receiver.result_of(lambda: (kind(1), kind("1"))) == ("integer", "object")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[types.ModuleType]:
    """A module beside the script, with a global that does not pickle."""
    (tmp_path / "beside.py").write_text(
        textwrap.dedent("""
            import functools, socket, typing
            SOCKET = socket.socket()
            SOCKET.close()
            T = typing.TypeVar("T")
            @functools.cache
            def cached(): return SOCKET
            def closed(): return SOCKET.fileno()
            def local():
                class Local(typing.Generic[T]):
                    def socket(self): return SOCKET
                return Local, lambda: SOCKET
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import beside  # type: ignore[import-not-found]

    yield beside
    del sys.modules["beside"]


def test_members_of_a_module_with_source_are_sent_by_name(beside: Any) -> None:
    assert way_of("beside") is Way.SOURCE
    assert sent(beside) is beside
    assert sent(beside.closed) is beside.closed
    assert sent(lambda: beside.closed())() == -1
    assert sent(beside.cached) is beside.cached


def test_local_code_of_a_module_with_source_uses_the_globals_of_that_module(beside: Any) -> None:
    local, function = sent(beside.local())
    assert local().socket() is beside.SOCKET
    assert function() is beside.SOCKET
    assert function.__globals__ is vars(beside)


def test_cloudpickles_registry_is_neither_used_nor_changed(beside: Any) -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    encode((Point, lambda: helper()))
    assert cloudpickle.list_registry_pickle_by_value() == before
    cloudpickle.register_pickle_by_value(beside)
    try:
        assert sent([lambda: 0, beside.closed])[1] is beside.closed
    finally:
        cloudpickle.unregister_pickle_by_value(beside)


T = TypeVar("T")
P = ParamSpec("P")
Name = NewType("Name", str)


class Box(Generic[T]):
    def name(self, name: Name) -> T | None:
        return None


def test_type_variables_and_new_types_are_sent_with_their_module(receiver: Receiver) -> None:
    assert receiver.result_of(lambda: Box[int]().name(Name("x"))) is None
    typed, params, box, name = receiver.result_of(lambda: (T, P, Box, Name))
    assert (typed, box) == (T, Box)
    assert (params.__name__, params.__module__) == ("P", __name__)
    assert (name.__supertype__, name.__module__) == (str, __name__)


def test_annotations_are_sent_with_their_class_and_its_methods(receiver: Receiver) -> None:
    found = receiver.result_of(lambda: (Point.__annotations__, Point.more.__annotations__))
    assert found == ({"x": int}, {"return": int})


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are not lazy before 3.14")
def test_annotations_may_name_what_does_not_exist(receiver: Receiver) -> None:
    @dataclasses.dataclass
    class Lazy:
        number: Decimal | None = None

        def first(self, number: Decimal | None = None, *, other: int = 3) -> int:
            """The docstring."""
            return other

    def call() -> Any:
        first = Lazy.first
        return Lazy(), Lazy().first(), first.__annotations__, first.__doc__, first.__qualname__

    first = Lazy.first
    lazy, result, annotations, *rest = receiver.result_of(call)
    assert (type(lazy), lazy.number, result) == (Lazy, None, 3)
    assert annotations == {"number": "Decimal | None", "other": "int", "return": "int"}
    assert rest == [first.__doc__, first.__qualname__]
    with pytest.raises(NameError):  # the original is unchanged
        first.__annotations__  # noqa: B018


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no `type` statement before 3.12")
def test_type_aliases_are_sent_with_their_module(receiver: Receiver) -> None:
    made: dict[str, Any] = {"__name__": __name__}
    text = """
        type Pair[T] = tuple[T, T]
        type Json = int | list[Json]
        type Absent = Missing
        def f(pair: Pair[int] = 0, json: Json = 0, absent: Absent = 0) -> Json:
            return [str(kind) for kind in f.__annotations__.values()], Pair.__module__
        """
    exec(textwrap.dedent(text), made)  # noqa: S102 - a syntax error before 3.12
    kinds, module = receiver.result_of(made["f"])
    assert kinds == ["Pair[int]", "typing.Any", "Absent", "typing.Any"]
    assert module == __name__


def test_code_keeps_its_file_name(receiver: Receiver) -> None:
    def local() -> str:
        return (lambda: helper)().__code__.co_filename

    assert receiver.result_of(local) == __file__


class Counted:
    calls = 0

    def __getstate__(self) -> dict[str, Any]:
        type(self).calls += 1
        return {"function": lambda: 0}


def test_each_pickler_calls_getstate_at_most_once() -> None:
    encode([Counted()])
    assert Counted.calls <= 2


def test_local_classes_and_functions_arrive() -> None:
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
    assert sent([np.dot, len, NotPicklable]) == [np.dot, len, NotPicklable]


class Plugin:
    known: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, /, key: str) -> None:
        assert key not in Plugin.known, f"{key} is registered already"
        Plugin.known[key] = cls


class Registering(Plugin, key="registering"):
    def keys(self) -> dict[str, type]:
        return Plugin.known


class Asking(abc.ABC, Generic[T]):
    def __init_subclass__(cls, /, key: str) -> None:
        cls.key = key

    key: ClassVar[str]


class Answering(Asking[int], key="answering"):
    __slots__ = ("more",)


def registered() -> tuple[object, ...]:
    made = Registering()
    return type(made), made.keys(), Answering.key, Answering.__mro__, type(Answering)


def test_a_class_whose_bases_ask_for_arguments_or_know_it_already_is_sent(
    receiver: Receiver,
) -> None:
    cls, known, key, mro, meta = receiver.result_of(registered)

    assert cls is Registering
    assert known == {"registering": Registering}
    assert Plugin.known == {"registering": Registering}
    assert key == "answering"
    assert mro == Answering.__mro__
    assert meta is abc.ABCMeta


def test_the_hook_of_an_importable_base_is_called_where_the_class_arrives(
    receiver: Receiver,
) -> None:
    class Tidy(string.Template):
        delimiter = "%"

    assert receiver.result_of(lambda: Tidy("%a").substitute(a=1)) == "1"
