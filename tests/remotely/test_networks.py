"""Clusters over real networks: IPv6, several networks, firewalls, containers.

Each machine is a network namespace; packets are dropped, rejected and forwarded by iptables.
Skipped where network namespaces are not available.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.machines import PORT, Namespaces, why_not

SCRIPT = """
import sys
import remotely

@remotely.remote_class
class Echo:
    def echo(self, x):
        return x

remotely.connect(sys.argv[1])
try:
    print(Echo().echo("answered"))
except remotely.RemotelyError as error:
    print(f"{type(error).__name__}: {error}")
"""
RANGE = "9000-9009"

# A worker that claims to be on the master's machine, with the smallest name of many.
LIAR = """
import secrets, sys
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources
from remotely.transport import key_files, sockets
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink

master, file, host = sys.argv[1:]
key = key_files.load_member(file, "worker")
name, nonce = min(
    (bound_id("worker", key.pair.public, nonce), nonce)
    for nonce in (secrets.token_hex(8) for _ in range(2000))
)
register = control.Register(
    worker=name, nonce=nonce, python="", host=host, machine="liar", address="", pid=1,
    resources=Resources(), actors=[], relay="tcp://10.231.1.2:1", relay_token=b"token",
)
loop, context, heard = Loop(), sockets.new_context(), []

def say(message, answer):
    link = MasterLink(
        loop, context, f"tcp://{master}", key, lambda: message, heard.append, heard.append
    )
    while not (found := [said for said in heard if isinstance(said, answer)]):
        loop.turn(1.0)
    return found[0]

say(register, control.Registered)
print(say(control.AskRelay(), control.Relay).address)
"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Callable[[int], Namespaces]]:
    if why := why_not():
        pytest.skip(why)
    made: list[Namespaces] = []

    def make(count: int) -> Namespaces:
        made.append(Namespaces(tmp_path, count))
        return made[-1]

    yield make
    for machines in made:
        if machines.has_started:  # not if the test found no firewall here
            machines.run(0, "stop", "--port", PORT)
        machines.close()


def rule(machines: Namespaces, number: int, *words: str) -> None:
    """Add a rule to the firewall of a machine."""
    if shutil.which("iptables") is None:
        pytest.skip("needs iptables")
    done = machines.does(number, "iptables", *words)
    if done.returncode:
        pytest.skip(f"this kernel has no such firewall: {done.stderr}")


def calls(machines: Namespaces, number: int, address: str, tmp_path: Path) -> str:
    """Make an actor from a machine and call it; return its answer, or the error."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    key = str(machines.homes[0] / "keys" / "client.key")
    done = machines.does(number, sys.executable, str(script), address, REMOTELY_KEY=key)
    assert not done.stderr
    return done.stdout.strip()


def test_a_cluster_works_on_ipv6(network: Callable[[int], Namespaces], tmp_path: Path) -> None:
    machines = network(2)
    machines.cable(0, 1, 1, "to-one")
    address = f"[fd31:1::1]:{PORT}"
    said = machines.run(0, "start", "--host", "fd31:1::1", "--port", PORT, "--cpus", "0")
    assert f"remotely join {address} --key worker.key" in said
    assert f"has joined {address}" in machines.join(1, address, "--cpus", "1")
    assert "fd31:1::2" in machines.run(0, "status", address)
    assert calls(machines, 0, address, tmp_path) == "answered"


def test_a_worker_of_another_machine_cannot_claim_to_be_local(
    network: Callable[[int], Namespaces], tmp_path: Path
) -> None:
    machines = network(2)
    machines.cable(0, 1, 1, "to-one")
    machines.run(0, "start", "--host", "10.231.1.1", "--port", PORT, "--cpus", "0")
    address, key = f"10.231.1.1:{PORT}", str(machines.homes[0] / "keys" / "worker.key")
    (near,) = json.loads(machines.run(0, "status", address, "--json"))["machines"]
    done = machines.does(1, sys.executable, "-c", LIAR, address, key, near["host"])
    assert done.stdout.startswith("tcp://10.231.1.1:"), done.stderr


@pytest.mark.slow
def test_a_master_on_all_addresses_accepts_ipv4_and_ipv6(
    network: Callable[[int], Namespaces], tmp_path: Path
) -> None:
    machines = network(2)
    machines.cable(0, 1, 1, "to-one")
    machines.run(0, "start", "--host", "::", "--port", PORT, "--cpus", "0")
    machines.join(1, f"[fd31:1::1]:{PORT}", "--cpus", "1")
    for address in (f"10.231.1.1:{PORT}", f"[fd31:1::1]:{PORT}", f"127.0.0.1:{PORT}"):
        assert calls(machines, 0, address, tmp_path) == "answered"


def test_a_cluster_works_behind_a_firewall_with_an_open_port_range(
    network: Callable[[int], Namespaces], tmp_path: Path
) -> None:
    machines = network(2)
    machines.cable(0, 1, 1, "to-one")
    low, high = RANGE.split("-")
    rule(machines, 1, "-A", "INPUT", "-p", "tcp", "--dport", f"{low}:{high}", "-j", "ACCEPT")
    rule(machines, 1, "-A", "INPUT", "-p", "tcp", "--syn", "-j", "DROP")
    rule(
        machines,
        0,
        "-A",
        "INPUT",
        "-i",
        "to-one",
        "-p",
        "tcp",
        "--dport",
        f"{low}:{high}",
        "-j",
        "ACCEPT",
    )
    rule(machines, 0, "-A", "INPUT", "-i", "to-one", "-p", "tcp", "--syn", "-j", "DROP")
    address = f"10.231.1.1:{low}"
    machines.run(0, "start", "--host", "10.231.1.1", "--ports", RANGE, "--cpus", "0")
    try:
        machines.join(1, address, "--ports", RANGE, "--cpus", "1")
        assert calls(machines, 0, address, tmp_path) == "answered"
    finally:
        machines.run(0, "stop", "--port", low)
        machines.run(0, "start", "--port", PORT)  # for the fixture to stop


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "word"),
    [
        (("DROP",), "a firewall drops"),
        (("REJECT", "--reject-with", "tcp-reset"), "nothing listens"),
        (("REJECT", "--reject-with", "icmp-admin-prohibited"), "no way"),
    ],
)
def test_an_actor_behind_a_firewall_is_reported_with_port_and_machines(
    network: Callable[[int], Namespaces], tmp_path: Path, target: tuple[str, ...], word: str
) -> None:
    machines = network(2)
    machines.cable(0, 1, 1, "to-one")
    rule(machines, 1, "-A", "INPUT", "-p", "tcp", "--syn", "-j", *target)
    address = f"10.231.1.1:{PORT}"
    machines.run(0, "start", "--host", "10.231.1.1", "--port", PORT, "--cpus", "0")
    machines.join(1, address, "--cpus", "1", "--ports", "9000-9000")
    told = calls(machines, 0, address, tmp_path)
    assert told.startswith("WorkerLost: no connection to Echo-1")
    assert word in told
    assert "port 9000 of 10.231.1.2" in told
    assert "10.231.1.1" in told  # from where
    assert "--ports LOW-HIGH" in told
    assert told.endswith("the call did not run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "word"), [("DROP", "a firewall drops"), ("REJECT", "nothing listens")]
)
def test_a_master_behind_a_firewall_is_reported_with_port_and_machines(
    network: Callable[[int], Namespaces], tmp_path: Path, target: str, word: str
) -> None:
    machines = network(2)
    machines.cable(0, 1, 1, "to-one")
    machines.run(0, "start", "--host", "10.231.1.1", "--port", PORT, "--cpus", "0")
    rule(machines, 0, "-A", "INPUT", "-i", "to-one", "-p", "tcp", "--dport", PORT, "-j", target)
    with pytest.raises(AssertionError, match=word) as refused:
        machines.join(1, f"10.231.1.1:{PORT}")
    told = str(refused.value)
    assert f"port {PORT} of 10.231.1.1" in told
    assert "10.231.1.2" in told


@pytest.mark.slow
def test_an_address_without_a_route_is_reported(
    network: Callable[[int], Namespaces], tmp_path: Path
) -> None:
    machines = network(2)
    machines.run(0, "start", "--port", PORT, "--cpus", "0")
    with pytest.raises(AssertionError, match=r"no way to port 8010 of 10\.231\.9\.9"):
        machines.join(1, "10.231.9.9:8010")


@pytest.mark.slow
def test_a_worker_in_a_container_is_reached_at_its_announced_address(
    network: Callable[[int], Namespaces], tmp_path: Path
) -> None:
    """0 is the network's other side, 1 the host, 2 the container, whose address 0 cannot reach."""
    machines = network(3)
    machines.cable(0, 1, 1, "to-host")
    machines.cable(1, 2, 2, "to-box")
    host, box = machines.names[1], machines.names[2]
    machines.does(1, "sysctl", "-w", "net.ipv4.ip_forward=1")
    assert machines.does(2, "ip", "route", "add", "default", "via", "10.231.2.1").returncode == 0
    low, high = RANGE.split("-")
    rule(
        machines,
        1,
        "-t",
        "nat",
        "-A",
        "PREROUTING",
        "-i",
        "far",
        "-p",
        "tcp",
        "--dport",
        f"{low}:{high}",
        "-j",
        "DNAT",
        "--to",
        "10.231.2.2",
    )
    rule(machines, 1, "-t", "nat", "-A", "POSTROUTING", "-o", "far", "-j", "MASQUERADE")
    address = f"10.231.1.1:{PORT}"
    machines.run(0, "start", "--host", "10.231.1.1", "--port", PORT, "--cpus", "0")
    machines.join(2, address, "--cpus", "1", "--ports", RANGE, "--announce", "10.231.1.2")
    assert "10.231.1.2" in machines.run(0, "status", address)
    assert calls(machines, 0, address, tmp_path) == "answered", (host, box)


@pytest.mark.slow
def test_a_master_in_a_container_prints_its_announced_address(
    network: Callable[[int], Namespaces], tmp_path: Path
) -> None:
    machines = network(1)
    said = machines.run(0, "start", "--port", PORT, "--announce", "box.example:9010")
    assert "remotely join box.example:9010 --key worker.key" in said
    with pytest.raises(AssertionError, match="takes no port here"):
        machines.join(0, f"127.0.0.1:{PORT}", "--announce", "box.example:9010")


@pytest.mark.slow
def test_a_machine_on_two_networks_is_reached_on_each(
    network: Callable[[int], Namespaces], tmp_path: Path
) -> None:
    """0 has the master; 1 has an actor; 2 shares with each of them a network of its own."""
    machines = network(3)
    machines.cable(0, 1, 1, "to-one", "far0")
    machines.cable(0, 2, 2, "to-two", "far0")
    machines.cable(1, 2, 3, "to-two", "far1")
    machines.run(0, "start", "--host", "0.0.0.0", "--port", PORT, "--cpus", "0")
    machines.join(
        1,
        f"10.231.1.1:{PORT}",
        "--cpus",
        "1",
        "--announce",
        "10.231.1.2",
        "--announce",
        "10.231.3.1",
    )
    assert calls(machines, 0, f"10.231.1.1:{PORT}", tmp_path) == "answered"
    assert calls(machines, 2, f"10.231.2.1:{PORT}", tmp_path) == "answered"
