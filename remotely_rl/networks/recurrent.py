"""Networks with a memory, and how models of both kinds are asked about pieces of experience.

Where observations are a vector, policy and value have an LSTM each.  Values there are large, up
to the sum of a hundred rewards, and in an LSTM that both share their gradient drowns the
policy's: CartPole with hidden velocities stays below 40 with a shared one.  Images are seen by
one network, whose convolutions are the dear part, and one LSTM: their rewards are clipped.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from remotely_rl.networks.layers import ask, orthogonal, tanh_layers
from remotely_rl.networks.normaliser import Normaliser


class Recurrent(nn.Module):
    """An LSTM between a network's features and its heads.

    `state` is its hidden and cell state side by side, [B, 2 * units], zero at first.
    """

    def __init__(self, features: nn.Module, width: int, outputs: int, units: int = 256):
        """`features` maps observations [N, ...] to [N, width]."""
        super().__init__()
        self.features = features
        self.units = units
        self.lstm = nn.LSTM(width, units)
        self.policy, self.value = nn.Linear(units, outputs), nn.Linear(units, 1)
        _begin(self.lstm)
        orthogonal(self.policy, 0.01)
        orthogonal(self.value, 1.0)

    def initial_state(self, count: int) -> Tensor:
        """What it remembers before an episode: nothing."""
        return torch.zeros(count, 2 * self.units)

    def forward(self, obs: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.features(obs.flatten(0, 1)).unflatten(0, begins.shape)
        memory, state = remember(self.lstm, features, state, begins)
        return ask(self.policy, memory), ask(self.value, memory).squeeze(-1), state.float()


class RecurrentMLP(nn.Module):
    """An MLP with an LSTM behind it for the policy, and another such pair for the value.

    They share the normaliser alone.  `state` is the policy's memory and then the value's, each
    its hidden and cell state, [B, 4 * units], zero at first.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int, units: int = 64):
        super().__init__()
        self.units = units
        self.normaliser = Normaliser(observation_shape)
        inputs = math.prod(observation_shape)
        self.policy_body, self.value_body = tanh_layers(inputs), tanh_layers(inputs)
        self.policy_lstm, self.value_lstm = nn.LSTM(64, units), nn.LSTM(64, units)
        self.policy, self.value = nn.Linear(units, outputs), nn.Linear(units, 1)
        for lstm in (self.policy_lstm, self.value_lstm):
            _begin(lstm)
        orthogonal(self.policy, 0.01)
        orthogonal(self.value, 1.0)

    def initial_state(self, count: int) -> Tensor:
        """What it remembers before an episode: nothing."""
        return torch.zeros(count, 4 * self.units)

    def forward(self, obs: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal = self.normaliser(obs.flatten(0, 1)).flatten(1)
        of_policy, of_value = state.chunk(2, -1)
        features = self.policy_body(normal).unflatten(0, begins.shape)
        memory, of_policy = remember(self.policy_lstm, features, of_policy, begins)
        policy = ask(self.policy, memory)
        features = self.value_body(normal).unflatten(0, begins.shape)
        memory, of_value = remember(self.value_lstm, features, of_value, begins)
        value = ask(self.value, memory).squeeze(-1)
        return policy, value, torch.cat((of_policy, of_value), -1).float()


def remember(
    lstm: nn.LSTM, features: Tensor, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor]:
    """What an LSTM of one layer makes of features [T, B, width]: [T, B, units], and its state.

    `state` [B, 2 * units] is that before the first step, and of the result that after the last.
    It is zero where an episode `begins` [T, B].
    """
    # One call of the LSTM for each stretch in which no episode begins: no slower on a CPU than
    # packed sequences, where episodes of CartPole begin as often as there.
    cuts = [0, *(begins[1:].any(1).nonzero().flatten() + 1).tolist(), len(begins)]
    seen = []
    for start, stop in itertools.pairwise(cuts):
        state = state * ~begins[start][:, None]
        hidden, cell = (part.contiguous() for part in state[None].chunk(2, -1))
        out, (hidden, cell) = lstm(features[start:stop], (hidden, cell))
        state = torch.cat((hidden, cell), -1)[0]
        seen.append(out)
    return torch.cat(seen), state


def is_recurrent(model: nn.Module) -> bool:
    """Whether a model has a memory."""
    return hasattr(model, "initial_state")


def initial_state(model: nn.Module, count: int) -> Tensor:
    """A model's memory before an episode, [count, S]; S is 0 if it has none."""
    if not is_recurrent(model):
        return torch.zeros(count, 0)
    return cast(Tensor, model.initial_state(count))  # type: ignore[operator]


def unroll(
    model: Callable[..., Any], obs: Tensor, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Asks a model of either kind about [T, B] observations: policy, value, memory after."""
    if state.shape[-1]:
        return cast(tuple[Tensor, Tensor, Tensor], model(obs, state, begins))
    # In pieces: one [T * B] batch of images would not stay in the cache of a CPU.
    flat = obs.flatten(0, 1)
    size = len(flat) if flat.is_cuda else 256
    pieces = [model(piece) for piece in torch.split(flat, size)]
    policy, value = (torch.cat(part) for part in zip(*pieces, strict=True))
    return policy.view(*obs.shape[:2], -1), value.view(obs.shape[:2]), state


def _begin(lstm: nn.LSTM) -> None:
    for name, weight in lstm.named_parameters():
        nn.init.orthogonal_(weight) if "weight" in name else nn.init.zeros_(weight)
