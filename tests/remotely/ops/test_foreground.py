"""When the keeper of daemons ends; tests/remotely/test_foreground.py runs real ones."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remotely.machine.watched_process import WatchedProcess
from remotely.ops.daemon_process import Daemon
from remotely.ops.foreground import Foreground

Begin = Callable[[str], Daemon]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start a process that runs this code."""
    begun: list[Daemon] = []

    def start(code: str) -> Daemon:
        command = [sys.executable, "-S", "-c", f"import sys; {code}"]
        begun.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return begun[-1]

    yield start
    for each in begun:
        each.communicate()


UNTIL_TOLD = "sys.stdin.read()"


def test_a_worker_may_leave_the_master_beside_it(begin: Begin, tmp_path: Path) -> None:
    keeper, master = Foreground(), begin(UNTIL_TOLD)
    keeper.keep(master, tmp_path / "master.json")
    keeper.keep(begin("sys.exit(0)"), tmp_path / "worker.json")
    command = begin(UNTIL_TOLD)
    assert not keeper.any_ended()

    assert command.stdin is not None
    command.stdin.close()
    keeper.wait(WatchedProcess(command.pid))

    assert command.wait() == 0
    assert master.poll() is None
    assert not keeper.any_ended()
    assert master.stdin is not None
    master.stdin.close()
    keeper.wait()
    assert keeper.any_ended()
    assert keeper.close()


@pytest.mark.parametrize(("code", "is_alone"), [(1, False), (0, True), (1, True)])
def test_any_other_end_of_a_daemon_ends_the_others(
    begin: Begin, tmp_path: Path, code: int, is_alone: bool
) -> None:
    keeper = Foreground()
    if not is_alone:
        keeper.keep(begin(UNTIL_TOLD), tmp_path / "master.json")
    keeper.keep(begin(f"sys.exit({code})"), tmp_path / "joined-1.json")
    keeper.wait()
    assert keeper.any_ended()
    assert keeper.close() == (code == 0)
