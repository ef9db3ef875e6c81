"""`remotely environments`: listed and removed."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from remotely import cli
from remotely.machine import environments


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment that no process uses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = environments.folder() / "0123456789abcdef"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(sys.executable)
    (made / environments.MADE).write_text('{"python": "3.12.1", "packages": ["six==1"]}')
    return made.name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["environments", *arguments])


def test_environments_are_listed_with_what_was_asked_for(key: str) -> None:
    said = run()
    assert said.exit_code == 0
    assert said.output.split()[:3] == [key, "Python", "3.12.1"]
    assert said.output.endswith(" ago  six==1\n")


def test_one_and_all_are_removed_but_none_in_use(key: str) -> None:
    held = environments.file_lock.hold(environments.folder() / key / environments.MADE, shared=True)
    assert "in use, and stays" in run("--remove-all").output
    assert "in use" in run().output
    os.close(held)
    assert run("--remove", key).output == f"{key} is removed: 0 MiB\n"
    assert run().output.startswith("no environment has been made in ")


def test_an_unknown_one_is_named(key: str) -> None:
    said = run("--remove", "x")
    assert (said.exit_code, "no environment 'x'" in said.output) == (1, True)
