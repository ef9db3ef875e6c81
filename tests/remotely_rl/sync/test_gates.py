"""Tests of Gates."""

import math

import pytest
import torch

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from remotely_rl.sync.gates import probability
from remotely_rl.sync.simulation.dispatcher import RandomOrder
from remotely_rl.sync.simulation.simulator import Simulation
from tests.remotely_rl.sync.quadratic import play, round_robin, start

# Worked by hand, with epsilon 1e-4: (weight, deviation, probability).
TABLE = [
    (0.01, 0, 0.009901),
    (0.01, 1e-4, 0.019608),
    (0.01, 0.01, 0.502488),
    (0.01, 0.1, 0.909173),
    (0.01, 1, 0.990100),
    (0.1, 0, 0.000999),
    (0.1, 1e-4, 0.001996),
    (0.1, 0.01, 0.091735),
    (0.1, 0.1, 0.500250),
    (0.1, 1, 0.909099),
]


@pytest.mark.parametrize(("weight", "deviation", "chance"), TABLE)
def test_the_probability_of_transmission_is_that_of_the_paper(
    weight: float, deviation: float, chance: float
) -> None:
    assert probability(deviation, weight) == pytest.approx(chance, abs=1e-6)


@pytest.mark.parametrize("side", ["push", "fetch"])
def test_the_transmitted_share_is_the_probability_and_is_counted(side: str) -> None:
    rule = sync.make(f"asynchronous:gate_{side}=3", start(), 10, sync.sgd(1e-6))
    Simulation(rule, lambda client, w: w, RandomOrder(seed=1)).run(4000)
    counters = rule.counters
    sent, withheld = {
        "push": (counters.pushes, counters.withheld_pushes),
        "fetch": (counters.fetches, counters.withheld_fetches),
    }[side]

    assert sent + withheld == 4000
    chance = probability(1.0, 3)
    # Ten first pushes are always sent.
    assert abs(sent - 4000 * chance) < 4 * math.sqrt(4000 * chance * (1 - chance)) + 10
    assert counters.bytes_pushed == counters.pushes * 8
    assert counters.bytes_fetched == counters.fetches * 8


def test_the_seed_determines_what_is_withheld() -> None:
    def staleness(seed: int) -> list[int]:
        spec = f"asynchronous:gate_push=1,gate_fetch=1,gate_seed={seed}"
        return play(spec, 3, round_robin(3, 60)).staleness

    assert staleness(1) == staleness(1)
    assert staleness(1) != staleness(2)


def test_after_a_withheld_fetch_the_client_keeps_its_parameters_and_version() -> None:
    played = play("asynchronous:gate_fetch_every=3", 1, [0] * 7)

    assert played.pulls == [True, False, False, True, False, False, True]
    assert played.staleness == [0, 0, 1, 2, 0, 1, 2]


def test_a_withheld_push_reapplies_the_last_one_with_its_version() -> None:
    played = play("asynchronous:gate_push_every=2", 1, [0] * 4)

    # Sent at w = 1, and again while the client is at 0.9; then sent at 0.8, and again.
    assert played.w == pytest.approx([0.9, 0.8, 0.72, 0.64])
    assert played.staleness == [0, 1, 0, 1]


def test_withheld_pushes_can_be_accumulated_and_sent_as_their_mean() -> None:
    values = iter([1.0, 2.0, 6.0, 1.0, 1.0])
    played = play(
        "asynchronous:gate_push_every=2,gate_withheld=accumulate",
        1,
        [0] * 5,
        gradient=lambda client, w: torch.full_like(w, next(values)),
    )

    assert played.w == pytest.approx([0.9, 0.9, 0.9 - 0.4, 0.5, 0.5 - 0.1])


def test_withheld_pushes_can_be_forgotten() -> None:
    played = play("asynchronous:gate_push_every=2,gate_withheld=forget", 1, [0] * 4)

    assert played.w == pytest.approx([0.9, 0.9, 0.81, 0.81])
    assert played.accepted == ["counted", "dropped", "counted", "dropped"]


def test_gates_work_with_a_synchronous_rule() -> None:
    rule = sync.make("synchronous:gate_fetch_every=2", start(), 2, sync.sgd(0.1))
    Simulation(rule, lambda client, w: w, RandomOrder(seed=1)).run(40)

    assert rule.version == 20
    assert (rule.counters.fetches, rule.counters.withheld_fetches) == (20, 20)


def test_nothing_is_reapplied_for_a_client_that_has_rejoined() -> None:
    rule = sync.make("asynchronous:gate_push_every=2", start(), 2, sync.sgd(0.1))
    rule.push(0, start() * 5, 0)
    for client in (0, 1):  # client 1 has pushed nothing
        rule.leave(client)
        rule.join(client)

    rule.push(0, None, 1)

    assert float(rule.parameters) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gate_push=-1", "push must be at least 0"),
        ("gate_fetch_every=0", "fetch_every must be at least 1"),
        ("gate_withheld=lost", "withheld must be reapply, accumulate, forget, not 'lost'"),
        ("gate_psh=1", "there is no setting 'gate_psh', did you mean 'push'"),
    ],
)
def test_bad_settings_of_gates_are_refused(spec: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        sync.make(f"fasgd:{spec}", start(), 2)
