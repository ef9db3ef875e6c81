"""Free-running actors, in processes of their own."""

import os
import signal

import numpy as np
import pytest

import remotely
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError
from remotely_rl.sampler import Parameters, Rollout, Sampler
from remotely_rl.trajectory import Trajectory


@remotely.remote_class
class Toy:
    """Samples nothing, but says who it is, what it was sent and how often it was called."""

    def __init__(self, number: int, dies: bool = False, raises: bool = False):
        self.number = number
        self.dies = dies
        self.raises = raises
        self.version = -1
        self.calls = 0

    def set_param(self, params: Parameters) -> None:
        if params.state["weight"].shape != (2,):
            raise ValueError("parameters of another model")
        self.version = params.version

    def sample(self) -> Rollout:
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.raises:
            raise ZeroDivisionError("in the environment")
        self.calls += 1
        column = np.zeros((1, 1), np.float32)
        truth = column.astype(np.bool_)
        trajectory = Trajectory(
            np.zeros((2, 1)), column.astype(np.int64), column, column, truth, truth, ~truth,
            np.array([self.version]),
        )  # fmt: skip
        return Rollout(trajectory, [Episode(self.number, self.calls)], {"pid": os.getpid()})


def params(version: int, width: int = 2) -> Parameters:
    return Parameters(version, {"weight": np.zeros(width, np.float32)})


def take(sampler: Sampler) -> Rollout:
    while (rollout := sampler.take(timeout_s=10)) is None:
        pass
    return rollout


def take_and_publish(sampler: Sampler, newest: Parameters) -> None:
    sampler.publish(newest)
    take(sampler)


def who(rollout: Rollout) -> int:
    return int(rollout.episodes[0].score)


@pytest.mark.usefixtures("embedded")
def test_every_actor_is_heard_and_none_runs_further_ahead_than_it_may() -> None:
    sampler = Sampler(Toy, count=3, ahead=2)
    heard: list[Rollout] = []
    while {who(rollout) for rollout in heard} != {0, 1, 2}:
        heard.append(take(sampler))
    for number in range(3):
        calls = [r.episodes[0].length for r in heard if who(r) == number]
        assert calls == list(range(1, len(calls) + 1))  # in order, none lost
    in_flight = len(sampler._calls)
    sampler.close()
    assert in_flight == 3 * 2


@pytest.mark.usefixtures("local")
def test_actors_may_begin_with_parameters_that_they_were_not_made_with() -> None:
    sampler = Sampler(Toy, count=1, ahead=2, params=params(8))
    assert take(sampler).trajectory.version[0] == 8
    sampler.close()


@pytest.mark.usefixtures("local")
def test_new_parameters_hold_from_the_next_call_on() -> None:
    sampler = Sampler(Toy, count=1, ahead=1)
    first = take(sampler)  # the call after it is on its way already
    sampler.publish(params(1))
    second, third, fourth = (take(sampler) for _ in range(3))
    sampler.close()
    versions = [int(r.trajectory.version[0]) for r in (first, second, third, fourth)]
    assert versions == [-1, -1, 1, 1]


@pytest.mark.usefixtures("embedded")
def test_an_actor_that_is_killed_is_replaced_and_given_the_newest_parameters() -> None:
    said: list[str] = []
    sampler = Sampler(Toy, count=2, ahead=2, say=said.append)
    sampler.publish(params(4))
    victim = take(sampler)
    os.kill(int(victim.seconds["pid"]), signal.SIGKILL)
    while not said:
        take(sampler)
    while who(heard := take(sampler)) != 2:
        assert who(heard) == 1 - who(victim)
    sampler.close()
    assert heard.trajectory.version[0] == 4
    assert "SIGKILL" in said[0]
    assert len(said) == 1


@pytest.mark.usefixtures("embedded")
def test_actors_that_die_one_after_another_end_the_training_in_a_sentence() -> None:
    sampler = Sampler(lambda n: Toy(n, dies=True), count=1, ahead=1, say=lambda text: None)
    with pytest.raises(TrainingError, match="actors died without a trajectory in between"):
        take(sampler)
    sampler.close()


@pytest.mark.usefixtures("local")
def test_parameters_that_do_not_fit_are_an_error_and_not_old_parameters_for_ever() -> None:
    sampler = Sampler(Toy, count=1, ahead=1)
    sampler.publish(params(1, width=3))
    take(sampler)  # sampled before they were sent
    with pytest.raises(ValueError, match="of another model"):
        take_and_publish(sampler, params(2, width=3))
    sampler.close()


@pytest.mark.usefixtures("local")
def test_what_sampling_raises_reaches_the_learner() -> None:
    sampler = Sampler(lambda n: Toy(n, raises=True), count=1, ahead=1)
    with pytest.raises(ZeroDivisionError, match="in the environment"):
        take(sampler)
    sampler.close()
