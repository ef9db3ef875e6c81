"""The command `remotely debug`, on a terminal of its own and in a pipe."""

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.errors import ActorDied
from tests.clusters import DEADLINE_S, SCRIPTS, Here, wait_until
from tests.remotely.test_debugger import Worker, status_of, stopped

PROMPT = "(Pdb) "


@remotely.remote_class
class Gated:
    def double(self, number: int, gate: Path) -> int:
        twice = 2 * number
        breakpoint()  # noqa: T100
        gate.read_text()  # waits until something is written
        return twice


class Terminal:
    """A command on a pseudo-terminal, and what it shows."""

    def __init__(self, home: Path, *command: str) -> None:
        environment = {**os.environ, "HOME": str(home), "TERM": "dumb"}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(SCRIPTS / "remotely", ["remotely", *command], environment)
        os.set_blocking(self._fd, False)
        self._seen = ""
        self.code: int | None = None

    def types(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """Return what is shown, up to this text."""
        wait_until(lambda: self._read() and text in self._seen, f"{text!r} in {self._seen!r}")
        found, _, self._seen = self._seen.partition(text)
        return found + text

    def does(self, line: str) -> str:
        """Return the answer to a line, without its echo."""
        self.types(f"{line}\n")
        self.until(line)
        return re.sub(r"\x1b\[\??\w+", "", self.until(PROMPT)).replace("\r", "").lstrip("\n")

    def ends(self) -> int:
        """Return its exit status."""
        wait_until(self._has_ended, f"its end; it shows {self._seen!r}")
        assert self.code is not None
        return self.code

    def close(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def _has_ended(self) -> bool:
        self._read()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def _read(self) -> bool:
        try:
            self._seen += os.read(self._fd, 65_536).decode()
        except (BlockingIOError, OSError):  # nothing is there, or it has ended
            pass
        return True


@pytest.fixture
def debug(started_here: Here, here: None, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*words: str) -> Terminal:
        where = ("--address", started_here.address, "--key", str(started_here.key))
        made.append(Terminal(tmp_path, "debug", *words, *where))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def name_of(actor: Any) -> str:
    return remote_of(actor).name


def test_a_terminal_steps_edits_completes_interrupts_and_leaves(
    debug: Callable[..., Terminal], tmp_path: Path
) -> None:
    worker = Worker()
    call = worker.double.submit(4)
    terminal = debug(name_of(worker))

    assert "test_debugger.py" in terminal.until(PROMPT)
    assert terminal.does("p twice") == f"8\n{PROMPT}"
    terminal.types("\x1b[A\n")  # the line before, of readline's history
    assert "8" in terminal.until(PROMPT)
    terminal.types("p self.is_m\t\n")
    assert "True" in terminal.until(PROMPT)
    terminal.types("half a line\x03")
    terminal.until("--KeyboardInterrupt--")
    terminal.until(PROMPT)
    assert "double()" in terminal.does("n")
    terminal.types("import time; time.sleep(100)\n")
    wait_until(lambda: status_of(worker).is_debugged, "it runs the command")
    time.sleep(0.2)  # for the command to begin: nothing tells
    terminal.types("\x03")
    assert "KeyboardInterrupt" in terminal.until(PROMPT)
    terminal.types("c\n")
    assert call.result() == 8
    assert "runs no call" in terminal.until("Ctrl-C leaves.)")
    terminal.types("\x03")
    assert terminal.ends() == 0
    assert not [*tmp_path.iterdir()]  # pdb keeps no history of its own
    assert worker.see(1) == [8, 1]


def test_ctrl_c_stops_a_call_that_runs_and_ctrl_d_leaves_it(
    debug: Callable[..., Terminal],
) -> None:
    worker = Worker()
    terminal = debug(name_of(worker))
    wait_until(lambda: status_of(worker).is_debugged or worker.see(0), "it is attached")
    terminal.until("Ctrl-C leaves.)")
    call = worker.count_for.submit(60)
    wait_until(lambda: status_of(worker).running, "it runs")

    terminal.types("\x03")

    assert "count_for()" in terminal.until(PROMPT)
    terminal.does("end = 0")
    terminal.types("\x04")
    assert terminal.ends() == 0
    assert call.result() > 0


def test_a_call_that_hangs_is_attached_to_and_stopped(debug: Callable[..., Terminal]) -> None:
    worker = Worker()
    call = worker.sleep.submit(1000)
    wait_until(lambda: status_of(worker).running, "it runs")
    terminal = debug(name_of(worker))
    terminal.until("Ctrl-C stops it.)")

    terminal.types("\x03")

    assert "time.sleep(seconds)" in terminal.until(PROMPT)
    terminal.types("q\n")
    assert terminal.ends() == 0
    assert type(call.exception()).__name__ == "BdbQuit"


def test_of_several_that_have_stopped_one_is_chosen(debug: Callable[..., Terminal]) -> None:
    workers = [Worker(), Worker()]
    calls = []
    for number, worker in enumerate(workers):
        calls.append(worker.double.submit(number))
        stopped(worker)
    terminal = debug()

    listed = terminal.until("Which [1]: ")
    assert [name_of(worker) in listed for worker in workers] == [True, True]
    terminal.types("2\n")
    terminal.until(PROMPT)
    assert terminal.does("p number") == f"1\n{PROMPT}"
    terminal.types("q\n")

    assert terminal.ends() == 0
    assert isinstance(calls[1].exception(), Exception)
    debug(name_of(workers[0])).until(PROMPT)
    remotely.kill(workers[0])
    assert isinstance(calls[0].exception(), ActorDied)


def test_the_death_of_the_actor_is_told_at_the_prompt(debug: Callable[..., Terminal]) -> None:
    worker = Worker()
    call = worker.double.submit(1)
    terminal = debug(name_of(worker))
    terminal.until(PROMPT)

    remotely.kill(worker)

    terminal.until("Error: ")
    assert name_of(worker) in terminal.until("\n")
    assert terminal.ends() == 1
    assert isinstance(call.exception(), ActorDied)


def test_an_actor_that_is_closed_ends_its_terminal_without_an_error(
    debug: Callable[..., Terminal],
) -> None:
    worker = Worker()
    call = worker.double.submit(1)
    terminal = debug(name_of(worker))
    terminal.until(PROMPT)
    terminal.types("c\n")
    assert call.result() == 2

    remotely.close(worker)

    assert "has ended: closed.)" in terminal.until("\n") + terminal.until(".)")
    assert terminal.ends() == 0


def test_a_killed_terminal_lets_the_call_go_on(debug: Callable[..., Terminal]) -> None:
    worker = Worker()
    call = worker.double.submit(1)
    terminal = debug(name_of(worker))
    terminal.until(PROMPT)

    os.kill(terminal.pid, signal.SIGKILL)

    assert call.result(DEADLINE_S) == 2


def test_the_next_error_is_waited_for(debug: Callable[..., Terminal]) -> None:
    worker = Worker()
    terminal = debug(name_of(worker), "--post-mortem")
    terminal.until("Ctrl-C leaves.")

    call = worker.divide.submit(1)

    assert "ZeroDivisionError: division by zero" in terminal.until(PROMPT)
    terminal.types("q\n")
    assert terminal.ends() == 0
    assert isinstance(call.exception(), ZeroDivisionError)


def test_commands_of_a_file_end_before_a_call_that_goes_on(
    started_here: Here, here: None, tmp_path: Path
) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    worker = Gated()
    call = worker.double.submit(4, gate)
    stopped(worker)
    (tmp_path / "commands").write_text("import time; time.sleep(0.1)\np twice\nc\n")

    with (tmp_path / "commands").open() as commands:
        done = subprocess.run(
            [str(SCRIPTS / "remotely"), "debug", *at(started_here), name_of(worker)],
            stdin=commands,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("(Pdb) 8\n(Pdb) ")
    assert not call.done()
    gate.write_text("")
    assert call.result() == 8


def at(cluster: Here) -> list[str]:
    return ["--address", cluster.address, "--key", str(cluster.key)]


def test_commands_come_from_a_pipe_too(started_here: Here, here: None) -> None:
    worker = Worker()
    call = worker.double.submit(4)
    stopped(worker)
    where = at(started_here)

    def debug(text: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [str(SCRIPTS / "remotely"), "debug", *words, *where]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    done = debug("p twice\nc\n")

    assert done.returncode == 0
    assert "(Pdb) 8\n" in done.stdout
    assert call.result() == 8
    refused = debug("")
    assert refused.returncode == 1
    assert "waits for a debugger: one does at breakpoint()" in refused.stderr
    assert "no actor of this cluster is named 'nobody'" in debug("", "nobody").stderr
    assert "there is no terminal to debug in, and no input" in debug("", name_of(worker)).stderr
