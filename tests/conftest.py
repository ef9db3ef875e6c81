"""Clusters for the tests, each in two settings, and the proof that they leave nothing behind.

    embedded   master and worker of this process alone, on ipc
    joined     a started master, and two workers that joined it over TCP from two loopback
               addresses, each with a copy of worker.key in a home of its own, and so passing for
               machines of their own: their calls go over TCP too
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import remotely

DEADLINE_S = 20.0
SCRIPTS = Path(sys.executable).parent


def wait_until(fact: Callable[[], object], what: str) -> None:
    """Wait for a fact of another process; polling is the only way to see it."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.01)


def processes(tag: str) -> list[psutil.Process]:
    """Return the living processes whose environment or arguments carry `tag`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(tag in text for text in told):
                found.append(process)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Traces:
    """What this process and its machine hold now, to be compared with what they held before."""

    def __init__(self) -> None:
        me = psutil.Process()
        self.children = {
            child.pid for child in me.children(recursive=True) if child.status() != "zombie"
        }
        self.threads = {t.name for t in threading.enumerate() if t.name.startswith("remotely")}
        self.folders = set(Path("/tmp").glob("remotely-*"))
        self.segments = set(Path("/dev/shm").glob("*")) if Path("/dev/shm").exists() else set()

    def left_since(self, before: "Traces") -> dict[str, object]:
        left = {name: value - vars(before)[name] for name, value in vars(self).items()}
        return {name: value for name, value in left.items() if value}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Assert, after a test, that no process, thread, folder or segment of it is left."""
    before = Traces()
    yield
    remotely.shutdown()
    wait_until(lambda: not Traces().left_since(before), f"gone: {Traces().left_since(before)}")


@pytest.fixture
def embedded(nothing_left: None) -> None:
    """A cluster of this test alone, with room for 16 actors."""
    remotely.connect(cpus=16)


class Started:
    """A master with two joined workers."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.home = folder / "master"
        self.homes = [folder / "one", folder / "two"]
        self.run(self.home, "start", "--port", str(self.port), "--cpus", "0")
        self.key = self.home / "keys" / "client.key"
        for number, home in enumerate(self.homes, 2):
            copy = home / "worker.key"
            home.mkdir()
            shutil.copy(self.home / "keys" / "worker.key", copy)
            copy.chmod(0o600)
            place = ["--host", f"127.0.0.{number}", "--cpus", "8"]
            self.run(home, "join", self.address, "--key", str(copy), *place)

    def run(self, home: Path, *command: str) -> str:
        environment = {**os.environ, "REMOTELY_HOME": str(home), "REMOTELY_HOST": home.name}
        done = subprocess.run(
            [SCRIPTS / "remotely", *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"remotely {' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        self.run(self.home, "stop", "--port", str(self.port))
        for home in (self.home, *self.homes):
            wait_until(lambda home=home: not processes(str(home)), f"the end of {home.name}")


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    cluster = Started(tmp_path_factory.mktemp("started"))
    yield cluster
    cluster.stop()


@pytest.fixture(params=["embedded", "joined"])
def cluster(request: pytest.FixtureRequest) -> str:
    """Connect to a cluster, once in each setting."""
    if request.param == "joined":
        joined: Started = request.getfixturevalue("started")
        request.getfixturevalue("nothing_left")
        remotely.connect(joined.address, key=joined.key)
    else:
        request.getfixturevalue("embedded")
    return str(request.param)
