"""Actors in interpreters and environments of their own."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import VersionMismatch
from remotely.values import codec, picklers


@remotely.remote_class
class Look:
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def pid(self) -> int:
        return os.getpid()

    def finds(self, module: str) -> bool:
        return importlib.util.find_spec(module) is not None


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """An interpreter with a name of its own, which sets a variable."""
    file = tmp_path / "their-python"
    file.write_text(f'#!/bin/sh\nTHEIRS=yes exec {sys.executable} "$@"\n')
    file.chmod(0o755)
    return str(file)


def test_an_actor_runs_in_the_interpreter_that_is_named(here: None, interpreter: str) -> None:
    look = remotely.options(Look, python=interpreter, env={"MINE": "too"})()
    assert (look.variable("THEIRS"), look.variable("MINE")) == ("yes", "too")
    assert Look().variable("THEIRS") is None


def test_its_python_path_is_that_of_its_env(here: None, interpreter: str, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").touch()
    look = remotely.options(Look, python=interpreter, env={"PYTHONPATH": str(tmp_path)})()
    assert look.finds("only_there")
    assert look.variable("PYTHONPATH") == str(tmp_path)


def test_the_processes_of_an_executor_have_the_interpreter_that_is_named(
    here: None, interpreter: str
) -> None:
    with remotely.Executor(1, python=interpreter) as executor:
        assert executor.submit(os.getenv, "THEIRS").result() == "yes"


def test_a_next_life_has_the_same_interpreter(here: None, interpreter: str) -> None:
    look = remotely.options(Look, python=interpreter, max_restarts=1)()
    pid = look.pid()
    os.kill(pid, 9)
    for _ in range(2):
        try:
            found = look.variable("THEIRS")
            break
        except remotely.RemotelyError:
            continue
    assert found == "yes"
    assert look.pid() != pid


def test_an_environment_that_cannot_be_had_fails_its_actor_with_the_reason_and_no_other(
    here: None,
) -> None:
    why = "there is no interpreter '/nowhere/python' on "
    with pytest.raises(remotely.NotStartable, match=why):
        remotely.options(Look, python="/nowhere/python")()
    assert Look().variable("THEIRS") is None
    assert not [machine for machine in remotely.status().machines if machine.sick]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"python": 3.12}, "python=3.12 must be a string"),
        ({"packages": "six"}, "packages='six' must be a list"),
        (
            {"packages": ["six", "--pre"]},
            "packages has '--pre', which is no package",
        ),
        ({"packages": [6]}, "packages has 6, which is no package"),
    ],
)
def test_an_option_that_names_no_environment_is_refused(options: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        remotely.options(Look, **options)


def test_code_of_another_python_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = codec.encode(lambda: 1)
    monkeypatch.setattr(picklers, "COMPILED_FOR", "cpython-399")
    with pytest.raises(
        VersionMismatch, match=r"is sent compiled for .*, and this process is cpython-399"
    ):
        codec.decode(encoded.payload, encoded.buffers)


def test_plain_values_travel_between_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = codec.encode({"a": [1, 2.0, None], "b": {3}})
    monkeypatch.setattr(picklers, "COMPILED_FOR", "cpython-399")
    assert codec.decode(encoded.payload, encoded.buffers) == {"a": [1, 2.0, None], "b": {3}}
