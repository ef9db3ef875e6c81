"""Simulated machines: a master and two workers, each in a network namespace.

Needs root and iproute2 (`ip netns`).  No packet leaves this machine.
"""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import psutil

from tests.clusters import SCRIPTS, processes, wait_until

PORT = "8010"
MASTER = "10.231.1.1"


def why_not() -> str:
    """Return why this machine cannot have network namespaces; "" if it can."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    if subprocess.run(["ip", "netns", "add", "probe"], capture_output=True, check=False).returncode:
        return "this machine allows no network namespaces"
    ip("netns", "del", "probe")
    return ""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Namespaces:
    """Machines without a cluster; `cable` connects two of them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.names = [f"launch{os.getpid()}-{number}" for number in range(count)]
        self.homes = [folder / f"machine{number}" for number in range(count)]
        self.has_started = False  # whether `remotely start` ran
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")

    def cable(self, one: int, other: int, network: int, device: str, far: str = "far") -> None:
        """Connect two machines, as .1 and .2 of 10.231.NETWORK.0 and fd31:NETWORK::."""
        ip(
            "link",
            "add",
            device,
            "netns",
            self.names[one],
            "type",
            "veth",
            "peer",
            "name",
            far,
            "netns",
            self.names[other],
        )
        for number, name, last in ((one, device, 1), (other, far, 2)):
            where = self.names[number]
            ip("-n", where, "addr", "add", f"10.231.{network}.{last}/24", "dev", name)
            v6 = f"fd31:{network}::{last}/64"
            ip("-n", where, "addr", "add", v6, "dev", name, "nodad")
            ip("-n", where, "link", "set", name, "up")

    def command(self, number: int, *words: str) -> list[str]:
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"machine{number}"]
        return ["ip", "netns", "exec", self.names[number], *named, *words]

    def does(
        self, number: int, *words: str, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program on a machine."""
        return subprocess.run(
            self.command(number, *words),
            env={**os.environ, "REMOTELY_HOME": str(self.homes[number]), **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run(self, number: int, *words: str) -> str:
        """Run a command of `remotely` on a machine."""
        self.has_started |= words[0] == "start"
        done = self.does(number, str(SCRIPTS / "remotely"), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def join(self, number: int, address: str, *words: str) -> str:
        """Join machine 0, with a copy of its key."""
        self.homes[number].mkdir(exist_ok=True)
        key = self.homes[number] / "worker.key"
        shutil.copy(self.homes[0] / "keys" / "worker.key", key)
        return self.run(number, "join", address, "--key", str(key), *words)

    def close(self) -> None:
        """End all processes and delete the namespaces."""
        tag = str(self.homes[0].parent)
        for process in processes(tag):
            # The worker of a disconnected machine is still running: ask it to leave.
            with contextlib.suppress(psutil.NoSuchProcess):
                if "remotely.worker" in process.cmdline():
                    process.terminate()
        for name in self.names:
            ip("netns", "del", name)
        wait_until(lambda: not processes(tag), "the end of all machines")


class Machines(Namespaces):
    """A master, and two workers with a virtual cable each to it, to-one and to-two."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 3)
        for number, device in ((1, "to-one"), (2, "to-two")):
            self.cable(0, number, number, device)
            gateway = f"10.231.{number}.1"
            ip("-n", self.names[number], "route", "add", "default", "via", gateway)
        self.run(0, "start", "--host", MASTER, "--port", PORT, "--cpus", "0")
        for number in (1, 2):
            self.join(number, f"{MASTER}:{PORT}", "--cpus", "2")

    def close(self) -> None:
        self.run(0, "stop", "--port", PORT)
        super().close()
