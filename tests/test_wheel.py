"""The wheel: what is in it, and that it works where the repository is not."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tools import release

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 1 << 20  # bytes of the wheel; docs/compatibility.md says what takes them
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

# Behind README's first example, for type checkers: what they are to know, and mistakes.
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


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """A folder with what the wheel has; what it needs is of this environment."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def run(
    site: Path, *command: str, python: str = sys.executable
) -> "subprocess.CompletedProcess[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("REMOTELY", "PYTEST"))}
    environment = {**kept, "PYTHONPATH": str(site), "REMOTELY_HOME": str(site.parent / "home")}
    return subprocess.run(
        [python, *command], cwd=site.parent, env=environment,
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_the_wheel_has_the_two_packages_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        "remotely", "remotely_rl", "remotely_actors",
    }  # fmt: skip
    assert {Path(name).suffix for name in names if ".dist-info/" not in name} == RUNS
    assert {"remotely/py.typed", "remotely_rl/py.typed"} <= set(names)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < LARGEST


def test_the_wheel_says_what_is_vendored_as_it_was_published(wheel: Path) -> None:
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
    assert release.build(tmp_path) == release.build(tmp_path / "again")


@pytest.mark.parametrize("python", PYTHONS)
def test_a_class_runs_remotely_from_the_wheel(installed: Path, python: str) -> None:
    if python == f"python{sys.version_info.major}.{sys.version_info.minor}":
        python = sys.executable
    elif not shutil.which(python) or run(installed, "-c", "import zmq", python=python).returncode:
        pytest.skip(f"there is no {python} here with what the wheel needs")
    (installed.parent / "script.py").write_text(SCRIPT)
    done = run(installed, "script.py", python=python)
    assert done.stdout == f"2 {installed}/remotely/__init__.py\n", done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_find_the_mistakes_in_a_users_script_and_no_others(
    wheel: Path, tmp_path: Path, checker: str
) -> None:
    pytest.importorskip(checker)
    venv.create(tmp_path / "venv")  # checkers take what is installed for typed, and no folder
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    needed = [path for path in sys.path if path.endswith("-packages")]
    (site / "needed.pth").write_text("\n".join(needed))
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    script = page.partition("```python\n")[2].partition("```")[0] + CHECKED
    (tmp_path / "script.py").write_text(script)
    python = str(tmp_path / "venv" / "bin" / "python")
    done = run(tmp_path / "none", "-m", checker, *CHECKERS[checker], python, "script.py")
    found = {int(line) for line in re.findall(r"script\.py:(\d+):.*error", done.stdout)}
    lines = script.splitlines()
    assert [lines[n - 1] for n in sorted(found)] == [x for x in lines if x.endswith("# wrong")]


@pytest.mark.slow
def test_an_agent_trains_from_the_wheel(installed: Path) -> None:
    done = run(
        installed, "-m", "remotely_rl.cli", "train", "ppo", "--env", "CartPole-v1",
        "--total-steps", "20000", "--actors", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"the run is in runs/ppo-CartPole-v1-\d+", done.stdout)


@pytest.mark.parametrize("package", ["torch", "gymnasium"])
def test_training_without_its_extra_says_what_to_install(installed: Path, package: str) -> None:
    without = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['remotely-rl', *sys.argv[1:]]"
    )
    main = "from remotely_rl.cli import main; main()"
    done = run(installed, "-c", f"{without}; {main}", "train", "ppo", "--env", "CartPole-v1")
    assert done.returncode == 1
    assert f"remotely_rl needs {package}, which is not installed: pip install" in done.stderr
    assert "Traceback" not in done.stderr
    name = "import remotely_rl; remotely_rl.ppo"
    done = run(installed, "-c", f"import sys; sys.modules[{package!r}] = None; {name}")
    assert "pip install 'remotely-actors[rl]'" in done.stderr.splitlines()[-1]


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
