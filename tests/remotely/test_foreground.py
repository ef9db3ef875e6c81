"""`start` and `join` with --foreground, --patience, and a key from standard input."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from remotely import cli
from remotely.machine.processes import all_processes
from remotely.transport import key_files
from tests.clusters import DEADLINE_S, SCRIPTS, ignores, wait_until
from tests.command import Machine, Running, add, copied_key


@contextlib.contextmanager
def foreground(
    machine: Machine, *words: object, by: Sequence[str] = ()
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command with --foreground for the length of the block."""
    with subprocess.Popen(
        [*by, SCRIPTS / "remotely", *map(str, words), "--foreground"],
        env=machine.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin is not None
        running.stdin.close()
        try:
            yield running
        finally:
            running.kill()


def wait_for_line(running: "subprocess.Popen[str]", what: str) -> None:
    """Read its output until a line contains `what`."""
    assert running.stdout is not None
    for line in running.stdout:
        if what in line:
            return
    raise AssertionError(f"it has not printed {what!r}")


def end(running: "subprocess.Popen[str]", number: signal.Signals) -> str:
    """Send a signal; return its standard error when it has ended."""
    running.send_signal(number)
    assert running.stderr is not None
    errors = running.stderr.read()
    running.wait(DEADLINE_S)
    return errors


def test_a_foreground_cluster_ends_gracefully_with_its_command(machines: Any, port: int) -> None:
    first, second = machines("first"), machines("second")
    with foreground(first, "start", "--port", port, "--cpus", 1) as start:
        wait_for_line(start, "To end it:        Ctrl-C")
        key = copied_key(first, second)
        with foreground(second, "join", f"127.0.0.1:{port}", "--key", key, "--cpus", 1) as join:
            wait_for_line(join, "To leave it: Ctrl-C")
            with first.script(port) as script:
                assert add(script, 1) == 1
            assert end(start, signal.SIGINT) == ""
            assert start.returncode == 0
            assert join.wait(DEADLINE_S) == 0  # with its master
    assert first.pids(port) == second.pids(port) == {}


def test_a_foreground_worker_leaves_on_sigterm_and_the_cluster_goes_on(
    machines: Any, running: Running
) -> None:
    (first, port), second = running, machines("second")
    key = copied_key(first, second)
    with foreground(second, "join", f"127.0.0.1:{port}", "--key", key) as join:
        wait_for_line(join, "has joined")
        assert end(join, signal.SIGTERM) == ""
        assert join.returncode == 0
    assert len(first.status(port)["machines"]) == 1


def test_a_machine_that_has_joined_in_the_foreground_is_drained_after_sigterm(
    machines: Any, port: int
) -> None:
    first, second = machines("first"), machines("second")
    first.does("start", "--port", port, "--cpus", 0)
    words = ("join", f"127.0.0.1:{port}", "--key", copied_key(first, second))
    with foreground(second, *words, "--grace", DEADLINE_S) as join:
        wait_for_line(join, "has joined")
        with first.script(port, "dict(detached=True, name='store')") as script:
            add(script, 1)
            join.send_signal(signal.SIGTERM)
            drains = lambda: any(m["drains_s"] for m in first.status(port)["machines"])
            wait_until(drains, "that it is drained")
            add(script, 2)
        assert join.poll() is None
        first.does("kill", "store", "--port", port)
        assert join.wait(DEADLINE_S) == 0
    first.does("stop", "--port", port)


def test_a_killed_foreground_command_leaves_nothing_behind(machine: Machine, port: int) -> None:
    with foreground(machine, "start", "--port", port) as start:
        wait_for_line(start, "To end it")
        daemons = machine.pids(port).values()
        with machine.script(port, "dict(detached=True, name='store')") as script:
            add(script, 1)
        start.kill()
        wait_until(lambda: not any(map(psutil.pid_exists, daemons)), "the daemons end")


@pytest.mark.parametrize("which", ["master", "worker"])
def test_a_killed_foreground_daemon_ends_the_others(
    machine: Machine, port: int, which: str
) -> None:
    with foreground(machine, "start", "--port", port) as start:
        wait_for_line(start, "To end it")
        os.kill(machine.pids(port)[which], signal.SIGKILL)
        assert start.wait(DEADLINE_S) == 1
        assert start.stderr is not None
        assert "did not end gracefully" in start.stderr.read()


def test_join_waits_for_the_master_to_start(machines: Any, port: int) -> None:
    first, second = machines("first"), machines("second")
    key_files.make_keys(first.keys)
    key = copied_key(first, second)
    command = ["join", f"127.0.0.1:{port}", "--key", key, "--patience", DEADLINE_S]
    joining = subprocess.Popen(
        [SCRIPTS / "remotely", *map(str, command)],
        env=second.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first.does("start", "--port", port)
    assert joining.communicate(timeout=DEADLINE_S)[1] == b""
    assert joining.returncode == 0
    assert len(first.status(port)["machines"]) == 2
    first.does("stop", "--port", port)


def test_under_nohup_a_foreground_cluster_survives_sighup_until_it_is_stopped(
    machine: Machine, port: int
) -> None:
    with foreground(machine, "start", "--port", port, "--cpus", 1, by=["nohup"]) as start:
        wait_for_line(start, "The cluster takes calls")
        assert ignores(start.pid, signal.SIGHUP)
        assert not ignores(start.pid, signal.SIGTERM)
        start.send_signal(signal.SIGHUP)
        assert "1 machine" in machine.does("status", "--port", port)
        assert "has ended" in machine.does("stop", "--port", port)
        assert start.wait(DEADLINE_S) == 0


def test_a_worker_ends_after_the_given_time_without_a_master(machines: Any, port: int) -> None:
    first, second = machines("first"), machines("second")
    first.does("start", "--port", port)
    key = copied_key(first, second)
    words = ("join", f"127.0.0.1:{port}", "--key", key, "--end-without-master", 3)
    with foreground(second, *words) as join:
        wait_for_line(join, "has joined")
        os.kill(first.pids(port)["master"], signal.SIGKILL)
        assert join.wait(DEADLINE_S) == 0
        assert join.stderr is not None
        assert "heard nothing from the master" in join.stderr.read()
    first.does("stop", "--port", port)


def test_a_key_from_standard_input_is_in_no_argument(machines: Any, running: Running) -> None:
    (first, port), second = running, machines("second")
    key = (first.keys / "worker.key").read_text()
    command = [str(SCRIPTS / "remotely"), "join", f"127.0.0.1:{port}", "--key", "-"]
    done = subprocess.run(
        command, env=second.environment, input=key, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(first.status(port)["machines"]) == 2
    secret = key.split('"secret": "')[1].split('"')[0]
    for process in all_processes():
        with contextlib.suppress(psutil.Error):
            assert not any(secret in word for word in process.cmdline())
            assert not any(secret in value for value in process.environ().values())
    second.does("stop", "--port", port)


@pytest.mark.parametrize(
    ("sent", "told"),
    [("", "standard input has no key; send worker.key"), ("{}", "damaged"), ("no", "damaged")],
)
def test_an_invalid_key_on_standard_input_is_refused(
    machine: Machine, port: int, sent: str, told: str
) -> None:
    join = ["join", f"127.0.0.1:{port}", "--key", "-"]
    done = CliRunner(env=machine.environment).invoke(cli.main, join, input=sent)
    assert (done.exit_code, done.stdout) == (1, "")
    assert told in done.stderr
