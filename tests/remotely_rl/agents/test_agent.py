"""Tests of Agent and its export: shapes, masks, recurrent state, and graphs."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from remotely_rl import TrainingError, dqn, ppo, sac, td3
from remotely_rl.acting.policy import Trained
from remotely_rl.agents import export
from remotely_rl.agents.agent import Agent
from remotely_rl.runs import training


class Camera(gymnasium.Env[Any, Any]):
    """Observes a picture, channels last, and a speed; the last of three actions is illegal."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (36, 40, 3), np.uint8),
            "speed": spaces.Box(-1.0, 1.0, (), np.float32),
        }
    )
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {"action_mask": np.array([1, 1, 0], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, info = self.reset()
        return obs, 0.0, False, False, info


def agent_of(kind: Any, env: Any, **settings: Any) -> Agent:
    torch.manual_seed(0)
    config = kind.Config(env=env, device="cpu", **settings)
    trained = Trained(config, training.make_learner(config).model.eval())
    envs = trained.environments(1)
    envs.reset(0)
    envs.close()
    return Agent(trained, envs.spaces)


@pytest.fixture(scope="module")
def cart() -> Agent:
    return agent_of(ppo, "CartPole-v1")


@pytest.fixture(scope="module")
def camera() -> Agent:
    return agent_of(ppo, Camera)


def samples(agent: Agent, count: int) -> list[Any]:
    agent.observation_space.seed(3)
    return [agent.observation_space.sample() for _ in range(count)]


def test_one_observation_gives_an_action_of_the_environment(cart: Agent) -> None:
    assert cart.action_space.contains(cart.act(samples(cart, 1)[0]))


def test_a_batch_has_the_actions_of_its_single_observations() -> None:
    agent = agent_of(sac, "Pendulum-v1")
    several = samples(agent, 5)
    together = agent.act(np.stack(several))
    alone = [agent.act(one) for one in several]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-5)


def test_deterministic_actions_are_equal_and_sampled_ones_differ(cart: Agent) -> None:
    obs = np.stack([samples(cart, 1)[0]] * 64)
    assert len(set(cart.act(obs).tolist())) == 1
    assert len(set(cart.act(obs, deterministic=False).tolist())) == 2


def test_a_mask_applies_to_single_observations_and_batches(camera: Agent) -> None:
    obs = samples(camera, 1)[0]
    for legal in range(3):
        mask = np.eye(3, dtype=np.int8)[legal]
        assert camera.act(obs, mask=mask) == legal - 1
        many = {key: np.stack([part] * 4) for key, part in obs.items()}
        assert camera.act(many, mask=np.stack([mask] * 4)).tolist() == [legal - 1] * 4


def test_a_missing_mask_is_refused(camera: Agent) -> None:
    with pytest.raises(TrainingError, match=r'pass mask=info\["action_mask"\]'):
        camera.act(samples(camera, 1)[0])


def test_a_mask_that_is_added_to_logits_is_refused(camera: Agent) -> None:
    obs = samples(camera, 1)[0]
    with pytest.raises(TrainingError, match=r"1 or True for each legal action"):
        camera.act(obs, mask=np.array([0, 0, -1e9]))


def test_an_agent_trained_without_masks_refuses_a_mask(cart: Agent) -> None:
    with pytest.raises(TrainingError, match="trained without action masks"):
        cart.act(samples(cart, 1)[0], mask=np.ones(2))


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 5)), np.zeros(())])
def test_an_observation_of_another_shape_is_refused(cart: Agent, bad: Any) -> None:
    with pytest.raises(TrainingError, match=r"has \[4\], and a batch of N has \[N, 4"):
        cart.act(bad)


def test_bytes_may_be_given_as_integers_but_not_as_floats(camera: Agent) -> None:
    obs = samples(camera, 1)[0]
    mask, many = np.ones(3), {key: np.stack([part] * 2) for key, part in obs.items()}
    expected = camera.act(obs, mask=mask)
    assert camera.act(obs | {"picture": obs["picture"].tolist()}, mask=mask) == expected
    wide = many | {"picture": many["picture"].astype(np.int64)}
    assert camera.act(wide, mask=np.ones((2, 3))).tolist() == [expected] * 2
    scaled = obs | {"picture": obs["picture"] / 255}
    with pytest.raises(
        TrainingError, match=r"^obs\['picture'\] has dtype float64, and its space uint8"
    ):
        camera.act(scaled, mask=np.ones(3))


def test_an_observation_with_nan_is_refused(cart: Agent, camera: Agent) -> None:
    with pytest.raises(TrainingError, match=r"^obs, row 1, has NaN"):
        cart.act(np.array([[0, 0, 0, 0], [0, 0, 0, np.nan]]))
    with pytest.raises(TrainingError, match=r"^obs\['speed'\] has NaN"):
        camera.act(samples(camera, 1)[0] | {"speed": np.float32(np.nan)}, mask=np.ones(3))


def test_a_missing_part_of_an_observation_is_named(camera: Agent) -> None:
    with pytest.raises(TrainingError, match="obs has no 'speed'"):
        camera.act({"picture": np.zeros((36, 40, 3), np.uint8)}, mask=np.ones(3))


def policies(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return a list that collects the policies of the agent from now on."""
    seen: list[torch.Tensor] = []
    best = type(agent.config).best

    def watched(config: Any, actions: Any, policy: torch.Tensor) -> torch.Tensor:
        seen.append(policy)
        return best(config, actions, policy)

    monkeypatch.setattr(type(agent.config), "best", watched)
    return seen


def test_the_recurrent_state_lasts_until_an_episode_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = agent_of(ppo, "CartPole-v1", lstm=8)
    obs, seen = samples(agent, 1)[0], policies(agent, monkeypatch)
    agent.act(obs)
    agent.act(obs)
    agent.act(obs, begins=True)
    agent.act(obs)
    agent.reset()
    agent.act(obs)
    first, second, begun, after, reset = seen
    assert torch.equal(first, begun)
    assert torch.equal(first, reset)
    assert torch.equal(second, after)
    assert not torch.equal(first, second)


def test_each_row_of_a_batch_has_its_own_recurrent_state(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(ppo, "CartPole-v1", lstm=8)
    obs, seen = np.stack(samples(agent, 2)), policies(agent, monkeypatch)
    agent.act(obs)
    agent.act(obs, begins=[True, False])
    torch.testing.assert_close(seen[0][0], seen[1][0])
    assert not torch.equal(seen[0][1], seen[1][1])


def graph_and_results(agent: Agent, rows: int) -> tuple[list[str], Any, Any]:
    """Return names and values of inputs, and the outputs of the agent's graph in torch."""
    graph = export.Graph(agent).eval()
    examples, names = export.example_of(agent, graph)
    generator = torch.Generator().manual_seed(5)
    inputs = [
        torch.rand(rows, *x.shape[1:], generator=generator)
        if x.is_floating_point()
        else torch.randint(0, 2, (rows, *x.shape[1:]), generator=generator).to(x.dtype)
        for x in examples
    ]
    with torch.no_grad():
        return names, inputs, graph(*inputs)


@pytest.mark.parametrize(
    ("kind", "env", "settings"),
    [
        (sac, "Pendulum-v1", {}),
        pytest.param(ppo, "CartPole-v1", {"lstm": 8}, marks=pytest.mark.slow),
        pytest.param(dqn, "ALE/Pong-v5", {}, marks=pytest.mark.slow),
    ],
)
def test_an_onnx_file_computes_the_same_for_any_batch_size(
    kind: Any, env: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    agent = agent_of(kind, env, **settings)
    session = onnxruntime.InferenceSession(str(agent.export(tmp_path / "agent.onnx")))
    assert {part.shape[0] for part in [*session.get_inputs(), *session.get_outputs()]} == {"N"}
    for rows in (1, 7):
        names, inputs, expected = graph_and_results(agent, rows)
        given = {name: one.numpy() for name, one in zip(names, inputs, strict=True)}
        for one, other in zip(session.run(None, given), expected, strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [sac, td3])
def test_an_exported_program_chooses_the_agents_actions(kind: Any, tmp_path: Path) -> None:
    agent = agent_of(kind, "Pendulum-v1")
    program = torch.export.load(agent.export(tmp_path / "agent.pt2")).module()
    obs = np.stack(samples(agent, 5))
    with torch.no_grad():
        action = program(torch.from_numpy(obs))[0]
    np.testing.assert_allclose(action.numpy(), agent.act(obs), rtol=1e-5, atol=1e-6)


def test_masks_and_nested_observations_are_inputs_of_the_graph(camera: Agent) -> None:
    names, _, results = graph_and_results(camera, 3)
    assert names == ["obs_picture", "obs_speed", "action_mask"]
    assert results[0].shape == (3,)


def test_an_export_with_an_unknown_suffix_is_refused(cart: Agent, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"must end in \.onnx or \.pt2"):
        cart.export(tmp_path / "agent.tflite")


class Unpredictable(torch.nn.Module):
    """Has data-dependent control flow."""

    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.policy = torch.nn.Linear(shape[0], outputs)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if obs.sum().item() > 0:
            obs = -obs
        return self.policy(obs), obs[:, 0]


def test_an_error_names_a_model_that_cannot_be_exported(tmp_path: Path) -> None:
    config = ppo.Config(env="CartPole-v1", device="cpu")
    trained = Trained(config, training.make_learner(config, model=Unpredictable).model.eval())
    envs = trained.environments(1)
    with pytest.raises(TrainingError, match="Unpredictable cannot be exported"):
        Agent(trained, envs.spaces).export(tmp_path / "agent.pt2")
    envs.close()
