"""Tests of Stream, with fakes and with processes."""

import os
import signal
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import pytest

import remotely
from remotely_rl.acting.actor import Parameters
from remotely_rl.acting.stream import Stream
from remotely_rl.environments import Episode
from remotely_rl.supervision import CrashReport
from tests.remotely_rl.acting.fakes import Sample, Told, crew_of, faked, params


@pytest.mark.usefixtures("fakes")
def test_each_actor_has_up_to_ahead_pending_calls() -> None:
    stream = Stream(crew_of(3), ahead=2)
    assert [actor.pending for actor in stream.crew.actors] == [2, 2, 2]
    stream.crew.actors[1].finish()
    assert stream.take(0) == Sample(1, 1, 0)
    assert stream.take(0) is None
    assert [actor.pending for actor in stream.crew.actors] == [2, 2, 2]


@pytest.mark.usefixtures("fakes")
def test_without_a_staleness_limit_rollouts_are_taken_as_they_arrive() -> None:
    stream = Stream(crew_of(3), ahead=1)
    for ident in (2, 0, 2, 1):
        stream.crew.actors[ident].finish()
        taken = stream.take(0)
        assert taken is not None
        assert taken.ident == ident


@pytest.mark.usefixtures("fakes")
def test_with_a_staleness_limit_rollouts_are_taken_in_the_order_of_requests() -> None:
    stream = Stream(crew_of(3), ahead=1, batch=3, max_staleness=1)
    one, two, three = stream.crew.actors
    three.finish()
    two.finish()
    assert stream.take(0) is None  # the first has not finished
    one.finish()
    taken = [stream.take(0) for _ in range(3)]
    assert [sample.ident for sample in taken if sample] == [0, 1, 2]


@pytest.mark.usefixtures("fakes")
def test_with_staleness_0_a_stream_samples_in_rounds() -> None:
    stream = Stream(crew_of(2), ahead=2, batch=2, max_staleness=0)
    one, two = stream.crew.actors
    for version in range(3):
        assert (one.pending, two.pending) == (1, 1)
        two.finish()
        one.finish()
        taken = [stream.take(0), stream.take(0)]
        assert taken == [Sample(0, version + 1, version), Sample(1, version + 1, version)]
        assert (one.pending, two.pending) == (0, 0)  # all wait for the update
        stream.publish(params(version + 1))


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    actors=st.integers(1, 4),
    ahead=st.integers(1, 3),
    batch=st.integers(1, 5),
    bound=st.integers(0, 3),
    speeds=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    empty=st.integers(0, 2),
    random=st.randoms(use_true_random=False),
)
def test_no_rollout_is_staler_than_the_limit(
    actors: int, ahead: int, batch: int, bound: int, speeds: list[int], empty: int, random: Any
) -> None:
    with faked():
        stream = Stream(crew_of(actors), ahead, batch, bound)
        version, gathered, most = 0, [], 0
        while version < 8:
            busy = [actor for actor in stream.crew.actors if actor.pending]
            assert busy, "all wait for each other"
            weights = [speeds[actor.ident] for actor in busy]
            (actor,) = random.choices(busy, weights)
            actor.finish(steps=int(random.randrange(5) >= empty))  # some have no experience
            while sample := stream.take(0):
                gathered.append(sample)
                if len(gathered) == batch:
                    behind = [version - sample.version for sample in gathered]
                    assert min(behind) >= 0
                    most = max(most, *behind)
                    assert most <= bound
                    version, gathered = version + 1, []
                    stream.publish(params(version))
            assert sum(actor.pending for actor in stream.crew.actors) <= actors * ahead


@pytest.mark.usefixtures("fakes")
def test_a_stream_uses_all_of_its_staleness_limit() -> None:
    stream = Stream(crew_of(2, Told), ahead=2, batch=2, max_staleness=1)
    behind = []
    for version in range(6):
        for actor in stream.crew.actors:
            actor.finish()
        taken = [stream.take(0), stream.take(0)]
        behind += [version - sample.version for sample in taken if sample]
        stream.publish(params(version + 1))
    assert len(behind) == 12
    assert behind[-4:] == [1, 1, 1, 1]  # actors sample during each update


@pytest.mark.usefixtures("fakes")
def test_rollouts_without_steps_and_episodes_are_skipped() -> None:
    stream = Stream(crew_of(1), ahead=1)
    stream.crew.actors[0].finish(steps=0)
    assert stream.take(0) is None
    stream.crew.actors[0].finish()
    assert stream.take(0) == Sample(0, 2, 0)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("bound", [None, 2])
def test_the_calls_of_a_dead_actor_are_dropped_and_the_stream_goes_on(bound: int | None) -> None:
    stream = Stream(crew_of(2), ahead=2, batch=2, max_staleness=bound)
    one, two = stream.crew.actors
    one.die()
    two.finish()
    taken: list[Sample] = []
    while len(taken) < 4:
        if sample := stream.take(timeout_s=0.1):
            taken.append(sample)
        for actor in stream.crew.actors:
            if actor.pending:
                actor.finish()
        if len(taken) % 2 == 0:
            stream.publish(params(1))
    assert one not in stream.crew.actors
    assert 0 not in {sample.ident for sample in taken}


class Rollout(NamedTuple):
    """A rollout of a Toy."""

    version: int
    pid: int
    episodes: list[Episode]
    steps: int = 1
    crashes: tuple[CrashReport, ...] = ()


@remotely.remote_class
class Toy:
    """Returns its number, the version that it was sent, and the number of its calls."""

    def __init__(self, number: int, dies: bool = False):
        self.number = number
        self.dies = dies
        self.version = -1
        self.calls = 0

    def set_param(self, params: Parameters) -> None:
        if params.state["weight"].shape != (2,):
            raise ValueError("parameters of another model")
        self.version = params.version

    def sample(self) -> Rollout:
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1
        return Rollout(self.version, os.getpid(), [Episode(self.number, self.calls)])


def take(stream: Stream[Any]) -> Rollout:
    while True:
        if rollout := stream.take(timeout_s=10):
            return rollout  # type: ignore[no-any-return]


def number_of(rollout: Rollout) -> int:
    return int(rollout.episodes[0].score)


@pytest.mark.usefixtures("here")
def test_a_killed_actor_is_replaced_with_the_newest_parameters() -> None:
    said: list[str] = []
    stream = Stream(crew_of(3, Toy, said), ahead=2)
    heard: list[Rollout] = []
    while {number_of(rollout) for rollout in heard} != {0, 1, 2}:
        heard.append(take(stream))
    for number in range(3):
        calls = [r.episodes[0].length for r in heard if number_of(r) == number]
        assert calls == list(range(1, len(calls) + 1))

    stream.publish(params(4))
    victim = take(stream)
    os.kill(victim.pid, signal.SIGKILL)
    while number_of(newcomer := take(stream)) < 3:
        pass
    assert newcomer.version == 4
    assert len(said) == 1
    assert "SIGKILL" in said[0]
    assert number_of(victim) not in {number_of(take(stream)) for _ in range(9)}
    stream.close()


@pytest.mark.usefixtures("local")
def test_new_parameters_apply_from_the_next_requested_call() -> None:
    stream = Stream(crew_of(1, Toy), ahead=1)
    first = take(stream)  # the next call is already submitted
    stream.publish(params(1))
    versions = [first.version, *(take(stream).version for _ in range(3))]
    stream.close()
    assert versions == [0, 0, 1, 1]


@pytest.mark.usefixtures("local")
def test_parameters_that_do_not_fit_raise_an_error() -> None:
    stream = Stream(crew_of(1, Toy), ahead=1)
    stream.publish(params(1, width=3))
    take(stream)  # sampled before they were sent

    def publish_and_take() -> None:
        stream.publish(params(2, width=3))
        take(stream)

    with pytest.raises(ValueError, match="of another model"):
        publish_and_take()
    stream.close()
