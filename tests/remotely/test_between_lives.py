"""Calls to an actor that has died, and whose next life is not there yet: nobody else waits."""

import os
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied, CallTimeout, WorkerLost
from remotely.testing import faults
from tests.clusters import wait_until


@remotely.remote_class(cpus=0, max_restarts=5)
class Reborn:
    """Its lives after the first begin when a test lets them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.noted: list[int] = []
        if (folder / "died").exists():
            (folder / "waits").touch()
            wait_until((folder / "go").exists, "it may begin")

    def die(self) -> None:
        (self.folder / "died").touch()
        os._exit(1)

    def note(self, number: int) -> int:
        self.noted.append(number)
        return number

    @remotely.timeout(0.2)
    def note_in_time(self, number: int) -> int:
        return self.note(number)

    @remotely.idempotent(retries=2)
    def die_or_note(self, number: int) -> int:
        if not (self.folder / "died").exists():
            self.die()
        return self.note(number)

    def all(self) -> list[int]:
        return self.noted


@remotely.remote_class
class Echo:
    def echo(self, value: Any) -> Any:
        return value


@pytest.fixture
def died(cluster: str, tmp_path: Path) -> Any:
    """An actor whose next life waits until the file `go` is there."""
    actor = Reborn(tmp_path)
    with pytest.raises(ActorDied):
        actor.die()
    wait_until((tmp_path / "waits").exists, "its next life begins")
    return actor


def test_submit_returns_and_the_calls_run_in_order_in_the_next_life(
    died: Any, tmp_path: Path
) -> None:
    futures = [died.note.submit(number) for number in range(5)]
    assert not any(future.done() for future in futures)
    (tmp_path / "go").touch()
    assert [future.result() for future in futures] == [0, 1, 2, 3, 4] == died.all()


def test_a_timeout_counts_from_the_call(died: Any, tmp_path: Path) -> None:
    with pytest.raises(CallTimeout, match="was cancelled") as late:
        died.note_in_time(1)
    assert not late.value.still_running
    (tmp_path / "go").touch()
    assert died.all() == []


def test_a_call_is_taken_back(died: Any, tmp_path: Path) -> None:
    first, second = died.note.submit(1), died.note.submit(2)
    assert first.cancel()
    (tmp_path / "go").touch()
    assert second.result() == 2
    assert died.all() == [2]


@pytest.mark.parametrize("given", ["a value", "a future that is done"])
def test_calls_after_one_that_broke_the_connection_leave_on_the_next(
    here: None, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    actor, other = Echo(), Echo()
    made = other.echo.submit(5)
    value = made if given == "a future that is done" else 5
    assert (actor.echo(value), made.result()) == (5, 5)
    monkeypatch.setattr(faults, "ON", faults.parse("client.call:lose@1"))
    lost = actor.echo.submit(4)
    assert (actor.echo(value), actor.echo.submit(value).result()) == (5, 5)
    with pytest.raises(WorkerLost, match="broke; the call did not run"):
        lost.result()


def test_a_call_that_is_to_be_repeated_is_taken_back(cluster: str, tmp_path: Path) -> None:
    actor = Reborn(tmp_path)
    lost = actor.die_or_note.submit(1)
    wait_until((tmp_path / "waits").exists, "its next life begins")
    assert lost.cancel()
    with pytest.raises(CancelledError):
        lost.result()
    (tmp_path / "go").touch()
    assert actor.all() == []


def test_a_call_that_is_repeated_runs_before_those_made_after_it(
    cluster: str, tmp_path: Path
) -> None:
    actor = Reborn(tmp_path)
    lost = actor.die_or_note.submit(1)
    wait_until((tmp_path / "waits").exists, "its next life begins")
    later = actor.note.submit(2)
    (tmp_path / "go").touch()
    assert (lost.result(), later.result()) == (1, 2)
    assert actor.all() == [1, 2]
