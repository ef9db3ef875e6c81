"""Tests of the scale of steps: rules scale the step of every optimizer in the same way.

The reference is the same optimizer under `asynchronous`.  Gradients are drawn in advance, so that
both see the same ones.
"""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from remotely_rl import sync
from remotely_rl.sync.client import MakeOptimizer

STALENESS = 8
ROUNDS = 30
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": sync.sgd(0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.99, eps=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-5),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=1e-9),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),  # the rate is only that of its first step
}
# Rule, number of gradients per step, their staleness, and the scale of the step.
SCALES: list[tuple[str, int, int, float]] = [
    ("asynchronous", 1, 8, 1.0),
    ("stale_synchronous:slack=100", 1, 8, 1.0),
    ("sasgd", 1, 8, 1 / 8),
    ("sasgd:at_zero=plus1", 1, 8, 1 / 9),
    ("exponential_penalty:kappa=0.1", 1, 8, math.exp(-0.8)),
    ("delay_compensated:compensation=1", 1, 8, 1.0),  # the correction is 0 here
    ("synchronous", 3, 0, 1.0),
    ("backup_workers:backups=1", 2, 0, 1.0),
    ("soft_sync:n=1", 3, 8, 1 / 8),
    ("soft_sync:n=1,at_zero=plus1", 3, 8, 1 / 9),
    ("soft_sync:n=1,at_zero=none", 3, 8, 1.0),
    ("soft_sync:n=3", 1, 8, 1 / 8),
    ("semi_async:n=2,counted=8,weak=8", 2, 8, 1.0),
    ("semi_async:n=2,counted=8,weak=8,merge=sum", 2, 8, 2.0),
    ("semi_async:n=2,counted=8,weak=8,merge=sum_n", 2, 8, 1.0),
]
# Rules whose clients have the optimizer, with one step of one client.
OWN_RATES: list[tuple[str, float]] = [
    ("local_sgd:steps=1", 1.0),
    ("local_sgd:steps=1,outer_rate=0.25", 0.25),
    ("diloco:steps=1,momentum=0", 0.7),
    ("elastic_averaging:period=1,moving_rate=0.3", 0.3),
]


def gradients(count: int = ROUNDS) -> Tensor:
    """Return gradients [count, 16], whose elements differ in size by up to 100."""
    random = torch.Generator().manual_seed(1)
    sizes = 10 ** torch.linspace(-1, 1, 16, dtype=torch.float64)
    return torch.randn(count, 16, generator=random, dtype=torch.float64) * sizes


def made(spec: str, optimizer: str, clients: int = 3) -> sync.Rule:
    rule = sync.make(spec, torch.zeros(16, dtype=torch.float64), clients, OPTIMIZERS[optimizer])
    rule.version = STALENESS  # as after that many steps
    return rule


def steps(
    rule: sync.Rule,
    each: Sequence[Tensor] | Tensor,
    pushes: int = 1,
    staleness: Callable[[int], int] = lambda at: STALENESS,
) -> Tensor:
    """Return the step of each round [rounds, 16]; in a round all clients push the same gradient."""
    moves = []
    for at, gradient in enumerate(each):
        before = rule.snapshot()
        for client in range(pushes):
            rule.push(client, gradient.clone(), rule.version - staleness(at))
        moves.append(rule.snapshot() - before)
    return torch.stack(moves)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("spec", "pushes", "staleness", "scale"), SCALES)
def test_every_rule_scales_the_step_of_every_optimizer(
    spec: str, pushes: int, staleness: int, scale: float, optimizer: str
) -> None:
    plain = steps(made("asynchronous", optimizer), gradients())

    scaled = steps(made(spec, optimizer), gradients(), pushes, lambda at: staleness)

    torch.testing.assert_close(scaled, scale * plain, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["std", "literal", "fred"])
def test_fasgd_divides_the_step_of_an_optimizer_elementwise(mode: str, optimizer: str) -> None:
    plain = steps(made("asynchronous", optimizer), gradients())

    scaled = steps(made(f"fasgd:mode={mode}", optimizer), gradients())

    n, b, v, divisors = (torch.zeros(16), torch.zeros(16), torch.ones(16), [])
    for g in gradients():
        n, b = 0.9 * n + 0.1 * g**2, 0.9 * b + 0.1 * g
        root = (n - b**2 + 1e-4).sqrt()
        v = 0.9 * v + 0.1 * {"std": root, "literal": 1 / root, "fred": g.abs()}[mode]
        divisors.append(v + (0.001 if mode == "fred" else 0))
    expected = plain / torch.stack(divisors) / STALENESS
    torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("spec", "scale"), OWN_RATES)
def test_rules_with_local_steps_scale_the_step_of_the_clients_optimizer(
    spec: str, scale: float, optimizer: str
) -> None:
    plain = steps(made("asynchronous", optimizer), gradients(1))[0]

    rule = made(spec, optimizer, clients=1)
    rule.push(0, rule.client(0).next_push(lambda parameters: gradients(1)[0]), rule.version)

    torch.testing.assert_close(rule.snapshot(), scale * plain, rtol=1e-5, atol=1e-12)


def test_this_file_covers_every_rule() -> None:
    words = [row[0] for row in SCALES] + [row[0] for row in OWN_RATES]
    tried = {spec.partition(":")[0] for spec in words}

    assert tried | {"fasgd", "b_fasgd"} == sync.RULES.keys()


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop", "adam"])
def test_the_state_of_an_optimizer_is_not_scaled(optimizer: str) -> None:
    def staleness(at: int) -> int:
        return at % (STALENESS + 1)

    plain, rule = made("asynchronous", optimizer), made("sasgd", optimizer)
    moved = steps(plain, gradients(), staleness=staleness)

    scaled = steps(rule, gradients(), staleness=staleness)

    scales = torch.tensor([rule.scale(staleness(at)) for at in range(ROUNDS)])
    torch.testing.assert_close(scaled, scales[:, None] * moved, rtol=1e-5, atol=1e-12)
    kept, unscaled = (one.state()["optimizer"] for one in (rule, plain))
    assert kept["param_groups"] == unscaled["param_groups"]  # including the rate
    for name, value in kept["state"][0].items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, unscaled["state"][0][name])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_of_several_contributions_is_their_weighted_mean_times_the_mean_weight(
    optimizer: str,
) -> None:
    young, old = gradients(2)
    rule = made("soft_sync:n=1", optimizer, clients=2)
    rule.push(0, young, rule.version - 1)
    rule.push(1, old, rule.version - 4)

    mean = (young + old / 4) / (1 + 1 / 4)
    (plain,) = steps(made("asynchronous", optimizer), [mean])
    torch.testing.assert_close(rule.snapshot(), (1 + 1 / 4) / 2 * plain)
    if optimizer == "sgd":  # the sum of the paper
        torch.testing.assert_close(rule.snapshot(), -0.1 * (young + old / 4) / 2)


def test_set_rate_applies_to_all_later_steps() -> None:
    rule = made("sasgd", "sgd")
    rule.set_rate(0.5)
    (gradient,) = gradients(1)

    first, second = steps(rule, [gradient, gradient])

    torch.testing.assert_close(first, -0.5 / 8 * gradient)
    torch.testing.assert_close(second, first)
