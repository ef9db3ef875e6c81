"""Tests of failures: which are survivable, and the reports of them."""

import time
from typing import Any

import pytest

import remotely
from remotely_rl import a2c
from remotely_rl.acting.actor import Actor
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Cause, failures
from remotely_rl.supervision.flight import FlightRecord
from tests.remotely_rl import toys

CRASH = remotely.ActorDied("Actor-2 was ended by SIGSEGV\nits last words:\nFatal", exit="SIGSEGV")


def died(exit: int | str, stderr: str, record: FlightRecord | None) -> remotely.ActorDied:
    error = remotely.ActorDied("Actor-2 ended", exit=exit, stderr=stderr)
    if record is not None:
        error.flight_record = bytes(record.memory)
    return error


@pytest.mark.parametrize(
    ("error", "survived"),
    [
        (ValueError("a bad state"), True),
        (MemoryError(), True),
        (CRASH, True),
        (remotely.WorkerLost("box is gone"), True),
        (remotely.ActorRaised("Traceback"), True),
        (remotely.NotStartable("there is no such interpreter"), False),
        (remotely.NotPicklable("a lock"), False),
        (remotely.MasterLost("gone"), False),
        (TrainingError("actions that no policy fits"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_a_new_actor_may_not_have_are_survived(
    error: BaseException, survived: bool
) -> None:
    assert (failures.failure_of(error) is not failures.Failure.WRONG) == survived


class Broken(toys.network(2).__class__):  # type: ignore[misc]
    """Raises in a function of the user's own."""

    def forward(self, obs: Any) -> Any:
        return self.think()

    def think(self) -> Any:
        raise ValueError("the model has a bad state")


@pytest.mark.usefixtures("local")
def test_an_error_of_the_model_is_reported_with_the_users_frames_only() -> None:
    config = a2c.Config(env=toys.Guess, envs_per_actor=1, random_start=0)
    actor = Actor(config, Broken((2,), 2), 1)
    error = remotely.submit(actor.sample).exception()
    assert isinstance(error, TrainingError)  # which ends the run
    first, *frames = str(error).splitlines()
    assert first == "the model raised ValueError: the model has a bad state"
    assert [line for line in frames if "File" in line][-1].endswith("in think")
    assert "remotely_rl/acting/" not in str(error)


def test_a_lost_inference_server_is_not_an_error_of_the_model() -> None:
    with pytest.raises(remotely.ActorDied), failures.model_errors_are_fatal():
        raise CRASH
    with pytest.raises(TrainingError, match="raised Odd: no"), failures.model_errors_are_fatal():
        raise remotely.ActorRaised("Traceback\nOdd: no\n")


def test_an_error_in_the_library_is_reported_with_all_frames() -> None:
    error = remotely.ActorRaised(
        f'Traceback (most recent call last):\n  File "{failures.__file__}", line 1, in f\n'
        "    f()\nOdd: no\n"
    )
    assert failures.readable(error) == f"Odd: no\n{error}"


def test_the_report_of_a_death_names_the_environment_being_stepped() -> None:
    record = FlightRecord(3, toys.Guess.action_space)
    record.begin(1)
    for env in range(3):
        record.reset_now(env, 7 + env, 0, None)
    record.end()
    for _ in range(4):
        record.begin(1, [0, 1, 0])
        record.began[1] = time.monotonic()
    report = failures.report_of(died("SIGSEGV", "a stack\n", record))
    assert str(report) == "environment 1 died in step 4, seed 8: Actor-2 ended"
    assert (report.details, report.actions) == ("a stack", (1, 1, 1, 1))


@pytest.mark.parametrize("record", [None, FlightRecord(3, toys.Guess.action_space)])
def test_the_report_of_a_death_between_steps_names_only_the_actor(
    record: FlightRecord | None,
) -> None:
    report = failures.report_of(died("SIGKILL", "", record), lived=40)
    assert str(report) == "an actor died: Actor-2 ended"
    assert (report.cause, report.lived) == (Cause.DIED, 40)


@pytest.mark.parametrize("ran", ["may have run", "did not run"])
def test_the_report_of_a_death_omits_whether_the_call_ran(ran: str) -> None:
    error = remotely.ActorDied(f"Actor-2 ended with SIGKILL; the call {ran}", exit="SIGKILL")
    assert failures.report_of(error).what == "Actor-2 ended with SIGKILL"


def test_the_report_of_a_hang_has_its_stack_and_its_limit() -> None:
    record = FlightRecord(2, toys.Guess.action_space)
    record.begin(1, [0, 0])
    record.hung("Traceback:\n  where it hangs", 2.5)
    report = failures.report_of(died("SIGKILL", "", record))
    assert report.cause is Cause.HUNG
    assert str(report) == "environment 0 hung in step 1: it has not returned for 2.5 s"
    assert report.details == "Traceback:\n  where it hangs"


def test_a_hang_that_holds_the_gil_is_recognized_by_the_output_of_the_switch() -> None:
    record = FlightRecord(2, toys.Guess.action_space)
    record.begin(1, [0, 0])
    stderr = "hello\nTimeout (0:00:02)!\nThread 0x1 (most recent call first):\n  File\n"
    report = failures.report_of(died(1, stderr, record))
    assert report.cause is Cause.HUNG
    assert report.details.startswith("Timeout (0:00:02)!")


def test_a_lost_worker_is_reported_as_lost() -> None:
    report = failures.report_of(remotely.WorkerLost("box is gone"))
    assert str(report) == "an actor was lost: box is gone"
