"""PolicyAndCritics, the networks of TD3; with a temperature, SoftActorCritic, those of SAC.

Policy and critics have separate encoders (`encoders.py`); both critics share one.  Small networks
spend most of their time on calls of torch, not on arithmetic.  So the two critics are one stack of
weights, with as many calls as one critic: this takes a third less time at 64 units, and the same
time at 256.

Layers may be normalized: layer normalization before each activation, or batch renormalization of
the input and after each activation, as CrossQ has it (`renorm.py`).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.networks.architecture import BATCH, HIDDEN, LAYER, Architecture
from remotely_rl.networks.encoders import encoder_of
from remotely_rl.networks.layers import connected_layers, in_float32, orthogonal_init
from remotely_rl.networks.renorm import BatchRenorm, StackedLayerNorm, first
from remotely_rl.trees import Tree

CRITICS = 2  # targets take the lower value, because the policy seeks overestimates


class PolicyAndCritics(nn.Module):
    """A policy and its critics; maps observations to the policy's `(policy, value)`.

    `policy` is any model.
    """

    def __init__(self, policy: nn.Module, critics: "Critics | CriticsOfAll"):
        super().__init__()
        self.policy = policy
        self.critics = critics

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], self.policy(obs))


class SoftActorCritic(PolicyAndCritics):
    """The same with a learnt temperature."""

    def __init__(self, policy: nn.Module, critics: "Critics | CriticsOfAll", temperature: float):
        super().__init__(policy, critics)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))


class PolicyNetwork(nn.Module):
    """An encoder, hidden layers and a policy head.  Its value is 0: the critics learn values."""

    def __init__(self, spec: Tree, outputs: int, architecture: Architecture):
        super().__init__()
        hidden, activation = _layers_of(architecture)
        self.encoder = encoder_of(spec, architecture)
        if architecture.norm == BATCH:
            layers: list[nn.Module] = [BatchRenorm(1, self.encoder.width)]
            for pair in itertools.pairwise((self.encoder.width, *hidden)):
                layers += [nn.Linear(*pair), activation(), BatchRenorm(1, pair[1])]
        else:
            layers = connected_layers(self.encoder.width, hidden, activation)
        self.body = nn.Sequential(*layers)
        self.policy = nn.Linear((self.encoder.width, *hidden)[-1], outputs)
        orthogonal_init(self.policy, 0.01)  # starts in the middle of the bounds

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        policy = in_float32(self.policy, self.body(self.encoder(obs)))
        return policy, torch.zeros_like(policy[:, 0])


class Critics(nn.Module):
    """Maps observations [N, ...] and actions [N, width] to each critic's values [CRITICS, N]."""

    def __init__(self, spec: Tree, width: int, architecture: Architecture):
        super().__init__()
        self.encoder = encoder_of(spec, architecture)
        self.layers = _stack(self.encoder.width + width, 1, architecture)

    def forward(self, obs: Tree, action: Tensor, members: int = CRITICS) -> Tensor:
        """Return the values of the first `members` critics, [members, N]."""
        features = torch.cat([self.encoder(obs), action], -1)
        return _run(self.layers, features, members).squeeze(-1)


class CriticsOfAll(nn.Module):
    """Maps observations [N, ...] to each critic's values [CRITICS, N, A] of all Discrete actions.

    Given actions [N], it returns their values [CRITICS, N] only, as Critics do.
    """

    def __init__(self, spec: Tree, count: int, architecture: Architecture):
        super().__init__()
        self.is_masked = isinstance(spec, dict) and ACTION_MASK in spec
        self.encoder = encoder_of(self._seen(spec), architecture)
        self.layers = _stack(self.encoder.width, count, architecture)

    def forward(self, obs: Tree, action: Tensor | None = None) -> Tensor:
        q = _run(self.layers, self.encoder(self._seen(obs)))
        if action is None:
            return q
        return q.gather(-1, action.expand(CRITICS, -1).unsqueeze(-1)).squeeze(-1)

    def _seen(self, obs: Tree) -> Tree:
        return obs[OBSERVATION] if self.is_masked else obs


def _stack(inputs: int, outputs: int, architecture: Architecture) -> nn.Sequential:
    """Make the layers of all critics."""
    hidden, activation = _layers_of(architecture)
    widths, norm = (inputs, *hidden), architecture.norm
    layers: list[nn.Module] = []
    if norm == BATCH:
        layers.append(BatchRenorm(CRITICS, 1, inputs))
    for pair in itertools.pairwise(widths):
        layers.append(StackedLinear(CRITICS, *pair))
        if norm == LAYER:
            layers.append(StackedLayerNorm(CRITICS, pair[1]))
        layers.append(activation())
        if norm == BATCH:
            layers.append(BatchRenorm(CRITICS, 1, pair[1]))
    return nn.Sequential(*layers, StackedLinear(CRITICS, widths[-1], outputs))


def _run(layers: nn.Sequential, features: Tensor, members: int = CRITICS) -> Tensor:
    """Run the first critics on the same features [N, width]; return [members, N, outputs]."""
    features = features.expand(members, -1, -1)
    *body, head = layers
    for layer in body:
        features = layer(features)
    return in_float32(head, features)


def _layers_of(architecture: Architecture) -> tuple[tuple[int, ...], Callable[[], nn.Module]]:
    hidden = HIDDEN if architecture.hidden is None else architecture.hidden
    activation = architecture.activation_or(nn.ReLU)
    # In place: a new tensor costs more than the arithmetic, and no layer before reads its own.
    return hidden, functools.partial(nn.ReLU, True) if activation is nn.ReLU else activation


class StackedLinear(nn.Module):
    """A linear layer for each member of a stack: [members, N, inputs] -> [members, N, outputs].

    Fewer members than it has are its first ones.
    """

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # torch's initialization of a single layer
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = first(self.weight, len(x)), first(self.bias, len(x))
        if weight.shape[-1] == 1:
            return _OneOutput.apply(x, weight, bias)  # type: ignore[no-untyped-call,no-any-return]
        return torch.baddbmm(bias, x, weight)


class _OneOutput(torch.autograd.Function):
    """A StackedLinear with one output: products of matrices and vectors.

    As products of matrices, which baddbmm and its gradient are, they take five times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        pairs = zip(x.unbind(), weight.squeeze(-1).unbind(), strict=True)
        return torch.stack([rows.mv(vector) for rows, vector in pairs]).unsqueeze(-1).add_(bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (slope,), (x, weight) = slopes, ctx.saved_tensors
        of_x = slope * weight.mT if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_x, None, None
        return of_x, torch.bmm(slope.mT, x).mT, slope.sum(1, keepdim=True)


@contextmanager
def frozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within this context, these parameters get no gradients; gradients flow to the inputs."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
