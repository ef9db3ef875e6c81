"""Globals of functions that are sent by value, which this module's are under pytest."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import joblib
import pytest

import remotely
from remotely.values import codec, script_globals

level = 0
model: object = None


def set_level(value: int) -> None:
    global level
    level = value


def get_level(_: object = None) -> int:
    return level


def load_once(_: object = None) -> bool:
    """Return whether the model had to be loaded."""
    global model
    is_first = model is None
    model = "loaded"
    return is_first


def set_undefined() -> None:
    global undefined
    undefined = 5  # type: ignore[name-defined]


def get_undefined(_: object = None) -> int:
    return undefined  # type: ignore[name-defined, no-any-return]


@remotely.remote_class(cpus=0)
class Host:
    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def set_level(self, value: int) -> None:
        set_level(value)

    def level(self, _: object = None) -> int:
        return level


class Bare:
    """To which no function refers by its name."""


class Tally:
    made = 0
    step = 1

    def __init__(self) -> None:
        Tally.made += Tally.step

    @classmethod
    def make(cls) -> int:
        cls()
        return cls.made


classes: "list[weakref.ref[type]] | None" = None


def remember(cls: type) -> None:
    global classes
    classes = [*(classes or ()), weakref.ref(cls)]


def remembered() -> list[str]:
    return [cls.__name__ for each in classes or () if (cls := each()) is not None]


@pytest.fixture(autouse=True)
def as_defined() -> Iterator[None]:
    yield
    globals().update(level=0, model=None)


def test_names_that_an_initializer_assigns_win_over_the_scripts(here: None) -> None:
    with remotely.Executor(1, initializer=set_level, initargs=(7,)) as executor:
        assert list(executor.map(get_level, range(3))) == [7, 7, 7]
        set_level(1)
        assert executor.submit(lambda: level).result() == 7
    assert level == 1


def test_a_name_needs_no_default_in_the_script(here: None) -> None:
    with remotely.Executor(1, initializer=set_undefined) as executor:
        assert executor.submit(get_undefined).result() == 5
    with remotely.Executor(1) as executor, pytest.raises(NameError, match="undefined"):
        executor.submit(get_undefined).result()


def test_the_scripts_value_is_the_one_at_the_time_of_each_call(here: None) -> None:
    host = Host()
    for value in (0, 1, 2):
        set_level(value)
        assert host.run(get_level) == value
    assert [host.run.submit(get_level).result() for _ in range(2)] == [2, 2]


def test_what_an_earlier_call_has_assigned_stays(here: None) -> None:
    host = Host()
    assert [host.run(load_once) for _ in range(3)] == [True, False, False]
    with remotely.Executor(1) as executor:
        assert [*executor.map(load_once, range(3)), executor.submit(load_once).result()] == [
            *(True, False, False, False)
        ]
    with remotely.Pool(Host, 1) as pool:
        assert pool.map(Host.run, [load_once] * 3) == [True, False, False]
    remotely.register_joblib()
    with joblib.parallel_config("remotely"):
        loads = joblib.Parallel(n_jobs=2)(joblib.delayed(load_once)() for _ in range(6))
        assert sum(loads) <= 2  # once in each process
    assert model is None


def test_functions_and_methods_of_a_script_share_its_names(here: None) -> None:
    host, other = Host(), Host()
    host.set_level(3)
    assert (host.run(get_level), host.level()) == (3, 3)
    host.run(set_level, 4)
    assert (host.run(get_level), host.level()) == (4, 4)
    assert (other.level(), level) == (0, 0)


def test_members_of_a_class_are_as_globals_are(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    assert [host.run(Tally.make), host.run(Tally.make)] == [1, 2]
    monkeypatch.setattr(Tally, "step", 10)
    assert host.run(gc.collect) >= 0  # nothing but the module's names refers to the class there
    assert host.run(Tally.make) == 12
    assert Tally.made == 0


def test_a_class_that_has_arrived_is_freed_unless_its_module_has_it(here: None) -> None:
    class Local:
        """No member of its module."""

    host = Host()
    host.run(remember, Local)
    host.run(remember, Bare)
    host.run(gc.collect)
    assert host.run(remembered) == ["Bare"]


def test_a_function_that_is_passed_on_takes_along_what_it_has_there(here: None) -> None:
    host, other = Host(), Host()
    host.set_level(3)
    assert other.run(lambda actor: actor.run(get_level), host) == 3
    assert host.run(lambda actor: actor.run(get_level), other) == 3
    assert other.level() == 3


def test_a_function_that_comes_home_has_a_copy_of_its_own() -> None:
    home = _copy(set_level)
    home(9)
    assert level == 0
    assert home.__globals__["level"] == 9


_SCRIPT = """
import sys
import weakref
from remotely.values import codec
level = int(sys.argv[1])
def get(): return level
def set(value):
    global level
    level = value
for _ in range(2):
    print(codec.encode((get, set)).payload.hex())
"""


def test_two_scripts_share_nothing() -> None:
    (get, assign), again, (other, _) = (codec.decode(p) for p in (*_sent(1), _sent(2)[0]))
    assert (get(), other()) == (1, 2)
    assign(5)
    assert (get(), again[0](), other()) == (5, 5, 2)
    assert get.__globals__ is again[0].__globals__


def test_names_in_use_outlast_those_of_any_number_of_other_scripts() -> None:
    (get, assign), *_ = map(codec.decode, _sent(1))
    assign(5)
    for number in range(script_globals.MOST + 1):
        script_globals.function_from(f"script {number}", {"__name__": "m"}, get.__code__, None)
        again = script_globals.function_from(
            script_globals.origin_of(get) or "", {"__name__": "__main__"}, get.__code__, None
        )
    assert again() == 5


def test_a_function_of_no_module_shares_only_within_its_pickle() -> None:
    names: dict[str, Any] = {"__name__": __name__, "level": 1}
    exec("def get(): return level\ndef set(value): global level; level = value", names)  # noqa: S102
    get, assign = _copy((names["get"], names["set"]))
    other = _copy(names["get"])
    assign(2)
    assert (get(), other(), names["get"]()) == (2, 1, 1)


def _copy(value: Any) -> Any:
    encoded = codec.encode(value)
    return codec.decode(encoded.payload, encoded.buffers)


def _sent(level: int) -> list[bytes]:
    """Return what a script with this level sends, twice the same."""
    command = [sys.executable, "-c", _SCRIPT, str(level)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [bytes.fromhex(line) for line in out.split()]
