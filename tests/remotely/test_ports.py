"""`--ports LOW-HIGH`: everything of a machine listens within a range."""

import contextlib
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.clusters import DEADLINE_S, free_port, wait_until
from tests.command import SCRIPT, Machine, add, copied_key

# What a worker listens for from its begin: its store, and processes that dial in.
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
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("REMOTELY_HOME") == str(machine.home):
                connections = process.net_connections("tcp")
                found |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def test_master_and_actors_listen_within_the_range_and_the_master_at_its_first_port(
    machine: Machine, low: int
) -> None:
    said = machine.does("start", "--ports", f"{low}-{low + 5}", "--cpus", 2)
    assert f"127.0.0.1:{low}" in said
    with machine.script(low) as one, machine.script(low) as two:
        assert [add(one, 1), add(two, 1)] == [1, 1]
        found = listens_at(machine)
        assert low in found
        assert len(found) == 2 + len(OF_A_WORKER) + 1
        assert found <= set(range(low, low + 6))
    machine.does("stop", "--port", low)


def test_the_master_may_have_a_port_outside_the_range(machine: Machine, low: int, port: int) -> None:
    machine.does("start", "--ports", f"{low}-{low + 3}", "--port", port)
    found = listens_at(machine)
    assert port in found
    assert len(found) == 1 + len(OF_A_WORKER)
    assert found - {port} <= set(range(low, low + 4))
    machine.does("stop", "--port", port)


def test_an_actor_without_a_free_port_fails_with_the_range(
    machine: Machine, low: int
) -> None:
    machine.does("start", "--ports", f"{low}-{low + 3}", "--cpus", 2)
    with machine.script(low) as one:
        assert add(one, 1) == 1
        two = subprocess.run(
            [sys.executable, "-c", SCRIPT, "{}"],
            env={**machine.environment, "REMOTELY_ADDRESS": f"127.0.0.1:{low}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    assert f"ActorDied: its process ended at birth (1): no port of {low}-{low + 3} is free on" in (
        two.stderr
    )
    wait_until(lambda: not machine.status(low)["actors"], "nothing is left of either")
    machine.does("stop", "--port", low)


def test_a_range_without_a_free_port_is_refused_before_anything_starts(
    machines: Any, low: int, port: int
) -> None:
    first, second = machines("first"), machines("second")
    first.does("start", "--port", port, "--cpus", 1)
    key = copied_key(first, second)
    with socket.create_server(("127.0.0.1", low)):
        join = ("join", f"127.0.0.1:{port}", "--key", key, "--ports", f"{low}-{low}")
        why = second.refuses(*join)
        assert f"no port of {low}-{low} is free on this machine: port {low} is in use by pid" in why
        assert "--ports" in why
    first.does("stop", "--port", port)


@pytest.mark.parametrize("ports", ["9000", "9100-9000", "0-9", "a-b"])
def test_an_invalid_range_is_refused(machine: Machine, ports: str) -> None:
    assert "is no range of ports" in machine.refuses("start", "--ports", ports, code=2)


def test_a_range_too_small_for_a_worker_is_refused(machine: Machine, low: int) -> None:
    why = machine.refuses("start", "--ports", f"{low}-{low + 1}")
    assert f"{low}-{low + 1} is too small a range: a worker listens at 3 ports itself" in why
