"""The wheel: what is in it, and that it works where the repository is not."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import release

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
SCRIPT = """
import remotely

@remotely.remote_class
class Counter:
    def add(self, n):
        return n + 1

print(Counter().add(1), remotely.__file__)
"""


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
    assert {"remotely/py.typed", "remotely_rl/py.typed"} <= set(names)
    assert wheel.name.endswith("-py3-none-any.whl")


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
