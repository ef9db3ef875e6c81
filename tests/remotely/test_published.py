"""A Published between real processes: every path by which a value travels leads to its memory."""

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import remotely
from remotely import ActorDied, Published, PublisherGone, RemotelyError
from tests.clusters import wait_until

Params = Published[Any]


class Kept:
    """An object of the user that has one as an attribute."""

    def __init__(self, params: Params) -> None:
        self.params = params


@remotely.remote_class(cpus=0)
class Reader:
    def __init__(self, params: "Params | None" = None) -> None:
        self.params: Any = params

    def keep(self, params: Params) -> None:
        self.params = params

    def keep_of(self, kept: Kept) -> None:
        self.params = kept.params

    def give(self) -> Params:
        given: Params = self.params
        return given

    def yielded(self) -> Iterator[Params]:
        yield self.params

    @remotely.batched
    def keep_batched(self, params: list[Params]) -> list[None]:
        self.params = params[0]
        return [None for _ in params]

    def keep_forked(self, params: Params) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if params.latest().value[0] == params.version else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        self.params = params

    def read(self) -> tuple[float, int, bool]:
        """Return the number that the array has everywhere, the version, and whether it is final."""
        latest = self.params.latest()
        assert (latest.value == latest.value[0]).all()
        return float(latest.value[0]), latest.version, latest.is_final

    def wait(self, version: int) -> bool:
        newer: bool = self.params.wait(newer_than=version, timeout=30)
        return newer

    def set(self, value: Any) -> None:
        self.params.set(value)

    def make(self) -> Params:
        self.params = Published(value(1))
        return self.give()

    def made_set(self, number: int) -> None:
        self.params.set(value(number))

    def pid(self) -> int:
        return os.getpid()


@remotely.remote_class(cpus=0)
class AsyncReader:
    async def wait(self, params: Params, version: int) -> bool:
        return await params.wait_async(newer_than=version, timeout=30)

    async def answer(self) -> int:
        return 42


def value(number: int) -> Any:
    return np.full(50_000, float(number))


def by_call(params: Params) -> Any:
    reader = Reader()
    reader.keep(params)
    return reader


def by_constructor(params: Params) -> Any:
    return Reader(params)


def by_keyword(params: Params) -> Any:
    return Reader(params=params)


def by_submit(params: Params) -> Any:
    reader = Reader()
    remotely.submit(reader.keep, params).result()
    return reader


def by_attribute_of_the_actor(params: Params) -> Any:
    reader = Reader()
    reader.params = params
    return reader


def by_attribute_of_an_object(params: Params) -> Any:
    reader = Reader()
    reader.keep_of(Kept(params))
    return reader


def by_batch(params: Params) -> Any:
    reader = Reader()
    reader.keep_batched(params)
    return reader


def by_group(params: Params) -> Any:
    readers = remotely.group(Reader, 2)
    readers.keep(params)
    return readers[1]


def by_constructor_of_a_group(params: Params) -> Any:
    return remotely.group(Reader, 2, params)[1]


def by_result(params: Params) -> Any:
    reader = Reader()
    reader.keep(Reader(params).give())
    return reader


def by_future(params: Params) -> Any:
    first, reader = Reader(params), Reader()
    reader.keep.submit(first.give.submit()).result()
    return reader


def by_stream(params: Params) -> Any:
    reader = Reader()
    for each in Reader(params).yielded():
        reader.keep(each)
    return reader


def by_stored_value(params: Params) -> Any:
    reader = Reader()
    reader.keep(remotely.put(params))
    return reader


def by_stored_value_within(params: Params) -> Any:
    reader = Reader()
    reader.keep_of(remotely.put(Kept(params)))
    return reader


def by_fork(params: Params) -> Any:
    reader = Reader()
    reader.keep_forked(params)
    return reader


def by_restart(params: Params) -> Any:
    reader = remotely.options(Reader, max_restarts=1)(params)
    os.kill(reader.pid(), signal.SIGKILL)
    wait_until(lambda: _survived(reader), "the restart")
    return reader


def _survived(actor: Any) -> bool:
    try:
        return bool(actor.pid())
    except ActorDied:
        return False


PATHS: list[Callable[[Params], Any]] = [
    by_call,
    by_constructor,
    by_keyword,
    by_submit,
    by_attribute_of_the_actor,
    by_attribute_of_an_object,
    by_batch,
    by_group,
    by_constructor_of_a_group,
    by_result,
    by_future,
    by_stream,
    by_stored_value,
    by_stored_value_within,
    by_fork,
    by_restart,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_it_travels_as_its_memory(here: None, path: Callable[[Params], Any]) -> None:
    params = Published(value(1))
    reader = path(params)
    assert reader.read() == (1, 1, False)
    params.set(value(2))
    assert reader.read() == (2, 2, False)
    with pytest.raises(RemotelyError, match="only the process that created"):
        reader.set(value(3))
    del params
    gc.collect()
    assert reader.read() == (2, 2, True)


IN_PROCESS = [p for p in PATHS if p not in (by_restart, by_fork)]


@pytest.mark.parametrize("path", IN_PROCESS, ids=lambda path: path.__name__)
def test_in_one_process_it_is_the_same_object(
    path: Callable[[Params], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.shutdown()
    params = Published(value(1))
    reader = path(params)
    assert reader.give() is params
    params.set(value(2))
    assert reader.read() == (2, 2, False)
    remotely.shutdown()


def test_an_actor_publishes_to_the_script_and_to_other_actors(here: None) -> None:
    maker = Reader()
    params = maker.make()
    other = Reader(params)
    maker.made_set(2)
    assert params.latest().value[0] == 2
    assert other.read() == (2, 2, False)
    with pytest.raises(RemotelyError, match="only the process that created"):
        params.set(value(3))


def test_readers_keep_the_last_version_of_a_writer_that_is_killed(here: None) -> None:
    maker = Reader()
    params, pid = maker.make(), maker.pid()
    reader = Reader(params)
    waiting = remotely.submit(reader.wait, 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PublisherGone, match="Its last version, 1"):
        waiting.result()
    assert reader.read() == (1, 1, True)
    latest = params.latest()
    assert (latest.is_final, latest.value.sum()) == (True, 50_000)
    late = Reader(params)
    assert late.read() == (1, 1, True)


def test_an_actor_waits_for_a_version(here: None) -> None:
    params = Published(value(1))
    reader = Reader(params)
    waiting = remotely.submit(reader.wait, 1)
    params.set(value(2))
    assert waiting.result()


def test_an_async_actor_waits_and_answers_meanwhile(here: None) -> None:
    params = Published(value(1))
    actor = AsyncReader()

    async def main() -> bool:
        waiting = [remotely.submit(actor.wait, params, 1) for _ in range(3)]
        assert await actor.answer.submit() == 42
        params.set(value(2))
        return all([await each for each in waiting])

    assert asyncio.run(main())


def test_a_killed_reader_gives_back_what_it_held(here: None) -> None:
    params = Published(value(1))
    readers = remotely.group(Reader, 3, params)
    for number, reader in enumerate(readers, 2):
        reader.read()
        params.set(value(number))
    most = params.held_bytes
    assert most >= 4 * 50_000 * 8
    pids = readers.pid()
    remotely.kill(readers)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "they have ended")
    for number in range(5, 30):
        params.set(value(number))
    assert params.held_bytes == most


def test_nothing_is_left_of_it(here: None) -> None:
    params = Published(value(1))
    reader = Reader(params)
    reader.read()
    maps = Path(f"/proc/{reader.pid()}/maps")
    assert "remotely-published" in maps.read_text()
    reader.params = None
    wait_until(lambda: "remotely-published" not in maps.read_text(), "it is unmapped")
    del params
    gc.collect()
    assert "remotely-published" not in Path("/proc/self/maps").read_text()


def test_ctrl_c_ends_a_wait() -> None:
    script = """
        import remotely
        params = remotely.Published(1)
        print("waiting", flush=True)
        params.wait(newer_than=1)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors


def test_a_child_of_multiprocessing_reads_it_by_its_pickle(tmp_path: Path) -> None:
    params = Published(value(4))
    file = tmp_path / "pickled"
    file.write_bytes(pickle.dumps(params))
    code = (
        "import pickle, sys; params = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(params.latest().value[0], params.latest().is_final)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["4.0", "False"]
