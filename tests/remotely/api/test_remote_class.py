"""A remote class still behaves as a class: for Python, its tools and its users."""

import abc
import copy
import dataclasses
import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import cloudpickle
import pytest

import remotely
from remotely.api import connection
from remotely.api.handle import Handle
from remotely.api.remote_class import as_placeable
from remotely.calling.engine import CallEngine
from remotely.engine import Arguments, Options, RemoteActor
from remotely.engines.in_process import InProcess
from remotely.objects import construct

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


class Placed(NamedTuple):
    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options
    size: int = 1


class Recorder(CallEngine):
    """An engine that records what it places."""

    def __init__(self) -> None:
        super().__init__(InProcess())
        self.placed: list[Placed] = []

    def place(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        args, kwargs = arguments[0]
        self.placed.append(Placed(cls, args, kwargs, options, len(arguments)))
        return super().place(cls, arguments, options)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    made = Recorder()
    monkeypatch.setattr(connection, "_engine", made)
    yield made
    made.shutdown()


def is_handle(value: object) -> bool:
    return issubclass(type(value), Handle)


@remotely.remote_class
class Counter:
    """Counts from a start."""

    unit: ClassVar[str] = "apples"

    def __init__(self, start: int, step: int = 1) -> None:
        self.count = start
        self.step = step

    def add(self, times: int) -> int:
        """Count, and return the count."""
        self.count += times * self.step
        return self.count

    @property
    def double(self) -> int:
        return 2 * self.count

    @staticmethod
    def greet(name: str) -> str:
        return f"hello {name}"

    @classmethod
    def named(cls) -> str:
        return cls.__name__


class Undecorated(Counter):
    def __init__(self, start: int) -> None:
        super().__init__(start, step=10)

    def add(self, times: int) -> int:
        return super().add(times) + 1000


@remotely.remote_class(cpus=3)
class Decorated(Counter):
    def __init__(self, start: int) -> None:
        super().__init__(start, step=100)


# --- instances and handles ------------------------------------------------------------------------


def test_calling_the_class_returns_a_handle_that_is_an_instance(engine: Recorder) -> None:
    counter = Counter(5, step=2)
    assert is_handle(counter)
    assert isinstance(counter, Counter)
    assert counter.__class__ is Counter
    assert counter.add(3) == 11
    assert engine.placed == [Placed(Counter, (5,), {"step": 2}, Options())]


def test_local_returns_a_plain_object(engine: Recorder) -> None:
    counter = remotely.local(Counter, 5, step=2)
    assert type(counter) is Counter
    assert vars(counter) == {"count": 5, "step": 2}
    assert not engine.placed


def test_isinstance_of_a_handle_follows_the_class_hierarchy() -> None:
    assert not isinstance(Counter(1), Decorated)
    assert isinstance(Decorated(1), Counter)


def test_static_and_class_methods_and_class_attributes_need_no_actor(engine: Recorder) -> None:
    assert Counter.greet("you") == "hello you"
    assert Counter.named() == "Counter"
    assert Counter.unit == "apples"
    assert not engine.placed


def test_a_handle_has_static_and_class_methods_properties_and_class_attributes() -> None:
    counter = Decorated(4)
    assert counter.greet("you") == "hello you"
    assert counter.named() == "Decorated"
    assert counter.double == 8
    assert counter.unit == "apples"


def test_wrong_constructor_arguments_raise_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'start'"):
        Counter()  # type: ignore[call-arg]


# --- inheritance ----------------------------------------------------------------------------------


def test_a_subclass_of_a_remote_class_is_remote_too(engine: Recorder) -> None:
    counter = Undecorated(1)
    assert is_handle(counter)
    assert counter.add(2) == 1021
    assert engine.placed[0].cls is Undecorated


def test_a_subclass_inherits_the_options_of_its_base(engine: Recorder) -> None:
    class Child(Decorated):
        pass

    Undecorated(1), Decorated(1), Child(1)
    assert [placed.options.cpus for placed in engine.placed] == [None, 3, 3]


@pytest.mark.parametrize("cls", [Undecorated, Decorated])
def test_super_reaches_the_base(cls: type[Counter]) -> None:
    step = {Undecorated: 10, Decorated: 100}[cls]
    assert remotely.local(cls, 1).step == step
    assert cls(1).step == step


def test_a_base_class_may_be_plain(engine: Recorder) -> None:
    class Plain:
        def __init__(self) -> None:
            self.made_by = type(self).__name__

    @remotely.remote_class
    class Remote(Plain):
        pass

    assert not is_handle(Plain())
    assert Plain().made_by == "Plain"
    assert not engine.placed
    assert is_handle(Remote())
    assert Remote().made_by == "Remote"


def test_mixins_around_a_remote_class_are_called_in_their_order() -> None:
    class Tracks:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.order = ["Tracks"]

    @remotely.remote_class
    class Base:
        def __init__(self, x: int) -> None:
            self.x = x

    class Both(Tracks, Base):
        pass

    assert remotely.local(Both, 3).order == ["Tracks"]
    both = Both(4)
    assert is_handle(both)
    assert both.x == 4


def test_a_remote_class_of_two_remote_classes_is_made_once() -> None:
    @remotely.remote_class
    class Left:
        pass

    @remotely.remote_class
    class Right:
        pass

    @remotely.remote_class
    class Both(Left, Right):
        pass

    assert type(remotely.local(Both)) is Both
    assert isinstance(Both(), Left)


# --- __new__ --------------------------------------------------------------------------------------


def test_a_class_may_have_a_new_of_its_own() -> None:
    @remotely.remote_class
    class Own:
        def __new__(cls, *args: Any) -> "Own":
            made = super().__new__(cls)
            made.seen = args
            return made

        seen: tuple[Any, ...]

        def __init__(self, a: int, b: int) -> None:
            self.sum = a + b

    plain = remotely.local(Own, 1, 2)
    assert (plain.seen, plain.sum) == ((1, 2), 3)
    handle = Own(3, 4)
    assert is_handle(handle)
    assert (handle.seen, handle.sum) == ((3, 4), 7)


def test_each_class_of_a_chain_may_have_a_new_of_its_own() -> None:
    @remotely.remote_class
    class Base:
        trail: list[str]

        def __new__(cls, *args: Any) -> "Base":
            made = super().__new__(cls)
            made.trail = ["Base"]
            return made

        def __init__(self, x: int) -> None:
            self.x = x

    @remotely.remote_class
    class Middle(Base):
        pass

    @remotely.remote_class
    class Top(Middle):
        def __new__(cls, *args: Any) -> "Top":
            made = super().__new__(cls, *args)
            made.trail.append("Top")
            return made  # type: ignore[return-value]

    assert remotely.local(Middle, 1).trail == ["Base"]
    assert remotely.local(Top, 2).trail == ["Base", "Top"]
    top = Top(3)
    assert is_handle(top)
    assert (top.x, top.trail) == (3, ["Base", "Top"])


def test_what_a_new_returns_is_not_initialised_if_it_is_of_another_class() -> None:
    @remotely.remote_class
    class Never:
        def __new__(cls) -> Any:
            return 42

        def __init__(self) -> None:
            raise AssertionError("called")

    assert construct.construct(Never, (), {}) == 42


def test_a_subclass_with_its_own_new_must_be_decorated(engine: Recorder) -> None:
    class Child(Counter):
        def __new__(cls, start: int) -> "Child":
            return super().__new__(cls)

    with pytest.raises(TypeError, match=r"Child has a __new__ .* @remotely\.remote_class"):
        Child(1)
    assert not engine.placed
    assert remotely.local(Child, 1).count == 1
    assert is_handle(remotely.remote_class(Child)(1))


def test_a_builtin_base_class_gets_its_arguments() -> None:
    @remotely.remote_class
    class Numbers(tuple[int, ...]):
        def total(self) -> int:
            return sum(self)

    assert remotely.local(Numbers, (1, 2, 3)) == (1, 2, 3)
    assert Numbers((1, 2, 3)).total() == 6


def test_a_constructor_may_make_actors_of_its_own_class(engine: Recorder) -> None:
    @remotely.remote_class
    class Tree:
        def __init__(self, depth: int) -> None:
            self.child = Tree(depth - 1) if depth else None

        def depth(self) -> int:
            return 1 + self.child.depth() if self.child else 0

    root = remotely.local(Tree, 3)
    assert type(root) is Tree
    assert is_handle(root.child)
    assert root.depth() == 3
    assert len(engine.placed) == 3


def test_a_class_is_usable_after_its_constructor_has_raised() -> None:
    @remotely.remote_class
    class Fails:
        def __new__(cls, fail: bool) -> "Fails":
            if fail:
                raise ValueError("no")
            return super().__new__(cls)

        def __init__(self, fail: bool) -> None:
            pass

    with pytest.raises(ValueError, match="no"):
        remotely.local(Fails, True)
    assert is_handle(Fails(False))


# --- kinds of classes -----------------------------------------------------------------------------


@remotely.remote_class
@dataclasses.dataclass
class Point:
    x: int
    y: int = 7


@dataclasses.dataclass(slots=True)
@remotely.remote_class
class SlottedPoint:
    x: int
    y: int = 7


@pytest.mark.parametrize("cls", [Point, SlottedPoint])
def test_a_dataclass_may_be_remote(cls: Any) -> None:
    plain = remotely.local(cls, 1)
    assert dataclasses.asdict(plain) == {"x": 1, "y": 7}
    assert plain == remotely.local(cls, 1)
    handle = cls(1, y=2)
    assert is_handle(handle)
    assert (handle.x, handle.y) == (1, 2)
    assert [field.name for field in dataclasses.fields(cls)] == ["x", "y"]


def test_an_abstract_class_stays_abstract() -> None:
    @remotely.remote_class
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

    class Square(Abstract):
        def area(self) -> float:
            return 4.0

    with pytest.raises(TypeError, match="abstract"):
        Abstract()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="abstract"):
        remotely.local(Abstract)
    assert Square().area() == 4.0
    assert isinstance(Square(), Abstract)


def test_a_class_of_another_metaclass_may_be_remote() -> None:
    class Meta(type):
        def __len__(cls) -> int:
            return 7

    @remotely.remote_class
    class Odd(metaclass=Meta):
        pass

    assert len(Odd) == 7
    assert type(remotely.local(Odd)) is Odd
    assert is_handle(Odd())


@remotely.remote_class
class Box(Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item

    def get(self) -> T:
        return self.item


def test_a_generic_class_may_be_remote_and_be_called_with_a_type_argument() -> None:
    box = Box[int](3)
    assert is_handle(box)
    assert box.get() == 3
    assert box.__dict__ == {"item": 3}  # without __orig_class__
    assert remotely.local(Box[str], "a").get() == "a"
    assert remotely.options(Box[str], name="a-box")("b").get() == "b"


@remotely.remote_class
class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


def test_a_class_keeps_its_names_and_its_docstring() -> None:
    assert (Counter.__name__, Counter.__qualname__) == ("Counter", "Counter")
    assert Counter.__module__ == __name__
    assert Counter.__doc__ == "Counts from a start."
    assert inspect.getdoc(Counter(1)) == "Counts from a start."
    assert inspect.getdoc(Counter(1).add) == "Count, and return the count."
    assert Counter(1).add.__name__ == "add"


def test_a_class_keeps_the_signature_of_its_constructor() -> None:
    assert str(inspect.signature(Counter)) == "(start: int, step: int = 1) -> None"
    assert str(inspect.signature(Undecorated)) == "(start: int) -> None"
    assert str(inspect.signature(Decorated)) == "(start: int) -> None"
    assert str(inspect.signature(Point)) == "(x: int, y: int = 7) -> None"
    assert str(inspect.signature(Box)) == "(item: ~T) -> None"


def test_a_class_keeps_the_signature_of_a_new_of_its_own() -> None:
    @remotely.remote_class
    class Own:
        def __new__(cls, a: int, b: str = "") -> "Own":
            return super().__new__(cls)

    assert list(inspect.signature(Own).parameters) == ["a", "b"]


def test_a_class_without_a_constructor_takes_no_arguments() -> None:
    @remotely.remote_class
    class Bare:
        pass

    assert str(inspect.signature(Bare)) == "()"
    for make in (Bare, lambda *args: remotely.local(Bare, *args)):
        with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
            make(1)  # type: ignore[call-arg]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are lazy from 3.14 on")
def test_a_signature_may_have_undefined_names() -> None:
    @remotely.remote_class
    class Lazy:
        def __init__(self, number: Decimal | None = None) -> None:
            self.number = number

        def given(self) -> Decimal | None:
            return self.number

    assert list(inspect.signature(Lazy).parameters) == ["number"]
    assert not inspect.signature(Lazy().given).parameters


def test_the_signature_of_a_handles_method_is_that_of_a_bound_one() -> None:
    assert str(inspect.signature(Counter(1).add)) == "(times: int) -> int"
    assert str(inspect.signature(Counter(1).greet)) == "(name: str) -> str"
    assert str(inspect.signature(Counter(1).named)) == "() -> str"


# --- copies ---------------------------------------------------------------------------------------


@remotely.remote_class
class Reduces:
    """Pickles as a call of its class, as in the documentation of pickle."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __reduce__(self) -> tuple[Any, ...]:
        return Reduces, (self.x,)


@remotely.remote_class
class NewArguments:
    def __new__(cls, x: int, *, y: int) -> "NewArguments":
        return super().__new__(cls)

    def __init__(self, x: int, *, y: int) -> None:
        self.x = x

    def __getnewargs_ex__(self) -> tuple[tuple[int, ...], dict[str, int]]:
        return (self.x,), {"y": 4}


@remotely.remote_class
class State:
    def __init__(self, x: int) -> None:
        self.x = x
        self.lock = lambda: None  # cannot be pickled

    def __getstate__(self) -> dict[str, int]:
        return {"x": self.x}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.x = state["x"]


@remotely.remote_class
class Mapping(dict[str, int]):
    pass


PLAIN: list[tuple[type, tuple[Any, ...]]] = [
    (Counter, (3,)),
    (Undecorated, (3,)),
    (Decorated, (3,)),
    (Point, (3, 4)),
    (Slotted, (3,)),
    (Reduces, (3,)),
    (State, (3,)),
    (Box, (3,)),
    (Mapping, ({"x": 3},)),
]


def test_a_copy_by_keyword_arguments_is_a_plain_object(engine: Recorder) -> None:
    plain = remotely.local(NewArguments, 3, y=4)
    for other in (copy.copy(plain), pickle.loads(pickle.dumps(plain))):
        assert type(other) is NewArguments
        assert other.x == 3
    assert not engine.placed


def contents(value: Any) -> object:
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, Slotted):
        return value.x
    return {name: item for name, item in vars(value).items() if name != "lock"}


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        *[
            lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol))
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
        ],
        lambda value: pickle.loads(cloudpickle.dumps(value)),
    ],
    ids=["copy", "deepcopy", "pickle 2", "pickle 3", "pickle 4", "pickle 5", "cloudpickle"],
)
@pytest.mark.parametrize(("cls", "args"), PLAIN, ids=[cls.__name__ for cls, _ in PLAIN])
def test_a_copy_of_a_plain_object_is_a_plain_object(
    engine: Recorder, cls: Any, args: tuple[Any, ...], again: Any
) -> None:
    plain = remotely.local(cls, *args)
    other = again(plain)
    assert type(other) is cls
    assert other is not plain
    assert contents(other) == contents(plain)
    assert not engine.placed


def test_a_class_that_was_pickled_by_value_is_still_remote(engine: Recorder) -> None:
    @remotely.remote_class(cpus=2)
    class Base:
        def __new__(cls, *args: Any) -> "Base":
            made = super().__new__(cls)
            made.args = args
            return made

        args: tuple[Any, ...]

    @remotely.remote_class(gpus=1)
    class Child(Base):
        def __init__(self, x: int) -> None:
            self.x = x

    arrived: Any = pickle.loads(cloudpickle.dumps(Child))
    assert vars(remotely.local(arrived, 3)) == {"args": (3,), "x": 3}
    assert type(remotely.local(arrived, 3)).__mro__[1].__name__ == "Base"
    assert is_handle(arrived(4))
    assert (engine.placed[0].options.cpus, engine.placed[0].options.gpus) == (None, 1)
    assert list(inspect.signature(arrived).parameters) == ["x"]


# --- options --------------------------------------------------------------------------------------


def test_options_of_the_class_apply_to_each_actor(engine: Recorder) -> None:
    @remotely.remote_class(cpus=0.5, gpus=0, memory="2GiB", concurrency=4, env={"A": "1"})
    class Own:
        pass

    Own()
    expected = Options(cpus=0.5, memory=2 << 30, concurrency=4, env={"A": "1"})
    assert engine.placed[0].options == expected


def test_options_of_one_instance_apply_only_to_it(engine: Recorder) -> None:
    remotely.options(Decorated, gpus=1, name="evaluator")(1)
    Decorated(1)
    assert engine.placed[0].options == Options(cpus=3, gpus=1, name="evaluator")
    assert engine.placed[1].options == Options(cpus=3)


def test_options_may_be_changed_again_and_used_for_a_group(engine: Recorder) -> None:
    twice = remotely.options(remotely.options(Decorated, gpus=1), cpus=2)
    group = remotely.group(twice, 2, 5)
    assert [counter.count for counter in group] == [5, 5]
    assert engine.placed == [Placed(Decorated, (5,), {}, Options(cpus=2, gpus=1), 2)]
    assert type(remotely.local(twice, 5)) is Decorated


def test_an_unknown_option_raises_an_error_that_suggests_the_closest() -> None:
    with pytest.raises(TypeError, match="no option 'cpu'; did you mean 'cpus'"):
        remotely.remote_class(cpu=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no option 'max_restart'; did you mean 'max_restarts'"):
        remotely.options(Counter, max_restart=1)
    with pytest.raises(TypeError, match="no option 'xyzzy'; there are cpus, gpus"):
        remotely.options(Counter, xyzzy=1)


def test_an_option_passed_to_the_constructor_raises_an_error_that_says_where_to_put_it() -> None:
    @remotely.remote_class
    class Named:
        def __init__(self, name: str = "", **more: int) -> None:
            self.name, self.more = name, more

    where = r"remotely\.group\(remotely\.options\(Counter, cpus=0\.1\)"
    with pytest.raises(TypeError, match=where):
        remotely.group(Counter, 2, 1, cpus=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=where):
        Counter(1, cpus=0.1)  # type: ignore[call-arg]
    assert Named(name="a", cpus=2).more == {"cpus": 2}


def test_a_decorated_constructor_takes_the_arguments_of_its_decorator() -> None:
    def taking_env(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def wrapped(self: Any, *args: Any, env: str) -> None:
            self.env = env
            init(self, *args)

        return wrapped

    @remotely.remote_class
    class Decorated:
        env: str

        @taking_env
        def __init__(self, start: int) -> None:
            self.value = start

    made: Any = Decorated
    assert made(3, env="dev").env == "dev"
    with pytest.raises(TypeError, match=r"Decorated\(\) takes no 'cpus'"):
        made(3, cpus=2)


@pytest.mark.parametrize("of_an_instance", [{"name": "x"}, {"detached": True}])
def test_an_option_of_one_instance_is_not_one_of_the_class(of_an_instance: Any) -> None:
    with pytest.raises(TypeError, match=r"remotely\.options\(Actor, "):
        remotely.remote_class(**of_an_instance)
    assert remotely.options(Counter, **of_an_instance).options != Options()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpus", -1),
        ("cpus", "2"),
        ("cpus", True),
        ("cpus", float("nan")),
        ("cpus", float("inf")),
        ("gpus", 1.5),
        ("gpus", -1),
        ("max_restarts", -1),
        ("concurrency", 0),
        ("concurrency", 1.5),
        ("memory", -1),
        ("memory", "2 parsecs"),
        ("memory", 1.5),
        ("env", {"A": 1}),
        ("env", {1: "A"}),
        ("env", ["A=1"]),
        ("env", "A=1"),
        ("env", {"A=B": "1"}),
        ("env", {"": "1"}),
        ("env", {"A\0": "1"}),
        ("env", {"A": "1\0"}),
        ("env", {"A": "\udc80"}),
        ("env", {"A": "x" * 200_000}),
        ("wait", "no"),
        ("name", 5),
        ("detached", 1),
        ("name", ""),
        ("machine", ""),
        ("python", ""),
        ("packages", [""]),
    ],
)
def test_an_invalid_option_value_raises_an_error(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        remotely.options(Counter, **{name: value})


def test_only_classes_can_be_remote() -> None:
    with pytest.raises(TypeError, match="is for classes"):
        remotely.remote_class(lambda: 1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is for classes"):
        remotely.remote_class(cpus=1)(5)  # type: ignore[type-var]


@pytest.mark.parametrize("use", [remotely.options, remotely.local, as_placeable])
def test_a_plain_class_raises_an_error_that_asks_for_the_decorator(use: Any) -> None:
    class Plain:
        pass

    with pytest.raises(TypeError, match=r"Plain is not a remote class: .*@remotely\.remote_class"):
        use(Plain)
    with pytest.raises(TypeError, match="not a remote class"):
        use(Counter(1))


def test_decorating_again_changes_only_the_options(engine: Recorder) -> None:
    @remotely.remote_class(cpus=2)
    @remotely.remote_class
    class Twice:
        def __new__(cls, x: int) -> "Twice":
            return super().__new__(cls)

        def __init__(self, x: int) -> None:
            self.x = x

    assert remotely.local(Twice, 3).x == 3
    assert Twice(3).x == 3
    assert engine.placed[0].options.cpus == 2


# --- names are the user's -------------------------------------------------------------------------


def test_public_names_are_never_submodules() -> None:
    for name in remotely.__all__:
        assert not inspect.ismodule(getattr(remotely, name)), name


@remotely.remote_class
class OurVerbs:
    """Uses the names of the toolkit's verbs."""

    def __init__(self) -> None:
        self.name = self.engine = self.remote = self.actor = self.cls = self.wait = "own name"

    def close(self) -> str:
        return "own close"

    def submit(self, job: str) -> str:
        return f"own {job}"

    options = group = result = local = release = close


def test_a_class_may_use_the_names_of_the_toolkits_verbs() -> None:
    handle = OurVerbs()
    for name in ("name", "engine", "remote", "actor", "cls", "wait"):
        assert getattr(handle, name) == "own name"
    for name in ("close", "options", "group", "result", "local", "release"):
        assert getattr(handle, name)() == "own close"
    assert handle.submit("job") == "own job"
    assert handle.submit.submit("job").result() == "own job"
    group = remotely.group(OurVerbs, 2)
    assert group.submit("job") == ["own job"] * 2
    assert group.close() == ["own close"] * 2
    assert group.name == ["own name"] * 2


def test_the_toolkits_close_calls_the_users_close() -> None:
    closed: list[str] = []

    @remotely.remote_class
    class Closes:
        def close(self) -> None:
            closed.append("closed")

    handle = Closes()
    assert not closed
    remotely.close(handle)
    remotely.close(handle)
    assert closed == ["closed"]


# --- handles as objects ---------------------------------------------------------------------------


def test_a_handle_lacks_the_special_methods_that_its_class_lacks() -> None:
    handle = Counter(1)
    assert not callable(handle)
    assert not hasattr(handle, "__len__")
    assert not hasattr(handle, "__array__")
    assert not hasattr(handle, "_repr_html_")
    with pytest.raises(TypeError):
        len(handle)  # type: ignore[arg-type]


def test_an_attribute_of_an_actor_cannot_be_deleted() -> None:
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del Counter(1).count
