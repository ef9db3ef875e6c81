"""Tests of Samplers: when parameters are sent."""

from typing import Any

import pytest

from remotely_rl.acting.samplers import Samplers
from tests.remotely_rl.acting.fakes import Fake, crew_of, params


@pytest.mark.usefixtures("fakes")
def test_parameters_are_sent_once_and_just_before_the_next_sample() -> None:
    crew = crew_of(1)
    (actor,) = crew.actors
    assert not actor.calls
    crew.publish(params(1))
    crew.publish(params(2))
    crew.request(actor)
    crew.request(actor)
    sent = [given.version if given else "sample" for _, given in actor.calls]
    assert sent == [2, "sample", "sample"]


@pytest.mark.usefixtures("fakes")
def test_a_crew_without_parameters_sends_none() -> None:
    crew: Samplers[Any] = Samplers(Fake, 1, None, say=lambda text: None)
    crew.request(crew.actors[0])
    assert len(crew.actors[0].calls) == 1
