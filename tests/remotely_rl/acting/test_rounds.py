"""Tests of Rounds."""

from typing import Any

import pytest

from remotely_rl.acting.rounds import Rounds
from remotely_rl.errors import TrainingError
from tests.remotely_rl.acting.fakes import Fake, Sample, crew_of, params, wait_for_newcomer

pytestmark = pytest.mark.usefixtures("fakes")


def test_a_round_is_in_the_order_of_the_actors() -> None:
    rounds = Rounds(crew_of(3))
    assert rounds.idle
    rounds.begin(params(4))
    assert not rounds.idle
    for actor in reversed(rounds.crew.actors):
        actor.finish()
    taken: list[Any] = list(rounds.take(0))
    assert taken == [Sample(ident, 1, 4, actor=ident) for ident in range(3)]
    assert rounds.idle


def test_all_actors_of_a_round_sample_once_with_the_same_parameters() -> None:
    rounds = Rounds(crew_of(3))
    for version in (1, 2, 5):
        rounds.begin(params(version))
        assert [actor.pending for actor in rounds.crew.actors] == [1, 1, 1]
        for actor in rounds.crew.actors:
            actor.finish()
        assert {sample.version for sample in rounds.take(0)} == {version}


def test_an_actor_that_dies_in_a_round_is_left_out_and_its_index_reused() -> None:
    said: list[str] = []
    rounds = Rounds(crew_of(3, said=said))
    rounds.begin(params(1))
    one, two, three = rounds.crew.actors
    one.finish()
    two.die()
    three.finish()
    assert [sample.ident for sample in rounds.take(0)] == [0, 2]
    assert said == ["actor 1 died: 1 was killed; it is replaced"]
    wait_for_newcomer(rounds.crew)
    rounds.begin(params(2))
    for actor in rounds.crew.actors:
        actor.finish()
    second: list[Any] = list(rounds.take(0))
    assert second == [Sample(0, 2, 2), Sample(2, 2, 2, actor=2), Sample(3, 1, 2, actor=1)]


def test_take_can_be_repeated_until_the_round_is_over() -> None:
    rounds = Rounds(crew_of(2))
    rounds.begin(params(1))
    one, two = rounds.crew.actors
    one.finish()
    assert rounds.take(0) == []
    assert not rounds.idle
    two.finish()
    taken: list[Any] = list(rounds.take(0))
    assert taken == [Sample(0, 1, 1), Sample(1, 1, 1, actor=1)]


def test_after_a_round_in_which_all_actors_died_take_waits_for_replacements() -> None:
    rounds = Rounds(crew_of(2, lambda ident: Fake(ident, at_once=ident >= 2)))
    rounds.begin(params(3))
    for actor in rounds.crew.actors:
        actor.die()
    assert rounds.take(0) == []
    assert rounds.idle
    rollouts: list[Any] = []
    while not rollouts:
        rounds.begin(params(3))
        rollouts = list(rounds.take(timeout_s=10))
    assert {sample.ident for sample in rollouts} <= {2, 3}
    assert {sample.version for sample in rollouts} == {3}


def test_an_actor_that_raises_in_a_round_is_closed_and_replaced() -> None:
    said: list[str] = []
    rounds = Rounds(crew_of(2, said=said))
    rounds.begin(params(1))
    one, two = rounds.crew.actors
    one.fail(ZeroDivisionError("in the environment"))
    two.finish()
    taken: list[Any] = list(rounds.take(0))
    assert taken == [Sample(1, 1, 1, actor=1)]
    assert said[0].startswith("actor 0 raised: ZeroDivisionError: in the environment; it is")
    wait_for_newcomer(rounds.crew)
    assert one.closed
    assert [actor.ident for actor in rounds.crew.actors] == [1, 2]


def test_an_error_that_a_replacement_would_not_fix_is_raised_by_take() -> None:
    rounds = Rounds(crew_of(1))
    rounds.begin(params(1))
    rounds.crew.actors[0].fail(TrainingError("n_step_q needs actions that are numbered"))
    with pytest.raises(TrainingError, match="n_step_q needs"):
        rounds.take(0)
