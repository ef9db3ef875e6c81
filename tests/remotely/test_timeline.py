"""`remotely timeline` and `remotely.timeline`: the calls of all processes, joined."""

import contextlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import remotely
from remotely import cli
from tests.clusters import wait_until
from tests.remotely.reporting.trace_format import check

pytestmark = pytest.mark.zeromq


@remotely.remote_class(cpus=0.1)
class Player:
    def step(self, number: int) -> int:
        return number

    def takes(self, array: Any) -> None: ...

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@remotely.remote_class(cpus=0.1)
class Asynchronous:
    async def step(self) -> int:
        return 1


@remotely.remote_class(cpus=0.1)
class Team:
    def __init__(self, player: Any) -> None:
        self.player = player

    def play(self, number: int) -> Any:
        return self.player.step(number)


def another_is_recorded() -> bool:
    try:
        remotely.timeline(1e-3)
    except remotely.RemotelyError:
        return True
    return False


@pytest.mark.parametrize("seconds", [0, -1, 301])
def test_a_timeline_of_no_time_or_of_hours_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds="):
        remotely.timeline(seconds)
    done = CliRunner().invoke(cli.main, ["timeline", "--seconds", str(seconds), "-o", "t.json"])
    assert done.exit_code == 2


class Timeline:
    """A timeline that is recorded while the block runs."""

    def __init__(self, seconds: float = 1.5) -> None:
        self.events: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._record, args=(seconds,))

    def _record(self, seconds: float) -> None:
        while not self.events:
            with contextlib.suppress(remotely.RemotelyError):  # the main thread was faster
                self.events = remotely.timeline(seconds)["traceEvents"]

    def __enter__(self) -> "Timeline":
        """Return when the master has told all processes, and before it has placed an actor."""
        self._thread.start()
        wait_until(another_is_recorded, "it has begun")
        remotely.close(Player())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def of(self, phase: str, name: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["ph"] == phase and each.get("name") == name]

    def process(self, start: str) -> int:
        (found,) = [
            each["pid"]
            for each in self.events
            if each.get("name") == "process_name" and each["args"]["name"].startswith(start)
        ]
        number: int = found
        return number


def test_calls_are_joined_from_process_to_process(here: None) -> None:
    player = Player()
    team, asynchronous = Team(player), Asynchronous()
    team.play(0)  # connects
    with Timeline() as seen:
        futures = [player.step.submit(number) for number in range(40)]
        assert [future.result() for future in futures] == list(range(40))
        team.play(7)
        called: Any = asynchronous.step
        assert called() == 1
        player.takes(np.ones(1 << 17))
    served = [e for e in seen.of("X", "step") if e["pid"] == seen.process("Player-1")]
    assert len(served) == 41
    (play,) = seen.of("X", "play")
    within = [e for e in served if play["ts"] <= e["ts"] <= play["ts"] + play["dur"]]
    arrows = {e["id"]: e for e in seen.of("s", "call")}
    ends = {(e["pid"], e["ts"]): e["id"] for e in seen.of("f", "call")}
    (inner,) = [e for e in within if arrows[ends[e["pid"], e["ts"]]]["pid"] == play["pid"]]
    assert inner["args"]["waited us"] > 0
    assert len([e for e in seen.events if e["ph"] == "b" and e["cat"] == "wait"]) >= 43
    check(seen.events)
    (takes,) = seen.of("X", "takes")
    assert takes["args"]["bytes received"] > 1 << 20
    assert len([e for e in seen.of("X", "step") if e["pid"] != served[0]["pid"]]) == 1  # async


def test_births_and_ends_are_marked(here: None) -> None:
    with Timeline() as seen:
        player = Player()
        with pytest.raises(remotely.ActorDied):
            player.die()
    number = seen.process("Player-2")
    marks = [e["name"] for e in seen.events if e["ph"] == "i" and e["pid"] == number]
    assert marks == ["born", "ended: ended with SIGKILL"]


def test_one_is_recorded_at_a_time_and_then_nothing_is(here: None) -> None:
    player = Player()
    with Timeline():
        with pytest.raises(remotely.RemotelyError, match="another timeline is being recorded"):
            remotely.timeline(0.1)
        player.step(1)
    assert not another_is_recorded()


def test_the_command_writes_a_file(here: None, started_here: Any, tmp_path: Path) -> None:
    player = Player()
    file = tmp_path / "trace.json"
    command = ["timeline", started_here.address, "--key", str(started_here.key)]
    done = CliRunner().invoke(cli.main, [*command, "--seconds", "0.2", "-o", str(file)])
    assert "calls of 1 actor" in done.output
    assert "received and sent" in done.output
    assert "traceEvents" in json.loads(file.read_text())
    assert player.step(1) == 1


def test_a_folder_that_is_missing_is_told_before_it_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "trace.json"
    done = CliRunner().invoke(cli.main, ["timeline", "--seconds", "300", "-o", str(file)])
    assert "there is no folder" in done.output


def test_it_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.connect()
    try:
        with pytest.raises(remotely.RemotelyError, match="a timeline needs a cluster"):
            remotely.timeline(0.1)
    finally:
        remotely.shutdown()
