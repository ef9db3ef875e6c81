"""Export of agents as graphs, for programs without this package: ONNX and torch.export.

The graph is the whole agent: normalization, the network, masks, the choice of the most likely
action, and its scaling for the environment.  The batch size N is dynamic.

    input        obs           [N, ...], in the models' format (environments/observations.py):
                               float32 or bytes, images with channels first; for a Dict or a Tuple
                               one input per leaf, obs_KEY; the second of one name is obs_KEY_2
                 action_mask   [N, outputs], if actions are masked: true for legal ones
                 state         [N, S], of a recurrent model; zeros where an episode begins
                 begins        [N], true where an episode begins: the state is then ignored
    output       action        [N, ...], in the environment's format; not for a Dict or a Tuple
                 policy        [N, outputs]
                 value         [N]
                 next_state    [N, S], for the next call
"""

import contextlib
import io
import itertools
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl import networks, trees
from remotely_rl.environments.action_spaces import Composite, Continuous, MultiDiscrete
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.errors import TrainingError

if TYPE_CHECKING:
    from remotely_rl.agents.agent import Agent

SUFFIXES = (".onnx", ".pt2")
EXAMPLE_ROWS = 2  # of the traced batch; torch would treat 0 and 1 as constants


class Graph(nn.Module):
    """An agent as a function of tensors; see the module's docstring."""

    def __init__(self, agent: "Agent"):
        super().__init__()
        self.model = agent.model
        self.actions, self.best = agent.actions, agent.config.best
        self.is_recurrent = networks.is_recurrent(agent.model)
        self.tree = _numbered(agent.spec)
        self.inputs = _names_of(agent.spec)
        self.has_action = not isinstance(agent.actions, Composite)
        match agent.actions:
            case Continuous(low, high):
                ends = np.array([low, high], np.float32)
                self.is_bounded = torch.from_numpy(np.isfinite(ends).all(0))
                self.low, self.high = torch.from_numpy(np.nan_to_num(ends, posinf=0, neginf=0))
                self.has_action = np.dtype(agent.actions.box_dtype).kind == "f"
            case MultiDiscrete(_, starts):
                self.start: Any = torch.tensor(starts)
            case _:
                self.start = getattr(agent.actions, "start", 0)

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        names = ["action"] if self.has_action else []
        return [*names, "policy", "value", *(["next_state"] if self.is_recurrent else [])]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        obs = trees.map_tree(lambda i: inputs[i], self.tree)
        more: tuple[Tensor, ...] = ()
        if self.is_recurrent:
            state, begins = inputs[-2:]
            obs = trees.map_tree(lambda x: x[None], obs)
            policy, value, state = self.model(obs, state, begins[None])
            policy, value, more = policy[0], value[0], (state,)
        else:
            policy, value = self.model(obs)
        action = (self._in_environment(self.best(self.actions, policy)),) if self.has_action else ()
        return (*action, policy, value, *more)

    def _in_environment(self, action: Tensor) -> Tensor:
        if not isinstance(self.actions, Continuous):
            return cast(Tensor, action + self.start)
        part = (action.clamp(-1, 1) + 1) / 2
        scaled = self.low * (1 - part) + self.high * part
        return torch.where(self.is_bounded, scaled, action).reshape(-1, *self.actions.box)


def write(agent: "Agent", path: Path) -> Path:
    """Write the agent to a file.  Raises TrainingError for an unknown suffix or a failed export."""
    if path.suffix not in SUFFIXES:
        raise TrainingError(f"{path} must end in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise TrainingError(f"{path.parent} is not a folder: create it first")
    graph = Graph(agent).eval()
    inputs, names = example_of(agent, graph)
    rows = torch.export.Dim.DYNAMIC
    shapes = (tuple({0: rows} for _ in inputs),)
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(graph, inputs, dynamic_shapes=shapes)
            if path.suffix == ".pt2":
                torch.export.save(program, path)
            else:
                _write_onnx(program, inputs, names, graph.outputs, path)
    except ImportError as error:
        raise TrainingError(
            f"{error}: writing ONNX needs more packages, pip install '.[export]' in a checkout of"
            " remotely"
        ) from error
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise TrainingError(
            f"{type(agent.model).__name__} cannot be exported: torch.export says: {first}"
        ) from error
    return path


def example_of(agent: "Agent", graph: Graph) -> tuple[tuple[Tensor, ...], list[str]]:
    """Return a batch of example inputs, and their names."""
    inputs = [
        torch.from_numpy(np.zeros((EXAMPLE_ROWS, *leaf.shape), leaf.dtype))
        for leaf in trees.leaves(agent.spec)
    ]
    if isinstance(agent.spec, dict) and ACTION_MASK in agent.spec:
        inputs[graph.inputs.index(ACTION_MASK)].fill_(True)
    names = list(graph.inputs)
    if graph.is_recurrent:
        inputs += [
            networks.initial_state(agent.model, EXAMPLE_ROWS),
            torch.ones(EXAMPLE_ROWS, dtype=torch.bool),
        ]
        names += ["state", "begins"]
    return tuple(inputs), names


@contextlib.contextmanager
def quiet() -> Any:
    """Suppress torch's progress messages and warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _write_onnx(
    program: Any, inputs: tuple[Tensor, ...], names: list[str], outputs: list[str], path: Path
) -> None:
    torch.onnx.export(
        program,
        inputs,
        str(path),
        input_names=names,
        output_names=outputs,
        dynamic_shapes=(tuple({0: "N"} for _ in inputs),),  # names the axis
        dynamo=True,
        external_data=False,
    )


def _numbered(tree: trees.Tree) -> trees.Tree:
    numbers = iter(range(len(trees.leaves(tree))))
    return trees.map_tree(lambda _: next(numbers), tree)


def _names_of(tree: trees.Tree) -> list[str]:
    """Return a name for each leaf; no two are equal."""
    names: list[str] = []
    for path, _ in trees.items(tree):
        name = _named(path)
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        names.append(next(one for one in itertools.chain([name], numbered) if one not in names))
    return names


def _named(path: trees.Path) -> str:
    if path == (ACTION_MASK,):
        return ACTION_MASK
    rest = path[1:] if path[:1] == (OBSERVATION,) else path
    return "_".join(["obs", *map(str, rest)])
