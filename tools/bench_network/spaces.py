"""Several machines on one machine: network namespaces, joined by a virtual switch.

They need root and iproute2.  All are named NAME-... and removed at the end, also after an
interruption; those of an earlier run that was killed are removed first.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from remotely.machine.processes import all_processes

NAME = "rbn"
NETWORK = "10.232.0"
PORT = "8010"
STOP_S = 20.0
RAY_STORE_BYTES = 700_000_000
RAY_START_S = 5.0


class Spaces:
    """A switch, and machines 0 (client and master), 1, 2, ..., each with a home folder."""

    def __init__(self, machines: int, folder: Path) -> None:
        self.folder = folder
        self.machines = range(machines + 1)
        clean_up()
        self._switch = f"{NAME}-switch"
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for number in self.machines:
            space = name_of(number)
            _ip("netns", "add", space)
            _ip(
                "link",
                "add",
                f"to{number}",
                "netns",
                self._switch,
                "type",
                "veth",
                "peer",
                "name",
                "line",
                "netns",
                space,
            )
            _ip("-n", self._switch, "link", "set", f"to{number}", "master", "bridge", "up")
            _ip("-n", space, "addr", "add", f"{address_of(number)}/24", "dev", "line")
            _ip("-n", space, "link", "set", "line", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def start(self, cpus: int) -> None:
        """Start a master on machine 0, and a worker on each of the others."""
        self.remotely(0, "start", "--host", address_of(0), "--port", PORT, "--cpus", "0")
        for number in self.machines[1:]:
            self.home(number).mkdir()
            key = self.home(number) / "worker.key"
            shutil.copy(self.home(0) / "keys" / "worker.key", key)
            key.chmod(0o600)
            self.remotely(
                number, "join", f"{address_of(0)}:{PORT}", "--key", str(key), "--cpus", str(cpus)
            )

    def shape(self, rate: str) -> None:
        """Limit each line to this rate in both directions; "" for no limit."""
        for number in self.machines:
            for space, device in ((name_of(number), "line"), (self._switch, f"to{number}")):
                tc = ["ip", "netns", "exec", space, "tc", "qdisc"]
                subprocess.run(
                    [*tc, "del", "dev", device, "root"], capture_output=True, check=False
                )
                if rate:
                    limit = ["rate", rate, "burst", "256kb", "latency", "20ms"]
                    _run([*tc, "add", "dev", device, "root", "tbf", *limit])

    def home(self, number: int) -> Path:
        return self.folder / str(number)

    def command(self, number: int, *words: str) -> list[str]:
        """Return the command that runs `words` on a machine."""
        return ["ip", "netns", "exec", name_of(number), *words]

    def popen(self, number: int, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(number, sys.executable, "-m", *words),
            env=self.environment(number),
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )

    def traffic(self, number: int) -> int:
        """Return the bytes that a machine has sent and received."""
        words = ["cat", *(f"/sys/class/net/line/statistics/{w}_bytes" for w in ("rx", "tx"))]
        done = subprocess.run(self.command(number, *words), capture_output=True, check=True)
        return sum(map(int, done.stdout.split()))

    def remotely(self, number: int, *words: str) -> None:
        done = subprocess.run(
            self.command(number, str(Path(sys.executable).parent / "remotely"), *words),
            env=self.environment(number),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"remotely {' '.join(words)}: {done.stdout}{done.stderr}")

    @contextmanager
    def ray(self, program: Path, port: str) -> Iterator[None]:
        """Run Ray with one core on each machine except its head, machine 0."""
        head = f"{address_of(0)}:{port}"
        folder = self.folder / "ray"
        nodes = []
        try:
            for number in self.machines:
                first = [
                    "--head",
                    "--port",
                    port,
                    "--include-dashboard",
                    "false",
                    "--temp-dir",
                    str(folder),
                ]
                words = first if number == 0 else ["--address", head]
                nodes.append(
                    subprocess.Popen(
                        self.command(
                            number,
                            str(program),
                            "start",
                            *words,
                            "--block",
                            "--node-ip-address",
                            address_of(number),
                            "--num-cpus",
                            str(min(number, 1)),
                            "--object-store-memory",
                            str(RAY_STORE_BYTES),
                        ),
                        env=self.environment(number),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
                time.sleep(RAY_START_S)  # simultaneous starts race for files in /tmp
            yield
        finally:
            for node in reversed(nodes):
                node.terminate()
            for process in self._processes("raylet", "gcs_server"):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            for node in nodes:
                node.wait()

    def close(self) -> None:
        with contextlib.suppress(SystemExit):
            self.remotely(0, "stop", "--port", PORT)
        deadline = time.monotonic() + STOP_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        clean_up()

    def environment(self, number: int) -> dict[str, str]:
        home = str(self.home(number))
        return {**os.environ, "REMOTELY_HOME": home, "RAY_AUTH_MODE": "disabled"}

    def _processes(self, *names: str) -> list[psutil.Process]:
        """Return the processes with one of our home folders; only those of `names`, if given."""
        found = []
        for process in all_processes():
            with contextlib.suppress(psutil.Error):
                if names and process.name() not in names:
                    continue
                if process.environ().get("REMOTELY_HOME", "").startswith(str(self.folder)):
                    found.append(process)
        return found


def name_of(number: int) -> str:
    return f"{NAME}-{number}"


def address_of(number: int) -> str:
    return f"{NETWORK}.{number + 1}"


def why_not() -> str:
    """Return why namespaces are impossible here, or an empty text."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    return ""


def clean_up() -> None:
    """Remove all our namespaces."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        if (space := line.split()[0]).startswith(f"{NAME}-"):
            _ip("netns", "del", space)


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
