"""Environments for actors: found interpreters, and packages installed once."""

import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remotely.machine import environments, file_lock
from remotely.machine.environments import MADE, NoEnvironment


def quiet(what: str) -> None:
    pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a requirement that every interpreter meets: none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "requirements", lambda: ())
    return environments.folder()


@pytest.fixture
def installs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is installed, by an installer that only makes the interpreter."""
    done: list[list[str]] = []

    def make(place: Path, interpreter: str, packages: Sequence[str], needs: Any, busy: Any) -> None:
        done.append(list(packages))
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environments, "_make", make)
    return done


def command(*packages: str, python: str = "", busy: Any = quiet) -> list[str]:
    """Return the command of a process that has ended."""
    found, _ = environments.command(python, packages, ["-c", "pass"], busy)
    return found


def release(key: str) -> None:
    """Let go of an environment as the end of this process would."""
    for entry in Path("/proc/self/fd").iterdir():
        if os.path.realpath(entry) == str(environments.folder() / key):
            os.close(int(entry.name))


def wheel(folder: Path, name: str = "toy", version: str = "1.0") -> Path:
    """Return a package with one module, which has its version."""
    made = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\nRoot-Is-Purelib: true"
        )
        archive.writestr(f"{info}/RECORD", "")
    return made


# --- interpreters ---------------------------------------------------------------------------------


def test_an_interpreter_runs_this_remotely_whatever_it_has_itself(cache: Path) -> None:
    found, more = environments.command(
        sys.executable, (), ["-c", "import remotely; print(remotely.__file__)"], quiet
    )
    said = subprocess.run(
        found, env={**os.environ, **more}, capture_output=True, text=True, cwd="/"
    )
    ours = Path(environments.__file__).parents[1] / "__init__.py"
    assert os.path.samefile(said.stdout.strip(), ours)


def fake(folder: Path, says: object) -> str:
    """Return a program that answers the probe."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\necho '{says if isinstance(says, str) else json.dumps(says)}'\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ([[3, 9, 18], [], "p"], "is Python 3.9.18, and remotely runs on 3.11 or newer"),
        (
            [[3, 12, 1], ["pyzmq"], "p"],
            "has no pyzmq, which remotely needs: run .* install 'pyzmq>=26'",
        ),
        ("hello", "is no Python that runs here"),
    ],
)
def test_an_interpreter_that_cannot_run_an_actor_is_refused_with_what_to_do(
    says: object, why: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "requirements", lambda: ("pyzmq>=26",))
    with pytest.raises(NoEnvironment, match=why):
        command(python=fake(tmp_path, says))


@pytest.mark.parametrize(
    ("python", "why"),
    [("/nowhere/python", "there is no interpreter '/nowhere/python'"), ("3.99", "no Python 3.99")],
)
def test_an_interpreter_that_is_not_there_is_named(python: str, why: str, cache: Path) -> None:
    with pytest.raises(NoEnvironment, match=why):
        command(python=python)


def test_what_remotely_needs_is_read_from_its_own_metadata() -> None:
    needs = environments.requirements()
    assert any(each.startswith("pyzmq") for each in needs)
    assert not any("torch" in each for each in needs)


# --- packages -------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_packages_are_installed_once_and_imported_there(cache: Path, tmp_path: Path) -> None:
    said: list[str] = []
    package = str(wheel(tmp_path))
    for _ in range(2):
        found, _ = environments.command(
            "", [package], ["-c", "import toy; print(toy.VERSION)"], said.append
        )
        done = subprocess.run(found, capture_output=True, text=True)
        assert done.stdout == "1.0\n"
    told = [each for each in said if each]
    assert len(told) == 2
    assert told[0].startswith(f"making an environment for {sys.executable} with ")
    (one,) = environments.made()
    assert one.packages == (package,)
    assert one.is_used
    assert one.nbytes > 0


@pytest.mark.timeout(120)
def test_a_package_that_cannot_be_installed_fails_with_the_installers_last_lines(
    cache: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "toy-1.0-py3-none-any.whl"
    broken.write_text("no archive")
    with pytest.raises(NoEnvironment, match=r"(?s)no environment with .* could be made:\n.*toy"):
        command(str(broken))
    assert environments.made() == []


def test_other_packages_another_interpreter_and_another_content_make_another(
    installs: list[list[str]], tmp_path: Path
) -> None:
    package = wheel(tmp_path)
    keys = {
        Path(command(*names)[0]).parents[1].name for names in (["a"], ["b"], ["a", "b"], ["b", "a"])
    }
    keys.add(Path(command(str(package))[0]).parents[1].name)
    package.write_bytes(package.read_bytes() + b" ")
    keys.add(Path(command(str(package))[0]).parents[1].name)
    assert len(keys) == 5  # the order says nothing


def test_a_folder_is_no_package(installs: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(NoEnvironment, match="whose content may change: build a wheel"):
        command(str(tmp_path))


def test_one_that_was_not_finished_is_made_anew(installs: list[list[str]]) -> None:
    place = Path(command("a")[0]).parents[1]
    (place / MADE).unlink()
    command("a")
    assert len(installs) == 2


def test_of_several_that_ask_at_once_one_makes_it_and_the_others_wait(
    installs: list[list[str]],
) -> None:
    key = Path(command("a")[0]).parents[1].name
    (environments.folder() / key / MADE).unlink()
    waits = threading.Event()
    with file_lock.locked(environments._lock_of(key)):
        other = threading.Thread(
            target=command, args=("a",), kwargs={"busy": lambda _: waits.set()}
        )
        other.start()
        assert waits.wait(30)
    other.join(30)
    assert len(installs) == 2


def test_one_in_use_is_not_removed(installs: list[list[str]]) -> None:
    key = Path(command("a")[0]).parents[1].name
    assert not environments.remove(key)
    release(key)
    assert environments.remove(key)
    assert environments.remove(key)  # it is gone already
    assert environments.made() == []


def test_of_those_that_no_process_uses_the_last_ones_are_kept(
    installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "MOST_KEPT", 2)
    for number, name in enumerate("abcd"):
        key = Path(command(name)[0]).parents[1].name
        os.utime(environments.folder() / key / MADE, (number, number))
        release(key)
    command("e")
    assert [one.packages for one in environments.made()] == [("e",), ("d",), ("c",)]
