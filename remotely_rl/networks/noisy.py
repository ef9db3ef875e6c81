"""Noisy networks: linear layers whose weights explore.

Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, with factorised noise (their equations 10
and 11).  Any model becomes noisy: `make_noisy` gives each of its linear layers a learnt deviation,
and keeps the weights that it has as their means; the paper draws those uniformly instead.

There is no noise until `resample` draws some, so a model that is only loaded plays by its means.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIGMA = 0.5  # of all the weights of a unit together, at the start


class NoisyLinear(nn.Linear):
    """y = (mu + sigma * noise) x, elementwise, the bias included.

    The noise of a weight is the product of one number of its input and one of its output, so it
    is applied to these and no matrix of noise is made.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, of: nn.Linear):
        """Takes over the weights of a linear layer as means."""
        super().__init__(of.in_features, of.out_features, bias=of.bias is not None)
        self.load_state_dict(of.state_dict())
        start = SIGMA / math.sqrt(of.in_features)
        self.sigma_weight = nn.Parameter(torch.full_like(of.weight, start))
        self.sigma_bias = nn.Parameter(torch.full((of.out_features,), start))
        self.register_buffer("noise_in", torch.zeros(of.in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(of.out_features), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        noise = F.linear(x * self.noise_in, self.sigma_weight, self.sigma_bias) * self.noise_out
        return super().forward(x) + noise

    def resample(self, generator: torch.Generator) -> None:
        """Draw new noise, on the CPU, so that a run draws the same on every device."""
        for noise in (self.noise_in, self.noise_out):
            drawn = torch.randn(noise.shape, generator=generator)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())


def make_noisy(model: nn.Module) -> nn.Module:
    """Make all plain linear layers of a model noisy; return the model."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is nn.Linear:  # a subclass may not be computed by its `forward`
                setattr(parent, name, NoisyLinear(part))
    return model


def resample(model: nn.Module, generator: torch.Generator) -> None:
    """Draw new noise for all noisy layers of a model."""
    for part in model.modules():
        if isinstance(part, NoisyLinear):
            part.resample(generator)
