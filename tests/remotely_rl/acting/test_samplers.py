"""Tests of Samplers: when parameters are sent."""

from typing import Any

import pytest

from remotely_rl.acting.samplers import Samplers
from tests.remotely_rl.acting.fakes import Fake, Told, crew_of, params


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
