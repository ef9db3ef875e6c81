"""The end of a script while calls are under way.

Calls of an Executor or a Pool are waited for, as the standard library waits for its executors.
Calls of an actor are not, and one line on stderr says so.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import DEADLINE_S, Here, wait_until

SCRIPT = """
import atexit, multiprocessing, os, signal, sys, threading, time
from pathlib import Path
import remotely

folder = Path(sys.argv[1])

def work(n, seconds=0.02):
    (folder / f"{n}-begun").touch()
    time.sleep(seconds)
    (folder / str(n)).touch()

@remotely.remote_class(cpus=0)
class Worker:
    def work(self, n, seconds=0.02):
        work(n, seconds)
        return n

    def steps(self):
        yield from range(100)

def in_thread(function, daemon=False):
    thread = threading.Thread(target=function, daemon=daemon)
    thread.start()
    return thread

def submit(count=6, seconds=0.02):
    for n in range(count):
        executor.submit(work, n, seconds)

def after_main():
    threading.main_thread().join()
    submit_late()

def submit_late():
    try:
        executor.submit(work, 7)
    except RuntimeError as error:
        print("refused:", error, flush=True)

executor = remotely.Executor(2)
"""
WAITED_FOR = {
    "normally": ("submit()", 0),
    "an exception": ("submit(); raise ValueError('mine')", 1),
    "sys.exit": ("submit(); sys.exit(3)", 3),
    "sys.exit in a thread": ("in_thread(lambda: (submit(), sys.exit(3))).join()", 0),
    "a daemon thread": ("in_thread(submit, daemon=True).join()", 0),
    "a thread that goes on": ("submit(); in_thread(lambda: time.sleep(0.3))", 0),
    "shutdown(wait=False)": ("submit(); executor.shutdown(wait=False)", 0),
    "dropped": ("submit(); del executor", 0),
    "fork": ("submit()\nif not os.fork(): sys.exit()\nos.wait()", 0),
    "a child process": (
        "submit(); child = multiprocessing.get_context('fork').Process(); child.start()",
        0,
    ),
    "a pool": (
        "pool = remotely.Pool(Worker, 2)\nfor n in range(6): pool.submit(Worker.work, n)",
        0,
    ),
}


@pytest.fixture
def scripts(started_here: Here, tmp_path: Path) -> "Iterator[Scripts]":
    scripts = Scripts(started_here, tmp_path)
    yield scripts
    for running in scripts.started:
        with running:
            running.kill()


class Scripts:
    def __init__(self, cluster: Here, folder: Path) -> None:
        self._cluster = cluster
        self._before = cluster.below_worker()
        self._folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, ending: str) -> "subprocess.Popen[str]":
        script = self._folder / "script.py"
        script.write_text(SCRIPT + ending)
        where = {"REMOTELY_ADDRESS": self._cluster.address, "REMOTELY_KEY": str(self._cluster.key)}
        running = subprocess.Popen(
            [sys.executable, script, self._folder],
            env={**os.environ, **where},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(running)
        return running

    def end(self, running: "subprocess.Popen[str]") -> tuple[str, str]:
        """Return what it printed, once it and its actors have ended."""
        out, err = running.communicate(timeout=DEADLINE_S)
        wait_until(lambda: self._cluster.below_worker() <= self._before, "the end of its actors")
        return out, err

    def await_begun(self, n: int) -> None:
        wait_until((self._folder / f"{n}-begun").exists, f"call {n} has begun")

    def ran(self) -> set[int]:
        return {int(file.name) for file in self._folder.iterdir() if file.name.isdigit()}


@pytest.mark.parametrize("how", WAITED_FOR)
def test_calls_of_an_executor_or_a_pool_run_however_the_script_ends(
    scripts: Scripts, how: str
) -> None:
    ending, code = WAITED_FOR[how]
    running = scripts.start(ending)
    out, err = scripts.end(running)
    assert (running.returncode, out.strip()) == (code, ""), err
    assert scripts.ran() == set(range(6))
    assert "remotely:" not in err


@pytest.mark.parametrize("ending", ["in_thread(after_main)", "atexit.register(submit_late)"])
def test_calls_are_refused_once_the_script_has_ended(scripts: Scripts, ending: str) -> None:
    running = scripts.start(f"submit(1); {ending}")
    out, err = scripts.end(running)
    assert "refused: cannot schedule new futures after interpreter shutdown" in out
    assert (running.returncode, scripts.ran(), err) == (0, {0}, "")


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_the_wait_for_calls_of_an_executor(scripts: Scripts, times: int) -> None:
    say = "threading._register_atexit(lambda: print('ends', flush=True))"
    running = scripts.start(f"executor.submit(work, 9).result(); submit(5, 60); {say}")
    assert running.stdout is not None
    assert running.stdout.readline() == "ends\n"
    scripts.await_begun(1)
    for _ in range(times):
        running.send_signal(signal.SIGINT)
    _, err = scripts.end(running)
    (line,) = _lines(err)
    assert "the script ends, and 5 submitted calls have no outcome (5 of work): what" in line


EXITS = """
while not (folder / "1-begun").exists(): time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("act", "code"), [("threading.Event().wait()", -signal.SIGTERM), (EXITS, 0)]
)
def test_what_ends_a_process_at_once_ends_its_calls(scripts: Scripts, act: str, code: int) -> None:
    running = scripts.start(f"submit(4, 60)\n{act}")
    scripts.await_begun(1)
    if code:
        running.send_signal(signal.SIGTERM)
    _, err = scripts.end(running)
    assert (running.returncode, err, scripts.ran()) == (code, "", set())


NONE_OF_THESE = """
worker.work(0)
worker.work.submit(1).result()
for step in worker.steps(): break
other = Worker()
call = other.work.submit(2, 60)
remotely.kill(other)
in_thread(lambda: worker.work(3, 60), daemon=True)
"""


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("for n in range(3): worker.work.submit(n, 60)", "3 submitted calls have no outcome (3 of"),
        ("worker.work.submit(0, 60); raise ValueError", "1 submitted call has no outcome (Worker"),
        ("first = worker.work.submit(0, 60); worker.work.submit(first)", "2 submitted calls have"),
        (NONE_OF_THESE, ""),
        ("call = worker.work.submit(0, 60); remotely.shutdown()", ""),
        (
            "call = worker.work.submit(0, 60)\nif not os.fork(): sys.exit()\nos.wait()",
            "1 submitted",
        ),
    ],
)
def test_one_line_names_the_submitted_calls_of_actors_that_have_no_outcome(
    scripts: Scripts, ending: str, said: str
) -> None:
    running = scripts.start("worker = Worker()\n" + ending)
    _, err = scripts.end(running)
    lines = _lines(err)
    assert len(lines) == bool(said)
    assert said in "".join(lines)


@pytest.mark.slow
def test_a_notebook_waits_for_its_executor_when_its_kernel_is_shut_down(
    started_here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager: Any = pytest.importorskip("jupyter_client").manager
    monkeypatch.setenv("REMOTELY_ADDRESS", started_here.address)
    monkeypatch.setenv("REMOTELY_KEY", str(started_here.key))
    kernel, client = manager.start_new_kernel()
    try:
        script = SCRIPT.replace("sys.argv[1]", repr(str(tmp_path)))
        client.execute_interactive(script + "submit()", timeout=DEADLINE_S, output_hook=print)
        client.shutdown()
        wait_until(lambda: not kernel.is_alive(), "the end of the kernel")
        assert {file.name for file in tmp_path.iterdir()} >= set("012345")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
        kernel.cleanup_resources()


def _lines(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("remotely:")]
