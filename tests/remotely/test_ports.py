"""`--ports LOW-HIGH`: all processes of a machine listen within the range."""

import contextlib
import socket
import subprocess
import sys

import psutil
import pytest

from remotely.machine.processes import all_processes
from tests.clusters import DEADLINE_S, free_port, wait_until
from tests.command import SCRIPT, Machine, add

# The listeners of a worker from its start: its store, and the one for guest processes.
OF_A_WORKER = ("large values", "guests")


@pytest.fixture
def low() -> int:
    """Return the first of six ports that are free."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError):
            for number in range(port, port + 6):
                socket.create_server(("127.0.0.1", number)).close()
            return port


def listens_at(machine: Machine) -> set[int]:
    """Return the ports at which processes of a machine listen."""
    found = set()
    for process in all_processes():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("REMOTELY_HOME") == str(machine.home):
                connections = process.net_connections("tcp")
                found |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def test_all_listen_within_the_range_and_an_actor_without_a_free_port_fails(
    machine: Machine, low: int
) -> None:
    ports = f"{low}-{low + 4}"
    assert f"127.0.0.1:{low}" in machine.does("start", "--ports", ports, "--cpus", 3)
    with machine.script(low) as one, machine.script(low) as two:
        assert [add(one, 1), add(two, 1)] == [1, 1]
        # The master, OF_A_WORKER and two actors.
        assert listens_at(machine) == set(range(low, low + 5))
        third = subprocess.run(
            [sys.executable, "-c", SCRIPT, "{}"],
            env={**machine.environment, "REMOTELY_ADDRESS": f"127.0.0.1:{low}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    why = f"ActorDied: its process ended while starting (1): no port of {ports} is free on"
    assert why in third.stderr
    wait_until(lambda: not machine.status(low)["actors"], "the end of all actors")
    machine.does("stop", "--port", low)


def test_the_master_may_have_a_port_outside_the_range(
    machine: Machine, low: int, port: int
) -> None:
    machine.does("start", "--ports", f"{low}-{low + 3}", "--port", port)
    found = listens_at(machine)
    assert port in found
    assert len(found) == 1 + len(OF_A_WORKER)
    assert found - {port} <= set(range(low, low + 4))
    machine.does("stop", "--port", port)


def test_a_range_without_a_free_port_is_refused_before_anything_starts(
    machine: Machine, low: int, port: int
) -> None:
    with socket.create_server(("127.0.0.1", low)):
        why = machine.refuses("start", "--port", port, "--ports", f"{low}-{low}")
    assert f"no port of {low}-{low} is free on this machine: port {low} is in use by pid" in why
    assert "--ports" in why


def test_an_invalid_or_too_small_range_is_refused(machine: Machine, low: int) -> None:
    assert "is not a range of ports" in machine.refuses("start", "--ports", "9000", code=2)
    why = machine.refuses("start", "--ports", f"{low}-{low + 1}")
    assert f"{low}-{low + 1} is too small a range: a worker listens at 3 ports itself" in why
