"""A method says how long its callers wait; what they then know of the call is true."""

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


def test_a_call_that_has_begun_goes_on_and_its_caller_is_told_so(
    cluster: str, tmp_path: Path
) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    with pytest.raises(CallTimeout, match=r"Slow-\d+\.limited has not answered") as late:
        actor.limited(str(gate))
    assert late.value.still_running
    gate.touch()
    assert actor.all() == [0]


def test_a_call_that_has_not_begun_is_taken_back(cluster: str, tmp_path: Path) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    running = actor.unlimited.submit(str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    with pytest.raises(CallTimeout, match="was cancelled") as late:
        actor.limited(str(gate), 5)
    assert not late.value.still_running
    gate.touch()
    assert running.result() == 1
    assert actor.all() == []


def test_a_submitted_call_has_the_same_time_and_is_asked_again_later(
    here: None, tmp_path: Path
) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    future = actor.limited.submit(str(gate))
    with pytest.raises(CallTimeout):
        future.result()
    gate.touch()
    assert future.result(timeout=40) == 0
    assert future.result() == 0  # it is there: no time is over


def test_a_group_has_one_time_for_all_of_its_members(here: None, tmp_path: Path) -> None:
    actors = remotely.group(Slow, 12)
    begin = time.monotonic()
    with pytest.raises(CallTimeout, match=r"limited has not answered after 1 s") as late:
        actors.limited(str(tmp_path / "gate"))
    assert late.value.still_running
    assert time.monotonic() - begin < 12 * 1.0  # not one after the other
    (tmp_path / "gate").touch()
    assert actors.all() == [[0]] * 12


def test_calls_of_a_group_that_have_not_begun_are_taken_back(here: None, tmp_path: Path) -> None:
    actors, gate = remotely.group(Slow, 3), tmp_path / "gate"
    running = actors[0].unlimited.submit(str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    with pytest.raises(CallTimeout, match=r"limited had not begun in time") as late:
        actors.limited(str(gate), 5)
    assert late.value.still_running  # at the others
    gate.touch()
    assert running.result() == 1
    assert actors.all() == [[], [5], [5]]


def test_a_timeout_that_the_method_raises_is_its_answer(here: None) -> None:
    with pytest.raises(CallTimeout, match="of another call"):
        Slow().raises_a_timeout()


def test_a_call_in_time_is_answered_as_ever(here: None) -> None:
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
def test_a_bad_timeout_is_refused_in_a_sentence(seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds="):
        remotely.timeout(seconds)


def test_without_a_cluster_the_method_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gate").touch()
    assert Slow.limited.__name__ == "limited"
    assert remotely.local(Slow).limited(str(tmp_path / "gate"), 2) == 2
