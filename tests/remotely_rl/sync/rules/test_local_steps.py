"""Tests of the rules with local steps."""

import pytest
import torch

from remotely_rl import sync
from remotely_rl.sync.simulation.dispatcher import FixedOrder
from remotely_rl.sync.simulation.simulator import Simulation
from tests.remotely_rl.sync.quadratic import descent, number, play, round_robin, start


def test_local_sgd_averages_the_parameters_of_its_clients() -> None:
    played = play("local_sgd:steps=2", 2, [1, 0], gradient=lambda client, w: w * (1 + client))

    assert played.w[-1] == pytest.approx((0.9**2 + 0.8**2) / 2)


def test_one_step_of_one_client_is_gradient_descent() -> None:
    assert play("local_sgd:steps=1", 1, [0] * 9).w == pytest.approx(descent(9), abs=1e-15)


def test_diloco_takes_outer_steps_with_nesterov_momentum() -> None:
    played = play("diloco:steps=1", 2, round_robin(2, 4))

    parameter = torch.nn.Parameter(start())
    outer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    expected = []
    for _ in range(2):
        parameter.grad = parameter.detach() * 0.1
        outer.step()
        expected.append(float(parameter.detach()))
    assert played.w[1::2] == pytest.approx(expected)


def test_the_state_of_the_inner_optimizer_stays_with_its_client() -> None:
    rule = sync.make("local_sgd:steps=1", start(), 1, lambda p: torch.optim.Adam(p, lr=0.1))
    simulation = Simulation(rule, lambda client, w: w.clone(), FixedOrder([0, 0, 0]))
    simulation.run(3)

    parameter = torch.nn.Parameter(start())
    adam = torch.optim.Adam([parameter], lr=0.1)
    for _ in range(3):
        parameter.grad = parameter.detach().clone()
        adam.step()
    assert float(rule.parameters) == pytest.approx(float(parameter.detach()))


@pytest.mark.parametrize(
    "spec", ["local_sgd:steps=1", "diloco:steps=1,momentum=0", "elastic_averaging:period=1"]
)
def test_set_rate_changes_the_rate_of_the_clients_optimizers(spec: str) -> None:
    def moved(spec: str, rate: float | None) -> float:
        rule = sync.make(spec, start(), 1, sync.sgd(0.1))
        if rate is not None:
            rule.set_rate(rate)
        Simulation(rule, lambda client, w: w.clone(), FixedOrder([0])).run(1)
        return 1.0 - float(rule.parameters)

    assert moved(spec, 0.025) == pytest.approx(moved(spec, None) / 4)
    fixed = f"{spec},rate=0.1"  # the spec fixes the rate
    assert moved(fixed, 0.025) == moved(spec, None)


def test_client_and_centre_move_towards_each_other() -> None:
    played = play("elastic_averaging:period=2,moving_rate=0.25", 2, [0, 1, 0])

    # Client 0 takes two steps from 1 to 0.81; centre 1 -> 0.9525, client -> 0.8575.
    assert played.w[0] == pytest.approx(0.9525)
    assert number(played.replies[0].parameters) == pytest.approx(0.8575)
    # So does client 1, but from the new centre.
    assert played.w[1] == pytest.approx(0.9525 - 0.25 * (0.9525 - 0.81))
    # Client 0 continues from its own parameters.
    third = 0.8575 * 0.81
    assert played.w[2] == pytest.approx(played.w[1] - 0.25 * (played.w[1] - third))


def test_the_default_moving_rate_is_that_of_the_paper() -> None:
    played = play("elastic_averaging:period=1", 3, [0])

    assert played.w[0] == pytest.approx(1 - 0.3 * 0.1)
