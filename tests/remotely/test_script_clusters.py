"""A cluster that a script runs for itself: this user's commands find it, and it leaves no trace."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remotely.ops import script_cluster
from tests.clusters import DEADLINE_S, SCRIPTS, wait_until
from tests.command import Machine

SCRIPT = """
import remotely, sys

@remotely.remote_class
class Talker:
    def say(self, text):
        print(text, flush=True)

remotely.connect(cpus=2, show_output=False)
talker = Talker()
talker.say("hello from an actor")
print("ready", remotely.status().address, flush=True)
sys.stdin.readline()
"""
Script = "subprocess.Popen[str]"


class Scripts:
    """Scripts that run clusters of their own, and wait until their input ends."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine = machine
        self._folder = folder
        self.running: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> tuple["subprocess.Popen[str]", str]:
        """Return a script whose actor has spoken, and the address of its cluster."""
        file = self._folder / name
        file.write_text(SCRIPT)
        script = subprocess.Popen(
            [sys.executable, str(file)],
            env=self._machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(script)
        assert script.stdout is not None
        word, address = script.stdout.readline().split()
        assert word == "ready"
        return script, address


@pytest.fixture
def scripts(machine: Machine, tmp_path: Path) -> Iterator[Scripts]:
    made = Scripts(machine, tmp_path)
    yield made
    for script in made.running:
        script.communicate(timeout=DEADLINE_S)


def test_the_commands_take_the_only_script_with_a_cluster_of_its_own(
    machine: Machine, scripts: Scripts
) -> None:
    script, address = scripts.start("train.py")
    shown = machine.does("status")
    assert shown.startswith(f"The cluster of train.py (pid {script.pid})\n{address}: 1 machine, 1 ")
    assert machine.does("logs") == "[Talker-1] hello from an actor\n"
    for name in (str(script.pid), address):  # what remotely.status() has is an address, too
        assert "Talker-1" in machine.does("status", name)
        assert machine.does("logs", "--address", name) == "[Talker-1] hello from an actor\n"


def test_of_several_scripts_one_is_named_by_its_pid(machine: Machine, scripts: Scripts) -> None:
    pids = [scripts.start(name)[0].pid for name in ("train.py", "evaluate.py")]
    why = machine.refuses("status")
    assert "2 scripts run clusters of their own; name one by its pid" in why
    assert f"{pids[0]} (train.py)" in why
    assert f"{pids[1]} (evaluate.py)" in why
    assert f"The cluster of evaluate.py (pid {pids[1]})" in machine.does("status", pids[1])
    assert f"by pid: {pids[0]} (train.py)" in machine.does("status", pids[1])
    assert "no script of yours" in machine.refuses("status", "1")


def test_a_command_that_follows_says_that_the_script_has_ended(
    machine: Machine, scripts: Scripts
) -> None:
    script, _ = scripts.start("train.py")
    follows = subprocess.Popen(
        [SCRIPTS / "remotely", "logs", "--follow"],
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follows.stdout is not None
    assert follows.stdout.readline() == "[Talker-1] hello from an actor\n"
    script.send_signal(signal.SIGINT)
    said = follows.communicate(timeout=DEADLINE_S)[1]
    assert said == f"train.py (pid {script.pid}) has ended, and its cluster with it.\n"
    assert follows.returncode == 0


def test_the_record_is_for_this_user_alone_and_goes_with_a_killed_script(
    machine: Machine, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTELY_HOME", str(machine.home))
    script, address = scripts.start("train.py")
    record = Path(address.removeprefix("ipc://")).with_name(script_cluster.RECORD)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    (found,) = script_cluster.running()
    assert (found.pid, found.script, found.address) == (script.pid, "train.py", address)
    assert not machine.home.exists()  # nothing is written there

    script.kill()
    script.wait()
    assert script_cluster.running() == []  # at once, whatever is left
    wait_until(lambda: not record.parent.exists(), "the end of its folder")


def test_a_record_that_others_can_read_is_passed_over(
    machine: Machine, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTELY_HOME", str(machine.home))
    _, address = scripts.start("train.py")
    record = Path(address.removeprefix("ipc://")).with_name(script_cluster.RECORD)
    record.chmod(0o644)
    assert script_cluster.running() == []
    os.truncate(record, 5)
    record.chmod(0o600)
    assert script_cluster.running() == []
