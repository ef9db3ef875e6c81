"""The debugger of actors: `breakpoint()`, post-mortem, and what waits meanwhile.

The prompt is asked here as the command does it; test_debug_command.py has its terminal.
"""

import asyncio
import bdb
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.calling.engine import CallEngine
from remotely.cli.debug import DebugSession
from remotely.client.carrier import client_of
from remotely.errors import ActorDied, NotAllowed, RemotelyError
from remotely.protocol.debugging import Ask, Heard
from tests.clusters import Here, Started, printed, wait_until
from tests.command import Machine


@remotely.remote_class
class Worker:
    def __init__(self, stops: bool = False) -> None:
        self.seen: list[int] = []
        if stops:
            breakpoint()  # noqa: T100 - what is tested, as below
        self.is_made = True

    def double(self, number: int) -> int:
        twice = 2 * number
        breakpoint()  # noqa: T100
        self.seen.append(twice)
        return twice

    def see(self, number: int) -> list[int]:
        self.seen.append(number)
        return list(self.seen)

    def divide(self, number: int) -> float:
        least = 0
        return number / least

    def count_for(self, seconds: float) -> int:
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
        return number

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def be_interrupted_in_pdb(self) -> int:
        """Ctrl-C arrives while pdb looks at a line, as it does in a file with a breakpoint."""
        pdb: dict[str, Any] = {"__name__": "bdb"}
        exec("def look(act): act()", pdb)  # noqa: S102
        pdb["look"](lambda: signal.raise_signal(signal.SIGURG))
        pdb["look"](int)
        return 1

    def wait_for(self, other: Any) -> str:
        return str(other.sleep(1000))

    def stop_in_a_child(self) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=breakpoint)
        child.start()
        child.join()
        return child.exitcode

    def fork(self) -> int:
        breakpoint()  # noqa: T100
        child = os.fork()
        status = 7
        if not child:
            os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @remotely.batched(max_size=2, wait_ms=10_000)
    def divide_all(self, numbers: list[int]) -> list[float]:
        raise ZeroDivisionError(f"of {len(numbers)}")


@remotely.remote_class
class Several:
    async def double(self, number: int) -> int:
        twice = 2 * number
        breakpoint()  # noqa: T100
        await asyncio.sleep(0)
        return twice

    async def ping(self) -> str:
        return "pong"

    async def rest(self) -> str:
        self.awake = asyncio.Event()
        await self.awake.wait()
        return "rested"

    async def wake(self) -> None:
        self.awake.set()


class Prompt:
    """The prompt of an actor's debugger."""

    def __init__(self, actor: Any, engine: Any = None) -> None:
        remote: Any = remote_of(actor)
        self.remote, self.engine = remote, engine or remote.engine
        borrowed = self.engine.borrow(remote.actor, remote.name)
        self.session = DebugSession(self.engine, borrowed)
        self.text = ""

    def attend(self) -> None:
        self.engine.carrier.attend(self.remote.actor)

    def attach(self) -> Heard:
        return self._hear(self.session.ask(Ask.ATTACH, "a test"))

    def ask(self, ask: Ask, text: str = "") -> Heard:
        return self._hear(self.session.ask(ask, text))

    def wait(self, fact: Callable[[Heard], object] = lambda heard: heard.asks) -> str:
        """Return what was said until it waits for a line, or another fact holds."""
        wait_until(lambda: fact(self.ask(Ask.READ)), "a prompt")
        text, self.text = self.text, ""
        return text

    def does(self, line: str) -> str:
        """Return the answer to a line, up to the next prompt."""
        self.ask(Ask.LINE, f"{line}\n")
        return self.wait()

    def leaves(self, line: str) -> None:
        """Say a line after which nothing is asked."""
        self.ask(Ask.LINE, line)
        self.wait(lambda heard: not heard.asks)

    def _hear(self, heard: Heard) -> Heard:
        self.text += heard.text
        return heard


@pytest.fixture
def worker(here: None) -> Any:
    return Worker()


def at_prompt(actor: Any) -> Prompt:
    prompt = Prompt(actor)
    assert prompt.attach().is_attached
    return prompt


def status_of(actor: Any) -> Any:
    (found,) = (each for each in remotely.status().actors if each.name == remote_of(actor).name)
    return found


def stopped(actor: Any) -> str:
    wait_until(lambda: status_of(actor).stopped_at, "it has stopped")
    return str(status_of(actor).stopped_at)


# --- breakpoint() ---------------------------------------------------------------------------------


def test_a_call_that_stops_is_inspected_changed_and_goes_on(worker: Any) -> None:
    call = worker.double.submit(4)
    prompt = at_prompt(worker)

    assert "test_debugger.py" in prompt.wait()
    assert prompt.does("p twice") == "8\n(Pdb) "
    assert prompt.does("twice = 9") == "(Pdb) "
    assert "double()" in prompt.does("n")
    prompt.leaves("c\n")

    assert call.result() == 9


def test_a_stack_begins_with_the_method(worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()

    assert prompt.does("w").count("test_debugger.py") == 1
    assert "Oldest frame" in prompt.does("u")
    prompt.leaves("c\n")
    call.result()


def test_a_step_beyond_the_end_of_a_call_ends_it_and_the_next_one_runs_freely(worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()

    assert "--Return--" in prompt.does("r")
    prompt.leaves("n\n")

    assert call.result() == 2
    assert worker.see(5) == [2, 5]
    assert not prompt.ask(Ask.READ).asks


def test_a_breakpoint_that_the_user_sets_stops_later_calls(worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()
    assert "Breakpoint 1" in prompt.does("b self.see")
    prompt.leaves("c\n")
    call.result()

    seen = worker.see.submit(7)
    assert "see()" in prompt.wait()
    prompt.ask(Ask.LEAVE)

    assert seen.result() == [2, 7]
    assert worker.see(8) == [2, 7, 8]  # whoever leaves takes them along


def test_quit_ends_the_call_with_bdbquit_and_the_actor_lives(worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()

    prompt.leaves("q\n")

    with pytest.raises(bdb.BdbQuit):
        call.result()
    assert not prompt.ask(Ask.READ).is_attached
    assert worker.see(1) == [1]


def test_the_end_of_input_leaves_and_the_call_goes_on(worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()

    prompt.leaves("")

    assert call.result() == 2
    assert not status_of(worker).is_debugged


def test_an_interactive_interpreter_reads_from_the_terminal(worker: Any) -> None:
    call = worker.double.submit(3)
    prompt = at_prompt(worker)
    prompt.wait()

    assert prompt.does("interact").endswith(">>> ")
    assert prompt.does("twice + 1") == "7\n>>> "
    prompt.ask(Ask.LINE, "")
    assert prompt.wait().endswith("(Pdb) ")
    prompt.leaves("c\n")
    call.result()


def test_words_are_completed(worker: Any) -> None:
    call = worker.double.submit(3)
    prompt = at_prompt(worker)
    prompt.wait()

    def completed(begin: int, line: str) -> tuple[str, ...]:
        heard = prompt.ask(Ask.COMPLETE, f"{begin} {line}")
        while heard.words is None:
            heard = prompt.ask(Ask.READ)
        return heard.words

    assert completed(2, "p self.is_m") == ("self.is_made",)
    assert completed(0, "self.is_m") == ("self.is_made",)
    assert "continue" in completed(0, "cont")
    assert completed(2, "p nothing_like_it") == ()
    prompt.leaves("c\n")
    call.result()


def test_what_has_stopped_says_so_in_its_log_and_in_the_status(
    worker: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    call = worker.double.submit(1)

    assert stopped(worker).endswith("in Worker.double")
    assert stopped(worker).startswith("test_debugger.py:")
    assert not status_of(worker).is_debugged
    name = remote_of(worker).name
    wait_until(lambda: f"waits up to 10 min for a debugger: remotely debug {name}" in printed(), "")
    prompt = at_prompt(worker)
    prompt.wait()
    assert status_of(worker).is_debugged
    assert status_of(worker).method == "double"
    prompt.leaves("c\n")
    call.result()
    assert not status_of(worker).stopped_at


def test_a_call_to_which_nobody_attaches_goes_on(here: None, capfd: Any) -> None:
    worker = remotely.options(Worker, env={"REMOTELY_DEBUG_WAIT": "0.1"})()

    assert worker.double(2) == 4

    wait_until(lambda: "goes on: nobody has attached" in printed(), "it says so")


@pytest.mark.parametrize("value", ["0", "builtins.print"])
def test_pythonbreakpoint_is_as_in_any_process(here: None, value: str) -> None:
    assert remotely.options(Worker, env={"PYTHONBREAKPOINT": value})().double(2) == 4


def test_a_change_of_pythonbreakpoint_in_the_script_counts_in_its_actors(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    assert Worker().double(2) == 4


def test_a_constructor_stops_too(here: None) -> None:
    made: list[Any] = []
    make = remotely.options(Worker, name="newborn")
    thread = threading.Thread(target=lambda: made.append(make(True)))
    thread.start()
    wait_until(lambda: [each for each in _actors() if each.stopped_at], "it has stopped")
    prompt = at_prompt(remotely.get_actor("newborn"))
    prompt.wait()
    assert prompt.does("p stops") == "True\n(Pdb) "
    prompt.leaves("c\n")
    thread.join()
    assert made[0].is_made


def _actors() -> Any:
    return remotely.status().actors


def test_a_child_process_of_an_actor_does_not_stop(
    worker: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert worker.stop_in_a_child() == 0
    wait_until(lambda: "has no debugger of its own" in printed(), "it says so")


def test_a_child_of_a_call_that_is_stepped_through_does_not_stop(worker: Any) -> None:
    call = worker.fork.submit()
    prompt = at_prompt(worker)
    prompt.wait()
    prompt.does("n")
    prompt.does("n")  # the line after the fork, where the child has the same breakpoints
    prompt.leaves("c\n")
    assert call.result(30) == 7


# --- the calls of others --------------------------------------------------------------------------


def test_calls_wait_in_order_while_one_has_stopped(worker: Any) -> None:
    first = worker.double.submit(1)
    stopped(worker)
    prompt = at_prompt(worker)  # from now on, another thread receives
    later = [worker.see.submit(number) for number in range(300)]
    prompt.wait()
    assert prompt.does("p len(self.seen)") == "0\n(Pdb) "
    assert not any(call.done() for call in later)

    prompt.leaves("c\n")

    assert first.result() == 2
    assert later[-1].result() == [2, *range(300)]
    assert worker.see(-1)[-1] == -1


def test_an_actor_with_several_threads_serves_others_meanwhile(here: None) -> None:
    worker = remotely.options(Worker, concurrency=2)()
    calls = [worker.double.submit(number) for number in (1, 2)]  # each stops, one after the other
    prompt = at_prompt(worker)
    for _ in calls:
        prompt.wait()
        assert prompt.does("p twice")[0] in "24"
        prompt.ask(Ask.LINE, "c\n")
    assert sorted(call.result() for call in calls) == [2, 4]

    call = worker.double.submit(3)
    prompt.wait()
    assert worker.see(0)[-1] == 0
    prompt.leaves("c\n")
    assert call.result() == 6


def test_an_async_method_stops_its_loop(here: None) -> None:
    several = Several()
    call = several.double.submit(2)
    prompt = at_prompt(several)
    prompt.wait()
    ping = several.ping.submit()
    assert prompt.does("p twice") == "4\n(Pdb) "
    assert not ping.done()
    prompt.leaves("c\n")
    assert call.result() == 4
    assert ping.result() == "pong"


# --- Ctrl-C ---------------------------------------------------------------------------------------


def test_an_interrupt_stops_a_running_call(worker: Any) -> None:
    prompt = at_prompt(worker)
    call = worker.count_for.submit(60)
    wait_until(lambda: prompt.ask(Ask.READ).runs, "it runs")

    prompt.ask(Ask.INTERRUPT)

    assert "count_for()" in prompt.wait()
    prompt.does("end = 0")
    prompt.leaves("c\n")
    assert call.result() > 0


def test_an_interrupt_ends_a_command_and_not_the_session(worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()

    prompt.ask(Ask.LINE, "import time; time.sleep(100)\n")
    prompt.ask(Ask.INTERRUPT)

    assert "KeyboardInterrupt" in prompt.wait()
    prompt.leaves("c\n")
    assert call.result() == 2


def attached_to_a_call_that_runs(worker: Any, call: Any) -> Prompt:
    wait_until(lambda: status_of(worker).running, "it runs")
    prompt = Prompt(worker)
    prompt.attend()
    assert prompt.attach().is_attached
    prompt.ask(Ask.INTERRUPT)
    assert not call.done()
    return prompt


def test_a_call_that_hangs_in_the_kernel_is_stopped_where_it_is(worker: Any) -> None:
    call = worker.sleep.submit(1000)
    prompt = attached_to_a_call_that_runs(worker, call)

    assert "time.sleep(seconds)" in prompt.wait()
    assert prompt.does("p seconds") == "1000\n(Pdb) "
    prompt.leaves("q\n")

    with pytest.raises(bdb.BdbQuit):
        call.result()
    assert worker.see(1) == [1]


def test_a_call_that_loops_for_ever_is_stopped_stepped_and_goes_on(worker: Any) -> None:
    call = worker.count_for.submit(1000)
    prompt = attached_to_a_call_that_runs(worker, call)

    assert "count_for()" in prompt.wait()
    assert "count_for()" in prompt.does("n")
    assert "count_for()" in prompt.does("n")
    prompt.does("end = 0")
    prompt.leaves("c\n")

    assert call.result() > 0
    assert worker.see(1) == [1]


def test_an_interrupt_of_a_loop_that_waits_says_that_no_code_runs(here: None) -> None:
    several: Any = Several()
    call = several.rest.submit()
    prompt = attached_to_a_call_that_runs(several, call)

    for _ in range(10):  # its main thread receives some of them, and the lookout others
        assert "No code of a call runs" in prompt.wait(lambda heard: prompt.text)
        prompt.ask(Ask.INTERRUPT)

    prompt.ask(Ask.LEAVE)
    several.wake()
    assert call.result() == "rested"


def test_an_interrupt_does_not_stop_in_pdb_itself(worker: Any) -> None:
    prompt = at_prompt(worker)
    call = worker.be_interrupted_in_pdb.submit()
    assert 'pdb["look"](int)' in prompt.wait()
    prompt.leaves("c\n")
    assert call.result() == 1


def test_a_wait_for_another_actor_is_stopped_at_the_next_line(worker: Any) -> None:
    other = Worker()
    call = worker.wait_for.submit(other)
    prompt = attached_to_a_call_that_runs(worker, call)

    assert "Ctrl-C again" in prompt.wait(lambda heard: heard.text)
    prompt.ask(Ask.INTERRUPT)

    assert "KeyboardInterrupt" in prompt.wait()
    prompt.leaves("c\n")
    with pytest.raises(KeyboardInterrupt):
        call.result()
    remotely.kill(other)


def test_an_interrupt_of_an_idle_actor_does_nothing(worker: Any) -> None:
    prompt = at_prompt(worker)
    assert not prompt.ask(Ask.INTERRUPT).runs
    assert worker.see(1) == [1]
    prompt.ask(Ask.LEAVE)
    assert worker.see(2) == [1, 2]


# --- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def examined(here: None) -> Any:
    return remotely.options(Worker, post_mortem=True)()


def test_a_call_that_fails_waits_with_its_frames(examined: Any) -> None:
    call = examined.divide.submit(1)
    assert stopped(examined).endswith("in Worker.divide, with ZeroDivisionError")
    prompt = at_prompt(examined)

    assert prompt.wait().startswith("ZeroDivisionError: division by zero\n")
    assert prompt.does("p number, least") == "(1, 0)\n(Pdb) "
    assert not call.done()
    prompt.leaves("q\n")

    with pytest.raises(ZeroDivisionError):
        call.result()
    assert examined.see(1) == [1]


def test_an_error_at_which_nobody_looks_reaches_its_caller(here: None) -> None:
    settings: Any = {"post_mortem": True, "env": {"REMOTELY_DEBUG_WAIT": "0.1"}}
    worker = remotely.options(Worker, **settings)()
    with pytest.raises(ZeroDivisionError):
        worker.divide(1)
    with pytest.raises(AttributeError):  # an error of the call, not of the object's code
        worker.no_such_method()


def test_the_error_of_a_batch_stops_once(here: None) -> None:
    worker = remotely.options(Worker, post_mortem=True)()
    calls = [worker.divide_all.submit(number) for number in (1, 2)]
    prompt = at_prompt(worker)
    assert "of 2" in prompt.wait()
    prompt.leaves("c\n")
    for call in calls:
        with pytest.raises(ZeroDivisionError):
            call.result()
    assert not prompt.ask(Ask.READ).asks


def test_a_terminal_can_ask_for_the_errors_of_an_actor_that_runs(worker: Any) -> None:
    prompt = at_prompt(worker)
    prompt.ask(Ask.CATCH)
    call = worker.divide.submit(1)
    assert "ZeroDivisionError" in prompt.wait()
    prompt.ask(Ask.LEAVE)
    with pytest.raises(ZeroDivisionError):
        call.result()
    with pytest.raises(ZeroDivisionError):  # and not any more
        worker.divide(1)


def _divide(number: int) -> float:
    return number / 0


@pytest.mark.parametrize("chunksize", [1, 2])
def test_a_function_of_an_executor_is_debugged_like_a_method(here: None, chunksize: int) -> None:
    with remotely.Executor(max_workers=1, post_mortem=True) as executor:
        results = executor.map(_divide, [1, 2], chunksize=chunksize)
        for number in (1, 2):
            wait_until(lambda: any(each.stopped_at for each in _actors()), "it has stopped")
            (name,) = (each.name for each in _actors() if each.stopped_at)
            prompt = at_prompt(remotely.get_actor(name))
            prompt.wait()
            assert prompt.does("p number") == f"{number}\n(Pdb) "
            prompt.leaves("q\n")
        with pytest.raises(ZeroDivisionError):
            list(results)


# --- ends -----------------------------------------------------------------------------------------


def test_the_death_of_an_actor_ends_its_debugger(worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()
    remotely.kill(worker)
    with pytest.raises(RemotelyError, match="ended with SIGKILL"):
        prompt.ask(Ask.READ)
    with pytest.raises(ActorDied):
        call.result()


@remotely.remote_class
class StopsAndCloses:
    def __init__(self, file: Path) -> None:
        self.file = file

    def stop(self) -> None:
        breakpoint()  # noqa: T100

    def close(self) -> None:
        self.file.write_text("gracefully")


def test_an_actor_that_is_asked_to_end_waits_for_no_debugger(here: None, tmp_path: Path) -> None:
    stopper = StopsAndCloses(tmp_path / "closed")
    stopper.stop.submit()
    stopped(stopper)

    remotely.shutdown()

    assert (tmp_path / "closed").read_text() == "gracefully"


def test_a_second_debugger_is_refused(started_here: Here, worker: Any) -> None:
    call = worker.double.submit(1)
    prompt = at_prompt(worker)
    prompt.wait()
    client = client_of(started_here.address, started_here.key)
    try:
        other = Prompt(worker, CallEngine(client))
        with pytest.raises(RemotelyError, match="another debugger is attached"):
            other.attach()
    finally:
        client.shutdown()
    prompt.leaves("c\n")
    assert call.result() == 2


def test_what_a_lost_debugger_has_stopped_goes_on(started_here: Here, worker: Any) -> None:
    call = worker.double.submit(1)
    client = client_of(started_here.address, started_here.key)
    try:
        other = Prompt(worker, CallEngine(client))
        other.attach()
        other.wait()
    finally:
        client.shutdown()  # without a word to the actor
    assert call.result(30) == 2
    assert not status_of(worker).is_debugged


def test_a_revoked_key_is_cut_off_and_the_call_goes_on(
    started: Started, nothing_left: None, tmp_path: Path
) -> None:
    remotely.connect(started.address, key=started.key)
    worker = Worker()
    ada = tmp_path / "ada.key"
    started.run(started.home, "keys", "add", "client", str(ada))
    client = client_of(started.address, ada)
    call = worker.double.submit(1)
    try:
        prompt = Prompt(worker, CallEngine(client))
        prompt.attach()
        prompt.wait()
        started.run(started.home, "keys", "revoke", str(ada))
        with pytest.raises(NotAllowed):
            prompt.ask(Ask.LINE, "self.seen.append('ada')\n")
    finally:
        client.shutdown()
    assert call.result() == 2
    assert worker.see(1) == [2, 1]


def test_a_debugger_needs_no_master(machine: Machine, port: int, nothing_left: None) -> None:
    machine.does("start", "--port", port, "--cpus", 1)
    remotely.connect(f"127.0.0.1:{port}", key=machine.keys / "client.key")
    worker = Worker()
    call = worker.double.submit(2)
    prompt = at_prompt(worker)
    prompt.wait()

    master = machine.pids(port)["master"]
    os.kill(master, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(master), "its end")

    assert prompt.does("p twice") == "4\n(Pdb) "
    machine.does("start", "--port", port, "--cpus", 1)
    assert prompt.does("p number") == "2\n(Pdb) "
    prompt.leaves("c\n")
    assert call.result() == 4
    remotely.shutdown()
    machine.does("stop", "--port", port)
