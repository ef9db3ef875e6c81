"""The wheel: its contents, and that it works without the repository."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clusters import free_port
from tools import release

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 1_350_000  # bytes of the wheel; docs/compatibility.md says what takes them
RUNS = {".py", ".typed", ".html", ".css", ".js", ".svg", ".LICENSE"}  # all that is not metadata
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
SCRIPT = """
import remotely

@remotely.remote_class
class Counter:
    def add(self, n):
        return n + 1

print(Counter().add(1), remotely.__file__)
"""

# Prints the package folders of a Python that has the dependencies of the wheel.
NEEDED = (
    "import sys, zmq; print(*(path for path in sys.path if path.endswith('-packages')), sep='\\n')"
)

# Appended to README's first example, for type checkers: known types, and errors.
CHECKED = """
from typing import assert_type

assert_type(counter.add(1), int)
assert_type(future, remotely.Future[int])
assert_type([done.result() for done in remotely.as_completed([future])], list[int])
assert_type(remotely.get_actor("counter", Counter), Counter)
counter.add("x")  # wrong
counter.add.submit(1, 2)  # wrong
counter.add.sumbit(1)  # wrong
future.result().append(1)  # wrong
"""
CHECKERS = {
    "mypy": ["--strict", "--config-file=", "--python-executable"],
    "basedpyright": ["--level", "error", "--pythonpath"],
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    release.build(folder)
    (path,) = folder.glob("*.whl")
    return path


def install(wheel: Path, folder: Path, python: str = sys.executable) -> Path:
    """Install the wheel into a new environment, with the dependencies of an existing Python.

    Returns the folder of its commands.  Skips the test without that Python or the dependencies.
    """
    needed = subprocess.run(
        [shutil.which(python) or "false", "-c", NEEDED], capture_output=True, text=True, check=False
    )
    if needed.returncode:
        pytest.skip(f"there is no {python} here with what the wheel needs")
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(needed.stdout)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    options = ["-qq", "--no-index", "--no-deps", "--ignore-installed"]
    subprocess.run([*pip, *options, wheel], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment of this Python."""
    return install(wheel, tmp_path_factory.mktemp("environment") / "venv")


def run(
    commands: Path, folder: Path, *command: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command of an environment in a folder, without any of our variables."""
    ours = ("REMOTELY", "PYTEST", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [commands / command[0], *command[1:]],
        cwd=folder,
        env={**kept, "REMOTELY_HOME": str(folder / "home"), **variables},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_the_wheel_has_only_the_two_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        "remotely",
        "remotely_rl",
        "remotely_actors",
    }
    assert {Path(name).suffix for name in names if ".dist-info/" not in name} == RUNS
    assert {"remotely/py.typed", "remotely_rl/py.typed"} <= set(names)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < LARGEST


def test_the_wheel_lists_vendored_files_with_their_published_hashes(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (bill,) = (name for name in archive.namelist() if ".dist-info/sboms/" in name)
        vendored = json.loads(archive.read(bill))["components"]
        for library in vendored:
            for file in library["components"]:
                content = archive.read(f"remotely_rl/dashboard/static/{file['name']}")
                assert file["hashes"][0]["content"] == hashlib.sha256(content).hexdigest()
                if file["name"].endswith(".js"):
                    assert f"(v{library['version']})" in content.decode().partition("\n")[0]
        listed = {file["name"] for library in vendored for file in library["components"]}
        foreign = {
            name for name in archive.namelist() if ".min." in name or name.endswith(".LICENSE")
        }
    assert listed == {Path(name).name for name in foreign}


def test_two_builds_are_equal(wheel: Path, tmp_path: Path) -> None:
    built = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheel.parent.iterdir()
    }
    assert release.build(tmp_path) == built


@pytest.mark.parametrize("python", PYTHONS)
def test_a_cluster_from_the_wheel_runs_a_call(wheel: Path, tmp_path: Path, python: str) -> None:
    is_this = python == f"python{sys.version_info.major}.{sys.version_info.minor}"
    commands = install(wheel, tmp_path / "venv", sys.executable if is_this else python)
    (tmp_path / "script.py").write_text(SCRIPT)
    port = str(free_port())
    started = run(commands, tmp_path, "remotely", "start", "--port", port, "--cpus", "1")
    assert started.returncode == 0, started.stderr
    try:
        at = {"REMOTELY_ADDRESS": f"127.0.0.1:{port}"}
        done = run(commands, tmp_path, "python", "script.py", **at)
    finally:
        stopped = run(commands, tmp_path, "remotely", "stop", "--port", port)
    assert re.fullmatch(rf"2 {tmp_path}/venv/\S+\n", done.stdout), done.stderr
    assert stopped.returncode == 0, stopped.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_find_exactly_the_errors_in_a_users_script(
    installed: Path, tmp_path: Path, checker: str
) -> None:
    pytest.importorskip(checker)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    script = page.partition("```python\n")[2].partition("```")[0] + CHECKED
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", checker, *CHECKERS[checker], installed / "python", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line) for line in re.findall(r"script\.py:(\d+):.*error", done.stdout)}
    lines = script.splitlines()
    assert [lines[n - 1] for n in sorted(found)] == [x for x in lines if x.endswith("# wrong")]


@pytest.mark.skipif(not find_spec("torch"), reason="there is no torch here")
def test_an_agent_trains_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    options = ("--env", "CartPole-v1", "--total-steps", "1024", "--actors", "1")
    done = run(installed, tmp_path, "remotely-rl", "train", "ppo", *options)
    assert done.returncode == 0, done.stderr
    assert re.search(r"the run is in runs/ppo-CartPole-v1-\d+", done.stdout)


@pytest.mark.parametrize("package", ["torch", "gymnasium"])
def test_training_without_its_extra_says_what_to_install(
    installed: Path, tmp_path: Path, package: str
) -> None:
    if package != "torch" and not find_spec("torch"):
        pytest.skip("torch is not here either, and is named first")
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(name={package!r})")
    at = {"PYTHONPATH": str(tmp_path)}
    done = run(installed, tmp_path, "remotely-rl", "train", "ppo", "--env", "CartPole-v1", **at)
    assert done.returncode == 1
    assert f"remotely_rl needs {package}, which is not installed: pip install" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(installed, tmp_path, "python", "-c", "import remotely_rl; remotely_rl.ppo")
    assert "pip install '.[rl]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("version", "tags", "heading", "changed", "why"),
    [
        ("1.0", ["v1.0"], "## [1.0] - 2027-01-01", [], ""),
        ("1.0", ["v1.0"], "## [1.0] - 2027-01-01", ["README.md"], "not committed: README.md"),
        ("1.1", ["v1.1"], "## [1.0] - 2027-01-01", [], "CHANGELOG.md is 1.0, and that"),
        ("1.0", ["v1.0"], "## [Unreleased]", [], "CHANGELOG.md is none"),
        ("1.0", [], "## [1.0] - 2027-01-01", [], "no tag v1.0, but none"),
        ("1.0", ["v0.9"], "## [1.0] - 2027-01-01", [], "no tag v1.0, but v0.9"),
    ],
)
def test_a_release_is_refused_unless_tag_changelog_and_version_agree(
    version: str, tags: list[str], heading: str, changed: list[str], why: str
) -> None:
    assert why in release.obstacle(version, tags, f"# Changelog\n\n{heading}\n", changed)
    assert bool(release.obstacle(version, tags, heading, changed)) == bool(why)
