"""The precision of networks, chosen by the machine or by the user."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl import algorithms, networks, trees
from remotely_rl.acting.actor import Parameters
from remotely_rl.algorithms import a2c
from remotely_rl.config import Common
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Batch, Transitions
from remotely_rl.learning.learner import Learner, to_device
from remotely_rl.networks import precision
from tests.remotely_rl import toys
from tests.remotely_rl.algorithms.continuous import BOX
from tests.remotely_rl.space_toys import FOR_BOXES

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CONFIG = a2c.Config(
    env=toys.Guess,
    envs_per_actor=4,
    rollout_steps=6,
    random_start=0,
    precision="bfloat16",
    normalize_values=False,
)


@pytest.mark.parametrize(
    ("model", "device", "machine", "expected"),
    [
        (networks.SmallCNN((4, 42, 42), 6), CPU, {"avx512_bf16": True}, torch.bfloat16),
        (networks.SmallCNN((4, 42, 42), 6), CPU, {"amx_bf16": True}, torch.bfloat16),
        (networks.SmallCNN((4, 42, 42), 6), CPU, {"avx512_bf16": False}, torch.float32),
        (networks.SmallCNN((4, 42, 42), 6), CPU, {}, torch.float32),
        (toys.network(), CPU, {"avx512_bf16": True}, torch.float32),
        (networks.SmallCNN((4, 42, 42), 6), GPU, {}, torch.bfloat16),
        (toys.network(), GPU, {"avx512_bf16": True}, torch.float32),
        (networks.RecurrentMLP((4,), 2, 8), GPU, {}, torch.float32),
    ],
)
def test_auto_precision_is_the_faster_one_on_this_machine(
    model: nn.Module,
    device: torch.device,
    machine: dict[str, Any],
    expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: machine, raising=False)
    assert precision.of("auto", model, device) == expected
    assert precision.of("float32", model, device) == torch.float32
    assert precision.of("bfloat16", model, device) == torch.bfloat16


def test_an_unknown_precision_is_refused_with_the_closest() -> None:
    with pytest.raises(TrainingError, match=r"auto, float32, bfloat16, not 'bfloat'.*'bfloat16'"):
        Common(precision="bfloat")


def test_a_learner_in_bfloat16_keeps_parameters_losses_and_gradients_in_float32() -> None:
    gradients = []
    for numbers in ("float32", "bfloat16"):
        config = a2c.Config(precision=numbers, device="cpu")
        torch.manual_seed(0)
        learner = Learner(config, networks.SmallCNN((4, 42, 42), 6), Discrete(6))
        zeros = torch.zeros(64)
        rows = Transitions(torch.arange(64) % 6, zeros, torch.randn(64), torch.randn(64), zeros)
        batch = Batch(torch.randint(0, 256, (64, 4, 42, 42), dtype=torch.uint8), rows)
        with torch.no_grad(), learner.autocast():
            heads = learner.model(batch.obs)
        policy, value, rows = learner.forward(batch)
        losses = a2c.compute_losses(policy, value, rows, config, 0.01, learner.actions)
        parameters = list(learner.model.parameters())
        found = torch.autograd.grad(losses.total, parameters)
        assert {part.dtype for part in (*heads, losses.total)} == {torch.float32}
        assert {part.dtype for part in learner.model.parameters()} == {torch.float32}
        gradients.append(torch.cat([part.flatten() for part in found]))
    exact, coarse = gradients
    assert coarse.dtype == torch.float32
    assert not torch.equal(exact, coarse)  # it did compute in bfloat16
    assert nn.functional.cosine_similarity(exact, coarse, 0) > 0.99


@pytest.mark.parametrize("units", [0, 5])
def test_an_actor_in_bfloat16_uses_new_parameters(units: int) -> None:
    """Parameters converted for one call of `sample` are not reused by the next."""
    model = networks.RecurrentMLP((2,), 2, units) if units else toys.network()
    actor = toys.actor(CONFIG, model)
    actor.sample()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.get_parameter("value.bias").fill_(3.0)
    actor.set_param(Parameters(1, networks.state_of(model)))
    assert (actor.sample().trajectory.value == 3.0).all()


def test_actors_and_learners_in_bfloat16_agree() -> None:
    torch.manual_seed(0)
    model = networks.RecurrentMLP((2,), 2, units=5)
    for head in (model.policy, model.value):
        nn.init.normal_(head.weight)
    trajectory = toys.actor(CONFIG, model).sample().trajectory
    learner = Learner(CONFIG, model, Discrete(2))
    batch = to_device(learner, trajectory)
    with torch.no_grad():
        policy, value = learner.unroll(batch)
    log_prob = learner.actions.log_prob(policy[:-1], batch.action)
    # bfloat16 has eight bits: errors of 1/256 in each of several sums.
    assert torch.allclose(log_prob[batch.valid], batch.log_prob[batch.valid], atol=0.03)
    assert torch.allclose(batch.rows.select(value), batch.rows.select(batch.value), atol=0.03)


SPECS: dict[str, Any] = {
    "vector": ObservationLeaf((3,), np.dtype(np.float32)),
    "images": ObservationLeaf((4, 42, 42), np.dtype(np.uint8)),
    "both": {
        "a": ObservationLeaf((3,), np.dtype(np.float32)),
        "b": ObservationLeaf((4, 42, 42), np.dtype(np.uint8)),
    },
}
OUTPUTS = [
    *((name, of, 0) for name in algorithms.ALGORITHMS for of in SPECS),
    *((name, of, 8) for name in toys.WITH_LSTM for of in SPECS),
]


@pytest.mark.parametrize(("name", "of", "lstm"), OUTPUTS)
def test_what_leaves_a_network_that_computes_in_bfloat16_is_float32(
    name: str, of: str, lstm: int
) -> None:
    """Not rounded to bfloat16 and then widened: near -100 that has steps of a half."""
    actions = BOX if name in FOR_BOXES else Discrete(3)
    config = algorithms.named(name).Config(**{"lstm": lstm} if lstm else {})
    spec, rows = SPECS[of], 32
    torch.manual_seed(0)
    model = config.make_model(None, spec, actions)
    obs = trees.map_tree(
        lambda leaf: torch.randint(0, 9, (rows, *leaf.shape)).to(
            torch.uint8 if leaf.dtype == np.uint8 else torch.float32
        ),
        spec,
    )
    with torch.no_grad(), precision.computing(torch.bfloat16, CPU):
        if lstm:
            obs, begins = trees.map_tree(lambda x: x[None], obs), torch.zeros(1, rows) > 0
            outputs = list(model(obs, model.initial_state(rows), begins))[:2]
        elif name in FOR_BOXES:
            outputs = [model(obs)[0], model.critics(obs, torch.rand(rows, 2))]
        else:
            outputs = list(model(obs))
        if isinstance(model, networks.QNetwork) and not lstm:
            outputs.append(model.heads(obs))
    for output in outputs:
        assert output.dtype == torch.float32
        assert not torch.equal(output.bfloat16().float(), output)
