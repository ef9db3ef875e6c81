"""Machines of their own: a master and two workers, each in a network namespace.

Needs root and iproute2 (`ip netns`); skipped elsewhere.  Nothing leaves this machine.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import SCRIPTS, processes, wait_until

PORT = "8010"
MASTER = "10.231.1.1"

SCRIPT = """
import json, os, subprocess, sys, time
import numpy
import remotely

@remotely.remote_class
class Where:
    def address(self):
        ask = ["ip", "-json", "addr", "show", "up"]
        shown = subprocess.run(ask, capture_output=True, check=True)
        found = [a["local"] for i in json.loads(shown.stdout) for a in i["addr_info"]]
        return next(a for a in found if a.startswith("10.231."))
    def double(self, array):
        return array * 2
    def wait(self, seconds):
        time.sleep(seconds)

remotely.connect(sys.argv[1])
wheres = remotely.group(Where, 4)
out = {"addresses": sorted(set(wheres.address()))}
array = numpy.arange(500_000.0)
out["equal"] = all(numpy.array_equal(a, array * 2) for a in wheres.double(array))
print("ready", flush=True)
if sys.stdin.readline().strip() == "vanish":
    far = [where for where in wheres if where.address().startswith("10.231.2.")]
    near = [where for where in wheres if where not in far]
    futures = [where.wait.submit(60) for where in far]
    begin = time.monotonic()
    subprocess.run(["ip", "link", "set", "to-two", "down"], check=True)
    errors = [future.exception(timeout=40) for future in futures]
    out["seconds"] = time.monotonic() - begin
    out["errors"] = sorted({type(error).__name__ for error in errors})
    out["doubt"] = [error.may_have_run for error in errors]
    out["near"] = [where.double(2) for where in near]
print(json.dumps(out), flush=True)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machines:
    """Three namespaces: the master's, and two that reach it over a virtual cable each."""

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
        for name in self.names:
            # The worker of a machine that was cut off is still there, and asked to leave.
            for process in processes(str(self.homes[0].parent)):
                if "remotely.worker" in process.cmdline():
                    process.terminate()
            ip("netns", "del", name)


@pytest.fixture
def machines(nothing_left: None, tmp_path: Path) -> Iterator[Machines]:
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    if subprocess.run(["ip", "netns", "add", "probe"], capture_output=True).returncode:
        pytest.skip("this machine allows no network namespaces")
    ip("netns", "del", "probe")
    made = Machines(tmp_path)
    made.run(0, "start", "--host", MASTER, "--port", PORT, "--cpus", "0")
    for number in (1, 2):
        made.homes[number].mkdir()
        key = made.homes[number] / "worker.key"
        shutil.copy(made.homes[0] / "keys" / "worker.key", key)
        made.run(number, "join", f"{MASTER}:{PORT}", "--key", str(key), "--cpus", "2")
    yield made
    made.close()
    wait_until(lambda: not processes(str(tmp_path)), "the end of all machines")


def start_script(machines: Machines, folder: Path) -> "subprocess.Popen[str]":
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        machines.command(0, sys.executable, str(script), f"{MASTER}:{PORT}"),
        env={**os.environ, "REMOTELY_HOME": str(machines.homes[0])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("ending", ["stop", "vanish"])
def test_actors_on_two_machines_answer_and_a_machine_that_vanishes_is_told(
    machines: Machines, tmp_path: Path, ending: str
) -> None:
    script = start_script(machines, tmp_path)
    assert script.stdout is not None
    assert script.stdout.readline() == "ready\n"

    out, _ = script.communicate(f"{ending}\n", timeout=60)

    told = json.loads(out)
    assert told["addresses"] == ["10.231.1.2", "10.231.2.2"]
    assert told["equal"]
    if ending == "vanish":
        assert told["errors"] == ["WorkerLost"]
        assert told["doubt"] == [True, True]
        assert told["near"] == [4, 4]
    machines.run(0, "stop", "--port", PORT)
