"""The end of a process of this machine is noticed, whoever reaps it."""

import os
import subprocess
import sys

import pytest

from remotely.machine.watched_process import WatchedProcess, wait_for_any


def test_the_end_of_a_process_is_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watched, me = WatchedProcess(child.pid), WatchedProcess(os.getpid())
        assert not watched.has_ended()
        assert child.stdin is not None
        child.stdin.close()
        assert [fd for fd, _ in wait_for_any([me, watched])] == [watched.fileno()]
        assert watched.has_ended()
    with pytest.raises(OSError):
        WatchedProcess(child.pid)
