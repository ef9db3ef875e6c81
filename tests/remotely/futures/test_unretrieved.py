"""Unretrieved errors are reported once, with their remote traceback; nothing else is."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.futures.future import CallFuture
from remotely.futures.unretrieved import report_key
from tests.clusters import printed, wait_until


@remotely.remote_class(max_restarts=0)
class Actor:
    def set_param(self, value: Any) -> None:
        raise KeyError(value)

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def stream(self) -> Iterator[int]:
        yield 1
        raise KeyError("in the stream")


@remotely.remote_class
class AsyncActor:
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def raised(reported: list[tuple[str, BaseException]]) -> CallFuture[Any]:
    future: CallFuture[Any] = CallFuture("Actor-1.set_param")
    future.on_unretrieved = lambda what, error: reported.append((what, error))
    future.set_exception(KeyError("x"))
    return future


class SeenEarly(CallFuture[Any]):
    """Another thread retrieves the error while the outcome is being recorded."""

    is_first = True

    def _record(self, outcome: Any) -> None:
        if self.is_first:
            self.is_first = False
            with self._condition:
                assert self.done()
            assert self.exception(timeout=0) is outcome[2]
        super()._record(outcome)


def test_an_error_that_is_retrieved_while_it_is_being_set_is_not_reported() -> None:
    reported: list[object] = []
    future = SeenEarly("Actor-1.set_param")
    future.on_unretrieved = lambda what, error: reported.append(error)
    future.set_exception(KeyError("x"))
    del future
    assert reported == []


def test_of_two_outcomes_only_the_first_is_reported() -> None:
    reported: list[object] = []
    future: CallFuture[Any] = CallFuture("Actor-1.set_param")
    future.on_unretrieved = lambda what, error: reported.append(error)
    first, second = KeyError("first"), KeyError("second")
    future.settle(None, first)
    future.settle(None, second)
    assert reported == []
    del future
    assert reported == [first]


async def _awaited(future: Any) -> None:
    with pytest.raises(KeyError):
        await future


def _caught(future: Any) -> None:
    with pytest.raises(KeyError):
        future.result()


RETRIEVING: dict[str, Callable[[Any], object]] = {
    "result": _caught,
    "exception": lambda future: future.exception(),
    "await": lambda future: asyncio.run(_awaited(future)),
    "as_completed": lambda future: _caught(next(remotely.as_completed([future]))),
    "wait": lambda future: _caught(wait([future]).done.pop()),
    "callback": lambda future: future.add_done_callback(_caught),
}


@pytest.mark.parametrize("way", RETRIEVING)
def test_a_retrieved_error_is_not_reported(way: str) -> None:
    reported: list[Any] = []
    RETRIEVING[way](raised(reported))
    assert not reported


def test_an_unretrieved_error_is_reported_when_its_future_is_dropped() -> None:
    reported: list[Any] = []
    future = raised(reported)
    assert future.done()
    future.add_done_callback(lambda _: None)
    assert not reported
    del future
    assert [(what, str(error)) for what, error in reported] == [("Actor-1.set_param", "'x'")]


def test_a_value_is_not_reported() -> None:
    reported: list[Any] = []
    future: CallFuture[int] = CallFuture("a call")
    future.on_unretrieved = lambda *both: reported.append(both)
    future.set_result(1)
    del future
    assert not reported


def test_the_same_error_of_a_groups_members_has_one_report_key() -> None:
    assert report_key("A-1.f", KeyError("x")) == report_key("A-2.f", KeyError("x"))
    assert report_key("A-1.f", KeyError("x")) != report_key("A-1.f", KeyError("y"))
    assert report_key("A-1.f", remotely.ActorDied("A-1")) == report_key(
        "A-2.f", remotely.ActorDied("A-2")
    )


def test_the_error_of_a_dropped_call_is_printed_once(
    cluster: str, capfd: pytest.CaptureFixture[str]
) -> None:
    actor = Actor()
    for _ in range(100):
        actor.set_param.submit("lr")
    assert actor.pid()

    wait_until(lambda: "KeyError" in printed(), "the error")
    remotely.shutdown()
    text = printed()
    assert text.count("set_param failed, and the error was never retrieved") == 1
    assert text.count("KeyError: 'lr'") == 1
    assert "in set_param" in text
    assert "result() or exception()" in text


def test_the_death_of_an_actor_is_printed_for_a_dropped_call(
    here: None, capfd: pytest.CaptureFixture[str]
) -> None:
    actor: Any = Actor()
    pid = actor.pid()
    actor.sleep.submit(60)
    wait_until(lambda: remotely.status().actors[0].running, "it runs")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "SIGKILL; the call may have run" in printed(), "its death")


def test_retrieved_errors_streams_and_requested_ends_print_nothing(
    here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    group: Any = remotely.group(Actor, 2)
    with pytest.raises(KeyError):
        group.set_param(1)
    with pytest.raises(KeyError):
        group[0].set_param(1)
    with pytest.raises(AttributeError):
        group[0].misspelt()
    stream = group[0].stream()
    assert next(stream) == 1
    del stream
    for member in group:
        member.sleep.submit(60)
    asyncio.run(give_up_on(AsyncActor()))
    remotely.close(group[0], grace_s=0.1)
    remotely.shutdown()
    assert capsys.readouterr().err == ""


async def give_up_on(actor: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(actor.sleep.submit(60), 0.05)


def test_unretrieved_errors_are_printed_in_process_too(
    monkeypatch: pytest.MonkeyPatch, nothing_left: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    actor: Any = Actor()
    for _ in range(3):
        actor.set_param.submit("lr")
    text = capsys.readouterr().err
    assert text.count("Actor-1.set_param failed") == 1
    assert "KeyError: 'lr'" in text


SCRIPT = """
import threading
import remotely

@remotely.remote_class
class Actor:
    def step(self):
        return 1
    def set_param(self, value):
        raise KeyError(value)

if __name__ == "__main__":
    {body}
"""


def output_of(tmp_path: Path, body: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout + done.stderr


def test_a_daemon_thread_that_calls_until_the_script_ends_prints_no_error(tmp_path: Path) -> None:
    body = """
    actor = Actor()
    def play():
        while True:
            actor.step()
            actor.step.submit()
    for _ in range(3):
        threading.Thread(target=play, daemon=True).start()
    print(actor.step())
    """
    result, *left_behind = output_of(tmp_path, body).splitlines()
    assert result == "1"
    assert len(left_behind) <= 1
    assert all("the script ends, and" in line for line in left_behind)


def test_an_unretrieved_error_in_the_last_line_of_a_script_is_printed(tmp_path: Path) -> None:
    text = output_of(tmp_path, "actor = Actor(); actor.set_param.submit('lr'); actor.step()")
    assert text.count("Actor-1.set_param failed") == 1
