"""Tests of Samplers: when parameters are sent."""

from typing import Any

import pytest

import remotely
from remotely_rl.acting.actor import Parameters
from remotely_rl.acting.messages import Messages
from remotely_rl.acting.samplers import Samplers
from tests.clusters import Started
from tests.remotely_rl.acting.fakes import Fake, Sample, Told, crew_of, params


@pytest.mark.usefixtures("fakes")
def test_an_actor_reads_the_newest_parameters_when_it_samples() -> None:
    crew = crew_of(1)
    (actor,) = crew.actors
    crew.publish(params(1))
    first, second = crew.request(actor), crew.request(actor)
    crew.publish(params(2))
    actor.finish()
    crew.publish(params(3))
    actor.finish()
    assert [first.result().version, second.result().version] == [2, 3]


@pytest.mark.usefixtures("fakes")
def test_a_call_asks_for_no_older_parameters_than_there_were_when_it_was_made() -> None:
    crew = crew_of(1)
    (actor,) = crew.actors
    asked: list[Any] = []
    actor.submit = lambda *args: asked.append(args)
    crew.request(actor)
    crew.publish(params(1))
    crew.request(actor)
    assert asked == [(1,), (2,)]


@pytest.mark.usefixtures("fakes")
def test_to_an_actor_that_cannot_read_they_are_sent_once_and_just_before_the_next_sample() -> None:
    crew = crew_of(1, Told)
    (actor,) = crew.actors
    assert not actor.calls
    crew.publish(params(1))
    crew.publish(params(2))
    crew.request(actor)
    crew.request(actor)
    sent = [given.version if given else "sample" for _, given in actor.calls]
    assert sent == [2, "sample", "sample"]


@pytest.mark.usefixtures("fakes")
def test_a_message_with_the_same_parameters_is_sent_too() -> None:
    crew = crew_of(1, Told, first=params(0))
    (actor,) = crew.actors
    crew.request(actor)
    crew.publish(params(0)._replace(env_steps=500))
    crew.request(actor)
    sent = [given.env_steps if given else "sample" for _, given in actor.calls]
    assert sent == [0, "sample", 500, "sample"]


@pytest.mark.usefixtures("fakes")
def test_a_crew_without_parameters_sends_none() -> None:
    crew: Samplers[Any] = Samplers(Fake, 1, None, say=lambda text: None)
    crew.request(crew.actors[0])
    assert len(crew.actors[0].calls) == 1


@remotely.remote_class
class Reading:
    """Returns the version of the newest parameters, as an actor reads them."""

    def __init__(self, number: int):
        self.number, self.version = int(number), -1

    def read_from(self, source: "remotely.Published[Parameters]") -> None:
        self.messages = Messages(source)

    def sample(self, at_least: int = 0) -> Sample:
        if (newest := self.messages.newest(at_least)) is not None:
            self.version = newest.version
        return Sample(self.number, 0, self.version)


def test_in_a_round_the_actors_of_all_machines_have_the_same_parameters(
    started: Started, nothing_left: None
) -> None:
    remotely.connect(started.address, key=started.key)
    crew = crew_of(4, Reading)
    for version in range(1, 6):
        crew.publish(params(version))
        calls = [crew.request(actor) for actor in crew.actors]
        assert [call.result().version for call in calls] == [version] * 4
    crew.close()
    remotely.shutdown()
