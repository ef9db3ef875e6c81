"""Recurrent and RecurrentMLP, the networks with LSTMs.

For vectors, policy and value have an LSTM each.  Values are large, up to the sum of a hundred
rewards, and in a shared LSTM their gradient drowns the policy's: on CartPole with hidden
velocities, a shared LSTM stays below a return of 40.  For images, where rewards are clipped, policy
and value share the convolutions, which take most of the time, and one LSTM.
"""

import itertools
import math

import torch
from torch import Tensor, nn

from remotely_rl import trees
from remotely_rl.networks.architecture import DEFAULT, Architecture
from remotely_rl.networks.layers import in_float32, orthogonal_init
from remotely_rl.networks.mlp import mlp_body
from remotely_rl.trees import Tree


class Recurrent(nn.Module):
    """An LSTM between a network's features and its heads.

    `state` is the concatenated hidden and cell state, [B, 2 * units]; it starts at zero.
    """

    def __init__(self, features: nn.Module, width: int, outputs: int, units: int = 256):
        """`features` maps observations [N, ...] to [N, width]."""
        super().__init__()
        self.features = features
        self.units = units
        self.lstm = nn.LSTM(width, units)
        self.policy, self.value = nn.Linear(units, outputs), nn.Linear(units, 1)
        _initialize(self.lstm)
        orthogonal_init(self.policy, 0.01)
        orthogonal_init(self.value, 1.0)

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, 2 * self.units)

    def forward(self, obs: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.features(obs.flatten(0, 1)).unflatten(0, begins.shape)
        hidden, state = run_lstm(self.lstm, features, state, begins)
        value = in_float32(self.value, hidden).squeeze(-1)
        return in_float32(self.policy, hidden), value, state.float()


class RecurrentMLP(nn.Module):
    """Separate policy and value networks, each an MLP followed by an LSTM.

    They share only the normalizer or encoder.  `state` is the policy's hidden and cell state, then
    the value's, [B, 4 * units]; it starts at zero.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        outputs: int,
        units: int = 64,
        encoder: nn.Module | None = None,
        architecture: Architecture = DEFAULT,
    ):
        """`encoder`, if any, maps observations to vectors of this shape, without a normalizer."""
        super().__init__()
        self.units = units
        self.normalizer = encoder or architecture.input_layer(observation_shape)
        inputs = math.prod(observation_shape)
        self.policy_body, width = mlp_body(inputs, architecture)
        self.value_body, _ = mlp_body(inputs, architecture)
        self.policy_lstm, self.value_lstm = nn.LSTM(width, units), nn.LSTM(width, units)
        self.policy, self.value = nn.Linear(units, outputs), nn.Linear(units, 1)
        for lstm in (self.policy_lstm, self.value_lstm):
            _initialize(lstm)
        orthogonal_init(self.policy, 0.01)
        orthogonal_init(self.value, 1.0)

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, 4 * self.units)

    def forward(self, obs: Tree, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal = self.normalizer(trees.map_tree(lambda x: x.flatten(0, 1), obs)).flatten(1)
        of_policy, of_value = state.chunk(2, -1)
        features = self.policy_body(normal).unflatten(0, begins.shape)
        hidden, of_policy = run_lstm(self.policy_lstm, features, of_policy, begins)
        policy = in_float32(self.policy, hidden)
        features = self.value_body(normal).unflatten(0, begins.shape)
        hidden, of_value = run_lstm(self.value_lstm, features, of_value, begins)
        value = in_float32(self.value, hidden).squeeze(-1)
        return policy, value, torch.cat((of_policy, of_value), -1).float()


def run_lstm(
    lstm: nn.LSTM, features: Tensor, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply a one-layer LSTM to features [T, B, width]; return [T, B, units] and the final state.

    `state` [B, 2 * units] is the state before the first step.  It is reset to zero where an
    episode `begins` [T, B].
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):  # noisy layers return float32, which it would refuse
        features = features.to(torch.get_autocast_dtype(device))
    # One call of the LSTM for each stretch in which no episode begins: on a CPU no slower than
    # packed sequences, even with episodes as short as CartPole's.
    inside = (begins[1:].any(1).nonzero().flatten() + 1).tolist() if len(begins) > 1 else ()
    cuts = [0, *inside, len(begins)]
    outputs = []
    for start, stop in itertools.pairwise(cuts):
        # Not a product: what an absent agent has left there may be NaN.
        state = state.masked_fill(begins[start][:, None], 0.0)
        hidden, cell = (part.contiguous() for part in state[None].chunk(2, -1))
        output, (hidden, cell) = lstm(features[start:stop], (hidden, cell))
        state = torch.cat((hidden, cell), -1)[0]
        outputs.append(output)
    return torch.cat(outputs), state


def _initialize(lstm: nn.LSTM) -> None:
    for name, weight in lstm.named_parameters():
        nn.init.orthogonal_(weight) if "weight" in name else nn.init.zeros_(weight)
