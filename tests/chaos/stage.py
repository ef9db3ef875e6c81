"""A cluster under load, whose parts can be killed, stopped and cut off, and are restarted.

It has a master, two workers that joined it over TCP as separate machines, and two clients (load.py)
that record their calls.  `close` returns the verdict on all calls (oracle.py) and what was left
behind.
"""

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from remotely.machine import guest_folder, pid_file
from remotely.machine.gpus import OfferedResources
from remotely.machine.pid_file import Running
from remotely.machine.processes import birth, is_alive
from remotely.ops import cluster
from remotely.ops.cluster import Network
from remotely.transport.key_files import load_member
from tests.chaos.oracle import Verdict, judge
from tests.chaos.relay import Relay
from tests.clusters import Traces, free_port, processes

WORKERS = 2
CLIENTS = 2
CPUS = 64
END_S = 40.0  # for a client to end its calls; for what is owned to end with its owner
ROLES = ("actor", "worker", "client", "master")


class Stage:
    """The cluster, in an empty folder."""

    def __init__(
        self, folder: Path, seed: int, through_relay: bool = False, guests: int = 0
    ) -> None:
        self._before = Traces()
        self._folder = folder
        self._draw = random.Random(seed)
        self._seed = seed
        self._port = free_port()
        self._through_relay = through_relay
        self._guests: list[subprocess.Popen[bytes]] = []
        self._guests_wanted = guests  # with guests, clients make no actors
        self._clients: dict[str, subprocess.Popen[str]] = {}
        self._dismissed: dict[str, subprocess.Popen[str]] = {}
        self._killed: list[subprocess.Popen[str]] = []
        self._ended_well: list[str] = []
        self._names = 0
        for part in ("pids", "journals"):
            (folder / part).mkdir(parents=True)
        self.weather("pass")
        self._relay = Relay(lambda: (folder / "weather").read_text())
        self._homes = [folder / f"machine-{n}" for n in range(WORKERS)]
        self._start_master()
        for home in self._homes:
            home.mkdir()
            shutil.copy(folder / "master" / "keys" / "worker.key", home / "worker.key")
        self.mend()

    # --- weather, kills, stops --------------------------------------------------------------------

    def weather(self, word: str) -> None:
        """Change the weather of the relay: see relay.py."""
        new = self._folder / "weather.new"
        new.write_text(word)
        new.replace(self._folder / "weather")

    def victim(self, role: str) -> int | None:
        """Return the pid of a random process of this role; None if there is none now."""
        pids = sorted(self.pids(role))
        return self._draw.choice(pids) if pids else None

    def signal(self, pid: int, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            killed = [name for name, client in self._clients.items() if client.pid == pid]
            for name in killed:
                self._killed.append(self._clients.pop(name))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number is signal.SIGKILL:
            _within(END_S, lambda: birth(pid) is None)

    def dismiss(self) -> None:
        """Have a client end gracefully, with the actors that it owns."""
        name = self._draw.choice(sorted(self._clients))
        client = self._dismissed[name] = self._clients.pop(name)
        assert client.stdin is not None
        client.stdin.close()

    def mend(self) -> None:
        """Restart the missing processes: master, workers, clients, guests."""
        if not self.pids("master"):
            self._start_master()
        for home in self._homes:
            if not self._daemons(home):
                with self._as_machine(home):
                    address = f"tcp://127.0.0.1:{self._port}"
                    if self._through_relay:
                        address = self._relay.through(address)
                    host, _, port = address.removeprefix("tcp://").rpartition(":")
                    key = load_member(home / "worker.key", "worker")
                    cluster.join(
                        host, int(port), key, Network("127.0.0.1"), OfferedResources(CPUS, 0)
                    )
        while len(self._clients) < CLIENTS:
            self._start_client()
        self._guests = [guest for guest in self._guests if guest.poll() is None]
        while len(self._guests) < self._guests_wanted:
            self._start_guest()

    def calls(self) -> int:
        """Return how many calls have run so far."""
        with contextlib.suppress(OSError):
            return (self._folder / "ran").read_bytes().count(b"\n")
        return 0

    def await_clients(self, within_s: float) -> bool:
        """Wait until every client has called: a connecting client must not be cut off."""
        files = [self._folder / "journals" / name for name in self._clients]
        return _within(within_s, lambda: all(f.exists() and f.stat().st_size for f in files))

    def await_calls(self, count: int, within_s: float) -> bool:
        """Wait until `count` more calls have run: the cluster works again."""
        enough = self.calls() + count
        return _within(within_s, lambda: self.calls() >= enough)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> tuple[Verdict, dict[str, object]]:
        """End the clients, judge, stop the cluster; return the verdict, and what remains."""
        self.weather("pass")
        verdict_lines = []
        for client in self._clients.values():
            assert client.stdin is not None
            client.stdin.close()
        for name, client in (self._clients | self._dismissed).items():
            try:
                client.wait(END_S + 90)
                self._ended_well.append(name)
            except subprocess.TimeoutExpired:
                verdict_lines.append(f"{name}: does not end")
                client.kill()
                client.wait()
            if client.returncode:
                verdict_lines.append(f"{name}: ended with {client.returncode}")
        for client in self._killed:
            client.communicate()
        verdict = judge(self._lines("journals/*"), self._ran(), self._ended_well)
        verdict.anomalies += verdict_lines
        for guest in self._guests:  # which have no owner
            guest.kill()
            guest.wait()
        guest_folder.sweep()
        actors_end = _within(END_S, lambda: not self.pids("actor"))
        left_behind = [] if actors_end else self.pids("actor")
        for home in (*self._homes, self._folder / "master"):
            with self._as_machine(home):
                for port in pid_file.ports():
                    cluster.stop(port)
        gone = lambda: not processes(str(self._folder)) and not self._left()
        _within(END_S, gone)
        left = self._left()
        if not actors_end:
            left["actors"] = f"outlived their clients: {left_behind}"
        if tagged := processes(str(self._folder)):
            left["processes"] = [process.cmdline() for process in tagged]
        self._relay.close()
        return verdict, left

    def _left(self) -> dict[str, object]:
        return Traces().left_since(self._before)

    def _lines(self, pattern: str) -> Iterator[str]:
        for file in sorted(self._folder.glob(pattern)):
            with file.open() as lines:
                # A killed process may leave an incomplete line.
                yield from (line for line in lines if line.endswith("\n"))

    def _ran(self) -> Iterator[str]:
        return (line.strip() for line in self._lines("ran"))

    # --- living processes -------------------------------------------------------------------------

    def pids(self, role: str) -> list[int]:
        if role == "actor":
            return [pid for pid in self._actors() if Path(f"/proc/{pid}").exists()]
        if role == "client":
            return [client.pid for client in self._clients.values() if client.poll() is None]
        if role == "worker":
            return [daemon.pid for home in self._homes for daemon in self._daemons(home)]
        home = self._folder / "master"
        return [daemon.pid for daemon in self._daemons(home) if daemon.role == "master"]

    def _actors(self) -> list[int]:
        """Return the living actors; delete the files of others, since pids are reused."""
        living = []
        for file in (self._folder / "pids").iterdir():
            state = Path(f"/proc/{file.name}/stat")
            try:
                ended = state.read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                ended = True
            if ended:
                file.unlink(missing_ok=True)
            else:
                living.append(int(file.name))
        return living

    def _daemons(self, home: Path) -> list[Running]:
        with self._as_machine(home):
            found = [daemon for port in pid_file.ports() for daemon in pid_file.running(port)]
        return [daemon for daemon in found if is_alive(daemon.pid, daemon.started)]

    @contextlib.contextmanager
    def _as_machine(self, home: Path) -> Iterator[None]:
        """Run the block, and the processes started in it, as another machine."""
        names = {"REMOTELY_HOME": str(home), "REMOTELY_HOST": home.name}
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def _start_master(self) -> None:
        with self._as_machine(self._folder / "master"):
            cluster.start(Network("127.0.0.1"), self._port, OfferedResources(0, 0))

    def _start_client(self) -> None:
        self._names += 1
        name = f"client-{self._names}"
        key = self._folder / "master" / "keys" / "client.key"
        self._clients[name] = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.chaos.load",
                f"127.0.0.1:{self._port}",
                str(key),
                str(self._folder),
                name,
                str(self._seed),
                *["RELAY"] * self._through_relay,
                *["ARRIVALS"] * bool(self._guests_wanted),
            ],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "REMOTELY_HOST": name, "REMOTELY_HOME": str(self._folder / name)},
        )

    def _start_guest(self) -> None:
        self._names += 1
        name = f"guest-{self._names}"
        key = self._folder / "master" / "keys" / "worker.key"
        self._guests.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.guest",
                    f"127.0.0.1:{self._port}",
                    str(key),
                    str(self._folder),
                ],
                env={**os.environ, "REMOTELY_HOST": name},
                stderr=(self._folder / f"{name}.log").open("wb"),
            )
        )


def _within(seconds: float, fact: Callable[[], bool]) -> bool:
    """Poll until a condition of other processes holds; return False on timeout."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


within = functools.partial(_within)
