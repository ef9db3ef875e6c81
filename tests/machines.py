"""Machines of their own: a master and two workers, each in a network namespace.

Needs root and iproute2 (`ip netns`).  Nothing leaves this machine.
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
    """Return why there can be none here; nothing if there can."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    if subprocess.run(["ip", "netns", "add", "probe"], capture_output=True, check=False).returncode:
        return "this machine allows no network namespaces"
    ip("netns", "del", "probe")
    return ""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machines:
    """Three namespaces: the master's, and two that reach it over a virtual cable each, to-one and
    to-two.  A master and two workers run there."""

    def __init__(self, folder: Path) -> None:
        tag = str(os.getpid())
        self.names = [f"rm{tag}", f"rw1{tag}", f"rw2{tag}"]
        self.homes = [folder / "master", folder / "one", folder / "two"]
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, cable in ((1, "to-one"), (2, "to-two")):
            name = self.names[number]
            ip("link", "add", cable, "netns", self.names[0], "type", "veth",
               "peer", "name", "far", "netns", name)  # fmt: skip
            for where, device, last in ((self.names[0], cable, 1), (name, "far", 2)):
                ip("-n", where, "addr", "add", f"10.231.{number}.{last}/24", "dev", device)
                ip("-n", where, "link", "set", device, "up")
            ip("-n", name, "route", "add", "default", "via", f"10.231.{number}.1")
        self.run(0, "start", "--host", MASTER, "--port", PORT, "--cpus", "0")
        for number in (1, 2):
            self.homes[number].mkdir()
            key = self.homes[number] / "worker.key"
            shutil.copy(self.homes[0] / "keys" / "worker.key", key)
            self.run(number, "join", f"{MASTER}:{PORT}", "--key", str(key), "--cpus", "2")

    def command(self, number: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[number], *words]

    def run(self, number: int, *words: str) -> None:
        done = subprocess.run(
            self.command(number, str(SCRIPTS / "remotely"), *words),
            env={**os.environ, "REMOTELY_HOME": str(self.homes[number])},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def close(self) -> None:
        self.run(0, "stop", "--port", PORT)
        tag = str(self.homes[0].parent)
        for process in processes(tag):
            # The worker of a machine that was cut off is still there, and asked to leave.
            with contextlib.suppress(psutil.NoSuchProcess):
                if "remotely.worker" in process.cmdline():
                    process.terminate()
        for name in self.names:
            ip("netns", "del", name)
        wait_until(lambda: not processes(tag), "the end of all machines")
