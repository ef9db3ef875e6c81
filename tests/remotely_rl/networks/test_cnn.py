"""Networks for images."""

import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl import networks
from remotely_rl.environments.observations import ObservationLeaf

BYTES = np.dtype(np.uint8)


@pytest.mark.parametrize("shape", [(4, 42, 42), (1, 20, 31)])
def test_the_resnet_takes_images_of_any_size(shape: tuple[int, ...]) -> None:
    model = networks.build(networks.ResNet, ObservationLeaf(shape, BYTES), 6)
    policy, value = model(torch.zeros(3, *shape, dtype=torch.uint8))
    assert (policy.shape, value.shape) == ((3, 6), (3,))


def test_the_resnet_has_the_papers_fifteen_convolutions() -> None:
    model = networks.ResNet((4, 42, 42), 6)
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) == 15
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # A stage: one convolution from n channels to m, then four of m channels.
    stages = [(4, 16), (16, 32), (32, 32)]
    each = [(n * 9 + 1) * m + 4 * (m * 9 + 1) * m for n, m in stages]
    assert parameters == sum(each) + (32 * 6 * 6 + 1) * 256 + 257 * (6 + 1)


def test_a_new_policy_is_close_to_uniform() -> None:
    model = networks.SmallCNN((4, 42, 42), 6)
    obs = torch.randint(0, 256, (8, 4, 42, 42), dtype=torch.uint8)
    with torch.no_grad():
        policy, _ = model(obs)
    assert (policy.softmax(-1) - 1 / 6).abs().max() < 0.05
