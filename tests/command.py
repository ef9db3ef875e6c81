"""The command `remotely` on machines of its own: a folder for each, and the proof that it is empty.

Each has a folder for REMOTELY_HOME, and all share one for what daemons put under /tmp.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from remotely import cli
from remotely.client.client import client_of
from remotely.reporting.cluster_status import status_facts
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


class Machine:
    """A home of its own, so that commands here see no cluster but those they start."""

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
        """Run a command: here, which saves 0.4 s, unless it makes daemons or wants other code."""
        words = [*map(str, command)]
        settings = {**self.environment, **environment}
        if words[0] in ("start", "join") or "PYTHONPATH" in environment:
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
        called = CliRunner(env={**missing, **settings}).invoke(
            cli.main, words, prog_name="remotely"
        )
        return Done(called.exit_code, called.stdout, called.stderr)

    def does(self, *command: object, **environment: str) -> str:
        """Run a command that succeeds, and return what it says."""
        done = self.run(*command, **environment)
        assert (done.code, done.stderr) == (0, "")
        return done.stdout

    def refuses(self, *command: object, code: int = 1, **environment: str) -> str:
        """Run a command that fails, and return the sentence by which it says why."""
        done = self.run(*command, **environment)
        assert (done.code, done.stdout) == (code, ""), done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def status(self, port: int) -> dict[str, Any]:
        """Return what `status --json` prints; asked here, which costs no process."""
        client = client_of(f"127.0.0.1:{port}", self.keys / "client.key")
        try:
            return status_facts(client.status(), client.address)
        finally:
            client.shutdown()

    def pids(self, port: int) -> dict[str, int]:
        """Return the daemons of a port here, as their pid files say."""
        files = self.home.glob(f"run/*/{port}/*.json")
        return {file.stem: int(json.loads(file.read_bytes())["pid"]) for file in files}

    @contextlib.contextmanager
    def script(self, port: int, options: str = "{}") -> Iterator["subprocess.Popen[str]"]:
        """Run a script that has a Counter; it adds the numbers that it reads."""
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


def add(script: "subprocess.Popen[str]", number: int) -> int:
    """Let a script add a number; return the total, and skip what its actor prints."""
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
    """Make machines by name.  At the end, nothing of any of them is left."""
    # Short, since the paths of ipc sockets may not be long.
    temporary = Path(tempfile.mkdtemp(prefix="cli-"))
    made: list[Machine] = []

    def make(name: str) -> Machine:
        made.append(Machine(folder / name, temporary))
        return made[-1]

    yield make
    try:
        wait_until(lambda: not processes(str(folder)), f"the end of {processes(str(folder))}")
    finally:
        for process in processes(str(folder)):  # a failed test's must not outlive it
            process.kill()
    assert list(temporary.iterdir()) == []
    left = {file for machine in made for file in machine.home.glob("run/*/*/*")}
    assert not {file for file in left if file.suffix != ".log" or not file.read_text()}
    temporary.rmdir()


def copied_key(there: Machine, here: Machine, name: str = "worker.key") -> Path:
    """Copy a key as a user would, from the machine of the master."""
    here.home.mkdir()
    return Path(shutil.copy(there.keys / name, here.home / name))
