"""Q-networks: dueling and distributional heads on any model with two heads, masks, noisy layers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remotely_rl import networks
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION, ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.functions.distributions import ILLEGAL
from remotely_rl.networks import build_q_network
from remotely_rl.networks.q_network import NoisyLinear

VECTOR = ObservationLeaf((3,), np.dtype("float32"))
MASKED = {OBSERVATION: VECTOR, ACTION_MASK: ObservationLeaf((4,), np.dtype("bool"))}
OBS = torch.zeros(2, 3)


class Fixed(nn.Module):
    """Returns constants for every observation."""

    def __init__(self, policy: Tensor, value: Tensor):
        super().__init__()
        self.policy, self.value = policy, value

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        rows = len(obs)
        return self.policy.expand(rows, -1), self.value.expand(rows)


@pytest.mark.parametrize(("is_dueling", "expected"), [(True, [2, 0, 4]), (False, [1, -1, 3])])
def test_a_q_network_returns_action_values_and_their_maximum(
    is_dueling: bool, expected: list[float]
) -> None:
    fixed = Fixed(torch.tensor([1.0, -1.0, 3.0]), torch.tensor(2.0))
    model = build_q_network(fixed, VECTOR, 3, is_dueling=is_dueling)

    q, value = model(OBS)

    assert q.tolist() == [expected] * 2
    assert value.tolist() == [expected[2]] * 2


def test_dueling_distributions_have_the_hand_worked_means() -> None:
    # Two actions of three atoms, -1, 0 and 1; the first row is the state value's.
    policy = torch.log(torch.tensor([1.0, 1, 1, 1, 1, 2, 2, 1, 1]))
    model = build_q_network(
        Fixed(policy, torch.tensor(0.0)), VECTOR, 2, is_dueling=True, atoms=3, bound=1.0
    )

    logits = model.heads(OBS)
    q, _ = model(OBS)

    assert logits.shape == (2, 2, 3)
    root = 2**0.5
    low, high = 1 / root, root  # half of the log ratio on each side, since the mean is subtracted
    assert q[0].tolist() == pytest.approx(
        [(high - low) / (high + 1 + low), (low - high) / (high + 1 + low)]
    )


@pytest.mark.parametrize(
    ("is_dueling", "numbers", "expected"),
    [
        (False, [1.0, 2, 6, -1, 0, 1], [3.0, 0.0]),
        (True, [10.0, 20, 30, 1, 1, 1, -1, -1, -1], [21.0, 19.0]),  # first row: the state value
    ],
)
def test_action_values_are_the_means_of_quantiles(
    is_dueling: bool, numbers: list[float], expected: list[float]
) -> None:
    fixed = Fixed(torch.tensor(numbers), torch.tensor(0.0))
    model = build_q_network(fixed, VECTOR, 2, is_dueling=is_dueling, quantiles=3)

    assert model.heads(OBS).shape == (2, 2, 3)
    assert model(OBS)[0].tolist() == [expected] * 2
    assert model.means(model.heads(OBS)[:, 0]).tolist() == [expected[0]] * 2


def test_distributions_without_dueling_have_no_row_for_the_state_value() -> None:
    plain = build_q_network(None, VECTOR, 4, is_dueling=False, atoms=51, bound=10.0)

    assert plain.heads(OBS).shape == (2, 4, 51)


@pytest.mark.parametrize(("atoms", "quantiles"), [(1, 1), (51, 1), (1, 20)])
@pytest.mark.parametrize("is_dueling", [True, False])
def test_illegal_actions_are_never_the_best(atoms: int, quantiles: int, is_dueling: bool) -> None:
    model = build_q_network(
        None, MASKED, 4, is_dueling=is_dueling, atoms=atoms, bound=10.0, quantiles=quantiles
    )
    mask = torch.tensor([[True, False, True, False], [False, False, False, True]])

    q, value = model({OBSERVATION: OBS, ACTION_MASK: mask})

    assert bool((q[~mask] == ILLEGAL).all())
    assert bool((q[mask] > ILLEGAL / 2).all())
    assert float(value[1].detach()) == float(q[1, 3].detach())


def test_the_dueling_mean_of_distributions_is_over_legal_actions() -> None:
    # With one legal action, its logits are the state value's, whatever its advantage.
    policy = torch.tensor([1.0, 2, 3, 7, 7, 9, 5, 5, 5])
    spec = {OBSERVATION: VECTOR, ACTION_MASK: ObservationLeaf((2,), np.dtype("bool"))}
    fixed = Fixed(policy, torch.tensor(0.0))
    model = build_q_network(fixed, spec, 2, is_dueling=True, atoms=3, bound=1.0)

    heads = model.heads({OBSERVATION: OBS, ACTION_MASK: torch.tensor([[True, False]] * 2)})

    assert heads[0, 0].tolist() == [1, 2, 3]


def test_a_model_with_too_few_outputs_is_refused_with_their_meaning() -> None:
    with pytest.raises(TrainingError, match=r"255 is 5 rows of 51 atoms"):
        build_q_network(lambda shape, outputs: networks.MLP(shape, 4), VECTOR, 4, atoms=51, bound=1)
    with pytest.raises(TrainingError, match=r"100 is 5 rows of 20 quantiles"):
        build_q_network(lambda shape, outputs: networks.MLP(shape, 4), VECTOR, 4, quantiles=20)


def test_a_noisy_layer_without_noise_is_the_linear_layer() -> None:
    plain = nn.Linear(5, 3)
    x = torch.randn(7, 5)

    torch.testing.assert_close(NoisyLinear(plain)(x), plain(x))


def test_noise_is_the_outer_product_of_input_and_output_noise() -> None:
    layer = NoisyLinear(nn.Linear(5, 3))
    layer.resample(torch.Generator().manual_seed(0))
    x = torch.randn(7, 5)

    weight = layer.weight + layer.sigma_weight * torch.outer(layer.noise_out, layer.noise_in)
    bias = layer.bias + layer.sigma_bias * layer.noise_out
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, bias))
    assert layer.sigma_weight.flatten().tolist() == pytest.approx([0.5 / math.sqrt(5)] * 15)


def test_noise_has_the_moments_of_the_paper() -> None:
    layer = NoisyLinear(nn.Linear(100_000, 2))
    layer.resample(torch.Generator().manual_seed(0))

    assert float(layer.noise_in.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(layer.noise_in.square().mean()) == pytest.approx(0.79788, abs=0.01)


def test_make_noisy_and_resample_apply_to_all_linear_layers() -> None:
    model = networks.make_noisy(networks.SmallCNN((4, 42, 42), 6))
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert len(layers) == 3
    assert all(isinstance(layer, NoisyLinear) for layer in layers)

    obs = torch.randint(0, 255, (2, 4, 42, 42), dtype=torch.uint8)
    random = torch.Generator().manual_seed(0)
    means = model(obs)[0]
    torch.testing.assert_close(model(obs)[0], means)
    networks.resample(model, random)
    first = model(obs)[0]
    networks.resample(model, random)
    assert not torch.allclose(first, means)
    assert not torch.allclose(first, model(obs)[0])


def test_means_and_deviations_of_weights_have_gradients() -> None:
    layer = NoisyLinear(nn.Linear(4, 2))
    layer.resample(torch.Generator().manual_seed(0))

    layer(torch.ones(3, 4)).sum().backward()

    assert all(part.grad is not None and bool(part.grad.any()) for part in layer.parameters())


def test_noise_is_not_saved() -> None:
    layer = NoisyLinear(nn.Linear(4, 2))
    layer.resample(torch.Generator().manual_seed(0))
    loaded = NoisyLinear(nn.Linear(4, 2))
    loaded.load_state_dict(layer.state_dict())
    x = torch.randn(3, 4)

    torch.testing.assert_close(loaded(x), nn.functional.linear(x, layer.weight, layer.bias))
