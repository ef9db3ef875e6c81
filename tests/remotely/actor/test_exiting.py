"""The end of an actor process: its files are complete, and `close` returns when it has ended."""

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import remotely
from tests.clusters import wait_until

LOG: list[Any] = []  # in the actor: a file in a module's globals


@remotely.remote_class
class Writer:
    """Holds files in an attribute, which may be part of a cycle, and in a global."""

    def __init__(self, folder: Path, in_cycle: bool = False) -> None:
        self.folder = folder
        self.rows = (folder / "rows").open("w")
        LOG.append((folder / "log").open("wb"))
        if in_cycle:
            self.myself = self

    def write(self) -> None:
        self.rows.write("row\n")
        LOG[-1].write(b"line\n")

    def items(self) -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            (self.folder / "generator").touch()

    def leave(self) -> None:
        sys.exit(0)

    def __del__(self) -> None:
        (self.folder / "deleted").touch()


@remotely.remote_class
class Lingerer:
    """Does not end without a signal."""

    def __init__(self, ignores_term: bool = False) -> None:
        self.child = subprocess.Popen(["sleep", "1000"])
        if ignores_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            atexit.register(time.sleep, 1000)
        else:
            atexit.register(self.child.wait)

    def pids(self) -> list[int]:
        return [os.getpid(), self.child.pid]


def _sleep(ready: Any, ignores_term: bool) -> None:
    if ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    time.sleep(1000)


@remotely.remote_class
class Parent:
    """Has a child of multiprocessing, for which an interpreter would wait."""

    def start(self, ignores_term: bool) -> None:
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        self.child = context.Process(target=_sleep, args=(ready, ignores_term))
        self.child.start()
        assert ready.wait(40)


@pytest.mark.parametrize("ignores_term", [False, True])
def test_an_actor_whose_last_handle_is_gone_does_not_wait_for_its_child_processes(
    here: None, ignores_term: bool
) -> None:
    """It would keep its cores until it is killed, after a minute, longer than this test waits."""
    parent = Parent()
    parent.start(ignores_term)
    del parent
    gc.collect()
    wait_until(lambda: remotely.status().actors == [], "the end of the actor")


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("in_cycle", [False, True])
def test_files_are_complete_when_the_actor_has_ended(
    here: None, tmp_path: Path, exits: bool, in_cycle: bool
) -> None:
    writer = Writer(tmp_path, in_cycle)
    writer.write()

    if exits:
        with pytest.raises(remotely.ActorDied):
            writer.leave()
    else:
        remotely.close(writer)

    assert (tmp_path / "rows").read_text() == "row\n"
    assert (tmp_path / "log").read_text() == "line\n"
    assert (tmp_path / "deleted").exists()


def test_files_are_complete_after_the_last_handle_is_gone(cluster: str, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write()

    del writer
    gc.collect()

    wait_until((tmp_path / "deleted").exists, "the end of the object")
    wait_until(lambda: (tmp_path / "log").read_text() == "line\n", "the end of the actor")
    assert (tmp_path / "rows").read_text() == "row\n"


def test_an_unfinished_generator_is_closed_with_its_actor(here: None, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    items = iter(writer.items())
    assert next(items) == 1

    remotely.close(writer)

    assert (tmp_path / "generator").exists()
    with contextlib.suppress(remotely.ActorDied):
        items.close()


def test_files_are_complete_when_the_script_has_ended(nothing_left: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import time
            import remotely

            @remotely.remote_class
            class Writer:
                def __init__(self, path):
                    self.file = open(path, "w")
                def write(self):
                    self.file.write("row\\n")
                def __del__(self):
                    time.sleep(1.5)  # longer than the grace period of a running call

            remotely.connect(cpus=4)
            writers = [Writer(rf"{tmp_path}/{{i}}.csv") for i in range(2)]
            for writer in writers:
                writer.write()
            """
        )
    )

    done = subprocess.run([sys.executable, script], capture_output=True, timeout=40, check=True)

    assert not done.stderr
    assert [(tmp_path / f"{i}.csv").read_text() for i in range(2)] == ["row\n"] * 2


@pytest.mark.promise("own_process")
def test_close_returns_when_the_process_has_ended(cluster: str, tmp_path: Path) -> None:
    lingerer = Lingerer()
    pids = lingerer.pids()

    remotely.close(lingerer, grace_s=0.2)

    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.slow
def test_an_actor_that_ignores_sigterm_at_its_end_is_killed(here: None) -> None:
    lingerer = Lingerer(ignores_term=True)
    pids = lingerer.pids()

    remotely.close(lingerer, grace_s=0.1)

    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.slow
def test_an_actor_whose_client_died_while_closing_it_ends(started: Any, nothing_left: None) -> None:
    remotely.connect(started.address, key=started.key)
    lingerer = remotely.options(Lingerer, detached=True)()
    pids = lingerer.pids()
    code = f"""
import os, remotely, threading
remotely.connect({started.address!r}, key={str(started.key)!r})
found = remotely.get_actor({lingerer._remotely_remote.name!r})
threading.Timer(1.0, os._exit, (0,)).start()
remotely.close(found)
"""
    subprocess.run([sys.executable, "-c", code], timeout=40, check=True)

    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the end of an actor")


def test_an_error_in_close_of_one_member_does_not_keep_others_open(here: None) -> None:
    @remotely.remote_class
    class Careless:
        def pid(self) -> int:
            return os.getpid()

        def close(self) -> None:
            raise ValueError("mine")

    group = remotely.group(Careless, 2)
    pids = group.pid()

    with pytest.raises(ValueError, match="mine"):
        remotely.close(group)

    assert not any(is_alive(pid) for pid in pids)


def test_the_message_of_sys_exit_is_printed(here: None) -> None:
    @remotely.remote_class
    class Leaver:
        def leave(self) -> None:
            sys.exit("there is no file of that name")

    with pytest.raises(remotely.ActorDied, match="there is no file of that name") as died:
        Leaver().leave()

    assert died.value.exit == 1


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
