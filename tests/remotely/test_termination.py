"""SIGTERM and SIGKILL of a script whose master is on another machine."""

import copy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remotely.protocol.lease import LEASE_S
from tests.clusters import DEADLINE_S, wait_until
from tests.command import Machine, Running, add

FORKS = """
import os, signal, sys, time
import remotely

@remotely.remote_class
class Counter: pass

remotely.connect()
counter = Counter()
child = os.fork()
while not child:
    time.sleep(0.01)  # a handler runs between two of these, whenever the signal comes
os.kill(child, signal.SIGTERM)
print("child", os.waitpid(child, 0)[1], len(remotely.status().actors), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
remotely.shutdown()
print("ours stays", signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, flush=True)
"""


@pytest.fixture
def elsewhere(running: Running) -> Machine:
    """A machine with the keys of the cluster, which the master takes for another one."""
    there = copy.copy(running.machine)
    there.environment = {**there.environment, "REMOTELY_HOST": "elsewhere"}
    return there


def _reads(pid: int) -> bool:
    """Return whether the main thread of a process sleeps in a read from a pipe."""
    return "pipe_read" in Path(f"/proc/{pid}/wchan").read_text()


def test_a_script_that_is_terminated_says_goodbye(running: Running, elsewhere: Machine) -> None:
    with elsewhere.script(running.port, "dict(cpus=2)") as script:
        assert add(script, 2) == 2
        wait_until(lambda: _reads(script.pid), "the script waits for the next line")
        begun = time.monotonic()
        script.send_signal(signal.SIGTERM)
        assert script.wait(DEADLINE_S) == -signal.SIGTERM
        idle = lambda: running.machine.status(running.port)["machines"][0]["free_cpus"] == 2
        wait_until(idle, "its cores are free")
        assert time.monotonic() - begun < LEASE_S - 5


def test_a_script_that_waits_for_a_killed_one_is_told_of_its_silence(
    running: Running, elsewhere: Machine
) -> None:
    with elsewhere.script(running.port, "dict(cpus=2)") as script:
        assert add(script, 2) == 2
        script.kill()
    environment = {**elsewhere.environment, "REMOTELY_ADDRESS": f"127.0.0.1:{running.port}"}
    code = "import remotely; A = remotely.remote_class(cpus=2)(type('A', (), {})); A()"
    waits = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert f"of pid {script.pid} (python -c) on" in waits.stderr
    assert "which has been silent for" in waits.stderr
    assert f"s of {LEASE_S:.0f})" in waits.stderr


def test_a_fork_says_no_goodbye_and_a_later_handler_is_kept(
    running: Running, elsewhere: Machine
) -> None:
    environment = {**elsewhere.environment, "REMOTELY_ADDRESS": f"127.0.0.1:{running.port}"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert f"child {int(signal.SIGTERM)} 1" in lines
    assert "ours stays True" in lines


def test_a_script_of_the_masters_own_machine_has_no_handler(running: Running) -> None:
    code = (
        "import remotely, signal; remotely.connect(); "
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    )
    address = f"127.0.0.1:{running.port}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**running.machine.environment, "REMOTELY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout == "True\n"
