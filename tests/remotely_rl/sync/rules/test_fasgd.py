"""Tests of FASGD."""

import pytest
import torch

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from remotely_rl.sync.rules.fasgd import Fasgd
from tests.remotely_rl.sync.quadratic import play, round_robin, start

# Gradients 1, -1, 2 that are 1, 2 and 4 steps stale, from 1 at a rate of 0.005.
TRACES = {
    "mode=std": [0.9946237522, 0.9974627128, 0.9945747471],
    "mode=std,deviation_start=0": [0.8334258488, 0.8688346149, 0.8505412045],
    "mode=literal,deviation_start=0": [0.9849916690, 0.9897153416, 0.9856376381],
    "mode=fred,deviation_start=0": [0.9504950495, 0.9635840547, 0.9568636246],
}


def fasgd(spec: str = "", size: int = 1, rate: float = 0.005) -> Fasgd:
    rule = sync.make(f"fasgd:{spec}", start(size), 1, sync.sgd(rate))
    assert isinstance(rule, Fasgd)
    return rule


@pytest.mark.parametrize(("spec", "trace"), TRACES.items())
def test_fasgd_gives_the_trace_computed_by_hand(spec: str, trace: list[float]) -> None:
    rule = fasgd(spec)
    seen = []
    for g, staleness in ((1.0, 1), (-1.0, 2), (2.0, 4)):
        # The authors' code also divides by 1, 2, 4: its staleness is one less, plus 1.
        rule.on_push(0, start() * g, staleness)
        seen.append(float(rule.parameters))

    assert seen == pytest.approx(trace, abs=1e-10)


def test_plus1_divides_by_staleness_plus_one() -> None:
    plus, maximum = fasgd("mode=fred,at_zero=plus1"), fasgd("mode=fred")

    plus.on_push(0, start(), 0)
    maximum.on_push(0, start(), 1)

    assert torch.equal(plus.parameters, maximum.parameters)


def test_one_vector_equals_its_parts_exactly() -> None:
    whole, parts = fasgd(size=3), [fasgd() for _ in range(3)]
    random = torch.Generator().manual_seed(0)
    for staleness in range(1, 20):
        g = torch.randn(3, generator=random, dtype=torch.float64)
        whole.on_push(0, g, staleness)
        for rule, part in zip(parts, torch.split(g, 1), strict=True):
            rule.on_push(0, part, staleness)

    assert torch.equal(whole.parameters, torch.cat([rule.parameters for rule in parts]))


def test_the_scale_of_gradients_does_not_matter() -> None:
    plain, scaled = fasgd("epsilon=0,deviation_start=0"), fasgd("epsilon=0,deviation_start=0")
    for g in (1.0, -0.5, 2.0, 0.25):
        plain.on_push(0, start() * g, 1)
        scaled.on_push(0, start() * g * 1024, 1)

    assert torch.equal(plain.parameters, scaled.parameters)


def test_the_deviation_of_constant_gradients_is_the_root_of_epsilon() -> None:
    rule = fasgd("epsilon=0.0004")
    for _ in range(400):
        rule.on_push(0, start(), 1)

    assert rule.deviation == pytest.approx(0.02)


def test_the_state_includes_the_statistics() -> None:
    before = play("fasgd", 2, round_robin(2, 10)).rule
    after = sync.make("fasgd", start(), 2, sync.sgd(0.1))
    after.load(before.state())
    assert before.deviation == after.deviation

    for rule in (before, after):
        rule.push(0, start(), 9)

    assert torch.equal(before.parameters, after.parameters)
    assert before.deviation == after.deviation


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(TrainingError, match="mode must be std, literal, fred, not 'stdev'"):
        fasgd("mode=stdev")


def test_a_variance_that_rounding_makes_negative_counts_as_0() -> None:
    sizes = torch.logspace(0, 4, 200)
    rule = sync.make("fasgd", torch.zeros(200), 1, sync.sgd(0.005))
    assert isinstance(rule, Fasgd)
    for _ in range(200):
        rule.on_push(0, sizes, 1)

    assert bool((rule.n - rule.b * rule.b < -rule.epsilon).any())  # its root is NaN
    assert bool(torch.isfinite(rule.parameters).all())
    assert float(rule.v.min()) >= 0.009  # the root of epsilon, once the start has faded
