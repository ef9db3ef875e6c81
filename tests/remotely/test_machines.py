"""Calls and arrays between machines in network namespaces, and the loss of a machine.

Skipped where network namespaces are not available.
"""

import json
import sys
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
far = [where for where in wheres if where.address().startswith("10.231.2.")]
near = [where for where in wheres if where not in far]
futures = [where.wait.submit(60) for where in far]
subprocess.run(["ip", "link", "set", "to-two", "down"], check=True)
errors = [future.exception(timeout=40) for future in futures]
out["errors"] = sorted({type(error).__name__ for error in errors})
out["may_have_run"] = [error.may_have_run for error in errors]
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


def test_actors_on_two_machines_answer_and_a_lost_machine_is_reported(machines: Machines) -> None:
    done = machines.does(0, sys.executable, "-c", SCRIPT, f"{MASTER}:{PORT}")
    out = json.loads(done.stdout)
    assert out["addresses"] == ["10.231.1.2", "10.231.2.2"]
    assert out["equal"]
    assert out["errors"] == ["WorkerLost"]
    assert out["may_have_run"] == [True, True]
    assert out["near"] == [4, 4]
