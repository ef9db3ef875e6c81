"""A crew: actors that are made, and replaced when they fail."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import remotely
from remotely_rl.acting import cluster
from remotely_rl.acting.samplers import Samplers
from remotely_rl.errors import TrainingError
from tests.remotely_rl.acting.fakes import Fake, crew_of, wait_for_newcomer

pytestmark = pytest.mark.usefixtures("fakes")


def test_where_there_is_no_room_a_replacement_waits_for_it_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = threading.Event()
    tried = threading.Semaphore(0)

    def make(who: int) -> Fake:
        if who > 1 and not room.is_set():
            tried.release()
            raise remotely.NoResources("full")
        return Fake(who)

    crew = crew_of(2, make)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(sleep=lambda s: room.wait(40)))
    crew.replace(crew.actors[0], remotely.ActorDied("killed", exit=1))
    tried.acquire()
    assert not crew.admit()
    assert [actor.who for actor in crew.actors] == [1]
    room.set()
    wait_for_newcomer(crew)
    assert [actor.who for actor in crew.actors] == [1, 2]


def test_an_actor_that_cannot_be_made_is_tried_again_but_not_for_ever() -> None:
    def make(who: int) -> Fake:
        if who in (0, 3):
            raise ValueError("the simulator did not start")
        return Fake(who)

    crew = crew_of(2, make)
    assert [actor.who for actor in crew.actors] == [1, 2]
    crew.add()
    wait_for_newcomer(crew)
    assert [actor.who for actor in crew.actors] == [1, 2, 4]

    def make_none(who: int) -> Fake:
        raise ValueError("no such game")

    with pytest.raises(TrainingError, match=r"crash too often.*ValueError: no such game"):
        crew_of(2, make_none)


@pytest.mark.parametrize("error", [TrainingError("no such field"), remotely.NoResources("full")])
def test_what_no_other_could_do_better_is_raised_at_once_when_actors_are_made(
    error: Exception,
) -> None:
    made: list[int] = []

    def make(who: int) -> Fake:
        made.append(who)
        raise error

    with pytest.raises(type(error), match=str(error)):
        crew_of(1, make)
    assert made == [0]


def test_actors_whose_environments_hang_as_they_are_made_do_not_hold_up_the_end() -> None:
    may_come = threading.Event()
    turns = iter([False, False, True])

    def make(who: int) -> Fake:
        may_come.wait(40)
        return Fake(who)

    crew: Samplers[Any] = Samplers(make, 1, None, over=lambda: next(turns, True))
    assert crew.actors == []
    crew.close()
    may_come.set()  # by now nobody waits for it


def test_a_crew_that_grows_asks_for_another_whenever_one_is_placed() -> None:
    said: list[str] = []
    full, done = threading.Event(), threading.Event()

    def make(who: int) -> Fake:
        if who >= 3:
            (full if who == 3 else done).wait(40)
        return Fake(who)

    crew = crew_of(1, make, said, grows=True)
    while len(crew.actors) < 3:
        wait_for_newcomer(crew)
    assert said == ["an actor joined; there are 2", "an actor joined; there are 3"]
    # One that dies is not asked for twice: the one that is being made takes its room.
    crew.replace(crew.actors[0], remotely.ActorDied("killed", exit=1))
    full.set()
    wait_for_newcomer(crew)
    assert [actor.who for actor in crew.actors] == [1, 2, 3]
    crew.close()
    done.set()


def test_closing_ends_all_actors_though_the_main_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew = crew_of(2)
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)  # as from then on
    actors = list(crew.actors)
    crew.close()
    assert all(actor.closed for actor in actors)
    assert crew.actors == []
