"""The script, its modules and what is local to it run where nobody has heard of them."""

import collections
import dataclasses
import enum
import functools
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remotely import by_value as rule
from remotely.by_value import travels_by_value
from remotely.codec import decode, encode
from remotely.errors import NotPicklable

ROOT = Path(__file__).resolve().parents[2]


def sent(value: object) -> Any:
    """Return what arrives, in the same process."""
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
