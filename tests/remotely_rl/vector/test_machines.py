"""Test of a VectorEnv on two machines, as network namespaces: all rows are right, and it survives
the loss of a machine.  Skipped where network namespaces are not available.

    sudo .venv/bin/python -m pytest -m slow -s tests/remotely_rl/vector/test_machines.py
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import wait_until
from tests.machines import MASTER, PORT, Machines, why_not

SCRIPT = """
import json, subprocess, sys
import numpy as np
import remotely
from gymnasium.vector import AutoresetMode
from remotely_rl import VectorEnv
from tests.chaos.numbered import Numbered, Oracle, strike

class There(Numbered):
    def address(self):
        shown = subprocess.run(["ip", "-json", "addr", "show", "up"], capture_output=True)
        found = [a["local"] for i in json.loads(shown.stdout) for a in i["addr_info"]]
        return next(a for a in found if a.startswith("10.231."))
    def strike(self, fault):
        strike(fault)

if len(sys.argv) > 1:
    remotely.connect(sys.argv[1])
envs = VectorEnv(There, num_envs=2, envs_per_actor=1)
oracle = Oracle(AutoresetMode.NEXT_STEP)
oracle.reset(envs.reset(seed=1)[0])

def play(steps):
    for _ in range(steps):
        oracle.step(*envs.step(np.zeros(2, np.int64)))

play(100)
print(json.dumps(sorted(set(envs.call("address")))), flush=True)
try:
    envs.call_at([1], "strike", "kill")
except remotely.ActorDied:
    pass
play(100)
print("ready", flush=True)
sys.stdin.readline()  # meanwhile a cable is pulled
play(100)
print(json.dumps({"wrong": oracle.wrong, "crashed": oracle.crashed, "rows": oracle.rows,
                  "addresses": sorted(set(envs.call("address")))}), flush=True)
envs.close()
"""


@pytest.fixture
def machines(nothing_left: None, tmp_path: Path) -> Iterator[Machines]:
    if why := why_not():
        pytest.skip(why)
    made = Machines(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_environments_on_two_machines_survive_the_loss_of_one(
    machines: Machines, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    root = str(Path(__file__).resolve().parents[3])
    with subprocess.Popen(
        machines.command(0, sys.executable, str(script), f"{MASTER}:{PORT}"),
        env={
            **os.environ,
            "REMOTELY_HOME": str(machines.homes[0]),
            "REMOTELY_HOST": "the script's",  # its files, and so its memory, are its own
            "PYTHONPATH": root,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        lines = (line for line in running.stdout if line.startswith(('["', "{", "ready")))
        assert json.loads(next(lines)) == ["10.231.1.2", "10.231.2.2"]
        assert next(lines) == "ready\n"
        name = machines.names[0]
        subprocess.run(["ip", "-n", name, "link", "set", "to-two", "down"], check=True)
        running.stdin.write("down\n")
        running.stdin.flush()
        seen = json.loads(next(lines))
        assert seen["wrong"] == []
        assert seen["crashed"] == 2
        assert seen["addresses"] == ["10.231.1.2"]
        print(seen)
    wait_until(lambda: running.poll() == 0, "the script has ended")
