"""Failures of actors: which are survived, what is said, and when there are too many."""

import random
from typing import Any

import pytest

import remotely
from remotely_rl import a2c
from remotely_rl.acting import failures
from remotely_rl.acting.actor import Actor
from remotely_rl.acting.failures import Failures
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys

CRASH = remotely.ActorDied("Actor-2 was ended by SIGSEGV\nits last words:\nFatal", exit="SIGSEGV")


class Clock:
    """A clock that is told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return raised


def judged(said: list[str] | None = None, clock: Clock | None = None) -> Failures:
    return Failures((said if said is not None else []).append, clock or Clock())


@pytest.mark.parametrize(
    ("error", "survived"),
    [
        (ValueError("a bad state"), True),
        (MemoryError(), True),
        (CRASH, True),
        (remotely.WorkerLost("box is gone"), True),
        (remotely.ActorRaised("Traceback"), True),
        (remotely.NotPicklable("a lock"), False),
        (remotely.MasterLost("gone"), False),
        (TrainingError("actions that no policy fits"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_another_actor_may_do_better_is_survived(error: BaseException, survived: bool) -> None:
    assert failures.is_failure(error) == survived


def test_an_environment_that_always_fails_is_found_out_after_twelve_calls() -> None:
    crew = judged()
    for _ in range(11):
        crew.failed(CRASH)
    said = "12 of the last 12 calls of actors failed; the last: Actor-2 was ended by SIGSEGV$"
    with pytest.raises(TrainingError, match=said):
        crew.failed(CRASH)


def test_one_that_fails_in_more_than_nine_calls_of_ten_ends_a_run_that_went_well_before() -> None:
    crew = judged()
    for _ in range(1000):
        crew.succeeded()
    for _ in range(45):
        crew.failed(CRASH)
    with pytest.raises(TrainingError, match="46 of the last 50 calls of actors failed"):
        crew.failed(CRASH)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6])
def test_chance_does_not_end_a_run_whose_calls_fail_often(share: float) -> None:
    chance = random.Random(1)
    for _ in range(20):
        crew = judged()
        for _ in range(1000):
            if chance.random() < share:
                crew.failed(CRASH)
            else:
                crew.succeeded()


def test_a_machine_that_takes_a_hundred_actors_with_it_does_not_end_a_run() -> None:
    crew = judged()
    for _ in range(100):
        crew.failed(remotely.WorkerLost("box is gone"))


def test_the_first_of_a_kind_is_told_at_once_and_the_rest_once_a_minute_with_how_often() -> None:
    said: list[str] = []
    clock = Clock()
    crew = judged(said, clock)
    for second in range(150):
        clock.now += 1
        for _ in range(3):
            crew.succeeded()
        if second % 2:
            crew.failed(CRASH)
        if second == 100:
            crew.failed(remotely.WorkerLost("box is gone"))
    crew.report()
    last = "; the last: Actor-2 was ended by SIGSEGV"
    assert said == [
        "an actor died and is replaced: Actor-2 was ended by SIGSEGV",
        f"28 more actors were replaced in 60 s, of 207 calls{last}",
        "an actor died and is replaced: box is gone",
        f"30 more actors were replaced in 60 s, of 211 calls{last}",
        f"16 more actors were replaced in 30 s, of 108 calls{last}",
    ]


class Broken(toys.Guess):
    """Raises in a function of the user's own."""

    def step(self, action: int) -> Any:
        return self.simulate(action)

    def simulate(self, action: int) -> Any:
        raise ValueError("the simulator gave a bad state")


@pytest.mark.usefixtures("local")
def test_a_traceback_is_told_once_without_the_frames_of_the_library() -> None:
    config = a2c.Config(env=Broken, envs_per_actor=1, random_start=0)
    actor = Actor(config, toys.network(), 1)
    error = remotely.submit(actor.sample).exception()
    assert error is not None
    said: list[str] = []
    crew = judged(said)
    crew.failed(error)
    crew.failed(error)
    (told,) = said
    first, *frames = told.splitlines()
    assert first == ("an actor raised and is replaced: ValueError: the simulator gave a bad state")
    assert [line.split(", in ")[1] for line in frames if "File" in line] == ["step", "simulate"]
    assert __file__ in frames[0]
    assert frames[-1].strip() == 'raise ValueError("the simulator gave a bad state")'


def test_an_error_in_the_library_is_told_with_all_of_its_traceback() -> None:
    error = remotely.ActorRaised(
        f'Traceback (most recent call last):\n  File "{failures.__file__}", line 1, in f\n'
        "    f()\nOdd: no\n"
    )
    assert failures.readable(error) == f"Odd: no\n{error}"
