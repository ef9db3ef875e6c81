"""Calls to an actor that has died and not restarted yet."""

import os
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied, CallTimeout, WorkerLost
from remotely.testing import faults
from tests.clusters import wait_until


@remotely.remote_class(cpus=0, max_restarts=5)
class Reborn:
    """Its restarts wait until a test allows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.noted: list[int] = []
        if (folder / "died").exists():
            (folder / "waits").touch()
            wait_until((folder / "go").exists, "permission to start")

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
def died(any_cluster: None, tmp_path: Path) -> Any:
    """An actor whose restart waits for the file `go`."""
    actor = Reborn(tmp_path)
    with pytest.raises(ActorDied):
        actor.die()
    wait_until((tmp_path / "waits").exists, "the beginning of its restart")
    return actor


def test_submitted_calls_run_in_order_after_the_restart(died: Any, tmp_path: Path) -> None:
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


def test_a_pending_call_is_cancelled(died: Any, tmp_path: Path) -> None:
    first, second = died.note.submit(1), died.note.submit(2)
    assert first.cancel()
    (tmp_path / "go").touch()
    assert second.result() == 2
    assert died.all() == [2]


@pytest.mark.parametrize("given", ["a value", "a future that is done"])
def test_calls_after_a_broken_connection_are_sent_on_the_next(
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


def test_a_cancelled_retry_says_that_its_first_attempt_may_have_run(
    any_cluster: None, tmp_path: Path
) -> None:
    actor = Reborn(tmp_path)
    lost = actor.die_or_note.submit(1)
    wait_until((tmp_path / "waits").exists, "the beginning of its restart")
    assert not lost.cancel()
    with pytest.raises(remotely.ActorDied) as died:
        lost.result()
    assert died.value.may_have_run
    (tmp_path / "go").touch()
    assert actor.all() == []


def test_a_retried_call_runs_before_later_calls(any_cluster: None, tmp_path: Path) -> None:
    actor = Reborn(tmp_path)
    lost = actor.die_or_note.submit(1)
    wait_until((tmp_path / "waits").exists, "the beginning of its restart")
    later = actor.note.submit(2)
    (tmp_path / "go").touch()
    assert (lost.result(), later.result()) == (1, 2)
    assert actor.all() == [1, 2]
