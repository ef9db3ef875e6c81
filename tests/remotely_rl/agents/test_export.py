"""Every kind of space that trains is exported, and the graph chooses the agent's actions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from remotely_rl import algorithms, networks, trees
from remotely_rl.acting.policy import Trained
from remotely_rl.agents import export
from remotely_rl.agents.agent import Agent
from remotely_rl.environments.masks import Masks
from tests.remotely_rl.space_toys import FOR_BOXES

ROWS = (1, 3)  # of batches that a graph is given; it is traced with two
STEPS = 3  # of an episode, if the model has a memory
THREE = spaces.Discrete(3, start=-1)


class Seen(gymnasium.Env[Any, Any]):
    """An environment of any spaces, in which each mask is legal."""

    def __init__(self, seen: gymnasium.Space[Any], taken: gymnasium.Space[Any], mask: Any = None):
        self.observation_space, self.action_space = seen, taken
        self.info = {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, self.info


def box(dtype: Any, *shape: int, high: int = 1) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


OBSERVATIONS: dict[str, gymnasium.Space[Any]] = {
    "vector of float64": box(np.float64, 3),
    "vector of int32": box(np.int32, 3, high=9),
    "number": box(np.float32),
    "table": box(np.float32, 3, 2),
    "cube": box(np.float16, 2, 2, 2, 2),
    "vector of bytes": box(np.uint8, 3, high=255),
    "image": box(np.uint8, 20, 21, 3, high=255),
    "image of one channel": box(np.uint8, 20, 21, high=255),
    "image of floats": box(np.float32, 3, 20, 21),
    "stack of colour images": box(np.uint8, 2, 8, 9, 3, high=255),
    "discrete": spaces.Discrete(5),
    "discrete that starts at 3": spaces.Discrete(4, start=3),
    "multi-discrete": spaces.MultiDiscrete([3, 4, 2]),
    "multi-discrete of two axes": spaces.MultiDiscrete([[3, 4], [2, 2]], start=[[1, 0], [-1, 5]]),  # type: ignore[list-item]
    "multi-binary": spaces.MultiBinary(4),
    "multi-binary of two axes": spaces.MultiBinary([2, 3]),
    "nested": spaces.Dict(
        {
            "camera": box(np.uint8, 8, 6, 1, high=255),
            "room": spaces.Discrete(4),
            "more": spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"x": box(np.float32, 2)})]),
        }
    ),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 2])]),
    "mask in the observation": spaces.Dict(
        {"observation": spaces.Discrete(5), "action_mask": spaces.MultiBinary(3)}
    ),
}
ACTIONS: dict[str, tuple[gymnasium.Space[Any], Any]] = {
    "discrete": (THREE, None),
    "masked discrete": (THREE, np.array([1, 0, 1], np.int8)),
    "multi-discrete": (spaces.MultiDiscrete([2, 3], start=[1, -1]), None),
    "masked multi-discrete": (spaces.MultiDiscrete([2, 3]), np.array([1, 0, 0, 1, 1], np.int8)),
    "multi-binary": (spaces.MultiBinary(3), None),
    "box": (spaces.Box(np.array([-2, 0], np.float32), np.array([2, 9], np.float32)), None),
    "box of two axes": (box(np.float64, 2, 2), None),
    "unbounded box": (spaces.Box(-np.inf, np.inf, (2,)), None),
    "box of integers": (box(np.int16, 2, high=5), None),
    "dict": (
        spaces.Dict({"arm": spaces.Tuple([box(np.float32, 1)]), "hand": spaces.Discrete(3)}),
        None,
    ),
}
# Without images but that in "nested": each would add seconds.
EVERY_OBSERVATION = {
    key: space for key, space in OBSERVATIONS.items() if "image" not in key and "mask" not in key
}
EVERY_ACTION = {key: space for key, (space, mask) in ACTIONS.items() if mask is None}
ALONE = [
    *((seen, "discrete", 0) for seen in OBSERVATIONS),
    *(("nested", taken, 0) for taken in ACTIONS if taken != "discrete"),
    ("discrete", "masked discrete", 4),
    ("nested", "multi-discrete", 4),
    ("image", "box", 4),
]


def agent_of(
    seen: gymnasium.Space[Any],
    taken: gymnasium.Space[Any],
    mask: Any = None,
    lstm: int = 0,
    algorithm: str = "ppo",
    **settings: Any,
) -> Agent:
    """Make an agent that nobody has trained; its weights are large, so that actions differ."""
    torch.manual_seed(4)
    by = algorithms.named(algorithm)
    more = {"lstm": lstm} if lstm else {}
    config = by.Config(
        env=lambda: Seen(seen, taken, mask), hidden="8", device="cpu", **more, **settings
    )
    envs = config.make_environments(1)
    envs.reset(0)
    envs.close()
    model = config.make_model(None, envs.spec, envs.actions).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.1 * torch.randn_like(parameter))
    return Agent(Trained(config, model), envs.spaces)


def observations(agent: Agent, rows: int) -> Any:
    space = batch_space(agent.observation_space, rows)
    space.seed(rows)
    obs = space.sample()
    if isinstance(obs, dict) and "action_mask" in obs:
        obs["action_mask"][:, 0] = 1
    return obs


def inputs_of(agent: Agent, obs: Any, mask: Any, rows: int) -> list[np.ndarray[Any, Any]]:
    """Return the inputs of the agent's graph, without those of a memory."""
    seen = agent.spaces.observations.of(obs)
    if agent.spaces.is_masked:
        given = obs["action_mask"] if mask is None else np.stack([mask] * rows)
        seen = {"observation": seen, "action_mask": Masks(agent.actions, rows).of(given)}
    return list(trees.leaves(seen))


def check_actions(agent: Agent, mask: Any, graph: Callable[..., Any]) -> None:
    """Compare the actions of an agent's graph with those of the agent, over an episode."""
    has_action = "action" in export.Graph(agent).outputs
    for rows in ROWS:
        state = networks.initial_state(agent.model, rows).numpy()
        agent.reset()
        for step in range(STEPS if state.shape[1] else 1):
            obs = observations(agent, rows)
            inputs = inputs_of(agent, obs, mask, rows)
            if state.shape[1]:
                inputs += [state, np.full(rows, step == 0)]
            outputs = [np.asarray(one) for one in graph(*inputs)]
            if state.shape[1]:
                *outputs, state = outputs
            policy = torch.from_numpy(outputs[-2])
            action = outputs[0] if has_action else None
            if action is None:
                greedy = agent.config.best(agent.actions, policy).numpy()
                action = agent.actions.to_environment(greedy)
            wanted = agent.act(obs, mask=None if mask is None else np.stack([mask] * rows))
            for one, other in zip(trees.leaves(action), trees.leaves(wanted), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def program_of(agent: Agent, folder: Path) -> Callable[..., Any]:
    module = torch.export.load(agent.export(folder / "agent.pt2")).module()

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            return module(*map(torch.from_numpy, inputs))

    return run


def session_of(agent: Agent, folder: Path) -> Callable[..., Any]:
    session = onnxruntime.InferenceSession(str(agent.export(folder / "agent.onnx")))
    names = [one.name for one in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))


FORMATS = {"pt2": program_of, "onnx": session_of}


def test_a_program_chooses_an_agents_actions_whatever_it_sees_and_does(tmp_path: Path) -> None:
    agent = agent_of(spaces.Dict(EVERY_OBSERVATION), spaces.Dict(EVERY_ACTION))
    check_actions(agent, None, program_of(agent, tmp_path))


def test_an_onnx_file_has_the_masks_and_the_memory_of_an_agent(tmp_path: Path) -> None:
    mask = np.array([1, 0, 1], np.int8)
    agent = agent_of(spaces.Discrete(5), THREE, mask, lstm=4)
    check_actions(agent, mask, session_of(agent, tmp_path))


def test_inputs_whose_keys_would_have_one_name_are_numbered(tmp_path: Path) -> None:
    two = spaces.Dict({"b": box(np.float32, 3), "b_2": spaces.Discrete(3)})
    agent = agent_of(spaces.Dict({"a": two, "a_b": box(np.float32, 2), "a_b_2": THREE}), THREE)
    names = ["obs_a_b", "obs_a_b_2", "obs_a_b_3", "obs_a_b_2_2"]
    assert export.Graph(agent).inputs == names
    check_actions(agent, None, session_of(agent, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(("seen", "taken", "lstm"), ALONE)
def test_a_graph_chooses_the_actions_of_an_agent_of_these_spaces(
    seen: str, taken: str, lstm: int, ending: str, tmp_path: Path
) -> None:
    space, mask = ACTIONS[taken]
    agent = agent_of(OBSERVATIONS[seen], space, mask, lstm)
    check_actions(agent, mask, FORMATS[ending](agent, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "lstm"),
    [
        *((name, 0) for name in ("pqn", "dqn", "c51", "qr_dqn", "rainbow", "sac", "td3", "crossq")),
        ("dqn", 4),
        ("rainbow", 4),
    ],
)
def test_a_graph_chooses_the_actions_of_an_agent_of_this_algorithm(
    algorithm: str, lstm: int, tmp_path: Path
) -> None:
    taken = "box" if algorithm in FOR_BOXES else "masked discrete"
    space, mask = ACTIONS[taken]
    agent = agent_of(OBSERVATIONS["nested"], space, mask, lstm, algorithm)
    check_actions(agent, mask, program_of(agent, tmp_path))
