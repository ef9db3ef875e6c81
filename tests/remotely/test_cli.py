"""The command `remotely` as its users see it: real daemons and sockets, on simulated machines.

Each test ends by asserting that no process and no file of its machines is left (command.py).
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import psutil
import pytest
from click.testing import CliRunner

from remotely import cli
from remotely.cli import inspect
from remotely.protocol import control
from remotely.transport import key_files
from remotely_rl import cli as rl_cli
from tests.clusters import DEADLINE_S, SCRIPTS, freeze, wait_until
from tests.command import Machine, Running, add, copied_key

# --- start, status, logs, stop --------------------------------------------------------------------


def test_a_cluster_is_started_used_inspected_and_stopped(machine: Machine, port: int) -> None:
    said = machine.does("start", "--port", port, "--cpus", 3)
    assert f'remotely.connect("127.0.0.1:{port}")' in said
    assert f"remotely join 127.0.0.1:{port} --key worker.key" in said
    assert str(machine.keys / "worker.key") in said
    assert f"remotely stop --port {port}" in said

    with machine.script(port) as script:
        assert [add(script, 2), add(script, 3)] == [2, 5]
        wait_until(
            lambda: machine.status(port)["actors"][0]["calls"] == 2, "both calls are counted"
        )

        found = json.loads(machine.does("status", "--json", "--port", port))
        (worker,) = found["machines"]
        (actor,) = found["actors"]
        assert (found["format"], found["address"]) == (1, f"127.0.0.1:{port}")
        assert (worker["cpus"], worker["free_cpus"], worker["address"]) == (3, 2, "127.0.0.1")
        assert (actor["name"], actor["class"], actor["cpus"]) == ("Counter-1", "Counter", 1)
        assert actor["worker"] == worker["worker"]
        owner = {"pid": script.pid, "machine": worker["machine"], "actor": "", "actors": 1}
        owner |= {"script": "python -c", "metrics": [], "session": found["clients"][0]["session"]}
        assert actor["owner"] == owner
        assert actor["rss"] > 1 << 20
        assert found["clients"] == [owner]

        assert machine.does("status", "--quiet", "--port", port) == ""
        table = machine.does("status", f"127.0.0.1:{port}")
        assert "2 of 3 CPUs" in table
        row = (
            rf"Counter-1 +Counter +\S+ +{actor['pid']} +\d+% +[\d.]+ MiB +2 "
            rf"+[\d.]+ +\d+% +\d+ s +pid {script.pid} .python -c."
        )
        assert re.search(row, table)

        assert machine.does("logs", REMOTELY_ADDRESS=f"127.0.0.1:{port}").splitlines() == [
            "[Counter-1] the total is 2",
            "[Counter-1] the total is 5",
        ]
        assert "Counter-1" in machine.refuses("logs", "Countr", "--port", port)
        assert "Counter-1" in machine.refuses("kill", "Countr", "--port", port)
        assert f"Counter-1 (pid {actor['pid']}) has" in machine.does(
            "kill", "Counter-1", "--port", port
        )
        table = machine.does("status", f"127.0.0.1:{port}")
        assert re.search(rf"CLIENT +MACHINE +ACTORS\npid {script.pid} .python -c. +\S+ +0", table)

    wait_until(lambda: not machine.status(port)["actors"], "the actor ends with its script")
    assert machine.does("logs", "Counter-1", "--port", port) == "the total is 2\nthe total is 5\n"
    of_the_last = machine.run("logs", "--port", port)
    assert of_the_last.stdout == "[Counter-1] the total is 2\n[Counter-1] the total is 5\n"
    assert of_the_last.stderr.startswith("No actor lives.")
    assert f"127.0.0.1:{port} has ended" in machine.does("stop", "--port", port)


def test_logs_are_followed_until_ctrl_c_or_the_end_of_the_actor(running: Running) -> None:
    machine, port = running

    def follow(*actor: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [SCRIPTS / "remotely", "logs", *actor, "--follow", "--port", str(port)],
            env=machine.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with machine.script(port, "dict(name='one')") as script:
        add(script, 4)
        with follow("one") as of_one, follow() as of_all:
            assert of_one.stdout is not None
            assert of_all.stdout is not None
            assert of_one.stdout.readline() == "the total is 4\n"
            assert of_all.stdout.readline() == "[one] the total is 4\n"
            add(script, 5)
            assert of_one.stdout.readline() == "the total is 9\n"
            of_all.send_signal(signal.SIGINT)
            assert of_all.communicate(timeout=DEADLINE_S)[1] == ""
            script.communicate(timeout=DEADLINE_S)
            assert of_one.communicate(timeout=DEADLINE_S) == ("", "")
            assert (of_one.returncode, of_all.returncode) == (0, 0)


def test_two_scripts_may_have_actors_of_the_same_class(running: Running) -> None:
    machine, port = running
    with machine.script(port) as one, machine.script(port) as two:
        assert [add(one, 1), add(two, 10), add(one, 1)] == [1, 10, 2]
        owners = {actor["owner"]["pid"] for actor in machine.status(port)["actors"]}
        assert owners == {one.pid, two.pid}
        assert "by its id" in machine.refuses("logs", "Counter-1", "--port", port)
        for actor in machine.status(port)["actors"]:
            assert "the total is" in machine.does("logs", actor["actor"], "--port", port)


def test_two_clusters_on_one_machine_stop_independently(running: Running, port: int) -> None:
    machine, other = running
    machine.does("start", "--port", port)
    with machine.script(other) as script:
        add(script, 1)
        machine.does("stop", "--port", port)
        assert add(script, 1) == 2
        assert f"--port {other}" in machine.refuses("status", "--port", port)
        assert f"--port {other}" in machine.refuses("stop", "--port", port)


def test_a_key_that_begins_with_a_dash_is_not_an_option(machine: Machine) -> None:
    key_files.make_keys(machine.keys)
    said = machine.refuses("keys", "revoke", "-]c/=]:7Il+:5NgtT3&06$D2eWp/D[x7Jg7O49tN")
    assert "is neither a key" in said


def test_a_revocation_fails_if_no_master_is_known_that_could_confirm_it(machine: Machine) -> None:
    key_files.make_keys(machine.keys)
    key = machine.does("keys", "list").split()[1]
    assert "no master" in machine.refuses("keys", "revoke", key)
    assert key not in machine.does("keys", "list")


def test_of_two_starts_at_once_one_starts_a_cluster(machine: Machine, port: int) -> None:
    command = [str(SCRIPTS / "remotely"), "start", "--port", str(port)]
    both = [
        subprocess.Popen(
            command, env=machine.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    errors = [start.communicate(timeout=DEADLINE_S)[1] for start in both]
    assert sorted(start.returncode for start in both) == [0, 1]
    assert f"a cluster runs at 127.0.0.1:{port} already" in b"".join(errors).decode()
    assert len(machine.status(port)["machines"]) == 1
    machine.does("stop", "--port", port)


# --- options of start -----------------------------------------------------------------------------


def test_a_second_start_at_a_port_names_the_running_master(running: Running) -> None:
    machine, port = running
    why = machine.refuses("start", "--port", port)
    assert str(machine.pids(port)["master"]) in why
    assert f"remotely stop --port {port}" in why


def test_a_port_in_use_is_named_with_its_holder(machine: Machine, port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        for host in ("127.0.0.1", "0.0.0.0"):
            why = machine.refuses("start", "--port", port, "--host", host)
            assert f"port {port} is in use by pid {os.getpid()}" in why


@pytest.mark.parametrize("host", ["192.0.2.7", "no.such.host.invalid", "a..b"])
def test_an_address_of_another_machine_is_refused(machine: Machine, port: int, host: str) -> None:
    assert "is not an address of" in machine.refuses("start", "--port", port, "--host", host)


def test_a_cluster_offers_the_named_gpus_and_resources_and_stop_ends_a_detached_actor(
    machine: Machine, port: int
) -> None:
    offer = ["--gpus", "GPU-5a1b,3", "--resource", "license=2", "--resource", "disk=0.5"]
    offer += ["--label", "zone=a", "--label", "ssd", "--memory", "64MiB"]
    machine.does("start", "--port", port, *offer)
    options = "dict(gpus=2, resources={'license': 1}, labels=['ssd'], detached=True, name='store')"
    with machine.script(port, options) as script:
        add(script, 1)
    (actor,), (worker,) = machine.status(port)["actors"], machine.status(port)["machines"]
    assert (worker["gpus"], actor["gpu_ids"]) == (2, ["GPU-5a1b", 3])
    assert worker["free_resources"] == {"disk": 0.5, "license": 1}
    assert (worker["labels"], worker["memory"]) == (["ssd", "zone=a"], 64 << 20)
    assert (actor["resources"], actor["owner"]) == ({"license": 1}, None)
    assert actor["labels"] == ["ssd"]
    shown = machine.does("status", "--port", port)
    assert "0.5 of 0.5 disk, 1 of 2 license  ssd zone=a" in shown
    assert "detached" in shown
    machine.does("stop", "--port", port)


def test_invalid_arguments_are_refused_before_anything_starts(machine: Machine) -> None:
    for command in (
        ["start", "--port", 0],
        ["start", "--cpus", -1],
        ["start", "--gpus", "many"],
        ["start", "--resource", "license"],
        ["start", "--memory", "lots"],
        ["start", "--label", "a b"],
        ["drain", "node", "--within", "soon"],
        ["join", "127.0.0.1:1", "--resource", "gpus=1"],
        ["join"],
        ["keys", "revoke", ""],
        ["keys", "add", "client", ""],
        ["stat"],
    ):
        assert "remotely" in machine.refuses(*command, code=2)
    for address in ("nowhere:", "nowhere:x", ":8010"):
        assert "is not an address" in machine.refuses("status", address)
    assert "from 1 to 65535" in machine.refuses("status", "nowhere:99999")


def options_of(command: click.Command, *before: str) -> Iterator[list[str]]:
    """Return the words of each option with a value, of a command and of those in it."""
    for param in command.params:
        if isinstance(param, click.Option) and not param.is_flag:
            yield [*before, param.opts[0]]
    for name, inner in getattr(command, "commands", {}).items():
        yield from options_of(inner, *before, name)


@pytest.mark.parametrize("main", [cli.main, rl_cli.main], ids=["remotely", "remotely-rl"])
def test_no_option_takes_an_empty_text(main: click.Command) -> None:
    given = list(options_of(main))
    assert given
    for words in given:
        done = CliRunner().invoke(main, [*words, ""])
        assert done.exit_code == 2, words
        assert f"Invalid value for '{words[-1]}'" in done.output


def test_a_cluster_on_all_addresses_announces_a_real_one(machine: Machine, port: int) -> None:
    said = machine.does("start", "--port", port, "--host", "0.0.0.0")
    (worker,) = machine.status(port)["machines"]
    assert worker["address"] != "0.0.0.0"
    assert f"remotely join {worker['address']}:{port} --key worker.key" in said
    with machine.script(port) as script:
        assert add(script, 3) == 3
    machine.does("stop", "--port", port)


def noted_end(machine: Machine, port: int) -> Path:
    """Return the file of a master that was stopped: its successor has nothing to learn."""
    return machine.keys / "ended" / str(port)


def test_a_cluster_stopped_by_remotely_address_starts_again_with_the_same_keys(
    machine: Machine, port: int
) -> None:
    machine.does("start", "--port", port)
    key = (machine.keys / "worker.key").read_bytes()
    why = machine.refuses("stop", REMOTELY_ADDRESS=f"no.such.invalid:{port}")
    assert "no.such.invalid is not an address of this machine" in why
    assert "has ended" in machine.does("stop", REMOTELY_ADDRESS=f"127.0.0.1:{port}")
    assert noted_end(machine, port).exists()
    machine.does("start", "--port", port)
    assert not noted_end(machine, port).exists()
    assert (machine.keys / "worker.key").read_bytes() == key
    machine.does("stop", "--port", port)


def test_the_commands_refuse_a_ray_cluster(machine: Machine) -> None:
    for address in ("ray:auto", "ray:local", "ray:head:6379"):
        for command in (["status"], ["logs", "a"], ["kill", "a"], ["stop"]):
            why = machine.refuses(*command, REMOTELY_ADDRESS=address)
            assert f"{address!r} is a Ray cluster" in why
            assert "'ray status', 'ray logs' and 'ray debug', or remotely.status() in" in why
    assert "'ray:auto' is a Ray cluster" in machine.refuses("join", "ray:auto")
    assert "machine name 'ray'" in machine.refuses("status", "ray:8010")  # a host of that name


def test_without_a_cluster_each_command_says_so(machine: Machine, port: int) -> None:
    for command in ("stop", "status", "logs"):
        why = machine.refuses(command, "--port", port)
        assert f"no cluster runs at port {port} on this machine" in why
    why = machine.refuses("status", f"127.0.0.1:{port}")
    assert f"no master at 127.0.0.1:{port}" in why
    assert machine.does("--version").startswith("remotely 0.")


def test_the_command_is_run_by_its_package_too() -> None:
    command = [sys.executable, "-m", "remotely", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("remotely 0.")


# --- joining --------------------------------------------------------------------------------------


def test_a_machine_joins_with_a_copy_of_one_file(machines: Any, port: int) -> None:
    first, second = machines("first"), machines("second")
    first.does("start", "--port", port, "--cpus", 0)
    key = copied_key(first, second)
    address = f"127.0.0.1:{port}"
    place = ("--host", "127.0.0.2", "--cpus", 2)
    assert f"has joined {address}" in second.does("join", address, "--key", key, *place)

    found = first.status(port)
    assert {m["address"]: m["cpus"] for m in found["machines"]} == {"127.0.0.1": 0, "127.0.0.2": 2}
    with first.script(port) as script:
        assert add(script, 6) == 6
        (actor,) = first.status(port)["actors"]
        there = {m["worker"]: m["address"] for m in found["machines"]}
        assert there[actor["worker"]] == "127.0.0.2"
        assert first.does("logs", "Counter-1", "--port", port) == "the total is 6\n"
        assert "no actor" in first.refuses("logs", "nobody", "--port", port)
    first.does("stop", "--port", port)
    assert second.pids(port) == {}


def test_a_machine_is_on_one_cluster_for_each_port(machines: Any, port: int) -> None:
    """Else `--port`, in each command, would name two."""
    owners, here = [machines("one"), machines("two")], machines("here")
    at = [f"127.0.0.{number}:{port}" for number in (1, 2)]
    keys = []
    for owner, address in zip(owners, at, strict=True):
        owner.does("start", "--host", address.partition(":")[0], "--port", port, "--cpus", 0)
        keys.append(("--key", owner.keys / "worker.key"))
    here.does("join", at[0], *keys[0])
    why = here.refuses("join", at[1], *keys[1])
    assert f"on another cluster with port {port} already, at {at[0]}" in why
    assert f"has left {at[0]}" in here.does("stop", "--port", port)
    assert f"has joined {at[1]}" in here.does("join", at[1], *keys[1])
    for owner in owners:
        owner.does("stop", "--port", port)


def test_a_machine_that_has_joined_can_leave_and_the_cluster_goes_on(
    machines: Any, running: Running
) -> None:
    (first, port), second = running, machines("second")
    key = copied_key(first, second)
    second.does("join", f"127.0.0.1:{port}", REMOTELY_KEY=str(key))
    assert len(first.status(port)["machines"]) == 2
    assert "goes on" in second.does("stop", "--port", port)
    assert len(first.status(port)["machines"]) == 1
    with first.script(port) as script:
        assert add(script, 1) == 1


def test_a_machine_leaves_at_once_while_its_zygote_is_importing(
    machines: Any, running: Running
) -> None:
    (first, port), second = running, machines("second")
    key = copied_key(first, second)
    second.does("join", f"127.0.0.1:{port}", "--key", key)
    (pid,) = second.pids(port).values()
    (zygote,) = psutil.Process(pid).children()
    zygote.suspend()  # as unresponsive as in a long import
    assert "goes on" in second.does("stop", "--port", port)
    assert not zygote.is_running()
    assert len(first.status(port)["machines"]) == 1


def test_joining_without_a_master_says_how_to_start_one(machines: Any, port: int) -> None:
    first, second = machines("first"), machines("second")
    key_files.make_keys(first.keys)
    key = copied_key(first, second)
    why = second.refuses("join", f"127.0.0.1:{port}", "--key", key)
    assert f"no master at 127.0.0.1:{port}" in why
    assert f"remotely start --host 127.0.0.1 --port {port}" in why
    why = second.refuses("join", f"no.such.host.invalid:{port}", "--key", key)
    assert "machine name 'no.such.host.invalid'" in why


def test_the_key_of_another_cluster_is_refused_with_an_explanation(
    machines: Any, running: Running
) -> None:
    (first, port), second = running, machines("second")
    key_files.make_keys(second.keys)
    key = second.keys / "worker.key"
    why = second.refuses("join", f"127.0.0.1:{port}", "--key", key)
    assert "refused this key" in why
    assert "copy worker.key" in why
    assert "refused this key" in second.refuses("status", f"127.0.0.1:{port}")
    assert len(first.status(port)["machines"]) == 1


def test_the_key_of_another_role_is_refused_with_an_explanation(
    machines: Any, running: Running
) -> None:
    (first, port), second = running, machines("second")
    second.home.mkdir()
    address = f"127.0.0.1:{port}"
    for role in ("client", "master"):
        key = shutil.copy(first.keys / f"{role}.key", second.home)
        assert "worker.key" in second.refuses("join", address, "--key", key)
    assert "there is no key file" in second.refuses("join", address)
    key = shutil.copy(first.keys / "worker.key", second.home)
    assert "client.key" in second.refuses("status", address, "--key", key)


def test_a_listener_that_is_not_a_master_is_reported(machines: Any, port: int) -> None:
    first, second = machines("first"), machines("second")
    key_files.make_keys(first.keys)
    key = copied_key(first, second)
    with socket.create_server(("127.0.0.1", port)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            why = second.refuses("join", f"127.0.0.1:{port}", "--key", key)
            assert "is not a remotely master" in why
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_another_protocol_version_is_refused_with_an_explanation(
    machines: Any, running: Running, tmp_path: Path
) -> None:
    (first, port), second = running, machines("second")
    newer = tmp_path / "newer"
    newer.mkdir()
    patch = (
        "from remotely.protocol import control\ncontrol.VERSION = 99\n"
        "control._VERSION_BYTE = b'c'\n"
    )
    (newer / "sitecustomize.py").write_text(patch)
    key = copied_key(first, second)
    client = first.keys / "client.key"
    address = f"127.0.0.1:{port}"
    for command in (["join", address, "--key", key], ["status", address, "--key", client]):
        why = second.refuses(*command, PYTHONPATH=str(newer))
        assert f"version {control.VERSION} " in why
        assert "install the same version of remotely" in why


class Logs:
    """A client that replies once three requests have been sent."""

    def __init__(self) -> None:
        self.asked: list[Future[control.LogPiece]] = []

    def read_log(self, actor: str, offset: int) -> "Future[control.LogPiece]":
        self.asked.append(Future())
        if len(self.asked) == 3:
            for number, future in enumerate(self.asked):
                text = f"the output of {number}\n"
                piece = control.LogPiece(ticket=0, text=text, offset=0, known=True, ended=False)
                future.set_result(piece)
        return self.asked[-1]


def test_the_logs_of_all_actors_are_requested_together(monkeypatch: pytest.MonkeyPatch) -> None:
    locations = [SimpleNamespace(actor=f"{n}", name=f"Counter-{n}") for n in range(3)]
    actors = [SimpleNamespace(location=location) for location in locations]
    monkeypatch.setattr(inspect, "living_actors", lambda client: actors)
    monkeypatch.setattr(inspect, "client_at", lambda *_: contextlib.nullcontext(Logs()))

    shown = CliRunner().invoke(inspect.logs, ["--address", "127.0.0.1:8010"])

    assert shown.output.splitlines() == [
        f"[Counter-{number}] the output of {number}" for number in range(3)
    ]


# --- daemons that are killed ----------------------------------------------------------------------


@pytest.mark.parametrize("killed", ["master", "worker"])
def test_a_cluster_with_a_killed_daemon_stops_cleanly(
    machine: Machine, port: int, killed: str
) -> None:
    machine.does("start", "--port", port)
    with machine.script(port, "dict(detached=True, name='store')") as script:
        add(script, 1)
    os.kill(machine.pids(port)[killed], signal.SIGKILL)
    machine.does("stop", "--port", port)
    if killed == "master":
        assert not noted_end(machine, port).exists()


def test_stop_cleans_up_after_both_daemons_were_killed(machine: Machine, port: int) -> None:
    machine.does("start", "--port", port)
    daemons = machine.pids(port).values()
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(psutil.pid_exists, daemons)), "they have ended")
    assert "no cluster runs" in machine.refuses("stop", "--port", port)


@pytest.mark.slow
def test_a_frozen_daemon_is_stopped_by_force(machine: Machine, port: int) -> None:
    machine.does("start", "--port", port)
    freeze(machine.pids(port)["worker"])
    machine.does("stop", "--port", port)


def test_a_new_master_takes_over_the_worker_and_its_actors(machine: Machine, port: int) -> None:
    machine.does("start", "--port", port)
    before = machine.pids(port)
    with machine.script(port) as script:
        assert add(script, 1) == 1
        os.kill(before["master"], signal.SIGKILL)
        assert add(script, 1) == 2  # calls do not pass through the master
        machine.does("start", "--port", port)
        assert machine.pids(port)["worker"] == before["worker"]
        assert machine.pids(port)["master"] != before["master"]
        assert [actor["name"] for actor in machine.status(port)["actors"]] == ["Counter-1"]
        assert add(script, 1) == 3
    machine.does("stop", "--port", port)


def test_a_second_worker_on_a_machine_needs_a_number_of_cpus(machine: Machine, port: int) -> None:
    machine.does("start", "--port", port, "--cpus", 1)
    join = ["join", f"127.0.0.1:{port}"]
    assert "on that cluster already" in machine.refuses(*join)
    machine.does(*join, "--cpus", 1)
    assert [worker["cpus"] for worker in machine.status(port)["machines"]] == [1, 1]
    machine.does("stop", "--port", port)
