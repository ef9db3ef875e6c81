"""PerAgent: one module with a separate model for each agent.

Observations are {"observation": ..., "agent_index": int64 [...]}, as MultiAgent returns them if
agents do not share parameters (environments/multi_agent.py).  Each row gets the outputs of its own
agent's model, so its gradient reaches only that model.

Every pass computes all models on all rows, and selects each row's own result.  This multiplies the
work by the number of agents, but shapes do not depend on which agents act, as compiling, CUDA
graphs and exporting require.
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
    """A model per agent, all of the same form; maps observations as each of them does."""

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
        # In a sequence [T, B], each column belongs to one agent throughout.
        return _own(policy, agent), _own(value, agent), *(_own(one, agent[-1]) for one in state)


class PerAgentRecurrent(PerAgent):
    """The same for recurrent models."""

    def initial_state(self, count: int) -> Tensor:
        """Return the initial state, which is the same for all agents."""
        return cast(Tensor, self.models[0].initial_state(count))  # type: ignore[operator]


def for_each_agent(make: Callable[[Tree], nn.Module], spec: Tree) -> nn.Module:
    """Make a model; or one for each agent, if the observations have an agent index."""
    if not (isinstance(spec, dict) and spec.keys() == {OBSERVATION, AGENT}):
        return make(spec)
    models = [make(spec[OBSERVATION]) for _ in range(spec[AGENT].counts[0])]
    return PerAgentRecurrent(models) if is_recurrent(models[0]) else PerAgent(models)


def _own(outputs: Tensor, agent: Tensor) -> Tensor:
    """Select each row's own agent from outputs [agents, *rows, ...]: [*rows, ...]."""
    index = agent.reshape(1, *agent.shape, *[1] * (outputs.dim() - 1 - agent.dim()))
    return outputs.gather(0, index.expand(1, *outputs.shape[1:]))[0]
