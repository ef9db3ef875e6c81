"""Names of other libraries and typos: each error suggests the right name."""

from collections.abc import Iterator
from typing import Any

import pytest

import remotely
from remotely.api import connection

loose: Any = remotely  # so that type checkers accept the wrong names


@remotely.remote_class
class Counter:
    def add(self, n: int) -> int:
        return n + 1


@remotely.remote_class
class Wrapper:
    """A class that defines one of the names, but not the other."""

    options = ("fast",)

    def __getattr__(self, name: str) -> Any:
        if name == "remote":
            return "control"
        raise AttributeError(name)


@remotely.remote_class
class Slotted:
    __slots__ = ("count",)


@pytest.fixture(params=["cluster", "local"])
def place(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> Iterator[None]:
    if request.param == "local":
        monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.connect(cpus=4)
    yield
    remotely.shutdown()


@pytest.mark.parametrize(
    ("word", "instead"),
    [("remote", r"Counter\(1\)"), ("options", r"remotely\.options\(Counter, cpus=2\)")],
)
def test_a_class_suggests_replacements_for_names_of_ray(word: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"class Counter has no '{word}'; write {instead}"):
        getattr(Counter, word)
    assert not hasattr(Counter, word)


def test_a_method_suggests_replacements_for_names_of_ray(place: None) -> None:
    counter: Any = Counter()
    with pytest.raises(AttributeError, match=r"write add\.submit\(x\); add\(x\) waits"):
        counter.add.remote(1)
    with pytest.raises(AttributeError, match=r"write remotely\.options\(A, "):
        counter.add.options(num_returns=2)
    with pytest.raises(AttributeError, match=r"the method add has no 'bind'$"):
        counter.add.bind(1)
    with pytest.raises(AttributeError, match="has no 'remote'"):
        counter.remote()
    assert not {"remote", "options"} & set(dir(counter))


def test_a_future_suggests_replacements_for_names_of_other_libraries(place: None) -> None:
    future: Any = remotely.submit(Counter().add, 1)
    with pytest.raises(AttributeError, match=r"the future has no 'get'; write future\.result\(\)"):
        future.get()
    assert future.result() == 2


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("init", r"remotely\.connect\(\)"),
        ("wait", r"remotely\.as_completed"),
        ("Process", r"remotely\.Executor"),
        ("Model", r"torch\.nn\.Module"),
    ],
)
def test_the_module_suggests_replacements_for_names_of_other_libraries(
    word: str, instead: str
) -> None:
    with pytest.raises(AttributeError, match=f"remotely has no '{word}'; write .*{instead}"):
        getattr(remotely, word)


def test_the_module_suggests_the_closest_of_its_names() -> None:
    with pytest.raises(AttributeError, match=r"^remotely has no 'grop'; did you mean 'group'\?$"):
        _ = loose.grop
    with pytest.raises(AttributeError, match=r"^remotely has no 'zzz'$"):
        _ = loose.zzz


def test_a_class_that_defines_such_a_name_keeps_it(place: None) -> None:
    assert Wrapper.options == ("fast",)
    wrapper: Any = Wrapper()
    assert wrapper.options == ("fast",)
    assert wrapper.remote == "control"
    slotted: Any = Slotted()
    with pytest.raises(AttributeError, match="no attribute 'remote'"):
        slotted.remote = 1


def test_an_unknown_parameter_raises_an_error_with_the_closest_one() -> None:
    connect: Any = remotely.connect
    with pytest.raises(TypeError, match=r"connect\(\) has no parameter 'cpu'; did you mean"):
        connect(cpu=3)
    with pytest.raises(TypeError, match=r'write remotely\.connect\(addr, ship=\["data/"\]\)'):
        connect(distributed_files=["data"])
    with pytest.raises(TypeError, match=r"no parameter 'zzz'; there are address, key, cpus"):
        connect(zzz=3)
    close: Any = remotely.close
    with pytest.raises(TypeError, match="did you mean 'grace_s'"):
        close(None, grace=1)


@pytest.mark.parametrize(
    ("mistake", "error", "why"),
    [
        (lambda: loose.connect(5), TypeError, "address=5 must be a string"),
        (lambda: loose.connect(key=5), TypeError, "key=5 must be a path"),
        (lambda: loose.connect(""), ValueError, "address='' names nothing: leave it out"),
        (lambda: loose.connect(key=""), ValueError, "key='' names nothing"),
        (lambda: loose.serve(1, name=""), ValueError, "name='' names nothing"),
        (lambda: loose.serve(1, address=""), ValueError, "address='' names nothing"),
        (lambda: loose.connect(cpus="2"), ValueError, "cpus='2' must be a number"),
        (lambda: loose.connect(cpus=-1), ValueError, "cpus=-1 must be a number, at least 0"),
        (lambda: loose.connect(gpus=-1), ValueError, "gpus=-1: give a count, or a list of names"),
        (lambda: loose.connect(patience_s=-1), ValueError, "patience_s=-1 must be"),
        (lambda: loose.connect(show_output="no"), TypeError, "must be True or False"),
        (lambda: loose.group(Counter, "2"), ValueError, "count='2' must be a whole number"),
        (lambda: loose.group(Counter, 0), ValueError, "count=0 must be a whole number, at least 1"),
        (lambda: loose.get_actor(5), TypeError, "name=5 must be a string"),
        (lambda: loose.close(None, grace_s="x"), ValueError, "grace_s=.x. must be"),
        (lambda: loose.idempotent(retry=1), TypeError, "did you mean 'retries'"),
    ],
)  # fmt: skip
def test_an_invalid_argument_is_refused_before_anything_starts(
    nothing_left: None, mistake: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        mistake()
    assert not connection.is_connected()
