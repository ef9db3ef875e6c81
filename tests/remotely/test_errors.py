"""Errors of users and of the environment: each is reported clearly, and no call is lost."""

import asyncio
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.client import channel
from remotely.transport import key_files
from remotely.transport.connection_monitor import ConnectionMonitor
from tests.clusters import free_port, wait_until
from tests.forks import raised_in_a_fork


class Odd(Exception):
    """An error whose constructor does not accept its `args`, as many do not."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class OddOSError(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "no such thing", path)


class OddChoosy(Exception):
    """An error that cannot be constructed again at all."""

    def __new__(cls, code: int, message: str) -> "OddChoosy":
        return super().__new__(cls, f"{code}: {message}")

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")


class Locked(Exception):
    """An error that does not pickle."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class DiesWhenUnpickled:
    def __reduce__(self) -> Any:
        return os._exit, (9,)


class RaisesWhenUnpickled:
    def __reduce__(self) -> Any:
        return int, ("not a number",)


class RaisesWhenPickled:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


@remotely.remote_class
class Worker:
    def __init__(self, how: str = "") -> None:
        self.tool = "hammer"
        if how == "raise":
            raise ValueError("no such tool")
        if how == "exit":
            os._exit(3)

    def work(self, value: Any = 1) -> Any:
        return value

    def fail(self, kind: str) -> None:
        if kind == "value":
            raise ValueError("a bad value")
        if kind == "odd":
            raise Odd(404, "not found")
        if kind == "oserror":
            raise OddOSError("/nowhere")
        if kind == "group":
            raise ExceptionGroup("two", [ValueError("a bad value"), Odd(404, "not found")])
        if kind == "choosy":
            raise OddChoosy(404, "not found")
        raise Locked

    def lock(self) -> Any:
        return {"inner": [threading.Lock()]}

    def locks(self) -> Iterator[Any]:
        yield self.lock()

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float, begun: Path | None = None) -> None:
        if begun is not None:
            begun.touch()
        time.sleep(seconds)

    def end(self, how: str) -> None:
        print(f"ending by {how}", file=sys.stderr)
        if how == "exit":
            os._exit(7)
        if how == "sys.exit":
            sys.exit(8)
        os.kill(os.getpid(), signal.Signals[how])

    def eat_without_end(self, megabytes: int) -> None:
        while self.eat(megabytes):
            time.sleep(0.01)

    def eat(self, megabytes: int) -> int:
        self.food = bytearray(megabytes << 20)
        return len(self.food)


class Halt(BaseException):
    pass


@remotely.remote_class(cpus=0)
class Plain:
    def fail(self, kind: type[BaseException]) -> None:
        raise kind("by hand")

    def pid(self) -> int:
        return os.getpid()


@remotely.remote_class(cpus=0)
class Asynchronous(Plain):
    async def fail_later(self, kind: type[BaseException]) -> None:
        raise kind("by hand")

    @remotely.batched
    def fail_all(self, kinds: list[type[BaseException]]) -> list[int]:
        raise kinds[0]("by hand")


def test_exceptions_that_are_not_errors_are_sent_to_the_caller(here: None) -> None:
    plain, asynchronous = Plain(), Asynchronous()
    pids = plain.pid(), asynchronous.pid()
    for kind in (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, Halt):
        with pytest.raises(kind, match="by hand"):
            plain.fail(kind)
        with pytest.raises(kind):
            plain.fail.submit(kind).result()
    for method in (asynchronous.fail_later, asynchronous.fail_all):
        with pytest.raises(KeyboardInterrupt):
            method(KeyboardInterrupt)
    assert (plain.pid(), asynchronous.pid()) == pids


def test_an_exception_arrives_with_its_type_and_its_remote_traceback(any_cluster: None) -> None:
    worker = Worker()
    pid = worker.pid()

    with pytest.raises(ValueError, match="a bad value") as raised:
        worker.fail("value")

    first_line, *rest = str(raised.value.__cause__).strip().splitlines()
    assert first_line.startswith(f"In {worker._remotely_remote.name} (pid {pid} on ")
    assert "in fail" in "\n".join(rest)
    assert "remotely/actor/servant.py" not in "\n".join(rest)
    assert worker.work() == 1


def test_exceptions_that_do_not_accept_their_args_are_raised_passed_and_returned(
    any_cluster: None,
) -> None:
    worker = Worker()
    with pytest.raises(Odd, match="404: not found") as raised:
        worker.fail("odd")
    assert raised.value.code == 404
    with pytest.raises(OddOSError, match="/nowhere") as failed:
        worker.fail("oserror")
    assert (failed.value.errno, failed.value.filename) == (2, "/nowhere")
    with pytest.raises(ExceptionGroup) as several:
        worker.fail("group")
    value, odd = several.value.exceptions
    assert (type(value), type(odd)) == (ValueError, Odd)

    odd, oserror = worker.work([Odd(404, "not found"), OddOSError("/nowhere")])
    assert (type(odd), odd.code, str(odd)) == (Odd, 404, "404: not found")
    assert (type(oserror), oserror.errno, oserror.filename) == (OddOSError, 2, "/nowhere")
    odd.__notes__ = ["a note"]
    assert worker.work({"put": remotely.put(odd)})["put"].__notes__ == ["a note"]


@pytest.mark.parametrize("kind", ["choosy", "locked"])
def test_an_exception_that_cannot_be_pickled_arrives_as_text(here: None, kind: str) -> None:
    worker = Worker()

    with pytest.raises(remotely.ActorRaised, match=kind.title()):
        worker.fail(kind)
    assert worker.work() == 1


def test_an_exception_of_a_constructor_is_raised_at_the_caller(any_cluster: None) -> None:
    with pytest.raises(ValueError, match="no such tool") as raised:
        Worker("raise")

    assert "__init__" in str(raised.value.__cause__)


def test_a_process_that_exits_in_the_constructor_is_reported(here: None) -> None:
    with pytest.raises(remotely.ActorDied) as died:
        Worker("exit")

    assert died.value.exit == 3


@pytest.mark.promise("exit_status")
@pytest.mark.parametrize(
    ("how", "exit_"),
    [("exit", 7), ("sys.exit", 8), ("SIGKILL", "SIGKILL")],
)
def test_a_death_is_reported_with_exit_and_stderr(any_cluster: None, how: str, exit_: Any) -> None:
    worker = Worker()
    waiting = worker.work.submit()
    waiting.result()

    with pytest.raises(remotely.ActorDied) as died:
        worker.end(how)

    assert died.value.exit == exit_
    assert died.value.may_have_run
    assert f"ending by {how}" in died.value.stderr
    assert "pid" in str(died.value)
    with pytest.raises(remotely.ActorDied) as again:
        worker.work()
    assert not again.value.may_have_run


def test_an_exit_on_a_thread_of_an_actor_is_reported(here: None) -> None:
    worker = remotely.options(Worker, concurrency=2)()

    with pytest.raises(remotely.ActorDied) as died:
        worker.end("sys.exit")

    assert died.value.exit == 8


def test_all_calls_in_flight_end_when_their_actor_dies(cluster: str) -> None:
    worker = Worker()
    pid = worker.pid()
    futures = [worker.sleep.submit(60) for _ in range(5)]

    os.kill(pid, signal.SIGKILL)

    assert all(isinstance(f.exception(timeout=40), remotely.ActorDied) for f in futures)


@remotely.remote_class(cpus=0.1)
class Busy:
    """An actor whose methods touch a file, then block their thread or event loop."""

    def pid(self) -> int:
        return os.getpid()

    def hold(self, begun: Path) -> None:
        begun.touch()
        time.sleep(60)

    @remotely.batched(max_size=2, wait_ms=3_600_000)
    def hold_two(self, begun: list[Path]) -> list[None]:
        for file in begun:
            file.touch()
        time.sleep(60)
        return [None, None]


@remotely.remote_class(cpus=0.1)
class BusyLoop(Busy):
    async def hold_the_loop(self, begun: Path) -> None:
        self.hold(begun)


@pytest.mark.promise("exact_doubt")
@pytest.mark.parametrize(
    ("cls", "method", "concurrency", "begun"),
    [
        (Busy, "hold", 1, 1),
        (Busy, "hold", 3, 3),
        (Busy, "hold_two", 1, 2),
        (BusyLoop, "hold", 1, 1),
        (BusyLoop, "hold_the_loop", 1, 1),
        (BusyLoop, "hold_two", 3, 6),
    ],
)
def test_calls_that_had_not_begun_when_the_actor_died_did_not_run(
    any_cluster: None, tmp_path: Path, cls: type, method: str, concurrency: int, begun: int
) -> None:
    busy = remotely.options(cls, concurrency=concurrency, max_restarts=1)()
    pid = busy.pid()
    files = [tmp_path / str(n) for n in range(6)]
    calls = [getattr(busy, method).submit(file) for file in files]
    wait_until(lambda: len(list(tmp_path.iterdir())) == begun, "the start of all that can run")

    os.kill(pid, signal.SIGKILL)

    may_have_run = []
    for call in calls:
        with pytest.raises(remotely.ActorDied) as died:
            call.result(40)
        may_have_run.append(died.value.may_have_run)
    assert may_have_run == [file.exists() for file in files]


def test_a_running_call_may_have_run_even_without_a_connection_event(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The master's news of a death may overtake the end of the connection."""
    monkeypatch.setattr(ConnectionMonitor, "_handle_events", lambda self: None)
    worker = Worker()
    pid = worker.pid()
    future = worker.sleep.submit(60, tmp_path / "begun")
    wait_until((tmp_path / "begun").exists, "it runs")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(remotely.ActorDied) as died:
        future.result(40)
    assert died.value.may_have_run


def test_an_unknown_method_is_refused_before_the_call_is_sent(here: None) -> None:
    worker = Worker()

    with pytest.raises(AttributeError, match="did you mean 'work'"):
        worker.wrok(1)
    with pytest.raises(AttributeError, match="did you mean 'tool'"):
        print(worker.tol)


def test_an_argument_or_result_that_cannot_be_pickled_is_named(here: None) -> None:
    worker = Worker()

    with pytest.raises(remotely.NotPicklable, match=r"args\[0\]\['key'\]\[1\].*lock"):
        worker.work({"key": [1, threading.Lock()]})
    with pytest.raises(remotely.NotPicklable, match="not me"):
        worker.work(RaisesWhenPickled())
    with pytest.raises(remotely.NotPicklable, match=r"the result of lock .*lock"):
        worker.lock()
    with pytest.raises(remotely.NotPicklable, match=r"the result of locks \(stream 1\) .*lock"):
        next(worker.locks())
    assert worker.work(2) == 2


def test_a_hostile_argument_harms_only_its_own_call(here: None) -> None:
    worker, other = Worker(), Worker()

    with pytest.raises(ValueError, match="not a number"):
        worker.work(RaisesWhenUnpickled())
    assert worker.work(1) == 1
    with pytest.raises(remotely.ActorDied) as died:
        worker.work(DiesWhenUnpickled())
    assert died.value.exit == 9
    assert other.work(3) == 3


def test_a_request_that_can_never_be_met_is_refused_at_once(any_cluster: None) -> None:
    with pytest.raises(remotely.NoResources, match="999 CPUs"):
        remotely.options(Worker, cpus=999)()
    with pytest.raises(remotely.NoResources, match="GPU"):
        remotely.options(Worker, gpus=3)()
    with pytest.raises(remotely.NoResources, match="TiB"):
        remotely.options(Worker, memory="900TiB")()


def test_a_request_waits_for_resources_for_its_patience(
    nothing_left: None, capfd: pytest.CaptureFixture[str]
) -> None:
    remotely.connect(cpus=4, patience_s=3)
    with pytest.raises(remotely.NoResources, match=r"8 actors of Worker.*connect\(cpus=8\)"):
        remotely.group(Worker, 8)  # refused at once: this can never fit
    first = remotely.options(Worker, cpus=2)()
    capfd.readouterr()  # a slow worker may have caused a line before

    with pytest.raises(remotely.NoResources) as refused:
        remotely.group(Worker, 4)

    assert capfd.readouterr().err.count("waiting for a place") == 1  # and not twice
    assert "no room for 3 s: 4 actors of Worker, placed together, ask for 1 CPU each; " in str(
        refused.value
    )
    assert "Worker-9 (2 CPUs)" in str(refused.value)
    assert "remotely.connect(cpus=6)" in str(refused.value)

    with pytest.raises(remotely.NoResources, match="no room: Worker asks for 3 CPUs"):
        remotely.options(Worker, cpus=3, patience_s=0)()
    with pytest.raises(ValueError, match="patience_s=-1"):
        remotely.options(Worker, patience_s=-1)
    assert first.work() == 1
    threading.Timer(0.3, remotely.close, [first]).start()
    assert remotely.options(Worker, cpus=3, patience_s=40)().work(5) == 5


def test_a_taken_name_is_refused(here: None) -> None:
    held = remotely.options(Worker, name="unique")()

    with pytest.raises(remotely.NameTaken, match=r"get_actor\('unique'\).*kill.*another name"):
        remotely.options(Worker, name="unique")()
    assert held.work() == 1


def test_exceeding_the_memory_limit_ends_only_that_actor(here: None) -> None:
    worker, other = remotely.options(Worker, memory="400MiB")(), Worker()
    assert worker.eat(1) == 1 << 20

    with pytest.raises(remotely.ActorDied, match="out of memory"):
        worker.eat_without_end(800)

    assert other.work() == 1


def test_connecting_without_a_master_says_how_to_start_one(nothing_left: None) -> None:
    port = free_port()

    with pytest.raises(remotely.MasterLost, match=f"remotely start .*--port {port}") as refused:
        remotely.connect(f"127.0.0.1:{port}")

    assert "waited" not in str(refused.value)
    with pytest.raises(remotely.MasterLost, match=r"\(waited for it for 0\.5 s\)"):
        remotely.connect(f"127.0.0.1:{port}", patience_s=0.5)
    with pytest.raises(
        remotely.MasterLost, match=r"machine name 'no\.such\.invalid'.*its spelling"
    ):
        remotely.connect("no.such.invalid:8010")


def test_a_missing_or_wrong_key_is_refused_with_an_explanation(
    nothing_left: None, started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(remotely.NotAllowed, match="no key"):
        remotely.connect(started.address, key=tmp_path / "none.key")
    with pytest.raises(remotely.NotAllowed, match="worker"):
        remotely.connect(started.address, key=started.homes[0] / "worker.key")
    key_files.make_keys(tmp_path / "other")
    with pytest.raises(remotely.NotAllowed, match="refused this key"):
        remotely.connect(started.address, key=tmp_path / "other" / "client.key")
    monkeypatch.setenv("REMOTELY_HOME", str(tmp_path))
    with pytest.raises(remotely.NotAllowed, match=f"REMOTELY_HOME is {tmp_path}.*client.key from"):
        remotely.connect(started.address)
    monkeypatch.setenv("REMOTELY_KEY", "/no/ada.key")
    with pytest.raises(
        remotely.NotAllowed, match=r"REMOTELY_KEY names /no/ada\.key, and there is no"
    ):
        remotely.connect(started.address)


def test_another_server_at_the_address_is_reported(nothing_left: None, started: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=_answer_as_http, args=[other], daemon=True).start()
        port = other.getsockname()[1]
        with pytest.raises(remotely.RemotelyError, match="is not a remotely master"):
            remotely.connect(f"127.0.0.1:{port}", key=started.key)


def test_connecting_twice_is_refused(here: None) -> None:
    with pytest.raises(remotely.RemotelyError, match="connected already"):
        remotely.connect()


def test_a_forked_child_is_refused_and_does_not_hang(here: None) -> None:
    worker = Worker()
    assert re.match("NotConnected: .*forked", raised_in_a_fork(worker.work))
    assert worker.work(1) == 1


@pytest.mark.promise("output")
def test_output_of_actors_reaches_the_terminal_with_their_names(
    any_cluster: None, capfd: pytest.CaptureFixture[str]
) -> None:
    @remotely.remote_class
    class Printer:
        def say(self) -> None:
            print("to stdout")
            print("to stderr", file=sys.stderr)

    printer = remotely.options(Printer, name="printer")()
    printer.say()
    remotely.close(printer)

    seen = ["", ""]

    def both() -> bool:
        captured = capfd.readouterr()
        seen[0] += captured.out
        seen[1] += captured.err
        return "[printer] to stdout\n" in seen[0] and "[printer] to stderr\n" in seen[1]

    wait_until(both, "both lines on the terminal")


def test_options_reach_the_process_before_its_imports(any_cluster: None) -> None:
    @remotely.remote_class(cpus=2)
    class Look:
        def env(self, name: str) -> str | None:
            return os.environ.get(name)

    look = remotely.options(Look, env={"MY_SETTING": "on", "OMP_NUM_THREADS": "7"})()

    assert look.env("MY_SETTING") == "on"
    assert look.env("OMP_NUM_THREADS") == "7"
    assert look.env("MKL_NUM_THREADS") == os.environ.get("MKL_NUM_THREADS")
    assert look.env("CUDA_VISIBLE_DEVICES") == ""
    assert Look().env("OMP_NUM_THREADS") == "2"


def test_shipped_files_are_available(nothing_left: None, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("one two")
    (tmp_path / "shipped_module.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(tmp_path)

    @remotely.remote_class
    class Reader:
        def read(self) -> str:
            return remotely.shipped("data/words.txt").read_text()

        def answer(self) -> int:
            import shipped_module  # type: ignore[import-not-found]

            return int(shipped_module.ANSWER)

        def folder(self) -> str:
            return os.getcwd()

    before = os.getcwd()
    remotely.connect(cpus=4, ship=["data", "shipped_module.py"])
    reader = Reader()

    assert reader.read() == "one two"
    assert reader.answer() == 42
    assert remotely.shipped("data/words.txt").read_text() == "one two"
    assert os.getcwd() == before
    remotely.shutdown()
    with pytest.raises(remotely.RemotelyError, match="no such file"):
        remotely.connect(ship=["nowhere"])


def _answer_as_http(server: socket.socket) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        with peer:
            peer.recv(1024)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_an_unreachable_actor_is_reported_with_its_address_and_hints(
    started: Any, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    remotely.connect(started.address, key=started.key)
    blocked = free_port()
    monkeypatch.setattr(channel, "nearest", lambda endpoints: f"tcp://127.0.0.1:{blocked}")

    with pytest.raises(remotely.WorkerLost, match="firewall") as lost:
        Worker()

    assert f"nothing listens at port {blocked} of 127.0.0.1" in str(lost.value)
    assert "--ports LOW-HIGH" in str(lost.value)
    assert not lost.value.may_have_run
