"""`remotely up` and `down`: machines that join by ssh, with real OpenSSH servers on loopback.

Skipped where these cannot run.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clusters import DEADLINE_S, SCRIPTS, wait_until
from tests.command import Machine, Running, add
from tests.sshd import Hosts, why_no_sshd


@pytest.fixture
def hosts(machine: Machine, tmp_path: Path) -> Iterator[Hosts]:
    if why := why_no_sshd():
        pytest.skip(why)
    made = Hosts(tmp_path, Hosts.on_loopback(2), machine.environment)
    yield made
    made.close()


def run(hosts: Hosts, *words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SCRIPTS / "remotely", *map(str, words)],
        env=hosts.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * DEADLINE_S,
    )


def unreachable_host(folder: Path, master: str) -> Path:
    """Write a host file with one host, which ssh cannot reach."""
    file = folder / "hosts.toml"
    file.write_text(f'address = "{master}"\nhosts = ["nowhere.invalid"]\n')
    return file


def daemons(hosts: Hosts) -> list[str]:
    return [str(file) for home in hosts.homes for file in home.glob("run/*/*/joined-*.json")]


def test_a_cluster_of_a_host_file_is_started_used_and_stopped(
    machine: Machine, hosts: Hosts, port: int
) -> None:
    file = hosts.file(f"127.0.0.1:{port}", h2='command = "unset NOTHING; exec remotely"')
    up = run(hosts, "up", file)
    assert (up.returncode, up.stderr) == (0, "")
    for name in hosts.names:
        assert f"{name}: This machine has joined 127.0.0.1:{port}" in up.stdout
    assert f"2 of 2 machines have joined 127.0.0.1:{port}." in up.stdout
    found = machine.status(port)
    assert {m["address"]: m["cpus"] for m in found["machines"]} == {
        "127.0.0.1": 0,
        "127.0.0.11": 1,
        "127.0.0.12": 1,
    }
    with machine.script(port) as script:
        assert add(script, 3) == 3
    again = run(hosts, "up", file)  # changes nothing
    assert again.returncode == 0
    assert len(machine.status(port)["machines"]) == 3
    down = run(hosts, "down", file)
    assert (down.returncode, down.stderr) == (0, "")
    assert f"The cluster at 127.0.0.1:{port} has ended." in down.stdout
    assert "2 of 2 machines have no worker of it." in down.stdout
    assert daemons(hosts) == []
    again = run(hosts, "down", file)
    assert again.returncode == 0
    assert f"No cluster ran at 127.0.0.1:{port} on this machine." in again.stdout
    assert "have left" not in again.stdout


def test_up_adds_missing_hosts_and_down_works_after_the_master_was_killed(
    machine: Machine, hosts: Hosts, port: int
) -> None:
    file = hosts.file(f"127.0.0.1:{port}")
    run(hosts, "up", file)
    lost = json.loads(Path(daemons(hosts)[0]).read_bytes())["pid"]
    psutil.Process(lost).kill()
    wait_until(lambda: len(machine.status(port)["machines"]) == 2, "its end is seen")
    run(hosts, "up", file)
    assert len(machine.status(port)["machines"]) == 3
    for pid in machine.pids(port).values():
        psutil.Process(pid).kill()
    down = run(hosts, "down", file)
    assert down.returncode == 0, down.stderr
    assert f"This machine has left 127.0.0.1:{port}" in down.stdout
    assert daemons(hosts) == []


def test_down_leaves_another_cluster_with_the_same_port_alone(
    machine: Machine, hosts: Hosts, port: int
) -> None:
    file = hosts.file(f"127.0.0.1:{port}")
    run(hosts, "up", file)
    machine.does("stop", "--port", port)
    machine.does("start", "--port", port)
    other = Machine(hosts.homes[0], Path(machine.environment["TMPDIR"]))
    key = str(machine.keys / "worker.key")
    other.does("join", f"localhost:{port}", "--key", key, "--cpus", 1)  # by another address
    told = other.does("stop", "--joined", f"127.0.0.1:{port}")
    assert "is not on" in told
    assert len(machine.status(port)["machines"]) == 2
    machine.does("stop", "--port", port)


def test_a_cluster_that_up_did_not_start_is_refused_by_up_and_left_alone_by_down(
    machine: Machine, hosts: Hosts, port: int
) -> None:
    machine.does("start", "--port", port, "--cpus", 0)  # at 127.0.0.1
    for host, listen, where in (
        ("127.0.0.2", "", "127.0.0.2"),
        ("127.0.0.1", 'listen = "0.0.0.0"\n', "0.0.0.0"),
    ):
        file = hosts.file(f"{host}:{port}")
        file.write_text(listen + file.read_text())
        up = run(hosts, "up", file)
        assert (up.returncode, up.stdout) == (1, "")
        assert "another cluster runs on this machine" in up.stderr
        assert f"it listens at 127.0.0.1:{port}, not at {where}:{port}" in up.stderr
    assert run(hosts, "down", file).returncode == 0
    assert len(machine.status(port)["machines"]) == 1
    machine.does("stop", "--port", port)


def test_down_leaves_workers_of_other_clusters_alone(
    machines: Any, tmp_path: Path, running: Running
) -> None:
    (there, port), here = running, machines("here")
    key = str(there.keys / "worker.key")
    here.does("join", f"127.0.0.1:{port}", "--key", key, "--cpus", 1)
    file = unreachable_host(tmp_path, f"127.0.0.1:{port}")
    here.run("down", file)
    assert len(there.status(port)["machines"]) == 2
    here.does("stop", "--port", port)


def test_up_reports_the_running_cluster_if_no_host_joins(
    machine: Machine, tmp_path: Path, port: int
) -> None:
    file = unreachable_host(tmp_path, f"127.0.0.1:{port}")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "ssh").write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    (binaries / "ssh").chmod(0o755)
    path = f"{binaries}:{os.environ['PATH']}"
    up = subprocess.run(
        [SCRIPTS / "remotely", "up", file],
        env={**machine.environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert up.returncode == 1
    assert "0 of 1 machines have joined" in up.stderr
    assert f"is up at 127.0.0.1:{port}, and no host joined it; " in up.stderr
    assert f"to end it: remotely down {file}\n" in up.stderr
    machine.does("stop", "--port", port)


def test_an_interrupted_up_reports_the_running_cluster(
    machine: Machine, tmp_path: Path, port: int
) -> None:
    file = unreachable_host(tmp_path, f"127.0.0.1:{port}")
    file.write_text(file.read_text().replace("[", '["there", '))
    binaries = tmp_path / "bin"
    binaries.mkdir()
    ssh = '#!/bin/sh\ncase "$*" in *there*) echo joined; exit;; esac\nexec sleep 600\n'
    (binaries / "ssh").write_text(ssh)
    (binaries / "ssh").chmod(0o755)
    up = subprocess.Popen(
        [SCRIPTS / "remotely", "up", str(file)],
        env={**machine.environment, "PATH": f"{binaries}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert up.stdout is not None
    assert up.stdout.readline() == "there: joined\n"
    sleeping = lambda: any(p.cmdline()[:1] == ["sleep"] for p in psutil.Process(up.pid).children())
    wait_until(sleeping, "ssh waits for the other host")
    os.killpg(up.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
    _, told = up.communicate(timeout=DEADLINE_S)
    assert up.returncode == 1
    assert f"is up at 127.0.0.1:{port}, and there joined it; " in told
    assert f"to end it: remotely down {file}\n" in told
    machine.does("stop", "--port", port)


def test_hosts_that_fail_are_reported_with_hints_and_the_others_join(
    machine: Machine, tmp_path: Path, port: int
) -> None:
    if why := why_no_sshd():
        pytest.skip(why)
    hosts = Hosts(tmp_path, Hosts.on_loopback(3), machine.environment)
    hosts.forget_key_of("h2")
    file = hosts.file(f"127.0.0.1:{port}", h3='command = "no-such-remotely"')
    with (
        contextlib.closing(hosts),
        socket.create_server(("127.0.0.19", hosts.port), backlog=0) as silent,
        socket.create_connection(silent.getsockname()),
    ):
        file.write_text(f'{file.read_text()}[[host]]\nssh = "dead"\n')
        config = file.with_name("config")
        config.write_text(
            f"{config.read_text()}Host dead\n  HostName 127.0.0.19\n  Port {hosts.port}\n"
        )
        up = run(hosts, "up", file)
    assert up.returncode == 1
    assert "h1: This machine has joined" in up.stdout
    told = {line.partition(": ")[0]: line for line in up.stderr.splitlines()}
    assert "Host key verification failed" in told["h2"]
    assert "'ssh h2'" in told["h2"]
    assert 'command = "/path/to/remotely"' in told["h3"]
    assert "connect to host 127.0.0.19" in told["dead"]
    assert "timed out" in told["dead"]
    assert "1 of 4 machines have joined" in told["Error"]
    assert "not dead, h2, h3" in told["Error"]
    assert len(machine.status(port)["machines"]) == 2
    machine.does("stop", "--port", port)


def test_an_error_in_the_file_is_reported_with_its_line_and_field(
    machine: Machine, tmp_path: Path
) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('address = "10.0.0.1"\nhosts = ["node1"]\n\n[[host]]\nssh = "b"\ncpu = 3\n')
    for command in ("up", "down"):
        told = machine.refuses(command, file)
        assert f"{file}, line 6: cpu: there is no such field" in told
    assert "does not exist" in machine.refuses("up", tmp_path / "nothing.toml", code=2)
