"""Tests of Crew: making actors, and replacing those that fail."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import remotely
from remotely_rl import cluster
from remotely_rl.acting.samplers import Samplers
from remotely_rl.errors import TrainingError
from tests.remotely_rl.acting.fakes import Fake, crew_of, wait_for_newcomer

pytestmark = pytest.mark.usefixtures("fakes")


def test_without_room_a_replacement_waits_while_the_other_actors_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = threading.Event()
    tried = threading.Semaphore(0)

    def make(ident: int) -> Fake:
        if ident > 1 and not room.is_set():
            tried.release()
            raise remotely.NoResources("full")
        return Fake(ident)

    crew = crew_of(2, make)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(sleep=lambda s: room.wait(40)))
    crew.replace(crew.actors[0], remotely.ActorDied("killed", exit=1))
    tried.acquire()
    assert not crew.admit()
    assert [actor.ident for actor in crew.actors] == [1]
    room.set()
    wait_for_newcomer(crew)
    assert [actor.ident for actor in crew.actors] == [1, 2]


def test_making_an_actor_is_retried_a_limited_number_of_times() -> None:
    def make(ident: int) -> Fake:
        if ident in (0, 3):
            raise ValueError("the simulator did not start")
        return Fake(ident)

    crew = crew_of(2, make)
    assert [actor.ident for actor in crew.actors] == [1, 2]
    crew.add()
    wait_for_newcomer(crew)
    assert [actor.ident for actor in crew.actors] == [1, 2, 4]

    def make_none(ident: int) -> Fake:
        raise ValueError("no such game")

    with pytest.raises(TrainingError, match=r"crash too often.*ValueError: no such game"):
        crew_of(2, make_none)


@pytest.mark.parametrize("error", [TrainingError("no such field"), remotely.NoResources("full")])
def test_an_error_that_a_retry_would_not_fix_is_raised_immediately(
    error: Exception,
) -> None:
    made: list[int] = []

    def make(ident: int) -> Fake:
        made.append(ident)
        raise error

    with pytest.raises(type(error), match=str(error)):
        crew_of(1, make)
    assert made == [0]


def test_actors_that_hang_while_they_are_made_do_not_delay_the_end_and_are_closed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_come, closed = threading.Event(), threading.Event()
    turns = iter([False, False, True])
    made: list[Fake] = []

    def make(ident: int) -> Fake:
        may_come.wait(40)
        made.append(Fake(ident))
        return made[0]

    def close(actor: Fake) -> None:
        actor.closed = True
        closed.set()

    monkeypatch.setattr(remotely, "close", close)

    crew: Samplers[Any] = Samplers(make, 1, None, over=lambda: next(turns, True))
    assert crew.actors == []
    crew.close()
    assert made == []
    may_come.set()  # too late
    assert closed.wait(40)
    assert [actor.closed for actor in made] == [True]


def test_a_growing_crew_requests_another_actor_whenever_one_is_placed() -> None:
    said: list[str] = []
    full, done = threading.Event(), threading.Event()

    def make(ident: int) -> Fake:
        if ident >= 3:
            (full if ident == 3 else done).wait(40)
        return Fake(ident)

    crew = crew_of(1, make, said, grows=True)
    while len(crew.actors) < 3:
        wait_for_newcomer(crew)
    assert said == ["an actor joined; there are 2", "an actor joined; there are 3"]
    # A dead actor needs no further request: the one being made replaces it.
    crew.replace(crew.actors[0], remotely.ActorDied("killed", exit=1))
    full.set()
    wait_for_newcomer(crew)
    assert [actor.ident for actor in crew.actors] == [1, 2, 3]
    crew.close()
    done.set()


def test_close_works_after_the_main_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew = crew_of(2)
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)  # as it is then
    actors = list(crew.actors)
    crew.close()
    assert all(actor.closed for actor in actors)
    assert crew.actors == []


def test_close_closes_actors_that_are_made_but_not_admitted_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, closed = threading.Semaphore(0), threading.Semaphore(0)

    def make(ident: int) -> Fake:
        made.release()
        return Fake(ident)

    crew = crew_of(1, make)
    crew.add()
    assert made.acquire(timeout=40)
    assert made.acquire(timeout=40)
    monkeypatch.setattr(remotely, "close", lambda actor: closed.release())
    crew.close()
    assert closed.acquire(timeout=40)
    assert closed.acquire(timeout=40)
