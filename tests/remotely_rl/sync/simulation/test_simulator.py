"""Tests of the simulator on a small real problem: handwritten digits."""

import pytest
import torch
from torch import Tensor, nn

from remotely_rl import sync
from remotely_rl.errors import SyncError
from remotely_rl.sync.flat import Flat
from remotely_rl.sync.simulation.dispatcher import FixedOrder, RandomOrder
from remotely_rl.sync.simulation.simulator import Simulation
from tests.remotely_rl.sync.quadratic import round_robin, start


class Digits:
    """Batches in the order of requests, whatever the client."""

    def __init__(self, batch: int):
        # Importing it takes a second in each process that collects the tests.
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        self.x = torch.from_numpy(images).float() / 16
        self.y = torch.from_numpy(labels)
        torch.manual_seed(0)
        self.flat = Flat(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
        self.batch = batch
        self.requests = 0

    def __call__(self, client: int, parameters: Tensor) -> Tensor:
        first = self.requests * self.batch % 1500
        self.requests += 1
        rows = slice(first, first + self.batch)

        def loss() -> Tensor:
            return nn.functional.cross_entropy(self.flat.module(self.x[rows]), self.y[rows])

        return self.flat.gradient_at(parameters, loss)

    def accuracy(self, parameters: Tensor) -> dict[str, float]:
        self.flat.load(parameters)
        with torch.no_grad():
            right = self.flat.module(self.x[1500:]).argmax(-1) == self.y[1500:]
        return {"accuracy": float(right.float().mean())}


def simulate(spec: str, clients: int, batch: int, pushes: int, seed: int = 0) -> Simulation:
    digits = Digits(batch)
    rule = sync.make(spec, digits.flat.vector, clients, sync.sgd(0.3))
    simulation = Simulation(rule, digits, RandomOrder(seed))
    simulation.run(pushes)
    return simulation


@pytest.mark.parametrize("spec", ["synchronous", "semi_async:n=4", "asynchronous", "fasgd"])
def test_digits_are_learnt(spec: str) -> None:
    digits = Digits(batch=25)
    rate = {"synchronous": 1.0, "semi_async:n=4": 0.7, "asynchronous": 0.1, "fasgd": 0.03}[spec]
    rule = sync.make(spec, digits.flat.vector, 8, sync.sgd(rate))

    rows = Simulation(rule, digits, RandomOrder(0)).run(1500, digits.accuracy, every=500)

    assert [row.iteration for row in rows] == [0, 500, 1000, 1500]
    assert rows[0].metrics["accuracy"] < 0.3
    assert rows[-1].metrics["accuracy"] > 0.85


@pytest.mark.parametrize("spec", ["semi_async:n=2", "b_fasgd:gate_push=1,gate_fetch=1"])
def test_the_seed_determines_a_simulation(spec: str) -> None:
    ends = [simulate(spec, 5, 4, 120, seed).rule.parameters for seed in (1, 1, 2)]

    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_four_synchronous_clients_with_batches_of_25_equal_one_of_100() -> None:
    def descend(clients: int, batch: int) -> Tensor:
        digits = Digits(batch)
        start = digits.flat.vector.double()
        rule = sync.make("synchronous", start, clients, sync.sgd(0.1))

        def gradient(client: int, parameters: Tensor) -> Tensor:
            digits.flat.module.double()
            digits.x = digits.x.double()
            digits.flat = Flat(digits.flat.module)
            return digits(client, parameters)

        Simulation(rule, gradient, FixedOrder(round_robin(clients, 15 * clients))).run(15 * clients)
        return rule.parameters

    torch.testing.assert_close(descend(4, 25), descend(1, 100), rtol=0, atol=1e-12)


def test_the_mean_staleness_of_equal_clients_is_one_less_than_their_number() -> None:
    rows = simulate("asynchronous", 8, 1, 3000)

    assert rows.rule.counters.staleness_mean == pytest.approx(7, abs=0.3)


def test_clients_share_equal_parameters() -> None:
    simulation = simulate("semi_async:n=50", 50, 1, 120)

    assert len({id(client.parameters) for client in simulation.clients}) <= 3


def test_a_deadlock_raises() -> None:
    simulation = Simulation(
        sync.make("synchronous", start(), 2), lambda client, w: w, RandomOrder(0, weights=[1, 0])
    )

    with pytest.raises(SyncError, match="no client pushes any more after 1 iterations: 1 of 2"):
        simulation.run(2)
