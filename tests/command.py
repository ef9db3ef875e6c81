"""The command `remotely` on simulated machines, and the check that they leave nothing behind.

Each machine has its own REMOTELY_HOME; all share a folder in place of /tmp.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from click.testing import CliRunner

from remotely import cli
from remotely.client.carrier import client_of
from remotely.reporting.cluster_status import as_json, cluster_status
from tests.clusters import DEADLINE_S, SCRIPTS, processes, wait_until

SCRIPT = """
import sys
import remotely

@remotely.remote_class
class Counter:
    def __init__(self):
        self.total = 0
    def add(self, n):
        self.total += n
        print("the total is", self.total, flush=True)
        return self.total

counter = remotely.options(Counter, **eval(sys.argv[1]))()
for line in sys.stdin:
    sys.stdout.write(f"added: {counter.add(int(line))}\\n")  # at once: the actor prints too
    sys.stdout.flush()
"""


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def _reap(pid: int) -> None:
    """Wait for the end of a daemon that this process has started, so that it leaves no zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


class Machine:
    """A machine with its own home: its commands only see the clusters that they start."""

    def __init__(self, home: Path, temporary: Path) -> None:
        self.home = home
        self.keys = home / "keys"
        self.environment = {
            **{name: v for name, v in os.environ.items() if not name.startswith("REMOTELY_")},
            "REMOTELY_HOME": str(home),
            "REMOTELY_HOST": home.name,
            "TMPDIR": str(temporary),
        }

    def run(self, *command: object, **environment: str) -> Done:
        """Run a command: in this process, which saves a start of Python, if it can run here."""
        words = [*map(str, command)]
        settings = {**self.environment, **environment}
        if "PYTHONPATH" in environment:
            done = subprocess.run(
                [SCRIPTS / "remotely", *words],
                env=settings,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            return Done(done.returncode, done.stdout, done.stderr)
        missing = {name: None for name in os.environ if name.startswith("REMOTELY_")}
        before = set(psutil.Process().children())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", None)  # so that it is what TMPDIR says
            called = CliRunner(env={**missing, **settings}).invoke(
                cli.main, words, prog_name="remotely"
            )
        for daemon in set(psutil.Process().children()) - before:
            threading.Thread(target=_reap, args=(daemon.pid,), daemon=True).start()
        return Done(called.exit_code, called.stdout, called.stderr)

    def does(self, *command: object, **environment: str) -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*command, **environment)
        assert (done.code, done.stderr) == (0, "")
        return done.stdout

    def refuses(self, *command: object, code: int = 1, **environment: str) -> str:
        """Run a command that must fail, and return its error message."""
        done = self.run(*command, **environment)
        assert (done.code, done.stdout) == (code, ""), done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def status(self, port: int) -> dict[str, Any]:
        """Return what `status --json` prints, without a process for it."""
        client = client_of(f"127.0.0.1:{port}", self.keys / "client.key")
        try:
            return as_json(cluster_status(client.status(), client.address))
        finally:
            client.shutdown()

    def pids(self, port: int) -> dict[str, int]:
        """Return the pids of the daemons of a port, from their pid files."""
        files = self.home.glob(f"run/*/{port}/*.json")
        return {file.stem: int(json.loads(file.read_bytes())["pid"]) for file in files}

    @contextlib.contextmanager
    def script(self, port: int, options: str = "{}") -> Iterator["subprocess.Popen[str]"]:
        """Run a script with a Counter, which adds the numbers that the script reads."""
        running = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, options],
            env={**self.environment, "REMOTELY_ADDRESS": f"127.0.0.1:{port}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield running
        finally:
            running.communicate(timeout=DEADLINE_S)


class Running(NamedTuple):
    """A cluster that several tests share; each leaves it unchanged."""

    machine: Machine
    port: int


def add(script: "subprocess.Popen[str]", number: int) -> int:
    """Have a script add a number; return the total, skipping the output of its actor."""
    assert script.stdin is not None
    assert script.stdout is not None
    script.stdin.write(f"{number}\n")
    script.stdin.flush()
    for line in script.stdout:
        if line.startswith("added:"):
            return int(line.split()[1])
    raise AssertionError("the script ended")


@contextlib.contextmanager
def machines_in(folder: Path) -> Iterator[Callable[[str], Machine]]:
    """Make machines by name; assert at the end that they leave nothing behind."""
    # A short path, for ipc sockets.
    temporary = Path(tempfile.mkdtemp(prefix="cli-"))
    made: list[Machine] = []

    def make(name: str) -> Machine:
        made.append(Machine(folder / name, temporary))
        return made[-1]

    yield make
    try:
        wait_until(lambda: not processes(str(folder)), f"the end of {processes(str(folder))}")
    finally:
        for process in processes(str(folder)):  # of a failed test
            process.kill()
    assert list(temporary.iterdir()) == []
    left = {file for machine in made for file in machine.home.glob("run/*/*/*")}
    assert not {file for file in left if file.suffix != ".log" or not file.read_text()}
    temporary.rmdir()


def copied_key(there: Machine, here: Machine, name: str = "worker.key") -> Path:
    """Copy a key from the machine of the master, as a user would."""
    here.home.mkdir()
    return Path(shutil.copy(there.keys / name, here.home / name))
