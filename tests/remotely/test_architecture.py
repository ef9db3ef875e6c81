"""Rules for what each file may import and call, checked on its syntax tree."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "remotely"
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# These only depend on their arguments.
PURE = (
    "errors",
    *(file for file in FILES if file.startswith("protocol.")),
    *(file for file in FILES if file.startswith("reporting.")),
    *(
        file
        for file in FILES
        if file.startswith("master.") and file not in ("master.master", "master.__main__")
    ),
    "client.relay_plan",
    "values.version_chain",
    "values.codec",
    "values.unpicklable",
    "values.script_globals",
    "values.blocks",
    "values.layout",
    "values.in_transit",
    "values.made_class",
    "arguments",
    "other_names",
    "objects.batching",
    "objects.marks",
    "objects.members",
    "futures.unretrieved",
    "ops.launchers",
    "dashboard.access",
    "dashboard.rows",
    "dashboard.own_sums",
)
IMPURE = {"zmq", "time", "os", "socket", "threading", "asyncio", "select", "subprocess", "signal"}

# Files that pure ones import besides each other: the picklers look up the location of modules, and
# errors of signal handlers are told by the handlers that are installed.
REACHED = {"values.picklers", "machine.interrupts"}

# The single unpickling function is codec.decode.
LOADERS = {"loads", "load", "Unpickler"}
PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}

# The wall clock may jump.  It is only read for times that are shown to users:
WALL_CLOCK_FOR_PEOPLE = {
    ("worker.spawner", "time.time"),  # the start of an actor, in `remotely status`
    ("guest.guest", "time.time"),  # the start of a guest
    ("cli.inspect", "time.time"),  # how long ago that is
    ("cli.environments", "time.time"),
    *(("cli.operate", f"time.{name}") for name in ("time", "localtime", "strftime")),  # events
    ("dashboard.app", "time.time"),
}
WALL_CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "time.ctime",
    "time.strftime",
    "datetime.now",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.date.today",
}

STDLIB_AND_CORE = sys.stdlib_module_names | {
    "remotely",
    "click",
    "cloudpickle",
    "cryptography",
    "msgspec",
    "psutil",
    "threadpoolctl",
    "zmq",
}
# Imports of the files for optional libraries.
WITH_OPTIONAL = {
    "pools.joblib_backend": {"joblib", "numpy"},
    "actor.plasma_values": {"ray", "numpy"},  # of an actor that Ray has started
    **{stem: {"ray", "numpy"} for stem in FILES if stem.startswith("engines.ray.")},
    "calling.tracing": {"opentelemetry"},
    "dashboard.app": {"starlette"},
    "dashboard.files": {"starlette"},
    "dashboard.prometheus": {"prometheus_client"},
    "dashboard.connections": {"uvicorn"},
    "dashboard.server": {"starlette", "uvicorn"},
}


@cache
def tree_of(stem: str) -> ast.Module:
    return ast.parse(FILES[stem].read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of all modules that the tree imports, except for annotations."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING":
            todo.extend(node.orelse)
            continue
        todo.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports here are absolute"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def at_import(tree: ast.Module) -> ast.Module:
    """Return the part of the tree that runs at import: without functions and TYPE_CHECKING."""

    class Drop(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.If | None:
            return None if dotted(node.test) == "TYPE_CHECKING" else node

    kept: ast.Module = Drop().visit(ast.parse(ast.unparse(tree)))
    return kept


def ours(tree: ast.AST) -> set[str]:
    """Return the files of `remotely` that the tree imports."""
    names = {name.removeprefix("remotely.") for name in imports(tree) if name != "remotely"}
    return names & FILES.keys()


def roots(tree: ast.AST) -> set[str]:
    return {name.partition(".")[0] for name in imports(tree)}


def dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return "?"


def run(script: str) -> str:
    """Run a script in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


# --- pure files -----------------------------------------------------------------------------------


def called(tree: ast.AST) -> set[str]:
    return {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_pure_files_import_no_io() -> None:
    assert [stem for stem in PURE if roots(tree_of(stem)) & IMPURE] == []


def test_pure_files_reach_no_io() -> None:
    reached: set[str] = set()
    todo = set(PURE)
    while todo:
        file = todo.pop()
        reached.add(file)
        todo |= ours(tree_of(file)) - reached
    assert reached == {*PURE, *REACHED}
    assert [file for file in reached if roots(tree_of(file)) & IMPURE] == []


def test_pure_files_open_no_file() -> None:
    acts = {"open", "io.open", "print", "input"}
    assert [stem for stem in PURE if called(tree_of(stem)) & acts] == []


# --- one unpickle site ----------------------------------------------------------------------------


def unpicklers(tree: ast.AST) -> Iterator[str]:
    """Yield every mention of a function that unpickles, called or not, under any alias."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in PICKLES:
                    names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PICKLES:
            yield from (f"{node.module}.{a.name}" for a in node.names if a.name in {*LOADERS, "*"})
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in LOADERS:
            module = dotted(node.value)
            if module in names:
                yield f"{names[module]}.{node.attr}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("recv_pyobj"):
            yield f"zmq's {node.attr}"


def test_only_the_codec_unpickles() -> None:
    found = [(stem, name) for stem in FILES for name in unpicklers(tree_of(stem))]
    assert found == [("values.codec", "pickle.loads")]


def test_only_the_codec_and_the_picklers_import_pickle() -> None:
    knowing = {(stem, name) for stem in FILES for name in roots(tree_of(stem)) & PICKLES}
    assert knowing == {
        ("values.codec", "pickle"),
        ("values.picklers", "pickle"),
        ("errors", "pickle"),  # its error
        ("values.picklers", "cloudpickle"),
        ("values.sources", "marshal"),  # to write what Python itself reads, as it does .pyc files
    }


@pytest.mark.parametrize(
    "line",
    [
        "import pickle as p; p.loads(b'')",
        "from cloudpickle import loads as innocent",
        "import pickle\nread = pickle.Unpickler",
        "import _pickle; _pickle.load(file)",
        "socket.recv_pyobj()",
    ],
)
def test_this_lint_finds_other_ways_to_unpickle(line: str) -> None:
    assert list(unpicklers(ast.parse(line)))


def test_nothing_here_runs_text_as_code() -> None:
    runs = {"eval", "exec", "compile"}
    assert [stem for stem in FILES if called(tree_of(stem)) & runs] == []


# --- layers and dependencies ----------------------------------------------------------------------


def test_imports_between_packages_go_one_way() -> None:
    """The order is data: `[tool.importlinter]` in pyproject.toml."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout


def test_importing_a_file_needs_only_required_dependencies() -> None:
    found = {
        stem: roots(at_import(tree_of(stem))) - STDLIB_AND_CORE - WITH_OPTIONAL.get(stem, set())
        for stem in FILES
    }
    assert {stem: names for stem, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "stem",
    [
        "api.group",
        "api.handle",
        "api.verbs",
        "api.remote_class",
        "engine",
        "engines.in_process",
        "futures.future",
    ],
)
def test_public_objects_do_not_depend_on_zeromq(stem: str) -> None:
    assert "zmq" not in roots(tree_of(stem))
    packages = {file.partition(".")[0] for file in ours(at_import(tree_of(stem)))}
    assert not packages & {"client", "transport", "master", "worker"}


@pytest.mark.parametrize(
    "stem",
    [
        "master.master",
        "worker.worker",
        "actor.zygote",
        *(file for file in FILES if file.startswith("transport.")),
    ],
)
def test_the_daemons_never_unpickle_a_class(stem: str) -> None:
    reached = ours(at_import(tree_of(stem)))
    assert not reached & {"values.codec", "api.remote_class", "api.handle"}


# --- clocks ---------------------------------------------------------------------------------------


def clocks(tree: ast.AST) -> set[str]:
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.ImportFrom) and node.module == "time"), (
            "import the module: time.monotonic() tells the reader which clock it is"
        )
    mentioned = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return mentioned & WALL_CLOCKS


def test_the_wall_clock_is_only_read_for_display() -> None:
    assert {(stem, name) for stem in FILES for name in clocks(tree_of(stem))} == (
        WALL_CLOCK_FOR_PEOPLE
    )


# --- what importing does --------------------------------------------------------------------------


def test_importing_remotely_loads_nothing_heavy() -> None:
    loaded = run(
        "import sys, remotely\n"
        "heavy = {'torch', 'gymnasium', 'ale_py', 'cv2', 'numpy', 'matplotlib', 'zmq',"
        " 'remotely_rl'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    assert loaded == "[]"


def test_importing_remotely_has_no_side_effects() -> None:
    difference = run(
        "import ctypes, os, threading, psutil\n"  # from libffi 3.5 on, ctypes opens its file
        "me = psutil.Process()\n"
        "before = (os.getcwd(), me.num_fds(), me.num_threads(), threading.active_count())\n"
        "import remotely\n"
        "after = (os.getcwd(), me.num_fds(), me.num_threads(), threading.active_count())\n"
        "print(before == after or (before, after))\n"
        "print(me.children())\n"
    )
    assert difference == "True\n[]"


def test_a_local_run_needs_no_zeromq() -> None:
    printed = run(
        "import os, sys\n"
        "os.environ['REMOTELY_LOCAL'] = '1'\n"
        "import remotely\n"
        "@remotely.remote_class\n"
        "class Adder:\n"
        "    def add(self, a, b): return a + b\n"
        "print(Adder().add(1, 2), 'zmq' in sys.modules)"
    )
    assert printed == "3 False"


# --- one way --------------------------------------------------------------------------------------


def mentions(tree: ast.AST) -> set[str]:
    return {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_one_file_makes_threads() -> None:
    def makes(tree: ast.Module) -> bool:
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        bases = {dotted(base) for node in classes for base in node.bases}
        return "threading.Thread" in bases | called(tree)

    assert [stem for stem in FILES if makes(tree_of(stem))] == ["machine.threads"]


def test_one_file_passes_descriptors() -> None:
    passes = {"socket.SCM_RIGHTS", "socket.send_fds", "socket.recv_fds"}
    assert [stem for stem in FILES if mentions(tree_of(stem)) & passes] == ["transport.line"]


def test_a_time_constant_has_one_meaning() -> None:
    """Those that two files share are in protocol/lease.py."""
    places: dict[str, list[str]] = {}
    for stem in FILES:
        for node in tree_of(stem).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for name in {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}:
                if name.endswith("_S"):
                    places.setdefault(name, []).append(stem)
    assert {name: stems for name, stems in places.items() if len(stems) > 1} == {}


def test_modules_are_named_by_strings_only_where_a_process_starts() -> None:
    """The linter of imports does not see these.  The servant names files that tracebacks omit."""
    named = {
        (stem, node.value.removeprefix("remotely."))
        for stem in FILES
        for node in ast.walk(tree_of(stem))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.removeprefix("remotely.") in FILES and node.value.startswith("remotely.")
        if stem != "actor.servant"
    }
    assert named == {
        ("engines.ray.host", "actor.hosted"),
        ("pools.registration", "pools.joblib_backend"),  # once joblib is imported
        ("worker.spawner", "actor.startup"),
        ("worker.zygote_line", "actor.environment"),
        ("worker.zygote_line", "actor.zygote"),
    }


# --- names ----------------------------------------------------------------------------------------

MESSAGE = "a message, which crosses machines under its name"
FOR_USERS = "of a message, and as users see it"
PUBLIC = "a name that users know, in a package of its own"
REMOTE = "a class of actors, which are called by its name in logs"
TWICE = {
    "Config": "one for each algorithm: `ppo.Config`",
    "ActorStatus": FOR_USERS,
    "ClientStatus": FOR_USERS,
    "EndStatus": FOR_USERS,
    "WaitStatus": FOR_USERS,
    "Release": MESSAGE,
    "Shared": MESSAGE,
    "Actor": PUBLIC,
    "Policy": PUBLIC,
    "Stream": PUBLIC,
    "Agent": REMOTE,
    "QActor": REMOTE,
    "Worker": REMOTE,
}


def test_a_noun_names_one_class() -> None:
    places: dict[str, list[str]] = {}
    for root in (PACKAGE, PACKAGE.parent / "remotely_rl"):
        for path in sorted(root.rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in TWICE} == {}
    assert TWICE.keys() <= twice.keys()
