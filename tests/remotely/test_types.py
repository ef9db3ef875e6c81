"""Class identity: a class is the same in script and actor, on any machine, however a script is run.

Each test runs a script as a user would: from its own folder, with modules beside it that contain
many objects that cannot be pickled.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Started

MODULES = {
    "app/__init__.py": "",
    "app/kinds.py": """
        import dataclasses, enum, threading
        LOCK = threading.Lock()
        OPEN = open(__file__)  # cannot be pickled, and never has to be
        class Color(enum.Enum):
            RED = 1
        @dataclasses.dataclass
        class Point:
            x: int
            def local(self):
                class Local:
                    point = Point
                return Local, lambda: (LOCK.locked(), Point)
        class MyErr(Exception):
            pass
        """,
    "app/lazy.py": "from .kinds import Color\nRED = Color.RED\n",
    "app/sub/deep.py": "from ..kinds import Color\nRED = Color.RED\n",
    "flat.py": """
        import threading
        import app.kinds as kinds
        LOCK = threading.RLock()
        def is_red(color):
            with LOCK:
                return color is kinds.Color.RED
        """,
    "app/actors.py": """
        import sys, threading
        import remotely
        import flat
        from .kinds import LOCK, Color, MyErr, Point
        OWN = threading.Lock()

        @remotely.remote_class
        class Checker:
            def is_red(self, color):
                with LOCK, OWN:
                    return color is Color.RED and flat.is_red(color)
            def is_red_lazily(self, color):
                from .lazy import RED
                from app.sub.deep import RED as deeper
                from app.kinds import Color
                return color is RED and color is deeper and color is Color.RED
            def is_point(self, point):
                return isinstance(point, Point)
            def point(self):
                return Point(3)
            def fail(self):
                raise MyErr("no")
            def run(self, function, *args):
                try:
                    return function(*args)
                except MyErr:
                    return "caught"
            def copies(self):
                named = [name for name in sys.modules if name.endswith("kinds")]
                return named == ["app.kinds"]
        """,
    "app/checks.py": """
        import json, sys
        from app.actors import Checker
        from app.kinds import Color, MyErr, Point

        def fail():
            raise MyErr("no")

        def checks(actor, prefix=""):
            out = {}
            out["enum"] = actor.is_red(Color.RED)
            out["lazy"] = actor.is_red_lazily(Color.RED)
            out["dataclass"] = actor.is_point(Point(1))
            out["result"] = type(actor.point()) is Point and actor.point() == Point(3)
            try:
                actor.fail()
            except MyErr as error:
                out["error"] = type(error) is MyErr
            out["raised over there"] = actor.run(fail) == "caught"
            out["function"] = actor.run(lambda c: c is Color.RED, Color.RED)
            local, function = Point(1).local()
            out["local"] = actor.run(lambda kind: kind.point is Point, local)
            out["locals"] = actor.run(function) == (False, Point)
            out["one copy"] = actor.copies()
            return {prefix + name: held for name, held in out.items()}
        """,
}

# The content of `__main__`, or of a test: it is sent by value.
BY_VALUE = """
    import dataclasses, enum, sys, threading
    import remotely
    from app.checks import Checker, checks
    from app.kinds import Color, Point
    GUARD = threading.Lock()
    LOCAL = threading.local()

    class Side(enum.Enum):
        LEFT = 1

    @dataclasses.dataclass
    class Pair:
        side: Side

    class Mine(Exception):
        pass

    @remotely.remote_class
    class Script:
        lock = threading.Condition()
        def is_left(self, pair):
            with GUARD, self.lock:
                return isinstance(pair, Pair) and pair.side is Side.LEFT
        def hold(self):
            return GUARD.acquire(blocking=False)
        def is_red(self, color):
            return color is Color.RED and LOCAL is not None
        def pair(self):
            return Pair(Side.LEFT)
        def fail(self):
            raise Mine("no")
        def run(self, function):
            try:
                return function()
            except Mine:
                return "caught"

    def fail():
        raise Mine("no")

    def all_checks():
        out = checks(Checker())
        actor = Script()
        out["own classes"] = actor.is_left(Pair(Side.LEFT)) and actor.is_red(Color.RED)
        out["own result"] = type(actor.pair()) is Pair and actor.pair().side is Side.LEFT
        try:
            actor.fail()
        except Mine as error:
            out["own error"] = 'raise Mine("no")' in str(error.__cause__)
        out["own error over there"] = actor.run(fail) == "caught"
        out["one lock"] = actor.hold() and not actor.run(lambda: GUARD.acquire(blocking=False))
        out["not mine"] = not GUARD.locked()
        return out
"""
END = """
    import json, os
    def connect():
        if "CLUSTER" in os.environ:
            address, key = os.environ["CLUSTER"].split()
            remotely.connect(address, key=key)
        else:
            remotely.connect(cpus=4)
"""
SCRIPT = (
    textwrap.dedent(BY_VALUE)
    + textwrap.dedent(END)
    + "connect()\nprint('told', json.dumps(all_checks()))\n"
)
TEST = (
    textwrap.dedent(BY_VALUE)
    + textwrap.dedent(END)
    + textwrap.dedent("""
    def test_all():
        connect()
        out = all_checks()
        print()
        print('told', json.dumps(out))
    """)
)
CONFTEST = "import pytest\npytest.register_assert_rewrite('flat', 'app.kinds')\n"
CELLS = """
    import linecache
    def run(number, text):
        name = f"<ipython-input-{number}-0123456789ab>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        exec(compile(text, name, "exec"), globals())
    text = open("cells.txt").read()
    for number, cell in enumerate(text.split("#%%")):
        run(number, cell)
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def run(folder: Path, cluster: "Started | None", *command: str) -> str:
    """Run Python in a folder, with the cluster, whose workers count as other machines, or alone."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("REMOTELY", "PYTEST"))}
    if cluster is not None:
        environment["CLUSTER"] = f"{cluster.address} {cluster.key}"
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def told(output: str) -> dict[str, Any]:
    line = next(line for line in output.splitlines() if line.startswith("told "))
    found: dict[str, Any] = json.loads(line.removeprefix("told "))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, MODULES)
    return tmp_path


WAYS: dict[str, tuple[dict[str, str], list[str]]] = {
    "a script": ({"script.py": SCRIPT}, ["script.py"]),
    "python -m, alone": ({"app/main.py": SCRIPT}, ["-m", "app.main"]),
    "pytest": (
        {
            "conftest.py": CONFTEST,
            "tests/deep/test_it.py": TEST,
            "pytest.ini": "[pytest]\npythonpath = .",
        },
        ["-m", "pytest", "-qs", "-p", "no:cacheprovider", "--import-mode=importlib"],
    ),
    "cells": ({"cells.py": CELLS, "cells.txt": SCRIPT.replace("\n\n", "\n#%%\n")}, ["cells.py"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_class_is_the_same_class_in_an_actor(
    request: pytest.FixtureRequest, folder: Path, way: str
) -> None:
    files, command = WAYS[way]
    write(folder, files)
    cluster = None if "alone" in way else request.getfixturevalue("started")
    out = told(run(folder, cluster, *command))
    assert len(out) == 16
    assert out == dict.fromkeys(out, True)


def script(text: str) -> dict[str, str]:
    start = textwrap.dedent("import remotely\n") + textwrap.dedent(END) + "connect()\n"
    return {"script.py": start + textwrap.dedent(text)}


def test_a_module_loaded_later_by_the_script_is_sent_before_the_call(
    started: Started, folder: Path
) -> None:
    write(folder, {"late.py": "import app.kinds\nclass Late:\n    color = app.kinds.Color.RED\n"})
    text = """
        from app.checks import Checker
        actor, other = remotely.group(Checker, 2)
        import late
        out = {}
        out["argument"] = actor.run(lambda x: type(x) is late.Late, late.Late())
        out["of one module"] = actor.is_red(late.Late.color)
        out["put"] = other.run(type, remotely.put(late.Late())) is late.Late
        print("told", json.dumps(out))
        """
    write(folder, script(text))
    out = told(run(folder, started, "script.py"))
    assert out == dict.fromkeys(out, True)


def test_an_actor_forwards_modules_that_it_was_sent(started: Started, folder: Path) -> None:
    write(
        folder,
        {
            "maker.py": """
                import remotely
                from app.checks import Checker, checks
                @remotely.remote_class
                class Maker:
                    def checks(self):
                        return checks(Checker())
                    def of(self, actor):
                        from app import lazy
                        return actor.is_red(lazy.RED)
                """
        },
    )
    text = """
        import maker
        made = maker.Maker()
        out = made.checks()
        out["borrowed"] = made.of(maker.Checker())
        print("told", json.dumps(out))
        """
    write(folder, script(text))
    out = told(run(folder, started, "script.py"))
    assert len(out) == 11
    assert out == dict.fromkeys(out, True)


def test_a_script_uses_an_actor_whose_module_it_does_not_have(
    started: Started, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    text = """
        from app.checks import Checker
        remotely.options(Checker, name="found", detached=True)()
        """
    write(folder, script(text))
    run(folder, started, "script.py")
    text = """
        actor = remotely.get_actor("found")
        point = actor.point()
        import app.kinds
        out = {"theirs": type(point) is app.kinds.Point, "isinstance": actor.is_point(point)}
        remotely.close(actor)
        print("told", json.dumps(out))
        """
    write(elsewhere, script(text))
    out = told(run(elsewhere, started, "script.py"))
    assert out == dict.fromkeys(out, True)


def test_a_remote_traceback_shows_the_line_and_how_to_send_a_missing_module(
    started: Started, folder: Path
) -> None:
    write(folder, {"beside.py": ""})
    text = """
        def needs():
            import beside
        from app.checks import Checker, MyErr
        actor = Checker()
        try:
            actor.run(needs)
        except ModuleNotFoundError as error:
            out = {"module": 'connect(ship=["beside.py"])' in str(error.__cause__)}
        try:
            actor.fail()
        except MyErr as error:
            remote = str(error.__cause__)
            out["line"] = 'raise MyErr("no")' in remote and "actors.py" in remote
        print("told", json.dumps(out))
        """
    write(folder, script(text))
    assert told(run(folder, started, "script.py")) == {"module": True, "line": True}


def test_top_level_code_of_a_module_runs_in_actors_except_making_actors(
    started: Started, folder: Path
) -> None:
    write(
        folder,
        {
            "top.py": """
                import sys
                import remotely
                @remotely.remote_class
                class Top:
                    def argv(self):
                        return sys.argv[1:]
                """,
            "eager.py": """
                import remotely
                import top
                if not remotely.is_connected():
                    remotely.connect(cpus=4)
                actor = top.Top()
                @remotely.remote_class
                class Eager:
                    pass
                """,
        },
    )
    text = """
        import eager
        out = {"arguments": eager.actor.argv() == ["--one", "2"]}
        try:
            eager.Eager()
        except remotely.RemotelyError as error:
            out["refused"] = "the module eager creates an actor when it is imported" in str(error)
        print("told", json.dumps(out))
        """
    write(folder, script(text))
    out = told(run(folder, started, "script.py", "--one", "2"))
    assert out == {"arguments": True, "refused": True}


def test_a_reloaded_module_only_changes_new_actors(started: Started, folder: Path) -> None:
    write(folder, {"config.py": "RATE = 1\n"})
    text = """
        import importlib, pathlib
        from app.checks import Checker
        import config
        old = Checker()
        rate = lambda: __import__("config").RATE
        out = {"first": old.run(rate) == 1}
        pathlib.Path("config.py").write_text("RATE = 22\\n")
        out["edited"] = Checker().run(rate) == 1
        importlib.reload(config)
        out["reloaded"] = Checker().run(rate) == 22
        out["kept"] = old.run(rate) == 1
        print("told", json.dumps(out))
        """
    write(folder, script(text))
    out = told(run(folder, started, "script.py"))
    assert out == dict.fromkeys(out, True)


def test_a_module_named_like_one_of_the_standard_library_is_sent_by_value(
    started: Started, folder: Path
) -> None:
    taken = """
        class Mine:
            value = 3
        def double(mine):
            return Mine, isinstance(mine, Mine) and 2 * mine.value
        """
    write(folder, {"statistics.py": taken, "wave.py": taken, "wave_user.py": "import wave\n"})
    text = """
        import statistics
        from wave import Mine
        import wave_user

        @remotely.remote_class
        class Actor:
            def double(self, mine):
                return statistics.double(mine)[1]
            def double_wave(self, mine):
                return isinstance(mine, Mine) and mine.value
            def median(self):  # the name is the standard library's over there
                import statistics
                return statistics.median([1, 2, 30])
            def made(self):
                return statistics.Mine()

        actor = Actor()
        out = {"function": actor.double(statistics.Mine()) == 6}
        out["class"] = actor.double_wave(Mine()) == 3
        out["library"] = actor.median() == 2
        out["result"] = type(actor.made()).__name__ == "Mine"
        print("told", json.dumps(out))
        """
    write(folder, script(text))
    out = told(run(folder, started, "script.py"))
    assert out == dict.fromkeys(out, True)
