"""Actors that crash, fork, hold the GIL, or run out of descriptors."""

import ctypes
import importlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import zmq

import remotely
from remotely.api.remote_class import Placeable
from remotely.client import channel
from remotely.engine import Options
from remotely.transport import sockets
from tests.clusters import freeze, printed, processes, wait_until


def hold_the_interpreter(seconds: int) -> None:
    """Sleep in C without releasing the GIL."""
    ctypes.PyDLL(None).sleep(seconds)


@remotely.remote_class
class Wild:
    def crash(self) -> None:
        ctypes.string_at(0)

    def fork(self) -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def fork_and_return(self) -> bool:
        """Return in the child too, as if it were the actor."""
        return os.fork() == 0

    def pool(self, method: str, functions: list[Callable[[int], Any]]) -> list[list[Any]]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            return [pool.map(function, [2, 3]) for function in functions]

    def hold(self, seconds: int) -> int:
        hold_the_interpreter(seconds)
        return seconds

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.promise("exit_status")
def test_a_native_crash_leaves_its_signal_and_its_stack(any_cluster: None) -> None:
    wild = Wild()
    pid = wild.pid()
    with pytest.raises(remotely.ActorDied) as caught:
        wild.crash()
    assert caught.value.exit == "SIGSEGV"
    assert caught.value.may_have_run
    assert f"pid {pid}" in str(caught.value)
    assert "Segmentation fault" in caught.value.stderr
    assert "in crash" in caught.value.stderr


def test_a_forked_child_that_returns_from_a_method_ends_without_a_reply(
    any_cluster: None, capfd: pytest.CaptureFixture[str]
) -> None:
    wild = Wild()
    for _ in range(3):
        assert wild.fork_and_return() is False
    assert wild.fork() == 7
    wait_until(lambda: "end it with os._exit()" in printed(), "the warning")


class Pair(NamedTuple):
    """A class of this module, which is sent to actors by value."""

    left: int
    right: int


def twice(x: int) -> Pair:
    return Pair(x, x)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_actor_may_use_multiprocessing_with_any_function(
    any_cluster: None, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text("import math\ndef power(x): return math.pow(x, x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    beside = importlib.import_module("beside_it")

    results = Wild().pool(method, [abs, beside.power, twice, lambda x: -x])

    assert results == [[2, 3], [4, 27], [Pair(2, 2), Pair(3, 3)], [-2, -3]]
    assert type(results[2][0]) is Pair
    del sys.modules["beside_it"]


def test_calls_wait_for_a_stopped_actor(any_cluster: None) -> None:
    wild = Wild()
    pid = wild.pid()
    freeze(pid)
    future = remotely.submit(wild.fork)
    with pytest.raises(remotely.CallTimeout):
        future.result(timeout=0.5)
    os.kill(pid, signal.SIGCONT)
    assert future.result(timeout=40) == 7


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_holding_the_gil_for_longer_than_a_lease_harms_no_actor(cluster: str) -> None:
    wild, other = Wild(), Wild()
    pids = wild.pid(), other.pid()
    future = remotely.submit(wild.hold, 25)
    hold_the_interpreter(25)
    assert future.result(timeout=60) == 25
    assert (wild.pid(), other.pid()) == pids


def script(tmp_path: Path, body: str) -> "subprocess.Popen[str]":
    file = tmp_path / "script.py"
    file.write_text(
        "import os, resource, sys, time\nimport remotely\n"
        "from tests.remotely.test_adversity import Wild\n" + textwrap.dedent(body)
    )
    return subprocess.Popen(
        [sys.executable, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "REMOTELY_HOME": str(tmp_path)},
    )


def test_a_script_with_pending_calls_exits_at_once(nothing_left: None, tmp_path: Path) -> None:
    calls = "[wild.sleep.submit(100) for _ in range(50)]"
    running = script(tmp_path, f"wild = Wild()\nfutures = {calls}\nprint('over', flush=True)\n")
    assert running.stdout is not None
    assert running.stdout.readline() == "over\n"
    _, errors = running.communicate(timeout=40)  # the calls would take longer
    assert running.returncode == 0
    assert errors.count("\n") == 1
    assert "50 submitted calls have no outcome" in errors
    wait_until(lambda: not processes(str(tmp_path)), "the end of all")


def test_a_client_without_descriptors_refuses_a_new_actor_and_the_old_ones_answer(
    nothing_left: None, tmp_path: Path
) -> None:
    running = script(
        tmp_path,
        """
        remotely.connect(cpus=100)
        wilds = [Wild()]
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, used + 20))
        try:
            for _ in range(50):
                wilds.append(Wild())
        except (remotely.RemotelyError, OSError) as error:
            print(type(error).__name__, error)
        print(sum(wild.fork() == 7 for wild in wilds) == len(wilds))
        """,
    )
    out, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    error, all_answered = out.splitlines()
    assert error.startswith("NoResources this process has reached its limit of open files")
    assert all_answered == "True"


def test_a_worker_without_descriptors_refuses_a_new_actor_and_starts_the_next(
    embedded: None,
) -> None:
    wild = Wild()
    _zygote, worker, *_ = psutil.Process(wild.pid()).parents()
    before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (worker.num_fds() + 3, before[1]))

    with pytest.raises(remotely.ActorDied, match="could not start a process: Too many open files"):
        Wild()

    assert wild.fork() == 7
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
    assert Wild().fork() == 7


def test_an_actor_that_cannot_be_started_is_refused_with_the_reason(here: None) -> None:
    options = Options(env={"A=B": "1"})  # which the decorator would refuse
    with pytest.raises(remotely.ActorDied, match="not start a process: ValueError: illegal env"):
        Placeable(Wild, options)()
    assert Wild().fork() == 7


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_actors_in_one_group_start(nothing_left: None) -> None:
    remotely.connect(cpus=1000, gpus=0, patience_s=240)
    wilds = remotely.group(Wild, 1000)
    assert len(set(wilds.pid())) == 1000


def test_a_zygote_that_cannot_be_replaced_is_retried(nothing_left: None, tmp_path: Path) -> None:
    running = script(
        tmp_path,
        """
        import psutil
        wild = Wild()  # it ends with its handle
        zygote, worker, *_ = psutil.Process(wild.pid()).parents()
        del wild
        before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        zygote.kill()
        input()
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
        while True:
            try:
                print(Wild().fork())
                break
            except remotely.ActorDied as error:
                assert "could not start a process" in str(error)
                time.sleep(0.1)
        """,
    )
    errors = running.stderr
    assert errors is not None
    wait_until(lambda: "no zygote could be started: Too many" in errors.readline(), "the log line")
    out, more = running.communicate("there is room\n", timeout=60)
    assert (running.returncode, out) == (0, "7\n"), more
    assert "no zygote" not in more  # it is retried each second, and logged once a minute


@pytest.mark.zeromq
@pytest.mark.parametrize("ends", [False, True])
def test_the_first_call_of_a_client_waits_for_a_stopped_actor_as_long_as_it_lives(
    cluster: str, ends: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its process accepts the connection, and its Python admits nobody."""

    @remotely.remote_class
    class Maker:
        def make(self, cls: Any, name: str) -> int:
            self.made = remotely.options(cls, name=name)()
            return self.made.pid()  # type: ignore[no-any-return]

    maker = Maker()
    pid = maker.make(Wild, f"stopped-{ends}")
    in_a_moment_ms = 300
    changed = [
        (option, in_a_moment_ms if option == zmq.HANDSHAKE_IVL else value, why)
        for option, value, why in sockets.OPTIONS
    ]
    monkeypatch.setattr(sockets, "OPTIONS", changed)
    monkeypatch.setattr(channel, "HANDSHAKE_S", in_a_moment_ms / 1000)
    freeze(pid)
    found = remotely.get_actor(f"stopped-{ends}")
    with ThreadPoolExecutor() as threads:
        called = threads.submit(lambda: found.pid())
        wait_until(lambda: "does not answer" in printed(), "the warning")
        os.kill(pid, signal.SIGKILL if ends else signal.SIGCONT)
        if not ends:
            assert called.result(40) == pid
        else:
            with pytest.raises(remotely.ActorDied):
                called.result(40)
