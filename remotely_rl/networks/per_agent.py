"""PerAgent: a model of its own for each agent, as one model.

Observations are {"observation": ..., "agent_index": int64 [...]}, as MultiAgent has them where
agents do not share parameters (environments/multi_agent.py).  Each row gets the outputs of its own
agent's model, so that its gradient reaches no other.

Every pass computes all models on all rows, and keeps of each row what is its own: as many times the
work as there are agents, but in shapes that do not depend on who acts, as compiling, CUDA graphs
and exporting want it.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from remotely_rl.environments.observations import AGENT, OBSERVATION
from remotely_rl.networks.normalizer import Normalizer
from remotely_rl.networks.state import is_recurrent
from remotely_rl.trees import Tree


class PerAgent(nn.Module):
    """Models of one form, [agents].  It maps observations as each of them does."""

    def __init__(self, models: Sequence[nn.Module]):
        super().__init__()
        self.models = nn.ModuleList(models)
        for part in self.models.modules():
            if isinstance(part, Normalizer):
                part.of = (OBSERVATION, *part.of)

    def forward(self, obs: Tree, *memory: Tensor) -> tuple[Any, ...]:
        agent = obs[AGENT]
        outputs = [model(obs[OBSERVATION], *memory) for model in self.models]
        policy, value, *state = (torch.stack(parts) for parts in zip(*outputs, strict=True))
        # A row of a sequence, [T, B], is of one agent throughout.
        return _own(policy, agent), _own(value, agent), *(_own(one, agent[-1]) for one in state)


class PerAgentRecurrent(PerAgent):
    """The same for models with a memory."""

    def initial_state(self, count: int) -> Tensor:
        """Return the memory before an episode, which is the same for all agents."""
        return cast(Tensor, self.models[0].initial_state(count))  # type: ignore[operator]


def for_each_agent(make: Callable[[Tree], nn.Module], spec: Tree) -> nn.Module:
    """Return the model that `make` makes; or one for each agent, where `spec` tells them apart."""
    if not (isinstance(spec, dict) and spec.keys() == {OBSERVATION, AGENT}):
        return make(spec)
    models = [make(spec[OBSERVATION]) for _ in range(spec[AGENT].counts[0])]
    return PerAgentRecurrent(models) if is_recurrent(models[0]) else PerAgent(models)


def _own(outputs: Tensor, agent: Tensor) -> Tensor:
    """Return of outputs [agents, *rows, ...] those of the agent of each row, [*rows, ...]."""
    index = agent.reshape(1, *agent.shape, *[1] * (outputs.dim() - 1 - agent.dim()))
    return outputs.gather(0, index.expand(1, *outputs.shape[1:]))[0]
