"""A handle behaves as its object would, on each engine."""

import asyncio
import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import remotely
from remotely.api import connection
from remotely.api.group import GroupMethod
from remotely.api.handle import Method
from remotely.calling.engine import CallEngine
from remotely.engines.in_process import InProcess
from remotely.errors import ActorDied, MasterLost, NotPicklable


def is_handle(value: object) -> bool:
    return type(value).__name__.startswith("HandleOf")


# --- functions and methods run in the actor -------------------------------------------------------


class Environment:
    """A third-party class to which a wrapper delegates."""

    def __init__(self) -> None:
        self.steps = 0
        self.limit = 3

    def step(self, by: int = 1) -> int:
        """Take a step."""
        self.steps += by
        return self.steps

    async def step_later(self) -> int:
        await asyncio.sleep(0)
        return self.step()

    def pid(self) -> int:
        return os.getpid()


@remotely.remote_class
class Wrapper:
    def __init__(self) -> None:
        self.env = Environment()
        self.count = 0
        self.jump = functools.partial(self.env.step, 10)
        self.closure: Any = lambda: self.env.step(100)
        self.append = [1].append
        self.squares: Any = functools.lru_cache(lambda x: x * x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def add(self, n: int, *, sign: int = 1) -> int:
        """Count."""
        self.count += n * sign
        return self.count

    add_five = functools.partialmethod(add, 5)

    @property
    def chosen(self) -> Callable[[], int]:
        return self.env.step


def test_a_delegated_method_runs_where_the_object_is(place: str) -> None:
    wrapper = Wrapper()
    assert [wrapper.step(), wrapper.step(), wrapper.step(by=3)] == [1, 2, 5]
    assert (wrapper.pid() == os.getpid()) == (place == "local")
    assert wrapper.steps == 5
    assert wrapper.limit == 3


def test_a_delegated_method_is_a_method_in_every_way(place: str) -> None:
    wrapper = Wrapper()
    step = wrapper.step
    assert isinstance(step, Method)
    assert step.submit().result() == 1
    assert remotely.submit(step).result() == 2
    assert step.__name__ == "step"
    assert inspect.getdoc(step) == "Take a step."
    assert str(inspect.signature(step)) == "(*args, **kwargs)"
    assert "step" in repr(step)
    assert copy.copy(step)() == 3


def test_a_partial_method_runs_where_the_object_is(place: str) -> None:
    wrapper = Wrapper()
    assert [wrapper.add_five(), wrapper.add_five(sign=-1), wrapper.add(1)] == [5, 0, 1]
    assert wrapper.add_five.submit().result() == 6
    assert str(inspect.signature(wrapper.add_five)) == "(*, sign: int = 1) -> int"


@remotely.remote_class
class Dispatching:
    """Cannot be pickled by value, as the classes of tests are: hence only in this process."""

    @functools.singledispatchmethod
    def kind(self, value: object) -> str:
        return "object"

    @kind.register
    def _(self, value: int) -> str:
        return "int"


def test_a_dispatched_method_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_engine", CallEngine(InProcess()))
    dispatching = Dispatching()
    assert isinstance(dispatching.kind, Method)
    assert (dispatching.kind(1), dispatching.kind("")) == ("int", "object")


def test_functions_in_attributes_of_the_object_run_where_it_is(place: str) -> None:
    wrapper = Wrapper()
    assert [wrapper.jump(), wrapper.closure(), wrapper.chosen()] == [10, 110, 111]
    assert wrapper.steps == 111
    assert wrapper.append(2) is None
    assert wrapper.squares(3) == 9


@remotely.remote_class
class AsyncWrapper(Wrapper):
    async def own(self) -> int:
        return await self.env.step_later()

    async def add_slowly(self, n: int) -> int:
        return self.add(n)

    add_five_slowly = functools.partialmethod(add_slowly, 5)


def test_plain_and_async_classes_delegate_to_async_methods(place: str) -> None:
    plain, wrapper = Wrapper(), AsyncWrapper()
    assert [plain.step_later(), plain.step_later()] == [1, 2]
    results: list[Any] = [wrapper.own(), wrapper.step_later(), wrapper.step()]
    assert [*results, wrapper.add_five_slowly()] == [1, 2, 3, 5]


@remotely.remote_class
class Losing(AsyncWrapper):
    """Delegates to what a mapping has, as long as it has it."""

    def __init__(self) -> None:
        self.known = {"found": lambda: "found"}
        super().__init__()

    async def forget(self) -> None:
        self.known.clear()

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["known"][name]


def test_any_error_of_getattr_is_an_answer_and_later_calls_run(place: str) -> None:
    losing = Losing()
    found = losing.found
    assert found() == "found"
    losing.forget.submit().result(20)
    with pytest.raises(KeyError):
        found.submit().result(20)
    assert losing.forget.submit().result(20) is None


def test_delegated_methods_of_a_group_run_where_each_object_is(place: str) -> None:
    group = remotely.group(Wrapper, 2)
    assert isinstance(group.step, GroupMethod)
    assert group.step() == [1, 1]
    assert [future.result() for future in group.step.submit()] == [2, 2]
    assert group.add_five() == [5, 5]
    assert group.limit == [3, 3]


class Network:
    def __init__(self) -> None:
        self.weight = 5

    def __call__(self) -> int:
        return self.weight


@remotely.remote_class
class Model:
    kind = Network

    def __init__(self) -> None:
        self.network = Network()
        self.either: Any = 1


def test_classes_and_callable_objects_are_values(place: str) -> None:
    model = Model()
    assert model.network.weight == 5
    assert model.kind is Network


def test_an_attribute_of_a_group_may_be_a_method_in_one_member_only(place: str) -> None:
    group = remotely.group(Model, 2)
    group[0].either = functools.partial(abs, -7)
    first, second = group.either
    assert (first(), second) == (7, 1)


def test_a_missing_delegated_name_raises_an_attribute_error(place: str) -> None:
    wrapper = Wrapper()
    with pytest.raises(AttributeError, match="no_such"):
        wrapper.no_such()
    assert not hasattr(wrapper, "_repr_html_")


# --- the object itself as a result ----------------------------------------------------------------


@remotely.remote_class
class Fluent:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def then(self, step: str) -> "Fluent":
        self.steps.append(step)
        return self

    def __iadd__(self, step: str) -> "Fluent":
        return self.then(step)

    def __iter__(self) -> "Fluent":
        return self

    def __next__(self) -> str:
        if not self.steps:
            raise StopIteration
        return self.steps.pop(0)


def test_returning_self_returns_the_handle(place: str) -> None:
    fluent = Fluent()
    same = fluent.then("a").then("b")
    assert is_handle(same)
    assert same == fluent
    assert fluent.then.submit("c").result().steps == ["a", "b", "c"]
    assert remotely.group(Fluent, 2).then("x")[0].steps == ["x"]


@remotely.remote_class
class Yielding:
    """Gives itself in every way."""

    def __init__(self) -> None:
        self.me = self

    def items(self) -> Iterator[Any]:
        yield self

    @remotely.batched(max_size=2, wait_ms=1)
    def together(self, values: list[Any]) -> list[Any]:
        return [self for _ in values]


@remotely.remote_class
class YieldingLater:
    def __init__(self) -> None:
        self.me = self

    async def items(self) -> AsyncIterator[Any]:
        yield self

    @remotely.batched(max_size=2, wait_ms=1)
    async def together(self, values: list[Any]) -> list[Any]:
        return [self for _ in values]


@pytest.mark.parametrize("cls", [Yielding, YieldingLater])
def test_items_batches_and_attributes_that_are_the_object_are_the_handle(
    place: str, cls: Any
) -> None:
    handle = cls()
    assert [*handle.items(), handle.together(1), handle.me] == [handle, handle, handle]


def test_augmented_assignment_changes_the_object(place: str) -> None:
    fluent = first = Fluent()
    fluent += "a"
    assert fluent == first
    assert first.steps == ["a"]


def test_an_object_that_is_its_own_iterator_is_iterated_in_its_actor(place: str) -> None:
    fluent = Fluent().then("a").then("b")
    assert next(fluent) == "a"
    assert list(fluent) == ["b"]
    assert fluent.steps == []


# --- special methods ------------------------------------------------------------------------------


@remotely.remote_class
class Numbers:
    def __init__(self, *items: int) -> None:
        self.items = list(items)

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)

    def __reversed__(self) -> Iterator[int]:
        return reversed(self.items)

    def __getitem__(self, index: int) -> int:
        return self.items[index]

    def __setitem__(self, index: int, item: int) -> None:
        self.items[index] = item

    def __delitem__(self, index: int) -> None:
        del self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        return sum(self.items) > 0

    def __lt__(self, other: "Numbers") -> bool:
        return sum(self.items) < sum(other)

    def __add__(self, other: object) -> list[int]:
        return [*self.items, other] if isinstance(other, int) else NotImplemented

    __radd__ = __add__

    def __float__(self) -> float:
        return float(sum(self.items))

    def __index__(self) -> int:
        return len(self.items)

    def __neg__(self) -> list[int]:
        return [-item for item in self.items]

    def __round__(self, digits: int = 0) -> int:
        return digits


def test_iteration_and_items_use_the_special_methods_of_the_class(place: str) -> None:
    numbers = Numbers(1, 2, 3)
    assert list(numbers) == [1, 2, 3]
    assert [*reversed(numbers)] == [3, 2, 1]
    assert sorted(numbers) == [1, 2, 3]
    assert 2 in numbers
    numbers[0] = 7
    del numbers[1]
    assert (len(numbers), numbers[0], numbers[1]) == (2, 7, 3)


def test_operators_and_conversions_use_the_special_methods_of_the_class(place: str) -> None:
    numbers, more = Numbers(1, 2), Numbers(3, 4)
    assert numbers < more
    assert more > numbers
    assert numbers + 3 == [1, 2, 3]
    assert 3 + numbers == [1, 2, 3]
    assert -numbers == [-1, -2]
    assert float(numbers) == 3.0
    assert ["a", "b", "c"][numbers] == "c"
    assert round(numbers, 2) == 2
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = numbers + "x"


def test_a_handle_is_true_if_its_object_is(place: str) -> None:
    assert Numbers(1)
    assert not Numbers(0)
    assert Model()  # type: ignore[truthy-bool]


@remotely.remote_class
@dataclass(order=True)
class Version:
    major: int
    minor: int = 0


def test_handles_compare_by_value_but_are_equal_by_identity(place: str) -> None:
    old, new = Version(1), Version(2)
    assert old < new
    assert Version(1) != old
    assert old != object()
    assert old == copy.copy(old)
    assert len({old, copy.copy(old), new}) == 2


@remotely.remote_class(wait=False)
class Eager(Numbers):
    def __call__(self) -> int:
        return 1


def test_special_methods_wait_even_if_calls_do_not(place: str) -> None:
    eager = Eager(1, 2)
    assert len(eager) == 2
    assert list(eager) == [1, 2]
    assert eager().result() == 1


@remotely.remote_class
class Printed(Numbers):
    __iter__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise AssertionError("printed in the actor")

    __repr__ = __str__


def test_a_handle_lacks_special_methods_that_its_class_sets_to_none(place: str) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        iter(Printed(1))


def test_a_handle_is_printed_by_its_name_whatever_its_class_prints(place: str) -> None:
    printed = remotely.options(Printed, name=f"printed-{place}")(1)
    assert repr(printed) == f"<handle of Printed 'printed-{place}'>"
    assert str(printed) == f"{printed}" == repr(printed)


@remotely.remote_class
class Formatted(Printed):
    def __format__(self, specification: str) -> str:
        return f"{sum(self.items):{specification}}"


def test_a_format_specification_goes_to_the_object(place: str) -> None:
    formatted = Formatted(200, 55)
    assert f"{formatted:x} {formatted:>5}" == "ff   255"
    assert f"{formatted}" == repr(formatted)
    with pytest.raises(TypeError, match="unsupported format string"):
        format(Numbers(1), "x")


@remotely.remote_class
@dataclass
class Limits:
    low: int
    high: list[int]

    def widen(self) -> None:
        self.high.append(9)


def test_functions_of_dataclasses_read_the_fields_of_the_object(place: str) -> None:
    limits = Limits(1, [2])
    limits.widen()

    other = dataclasses.replace(limits, low=5)

    assert dataclasses.asdict(limits) == {"low": 1, "high": [2, 9]}
    assert dataclasses.astuple(other) == (5, [2, 9])
    assert [field.name for field in dataclasses.fields(limits)] == ["low", "high"]
    assert is_handle(other)
    assert other != limits


# --- with -----------------------------------------------------------------------------------------


@remotely.remote_class
class Session:
    def __init__(self, gives: str = "itself", suppresses: bool = False) -> None:
        self.gives = gives
        self.suppresses = suppresses
        self.state = "new"

    def __enter__(self) -> Any:
        if self.gives == "nothing":
            raise OSError("could not log in")
        self.state = "entered"
        return self if self.gives == "itself" else self.gives

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        with open(os.environ.get("SESSION_LOG", os.devnull), "a") as log:
            log.write(f"{kind and kind.__name__}({error})\n")
        if self.gives == "fails":
            raise OSError("could not roll back")
        return self.suppresses


def test_special_methods_are_functions_of_the_handles_type(place: str) -> None:
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(Session("a session")) == "a session"
    numbers = Numbers(1, 2)
    assert type(numbers).__len__(numbers) == 2
    assert type(numbers).__getitem__(numbers, 1) == 2


@pytest.fixture
def log(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    path = tmp_path / "log"
    monkeypatch.setenv("SESSION_LOG", str(path))
    return lambda: path.read_text().splitlines()


def with_log(log: Any) -> Any:
    return remotely.options(Session, env={"SESSION_LOG": os.environ["SESSION_LOG"]})


def test_with_enters_and_leaves_the_object_and_then_closes_it(place: str, log: Any) -> None:
    with with_log(log)() as session:
        assert is_handle(session)
        assert session.state == "entered"
    assert log() == ["None(None)"]
    with pytest.raises(ActorDied):
        _ = session.state


def test_with_returns_what_enter_returns(place: str, log: Any) -> None:
    with with_log(log)("something else") as given:
        assert given == "something else"


def test_exit_gets_the_error_of_the_block_and_may_suppress_it(place: str, log: Any) -> None:
    with pytest.raises(KeyError, match="oh"), with_log(log)():
        raise KeyError("oh")
    with with_log(log)(suppresses=True):
        raise KeyError("oh")
    assert log() == ["KeyError('oh')"] * 2


def test_an_exit_that_raises_raises_here_and_the_actor_ends(place: str, log: Any) -> None:
    session = with_log(log)("fails")
    with pytest.raises(OSError, match="could not roll back"), session:
        pass
    with pytest.raises(ActorDied):
        _ = session.state


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("unpicklable")


def test_an_unpicklable_error_reaches_exit_as_text(on_cluster: None, log: Any) -> None:
    with pytest.raises(Unpicklable), with_log(log)():
        raise Unpicklable("secret")
    assert log() == ["RemotelyError(Unpicklable: secret)"]


def test_the_error_of_a_block_that_ended_the_actor_is_raised(place: str, log: Any) -> None:
    session = with_log(log)()

    def block() -> None:
        with session:
            remotely.close(session)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        block()


def test_with_a_group_enters_and_leaves_each_member(place: str, log: Any) -> None:
    with remotely.group(with_log(log), 3) as group:
        assert group.state == ["entered"] * 3
    assert log() == ["None(None)"] * 3


def test_members_that_have_entered_are_left_if_another_cannot_enter(place: str, log: Any) -> None:
    group = remotely.group(with_log(log), each=["itself", "nothing", "itself"])
    with pytest.raises(OSError, match="log in"), group:
        raise AssertionError("the block runs")
    assert log() == ["OSError(could not log in)"] * 2
    assert group.state == ["entered", "new", "entered"]  # none is closed, as a single actor is not


@remotely.remote_class
class AsyncSession:
    state = "new"

    async def __aenter__(self) -> "AsyncSession":
        self.state = "entered"
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is KeyError


def test_async_with_enters_and_leaves_the_object_and_then_closes_it(place: str) -> None:
    async def main() -> Any:
        async with AsyncSession() as session:
            assert session.state == "entered"
            raise KeyError("dealt with")
        return session

    session = asyncio.run(main())
    with pytest.raises(ActorDied):
        _ = session.state


# --- names ----------------------------------------------------------------------------------------


class NeverSent:
    def __reduce__(self) -> Any:
        raise NotPicklable("it was pickled")


@remotely.remote_class
class Heavy:
    def __init__(self) -> None:
        self.data = NeverSent()

    def work(self, until: str = "") -> None:
        while until and not os.path.exists(until):
            time.sleep(0.001)


def test_dir_lists_the_names_of_class_and_object_without_fetching_values(place: str) -> None:
    names = dir(Heavy())
    assert {"data", "work"} <= set(names)


def test_dir_of_a_busy_or_ended_actor_lists_the_names_of_the_class(
    on_cluster: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remotely.api.handle.DIR_S", 0.05)
    heavy = Heavy()
    working = heavy.work.submit(str(tmp_path / "go"))
    assert "work" in dir(heavy)
    (tmp_path / "go").touch()
    working.result()
    remotely.close(heavy)
    assert "work" in dir(heavy)


@remotely.remote_class
class Slotted:
    __slots__ = ("x",)

    def __init__(self) -> None:
        self.x = 1


@remotely.remote_class
@dataclass(slots=True)
class SlottedData:
    x: int = 1


@pytest.mark.parametrize("cls", [Slotted, SlottedData])
def test_a_class_with_slots_has_only_these_attributes(place: str, cls: Any) -> None:
    slotted = cls()
    slotted.x = 2
    assert slotted.x == 2
    with pytest.raises(AttributeError, match=r"'Slotted\w*' object has no attribute 'y'"):
        slotted.y = 1
    with pytest.raises(AttributeError, match="no attribute 'y'"):
        remotely.group(cls, 1).y = 1


def test_a_notebook_shows_a_handle_by_its_name(place: str) -> None:
    heavy: Any = remotely.options(Heavy, name=f"shown-{place}")()
    assert heavy._repr_mimebundle_(include=None, exclude=None) == {"text/plain": repr(heavy)}
    assert f"shown-{place}" in repr(heavy)
    # IPython ignores the display methods of an object that has this attribute.
    assert not hasattr(heavy, "_ipython_canary_method_should_not_exist_")


@remotely.remote_class
class ShowsItself:
    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": "my own"}


def test_a_class_may_define_its_own_notebook_display(place: str) -> None:
    assert ShowsItself()._repr_mimebundle_() == {"text/plain": "my own"}


def test_attributes_that_tools_probe_for_are_not_remote(on_cluster: None, tmp_path: Any) -> None:
    heavy = Heavy()
    working = heavy.work.submit(str(tmp_path / "go"))
    probe = threading.Thread(target=lambda: [getattr(heavy, name, 0) for name in PROBED])
    probe.start()
    probe.join(40)
    assert not probe.is_alive()
    (tmp_path / "go").touch()
    working.result()


PROBED = (
    "_ipython_canary_method_should_not_exist_",
    "_ipython_display_",
    "_repr_html_",
    "_repr_pretty_",
    "__rich__",
    "__rich_repr__",
    "awehflow",
    "aihwerij235234ljsdnp34ksodfipwoe234234jlskjdf",
)


# --- callbacks ------------------------------------------------------------------------------------


@remotely.remote_class(cpus=0.1)
class Board:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def add(self, step: int) -> None:
        self.steps.append(step)


@remotely.remote_class(cpus=0.1)
class Trainer:
    def fit(self, report: Callable[[int], object]) -> None:
        for step in range(3):
            report(step)

    def fit_without_waiting(self, report: Any) -> None:
        for future in [report.submit(step) for step in range(3)]:
            future.result()


def test_methods_of_handles_may_be_passed_as_callbacks(place: str) -> None:
    board, trainer = Board(), Trainer()
    trainer.fit(board.add)
    trainer.fit_without_waiting(board.add)
    trainer.fit(lambda step: board.add(10 * step))
    assert board.steps == [0, 1, 2, 0, 1, 2, 0, 10, 20]


def test_a_method_is_equal_to_the_same_method_of_the_same_actor(place: str) -> None:
    board, other = Board(), Board()
    group = remotely.Group([board, other])

    listeners = [board.add]
    listeners.remove(copy.copy(board).add)

    assert not listeners
    assert group.add == remotely.Group([board, other]).add
    assert len({board.add, board.add, other.add, group.add, group[:1].add}) == 4
    assert board.add != other.add
    assert board.add != board.__init__  # type: ignore[misc]
    assert board.add != object()


def test_a_handle_arrives_in_an_actor_that_cannot_reach_its_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An actor becomes a client of its cluster at its first use of a handle, not before."""
    engine = CallEngine(InProcess())
    monkeypatch.setattr(connection, "_engine", engine)
    wrapper = Wrapper()
    pickled = pickle.dumps(wrapper)
    monkeypatch.setattr(connection, "_engine", None)
    monkeypatch.setattr(connection, "_adopted", _unreachable)

    arrived = pickle.loads(pickled)
    assert isinstance(arrived, Wrapper)
    with pytest.raises(MasterLost):
        arrived.add(1)
    monkeypatch.setattr(connection, "_adopted", lambda: engine)
    assert arrived.add(1) == 1
    assert arrived == wrapper


def _unreachable() -> CallEngine:
    raise MasterLost("no master answers")
