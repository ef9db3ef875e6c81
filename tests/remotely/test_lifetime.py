"""The lifetime of actors: they end with their owners, gracefully or not, and leave nothing."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import remotely
from tests.clusters import processes, wait_until


@remotely.remote_class
class Keeper:
    def __init__(self, folder: str = "") -> None:
        self.folder = folder
        self.count = 0

    def pid(self) -> int:
        return os.getpid()

    def add(self) -> int:
        self.count += 1
        return self.count

    def wait(self) -> None:
        time.sleep(1000)

    def fork_sleepers(self) -> list[int]:
        """Leave two child processes: one in the actor's group, one in a session of its own."""
        near = subprocess.Popen(["sleep", "1000"])
        far = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return [near.pid, far.pid]

    def close(self) -> None:
        if self.folder:
            (Path(self.folder) / "closed").write_text(str(self.count))


@remotely.remote_class
class Maker:
    def make(self) -> int:
        self.kept = Keeper()
        return self.kept.pid()

    def add_to(self, others: list[Any]) -> int:
        return others[0].add()  # type: ignore[no-any-return]


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_close_ends_the_actor_after_its_pending_calls(cluster: str, tmp_path: Path) -> None:
    keeper = Keeper(str(tmp_path))
    pid = keeper.pid()
    futures = [keeper.add.submit() for _ in range(50)]

    remotely.close(keeper)

    assert [future.result() for future in futures] == list(range(1, 51))
    assert (tmp_path / "closed").read_text() == "50"
    wait_until(lambda: gone(pid), "the end of a closed actor")
    with pytest.raises(remotely.ActorDied) as died:
        keeper.add()
    assert not died.value.may_have_run
    remotely.close(keeper)


class Quitter(Keeper):
    def quit(self, beside: Any = ()) -> str:
        me: Any = remotely.current_actor()
        remotely.close(remotely.Group([me.handle, *beside]))
        return "the last words"


class AsyncQuitter(Keeper):
    async def quit(self, beside: Any = ()) -> str:
        return Quitter.quit(self, beside)  # type: ignore[arg-type]


@pytest.mark.zeromq
@pytest.mark.parametrize(
    "cls",
    [
        remotely.remote_class(Quitter),
        remotely.remote_class(AsyncQuitter),
        remotely.options(remotely.remote_class(Quitter), concurrency=2),
    ],
    ids=["plain", "async", "threads"],
)
def test_a_method_that_closes_its_own_actor_returns_before_that_ends(
    any_cluster: None, tmp_path: Path, cls: Any
) -> None:
    quitter, other = remotely.options(cls, max_restarts=1)(str(tmp_path)), Keeper()
    pid = quitter.pid()

    assert quitter.quit([other]) == "the last words"

    wait_until(lambda: gone(pid), "the end of an actor that has closed itself")
    for closed in (quitter, other):
        with pytest.raises(remotely.ActorDied, match="closed"):
            closed.add()
    assert (tmp_path / "closed").read_text() == "0"


def test_close_waits_for_async_calls_and_an_async_close_method(here: None, tmp_path: Path) -> None:
    @remotely.remote_class
    class Tide:
        async def turn(self) -> str:
            await asyncio.sleep(0.2)
            return "turned"

        async def close(self) -> None:
            await asyncio.sleep(0)
            (tmp_path / "closed").touch()

    tide = Tide()
    turned = tide.turn.submit()

    remotely.close(tide)

    assert turned.result() == "turned"
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("end", [remotely.close, lambda actor: remotely.shutdown()])
def test_an_async_close_runs_on_the_loop_of_the_calls_before_the_tasks_there_are_cancelled(
    any_cluster: None, tmp_path: Path, end: Any
) -> None:
    @remotely.remote_class
    class Server:
        async def begin(self) -> None:
            self.loop = asyncio.get_running_loop()
            self.asked = asyncio.Event()
            self.serving = asyncio.create_task(self.serve())

        async def serve(self) -> None:
            await self.asked.wait()
            (tmp_path / "served").touch()

        async def close(self) -> None:
            assert asyncio.get_running_loop() is self.loop
            self.asked.set()
            await self.serving
            (tmp_path / "closed").touch()

    server = Server()
    server.begin.submit().result()
    end(server)
    wait_until((tmp_path / "closed").exists, "close")
    assert (tmp_path / "served").exists()


@remotely.remote_class(cpus=0, concurrency=2)
class Reef:
    """An actor with an event loop, and threads for its plain methods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def wave(self) -> None: ...

    def greet(self) -> None: ...

    def hold(self, number: int) -> int:
        (self.folder / f"held {number}").touch()
        self.await_file("may go")
        return number

    def close(self) -> None:
        (self.folder / "closing").touch()
        self.await_file("may close")

    def await_file(self, name: str) -> None:
        wait_until((self.folder / name).exists, name)


@remotely.remote_class(cpus=0)
class Visitor:
    def visit(self, reef: Reef) -> None:
        reef.greet()


def test_close_waits_for_calls_on_the_threads_of_an_async_class(
    any_cluster: None, tmp_path: Path
) -> None:
    reef = Reef(tmp_path)
    held = [reef.hold.submit(number) for number in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("held *"))) == 2, "both calls run")
    (tmp_path / "may close").touch()
    closing = threading.Thread(target=remotely.close, args=(reef,))
    closing.start()

    closing.join(0.5)  # the event loop ends at once, the calls later
    assert closing.is_alive()
    (tmp_path / "may go").touch()

    assert [future.result(40) for future in held] == [0, 1]
    closing.join()
    assert (tmp_path / "closing").exists()


def test_a_call_to_a_closing_async_actor_fails(any_cluster: None, tmp_path: Path) -> None:
    reef, visitor = Reef(tmp_path), Visitor()
    visitor.visit(reef)
    closing = threading.Thread(target=remotely.close, args=(reef,))
    closing.start()
    wait_until((tmp_path / "closing").exists, "that it closes")

    late = visitor.visit.submit(reef)

    with pytest.raises(remotely.CallTimeout):
        late.result(0.5)
    (tmp_path / "may close").touch()
    with pytest.raises(remotely.ActorDied, match="Reef"):
        late.result(40)
    closing.join()


@remotely.remote_class(cpus=0)
class Tides:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def wait(self) -> None:
        (self.folder / "waits").touch()
        await asyncio.sleep(60)


@remotely.remote_class(cpus=0)
class Owner:
    def make(self, folder: Path) -> None:
        self.tides = remotely.options(Tides, name="tides")(folder)

    def drop(self) -> None:
        del self.tides


def test_a_running_async_call_dies_when_the_owner_drops_the_actor(
    any_cluster: None, tmp_path: Path
) -> None:
    owner = Owner()
    owner.make(tmp_path)
    waits = remotely.get_actor("tides", Tides).wait.submit()  # borrowed
    wait_until((tmp_path / "waits").exists, "that it runs")
    owner.drop()
    with pytest.raises(remotely.ActorDied) as died:
        waits.result(40)
    assert died.value.may_have_run


def test_a_with_block_closes_the_actor(here: None, tmp_path: Path) -> None:
    with Keeper(str(tmp_path)) as keeper:
        keeper.add()

    assert (tmp_path / "closed").exists()


def test_an_actor_ends_with_the_last_handle_of_its_owner(any_cluster: None, tmp_path: Path) -> None:
    keeper = Keeper(str(tmp_path))
    again = keeper
    pid = keeper.pid()

    del keeper
    gc.collect()
    assert again.pid() == pid
    del again
    gc.collect()

    wait_until(lambda: gone(pid), "the end of an actor without a handle")
    assert (tmp_path / "closed").exists()


def test_a_pending_call_keeps_its_actor(here: None) -> None:
    assert Keeper().add.submit().result() == 1


def test_a_call_keeps_the_actors_of_handles_in_its_arguments(any_cluster: None) -> None:
    kept: Any = Maker().add_to.submit([Keeper()])
    assert kept.result() == 1


def test_actors_of_a_closed_actor_end(any_cluster: None) -> None:
    maker = Maker()
    inner = maker.make()

    remotely.close(maker)

    wait_until(lambda: gone(inner), "the end of an actor whose owner was closed")


def test_actors_of_a_killed_actor_end(here: None) -> None:
    maker = Maker()
    inner = maker.make()

    os.kill(_pid_of(maker), signal.SIGKILL)

    wait_until(lambda: gone(inner), "the end of an actor whose owner was killed")


def test_child_processes_of_an_actor_end_with_it(any_cluster: None) -> None:
    keeper = Keeper()
    near, far = keeper.fork_sleepers()

    remotely.close(keeper)

    wait_until(lambda: gone(near), "the end of a child in the actor's group")
    wait_until(lambda: gone(far), "the end of a child in a session of its own")


def test_a_detached_actor_outlives_its_client_until_it_is_closed(started: Any) -> None:
    remotely.connect(started.address, key=started.key)
    store = remotely.options(Keeper, name="store", detached=True)()
    pid = store.pid()
    store.add()
    remotely.shutdown()

    remotely.connect(started.address, key=started.key)
    found = remotely.get_actor("store")

    assert found.add() == 2
    assert found.count == 2
    remotely.close(found)
    wait_until(lambda: gone(pid), "the end of a detached actor")
    with pytest.raises(NameError, match="store"):
        remotely.get_actor("store")
    remotely.shutdown()


def test_a_restarted_actor_is_constructed_again_and_the_failed_call_raises(cluster: str) -> None:
    keeper = remotely.options(Keeper, max_restarts=1)()
    first = keeper.pid()
    keeper.add()

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: gone(first), "the death")

    second = _survives(keeper)
    assert second != first
    assert keeper.add() == 1
    os.kill(second, signal.SIGKILL)
    with pytest.raises(remotely.ActorDied):
        _survives(keeper)


@remotely.remote_class(cpus=0, max_restarts=5)
class Stillborn:
    """An actor whose first restart exits in the constructor."""

    def __init__(self, folder: Path) -> None:
        self.life = 1 + len(list(folder.iterdir()))
        (folder / str(self.life)).touch()
        if self.life == 2:
            os._exit(9)

    def die(self) -> None:
        os._exit(1)

    def which(self) -> int:
        return self.life


def test_a_restart_that_fails_in_the_constructor_is_repeated(
    any_cluster: None, tmp_path: Path
) -> None:
    stillborn = Stillborn(tmp_path)

    with pytest.raises(remotely.ActorDied):
        stillborn.die()

    assert stillborn.which() == 3


def test_a_callback_may_wait_for_a_restarting_actor(here: None) -> None:
    keeper = remotely.options(Keeper, max_restarts=1)()
    pid = keeper.pid()
    pids: list[int] = []

    def call_again(_: object) -> None:
        pids.append(keeper.pid())

    future = remotely.submit(keeper.wait)
    future.add_done_callback(call_again)

    os.kill(pid, signal.SIGKILL)

    assert isinstance(future.exception(timeout=40), remotely.ActorDied)
    wait_until(lambda: pids, "the callback's call")
    assert pids != [pid]


@pytest.mark.parametrize("how", ["raise", "SIGINT", "SIGKILL"])
def test_a_script_leaves_nothing_behind_however_it_ends(
    nothing_left: None, tmp_path: Path, how: str
) -> None:
    script = run_script(
        tmp_path,
        f"""
        keeper = Keeper()
        keeper.fork_sleepers()
        print("ready", flush=True)
        {"raise RuntimeError('mine')" if how == "raise" else "keeper.sleep(1000)"}
        """,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "ready\n"
    if how.startswith("SIG"):
        script.send_signal(signal.Signals[how])

    _, errors = script.communicate(timeout=40)

    codes = {"raise": (1,), "SIGINT": (1, -signal.SIGINT), "SIGKILL": (-signal.SIGKILL,)}
    assert script.returncode in codes[how]
    assert how == "SIGINT" or "remotely" not in errors.replace("/remotely/", ""), errors
    wait_until(lambda: not processes(str(tmp_path)), f"the end of all after {how}")


@pytest.mark.parametrize("role", ["master", "worker", "actor.zygote"])
def test_a_killed_daemon_leaves_nothing_behind(
    nothing_left: None, tmp_path: Path, role: str
) -> None:
    script = run_script(
        tmp_path,
        """
        keeper = Keeper()
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            print(keeper.add(), flush=True)
        except remotely.RemotelyError as error:
            print(type(error).__name__, flush=True)
        """,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "ready\n"
    found = processes(str(tmp_path), f"remotely.{role}")
    victim = min(found, key=lambda process: process.create_time())  # actors look like the zygote

    victim.kill()
    wait_until(lambda: gone(victim.pid), "the kill")
    if role == "worker":
        wait_until(
            lambda: not processes(str(tmp_path), "remotely.actor.zygote"),
            "the zygote's end after its worker's",
        )
    out, errors = script.communicate("go\n", timeout=40)

    assert out.strip() == ("WorkerLost" if role == "worker" else "1"), errors


def test_an_actor_that_ignores_sigterm_is_killed(here: None) -> None:
    @remotely.remote_class
    class Stubborn:
        def __init__(self) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        def pid(self) -> int:
            return os.getpid()

        def hang(self) -> None:
            while True:
                signal.pause()

    stubborn = Stubborn()
    pid = stubborn.pid()
    stuck = stubborn.hang.submit()

    remotely.close(stubborn, grace_s=0.2)

    assert isinstance(stuck.exception(timeout=40), remotely.ActorDied)
    wait_until(lambda: gone(pid), "the end of a stubborn actor")


def run_script(folder: Path, body: str) -> "subprocess.Popen[str]":
    """Run a user's script with a class Keeper of its own."""
    script = folder / "script.py"
    head = """
        import os, subprocess, sys, time
        import remotely

        @remotely.remote_class
        class Keeper:
            def __init__(self):
                self.count = 0
            def pid(self):
                return os.getpid()
            def add(self):
                self.count += 1
                return self.count
            def sleep(self, seconds):
                time.sleep(seconds)
            def fork_sleepers(self):
                subprocess.Popen(["sleep", "1000"])
                subprocess.Popen(["sleep", "1000"], start_new_session=True)

        remotely.connect(cpus=8)
    """
    script.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TEST_FOLDER": str(folder)},
    )


def _pid_of(handle: Any) -> int:
    return int(handle._remotely_remote.location.pid)


def _survives(keeper: Any) -> int:
    """Return the pid of a restarted actor; the first call may still see its death."""
    try:
        return int(keeper.pid())
    except remotely.ActorDied:
        return int(keeper.pid())


@remotely.remote_class(cpus=0)
class Worker:
    def work(self, *_: Any) -> str:
        return "worked"

    def sleep(self) -> None:
        time.sleep(600)


def test_calls_that_wait_for_a_future_fail_with_the_end_of_their_actor(any_cluster: None) -> None:
    slow, dies = Worker(), Worker()
    assert dies.work() == "worked"
    value = slow.sleep.submit()
    waiting = [dies.work.submit(value), dies.work.submit()]
    remotely.kill(dies)
    for call in waiting:
        assert isinstance(call.exception(40), remotely.ActorDied)
    assert not value.done()
    remotely.kill(slow)
