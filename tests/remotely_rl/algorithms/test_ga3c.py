"""GA3C: losses, agents, the server, and learning with all of them together."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import remotely
from remotely_rl import a2c, ppo
from remotely_rl.algorithms import ga3c
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.learning.inference_server import Prediction, Server
from remotely_rl.runs import metrics
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = ga3c.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=8,
    train_rows=1,
    random_start=0,
    learning_rate=0.01,
    learning_rate_end=0.01,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    epochs=1,
    minibatches=1,
    clip_range=0.0,
    normalize_advantage=False,
    target_kl=0.0,
    gae_lambda=1.0,
)
COIN = Discrete(2)


# --- losses ---------------------------------------------------------------------------------------


def some_rows() -> tuple[torch.Tensor, torch.Tensor, Transitions]:
    torch.manual_seed(0)
    policy, value = torch.randn(9, 2), torch.randn(9)
    numbers = [torch.randn(9) for _ in range(4)]
    return policy, value, Transitions(torch.randint(0, 2, (9,)), *numbers)


def test_without_a_clip_losses_above_the_floor_are_those_of_a2c() -> None:
    some = some_rows()
    ours = ga3c.compute_losses(*some, CONFIG, 0.01, COIN)
    torch.testing.assert_close(ours, a2c.compute_losses(*some, a2c.Config(), 0.01, COIN))


def test_with_a_clip_losses_are_those_of_ppo() -> None:
    some = some_rows()
    ours = ga3c.compute_losses(*some, dataclasses.replace(CONFIG, clip_range=0.3), 0.01, COIN)
    torch.testing.assert_close(
        ours, ppo.compute_losses(*some, ppo.Config(clip_range=0.3), 0.01, COIN)
    )


def one_in_a_hundred() -> tuple[torch.Tensor, Transitions]:
    """An action that the policy has since abandoned: pi = (1/100, 99/100); A = 2."""
    policy = torch.tensor([[0.0, math.log(99.0)]], requires_grad=True)
    half = torch.tensor([math.log(0.5)])
    return policy, Transitions(torch.tensor([0]), half, torch.tensor([2.0]), torch.zeros(1), half)


@pytest.mark.parametrize(
    ("floor", "loss", "pull"),
    [
        (1e-6, 2 * math.log(100), 2 * 0.99),
        (0.0, 2 * math.log(100), 2 * 0.99),
        (0.1, 2 * math.log(10), 0.0),
    ],
)
def test_the_log_probability_of_an_abandoned_action_is_floored(
    floor: float, loss: float, pull: float
) -> None:
    policy, rows = one_in_a_hundred()
    config = dataclasses.replace(CONFIG, probability_floor=floor)
    out = ga3c.compute_losses(policy, torch.zeros(1), rows, config, 0.0, COIN)
    assert out.policy.item() == pytest.approx(loss)
    (grad,) = torch.autograd.grad(out.total, policy)
    assert grad[0].tolist() == pytest.approx([-pull, pull])


# --- agents ---------------------------------------------------------------------------------------


class StubServer:
    """A stand-in for the server that answers with a model, and keeps the trajectories."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.requests = 0
        self.received: list[Trajectory] = []

    @torch.no_grad()
    def predict(self, obs: NDArray[Any]) -> Prediction:
        self.requests += 1
        policy, value = self.model(torch.from_numpy(obs))
        return Prediction(policy.numpy(), value.numpy(), version=self.requests)

    def train_on(self, trajectory: Trajectory) -> None:
        self.received.append(trajectory)


def test_an_agent_plays_like_an_actor_with_the_servers_model() -> None:
    model = toys.network()
    server: Any = StubServer(model)
    agent = remotely.local(ga3c.Agent, CONFIG, server, 5)
    actor = toys.actor(CONFIG, model, seed=5)
    names = {field.name for field in dataclasses.fields(Trajectory)} - {"version"}
    for _ in range(3):
        found, want = agent.sample(), actor.sample()
        assert (found.steps, found.episodes) == (want.steps, want.episodes)
        for name in names:
            received = getattr(server.received[-1], name)
            assert (received == getattr(want.trajectory, name)).all(), name


def test_an_agent_queries_each_observation_once_and_records_the_oldest_version() -> None:
    server: Any = StubServer(toys.network())
    agent = remotely.local(ga3c.Agent, CONFIG, server, 5)
    for _ in range(3):
        agent.sample()
    assert server.requests == 9 + 8 + 8  # the last prediction is the next trajectory's first
    # The stub numbers its answers: 1 to 9, of which the ninth is used again, and so on.
    versions = [trajectory.version.tolist() for trajectory in server.received]
    assert versions == [[1] * 4, [9] * 4, [17] * 4]


def test_an_agent_raises_the_error_of_its_server() -> None:
    class Refusing(StubServer):
        def train_on(self, trajectory: Trajectory) -> None:
            raise RuntimeError("the queue is gone")

    server: Any = Refusing(toys.network())
    agent = remotely.local(ga3c.Agent, CONFIG, server, 5)
    with pytest.raises(RuntimeError, match="the queue is gone"):
        agent.sample()


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local")
def test_a_one_step_game_is_learnt_and_resumed(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=0.97, total_steps=30_000)
    result = ga3c.train(config, run=tmp_path / "run")
    assert "is reached" in result.ended
    resumed = ga3c.train(
        dataclasses.replace(config, target=None, total_steps=result.env_steps + 300),
        resume=tmp_path / "run",
    )
    assert resumed.updates > result.updates
    assert resumed.return_mean > 0.9  # it has forgotten nothing
    *_, row = metrics.read(tmp_path / "run" / "metrics.csv")
    assert row["time/updates"] == resumed.updates


@pytest.mark.usefixtures("local")
def test_a_dead_server_ends_the_run_and_the_last_checkpoint_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    ga3c.train(dataclasses.replace(CONFIG, total_steps=200), run=run)
    before = (run / "checkpoint.pt").read_bytes()

    def die(*_: object) -> None:
        raise remotely.ActorDied("InferenceServer-1 ended with SIGKILL", exit="SIGKILL")

    monkeypatch.setattr(Server, "report", die)
    monkeypatch.setattr(Server, "state", die)
    with pytest.raises(
        LearnerLost, match="the inference server is gone: InferenceServer-1 ended with SIGKILL"
    ):
        ga3c.train(dataclasses.replace(CONFIG, total_steps=900), resume=run)
    assert (run / "checkpoint.pt").read_bytes() == before
    assert f"the last good checkpoint is kept: --resume {run}" in capsys.readouterr().out


@pytest.mark.usefixtures("local")
def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match="agents keep no recurrent state; to train an LSTM use a2c, ppo"
    ):
        ga3c.train(CONFIG, toys.with_a_memory, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("here")
def test_in_processes_every_request_gets_its_own_answer() -> None:
    config = dataclasses.replace(CONFIG, predictors=3, predict_requests=4, train_rows=10**6)
    server: Any = ga3c.make_server(config, toys.network(), COIN)
    random = np.random.default_rng(0)
    requests = [random.normal(size=(1 + number % 4, 2)).astype(np.float32) for number in range(60)]
    calls = [remotely.submit(server.predict, request) for request in requests]
    with torch.no_grad():
        for request, call in zip(requests, calls, strict=True):
            answer = call.result(30)
            policy, value = toys.network()(torch.from_numpy(request))
            np.testing.assert_allclose(answer.policy, policy.numpy(), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(answer.value, value.numpy(), rtol=1e-5, atol=1e-6)
    report = server.report(0)
    assert report.requests == 60
    assert report.batches < 60  # some are answered together
    remotely.close(server)


@pytest.mark.usefixtures("here")
def test_in_processes_it_learns_from_agents_that_lag(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, predictors=2, trainers=2, train_rows=32, total_steps=2000)
    result = ga3c.train(config, run=tmp_path / "run")
    assert result.return_mean > 0.9
    assert toys.staleness(tmp_path / "run") > 0


def test_processes_include_the_server() -> None:
    assert dataclasses.replace(CONFIG, actors=64).processes == 65


@pytest.mark.usefixtures("here")
def test_a_run_ends_its_server_once_it_is_saved(tmp_path: Path) -> None:
    ga3c.train(dataclasses.replace(CONFIG, total_steps=300), run=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert not [actor for actor in remotely.status().actors if "InferenceServer" in actor.name]
