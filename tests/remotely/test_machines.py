"""On machines of their own, in network namespaces, calls and arrays go as they do elsewhere.

Skipped where there can be none.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import MASTER, PORT, Machines, why_not

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


@pytest.fixture
def machines(nothing_left: None, tmp_path: Path) -> Iterator[Machines]:
    if why := why_not():
        pytest.skip(why)
    made = Machines(tmp_path)
    yield made
    made.close()


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
def test_actors_on_two_machines_answer_and_a_lost_machine_is_reported(
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
