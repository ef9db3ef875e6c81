"""Environments for actors: found interpreters, and packages installed once."""

import json
import os
import subprocess
import sys
import threading
import urllib.parse
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remotely.errors import RemotelyError
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
    found, _ = environments.command(python, packages, {}, ["-c", "pass"], busy)
    return found


def release(key: str) -> None:
    """Let go of an environment as the end of this process would."""
    for entry in Path("/proc/self/fd").iterdir():
        if os.path.realpath(entry) == str(environments.folder() / key / MADE):
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
    found, variables = environments.command(
        sys.executable, (), {}, ["-c", "import remotely; print(remotely.__file__)"], quiet
    )
    said = subprocess.run(found, env=variables, capture_output=True, text=True, cwd="/")
    ours = Path(environments.__file__).parents[1] / "__init__.py"
    assert os.path.samefile(said.stdout.strip(), ours)


def test_variables_of_an_interpreter_are_those_given_for_it_and_not_those_of_this_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("PYTHONHOME", "/ours")
    monkeypatch.setenv("OTHER", "kept")
    _, variables = environments.command(sys.executable, (), {"PYTHONPATH": "/theirs"}, (), quiet)
    assert variables["PYTHONPATH"].split(os.pathsep)[1:] == ["/theirs"]
    assert "PYTHONHOME" not in variables
    assert variables["OTHER"] == "kept"


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


def test_the_packages_of_this_interpreter_are_not_those_of_another(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_in(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert environments.probed(sys.executable, ["toy>=1"], {})[1] == ["toy"]


def test_what_remotely_needs_may_be_where_the_actors_own_variables_say(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_in(tmp_path)
    monkeypatch.setattr(environments, "requirements", lambda: ("toy>=1",))
    given = {"PYTHONPATH": str(tmp_path)}
    assert environments.command(sys.executable, (), given, (), quiet)[0][0] == sys.executable


def installed_in(folder: Path) -> None:
    """Put a distribution `toy` into a folder."""
    (info := folder / "toy-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0")


def test_an_interpreter_that_cannot_start_says_why_and_one_may_print_a_banner(
    cache: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'libpython.so: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(NoEnvironment, match=r"runs here: libpython\.so: cannot open"):
        command(python=str(broken))
    assert command(python=fake(tmp_path, "welcome\n" + json.dumps([[3, 12, 1], [], "p"])))
    with pytest.raises(NoEnvironment, match="runs here: it does not tell its version, but nothing"):
        command(python="/bin/true")


def test_what_is_there_and_no_interpreter_is_not_said_to_be_missing(
    cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").touch(mode=0o644)
    with pytest.raises(NoEnvironment, match="is a folder, no interpreter"):
        command(python=str(tmp_path))
    with pytest.raises(NoEnvironment, match="may not be executed, no interpreter"):
        command(python=str(tmp_path / "text"))


def test_a_check_tells_what_cannot_be_had_and_makes_and_fetches_nothing(
    installs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoEnvironment, match="no interpreter '/nowhere'"):
        environments.check("/nowhere", ["six"])
    with pytest.raises(NoEnvironment, match="is no Python that runs here"):
        environments.check(fake(tmp_path, "hello"), ["six"])
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\n[ $2 = find ] || touch {tmp_path}/fetched\nexit 1\n")
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    environments.check("3.99", ["six"])
    environments.check("", ["six"])
    assert not (tmp_path / "fetched").exists()
    assert not installs


def test_a_relative_path_is_that_from_here(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, [[3, 12, 1], [], "p"])
    monkeypatch.chdir(tmp_path)
    assert command(python="./python")[0] == str(tmp_path / "python")


def test_uv_is_given_time_to_fetch_a_version_and_says_why_it_cannot(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\n[ "$2" = find ] || { sleep 0.5; echo "no network"; }\nexit 1\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said: list[str] = []
    with pytest.raises(NoEnvironment, match=r"no Python 3\.99 .*\n.*no network"):
        command(python="3.99", busy=said.append)
    assert said[:2] == ["uv fetches Python 3.99", ""]


def test_where_files_cannot_be_locked_the_variable_to_set_is_named(
    installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: object, **options: object) -> Any:
        raise RemotelyError("no locks")

    monkeypatch.setattr(file_lock, "locked", none)
    with pytest.raises(NoEnvironment, match="set XDG_CACHE_HOME"):
        command("a")


def test_where_remotely_is_not_installed_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(NoEnvironment, match="install it for the worker"):
        environments.requirements()


# --- packages -------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_packages_are_installed_once_and_imported_there(cache: Path, tmp_path: Path) -> None:
    said: list[str] = []
    package = str(wheel(tmp_path))
    for _ in range(2):
        found, _ = environments.command(
            "", [package], {}, ["-c", "import toy; print(toy.VERSION)"], said.append
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


def test_other_packages_make_another_and_their_order_does_not(installs: list[list[str]]) -> None:
    keys = {
        Path(command(*names)[0]).parents[1].name for names in (["a"], ["b"], ["a", "b"], ["b", "a"])
    }
    assert len(keys) == 3


WAYS_TO_NAME = (
    "{path}",
    "{path}[more]",
    "file://{path}",
    "toy @ file://{path}",
    "toy[more]@file://{path}#egg=toy ; python_version > '3'",
    "file://{path}; python_version > '3'",
    "toy @ {path}",
    "{path};python_version>'3'",
    "./{name}",
    "{name}",
    "${{FOLDER}}/{name}",
    "file:${{FOLDER}}/{name}",
    "toy @ ~/{name}",
)


@pytest.mark.parametrize("way", WAYS_TO_NAME)
def test_another_content_makes_another_however_it_is_named(
    way: str, installs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "a folder").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    path = wheel(folder)
    at = urllib.parse.quote(str(path)) if "file:" in way else str(path)
    package = way.format(path=at, name=path.name)
    before = command(package)[0]
    path.write_bytes(path.read_bytes() + b" ")
    assert command(package)[0] != before
    assert command(package)[0] == command(package)[0]


@pytest.mark.parametrize("way", [way for way in WAYS_TO_NAME if "{path}" in way])
def test_a_folder_is_no_package(way: str, installs: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(NoEnvironment, match="whose content may change: build a wheel"):
        command(way.format(path=tmp_path))


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


def test_a_look_at_whether_one_is_used_refuses_no_process_that_begins_to_use_it(
    installs: list[list[str]],
) -> None:
    key = Path(command("a")[0]).parents[1].name
    release(key)
    looks = file_lock.hold(environments.folder() / key / MADE)
    waits = threading.Event()
    other = threading.Thread(target=command, args=("a",), kwargs={"busy": lambda _: waits.set()})
    other.start()
    assert waits.wait(30)
    os.close(looks)
    other.join(30)
    assert [one.is_used for one in environments.made()] == [True]


def test_one_whose_removal_was_cut_off_is_made_anew(
    installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Path(command("a")[0]).parents[1].name
    release(key)

    def cut_off(place: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(environments.shutil, "rmtree", cut_off)
        with pytest.raises(KeyboardInterrupt):
            environments.remove(key)
    command("a")
    assert len(installs) == 2


def test_what_was_not_finished_is_removed(
    installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = environments.folder() / "0123456789abcdef"
    (left / "lib").mkdir(parents=True)
    code = environments.folder() / "code"
    code.mkdir()
    command("a")
    assert not left.exists()
    assert code.exists()

    def fail(place: Path, *arguments: object) -> None:
        place.mkdir()
        raise NoEnvironment("the disk is full")

    monkeypatch.setattr(environments, "_make", fail)
    with pytest.raises(NoEnvironment):
        command("b")
    assert {path.name for path in environments.folder().glob("*/")} - {"code"} == {
        one.key for one in environments.made()
    }


def test_a_package_may_have_the_name_of_a_folder_or_file(
    installs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "six").touch()
    monkeypatch.chdir(tmp_path)
    command("toy", "six")
    assert installs == [["toy", "six"]]
    assert environments.resolved("six") == "six"


def test_a_relative_path_is_installed_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environments.resolved("./toy-1.0.zip[more] ; os_name") == (
        f"{tmp_path}/toy-1.0.zip[more] ; os_name"
    )
    for elsewhere in ("toy @ file:///a/b.whl", "git+https://a/b@c", "six>=1 ; os_name", "a[b]"):
        assert environments.resolved(elsewhere) == elsewhere


def test_variables_and_a_home_folder_are_replaced_before_the_installer_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/of/me")
    monkeypatch.setenv("TOKEN", "secret")
    assert environments.resolved("${HOME}/toy.whl") == "/of/me/toy.whl"
    assert environments.resolved("toy @ ~/toy.whl") == "toy @ /of/me/toy.whl"
    assert environments.resolved("https://${TOKEN}@a/~b.whl") == "https://secret@a/~b.whl"
    assert environments.resolved("toy~=1.0") == "toy~=1.0"


def test_a_variable_that_is_not_set_is_named(
    installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(
        NoEnvironment, match="NOWHERE is unset or empty, both in env= and for the worker"
    ):
        command("${NOWHERE}/toy.whl")
    assert installs == []


def test_an_environment_does_not_depend_on_who_fetches_its_packages(
    installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("first", "second"):
        monkeypatch.setenv("TOKEN", token)
        command("https://me:${TOKEN}@host/toy-1.0.tar.gz")
    command("https://other/toy-1.0.tar.gz")
    assert len(installs) == 2


def test_an_installer_ends_with_who_waits_for_it(cache: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def busy(what: str) -> None:
        if pid.exists() and pid.read_text().endswith("\n"):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        environments._ran(["sh", "-c", f"echo $$ > {pid}; exec sleep 60"], busy)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_what_is_replaced_is_another_environment(tmp_path: Path) -> None:
    made = wheel(tmp_path)
    options = sys.executable, ["six", f"toy @ {made.as_uri()}"]
    before = environments.stamps(*options)
    assert before == environments.stamps(*options)
    made.write_bytes(b"another")
    interpreter, package = environments.stamps(*options)
    assert interpreter == before[0]
    assert package != before[1]


def test_what_names_no_path_has_no_stamp() -> None:
    packages = ["toy @ file://[x", "/a\0.whl", "/nowhere/a.whl", "${NOWHERE}/a.whl", "six"]
    assert environments.stamps("3.12", packages) == ()
