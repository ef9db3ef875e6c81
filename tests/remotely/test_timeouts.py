"""`@remotely.timeout`: how long callers wait, and what they learn of a late call."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import CallTimeout
from tests.clusters import wait_until


@remotely.remote_class(cpus=0)
class Slow:
    def __init__(self) -> None:
        self.ran: list[int] = []

    @remotely.timeout(1.0)
    def limited(self, gate: str, number: int = 0) -> int:
        self.ran.append(number)
        Path(gate + ".begun").touch()
        wait_until(Path(gate).exists, "the gate")
        return number

    @remotely.timeout(40)
    def patient(self, number: int) -> int:
        return number

    def unlimited(self, gate: str) -> int:
        Path(gate + ".begun").touch()
        wait_until(Path(gate).exists, "the gate")
        return 1

    @remotely.timeout(20)
    def raises_a_timeout(self) -> None:
        raise CallTimeout("of another call")

    def all(self) -> list[int]:
        return self.ran


def test_a_running_call_that_times_out_goes_on(any_cluster: None, tmp_path: Path) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    with pytest.raises(CallTimeout, match=r"Slow-\d+\.limited has not answered") as late:
        actor.limited(str(gate))
    assert late.value.still_running
    gate.touch()
    assert actor.all() == [0]


def test_a_queued_call_that_times_out_is_cancelled(any_cluster: None, tmp_path: Path) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    running = actor.unlimited.submit(str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    with pytest.raises(CallTimeout, match="was cancelled") as late:
        actor.limited(str(gate), 5)
    assert not late.value.still_running
    gate.touch()
    assert running.result() == 1
    assert actor.all() == []


def test_a_submitted_call_has_the_same_timeout_and_may_be_asked_again(
    here: None, tmp_path: Path
) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    future = actor.limited.submit(str(gate))
    with pytest.raises(CallTimeout):
        future.result()
    gate.touch()
    assert future.result(timeout=40) == 0
    assert future.result() == 0  # a done future does not time out


def test_a_group_has_one_timeout_for_all_members(here: None, tmp_path: Path) -> None:
    actors = remotely.group(Slow, 12)
    begin = time.monotonic()
    with pytest.raises(CallTimeout, match=r"limited has not answered after 1 s") as late:
        actors.limited(str(tmp_path / "gate"))
    assert late.value.still_running
    assert time.monotonic() - begin < 12 * 1.0  # not one after the other
    (tmp_path / "gate").touch()
    assert actors.all() == [[0]] * 12


def test_queued_calls_of_a_group_that_times_out_are_cancelled(here: None, tmp_path: Path) -> None:
    actors, gate = remotely.group(Slow, 3), tmp_path / "gate"
    running = actors[0].unlimited.submit(str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    with pytest.raises(CallTimeout, match=r"limited had not begun in time") as late:
        actors.limited(str(gate), 5)
    assert late.value.still_running  # at the others
    gate.touch()
    assert running.result() == 1
    assert actors.all() == [[], [5], [5]]


def test_a_timeout_error_raised_by_the_method_is_sent_to_the_caller(here: None) -> None:
    with pytest.raises(CallTimeout, match="of another call"):
        Slow().raises_a_timeout()


def test_a_call_within_its_timeout_returns_normally(here: None) -> None:
    assert Slow().patient(3) == 3
    assert remotely.group(Slow, 2).patient(3) == [3, 3]


def test_late_calls_leave_no_thread_behind(here: None, tmp_path: Path) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    with pytest.raises(CallTimeout):
        actor.limited(str(gate))
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(CallTimeout):
            actor.limited(str(gate))
    assert threading.active_count() == before
    gate.touch()


@pytest.mark.parametrize("seconds", [0, -1, "5", None, float("nan")])
def test_an_invalid_timeout_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds="):
        remotely.timeout(seconds)


def test_without_a_cluster_the_method_runs_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gate").touch()
    assert Slow.limited.__name__ == "limited"
    assert remotely.local(Slow).limited(str(tmp_path / "gate"), 2) == 2
