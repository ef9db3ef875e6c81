"""Norms of gradients and updates: worked by hand, and those of every algorithm."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remotely_rl import Hook, a2c, algorithms
from remotely_rl.errors import TrainingError
from remotely_rl.learning.norms import Norms
from tests.remotely_rl.runs.test_hooks_of_all import config_of, parameters_of


def test_a_layer_has_the_norm_of_its_weight_and_bias_and_a_step_without_it_counts_as_0() -> None:
    model = nn.ModuleDict({"body": nn.Linear(2, 1), "head": nn.Linear(1, 1, bias=False)})
    body, head = model["body"], model["head"]
    assert isinstance(body, nn.Linear)
    assert isinstance(head, nn.Linear)
    norms = Norms(model.named_parameters())
    body.weight.grad, body.bias.grad = torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])
    head.weight.grad = torch.tensor([[84.0]])
    norms.measure_gradient()
    head.weight.grad = None
    norms.measure_gradient()
    with norms.update(), torch.no_grad():
        head.weight.add_(2.0)
    assert norms.pop() == pytest.approx(
        {
            "norms/gradient": (85 + 13) / 2,
            "norms/gradient/body": 13,
            "norms/gradient/head": 42,
            "norms/update": 2,
            "norms/update/body": 0,
            "norms/update/head": 2,
        }
    )
    assert norms.pop() == {}


class Compares(Hook):
    """Compares the norms of updates with how far the model has moved between them."""

    def __init__(self) -> None:
        self.found: list[tuple[float, dict[str, float]]] = []

    def on_start(self, session: Any) -> None:
        self.before = parameters_of(session.model)
        self.layers = {
            name.rpartition(".")[0] or name for name, _ in session.model.named_parameters()
        }

    def on_update(self, session: Any, metrics: Any) -> None:
        now = parameters_of(session.model)
        moved = float((now - self.before).norm())
        norms = {name: norm for name, norm in metrics.items() if name.startswith("norms/")}
        self.found.append((moved, norms))
        self.before = now


ONE_STEP = {"epochs": 1, "minibatches": 1, "target_kl": 0.0}


@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_every_algorithm_has_the_norms_of_its_gradients_and_updates(
    name: str, tmp_path: Path
) -> None:
    hook, algorithm = Compares(), algorithms.named(name)
    one_step = {key: of for key, of in ONE_STEP.items() if hasattr(algorithm.Config, key)}
    config = config_of(name, metrics="norms", total_steps=300, **one_step)
    algorithm.train(config, run=tmp_path / "run", hooks=[hook])
    assert len(hook.found) > 3
    for moved, norms in hook.found:
        assert norms.keys() == {
            f"norms/{kind}{layer}"
            for kind in ("gradient", "update")
            for layer in ("", *(f"/{layer}" for layer in hook.layers))
        }
        if name != "ga3c":  # whose model may be an update ahead
            assert norms["norms/update"] == pytest.approx(moved, rel=1e-3, abs=1e-6)
        for kind in ("norms/gradient", "norms/update"):
            squares = sum(norms[f"{kind}/{layer}"] ** 2 for layer in hook.layers)
            assert norms[kind] == pytest.approx(squares**0.5, rel=1e-5)
    assert (tmp_path / "run" / "metrics.csv").read_text().count("norms/update/") == len(hook.layers)


@pytest.mark.usefixtures("local", "no_curve")
def test_norms_are_measured_only_if_asked_for(tmp_path: Path) -> None:
    hook = Compares()
    a2c.train(config_of("a2c", total_steps=100), run=tmp_path / "run", hooks=[hook])
    assert not any(norms for _, norms in hook.found)
    with pytest.raises(TrainingError, match="metrics must be none or norms, not 'norm', did you"):
        a2c.Config(metrics="norm")
