"""GA3C: agents, predictors and trainers, each by itself, and that together they learn."""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
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
from remotely_rl.learning.inference_server import QUEUED, Prediction, Server, inference_server
from remotely_rl.learning.learner import Learner
from remotely_rl.learning.tuner import RateWindow
from remotely_rl.runs import metrics
from tests.clusters import wait_until
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = ga3c.Config(
    env=toys.Guess, actors=2, envs_per_actor=4, rollout_steps=8, train_rows=1, random_start=0,
    learning_rate=0.01, learning_rate_end=0.01, log_interval_s=1e6, checkpoint_interval_s=1e6,
    epochs=1, minibatches=1, clip_range=0.0, normalize_advantage=False, target_kl=0.0,
    gae_lambda=1.0,
)  # fmt: skip
COIN = Discrete(2)


class Servers:
    """Makes servers in this process, and ends their trainers after the test."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, config: ga3c.Config = CONFIG, observations: int = 2) -> Any:
        model = toys.network(observations)
        self.made.append(remotely.local(inference_server(config), config, model, COIN, ga3c.update))
        return self.made[-1]


def trainers() -> int:
    return sum("(_train)" in thread.name for thread in threading.enumerate())


def equal(found: Callable[[], int], wanted: int) -> bool:
    return found() == wanted


@pytest.fixture(scope="module", autouse=True)
def no_trainer_left() -> Iterator[None]:
    yield
    wait_until(lambda: trainers() == 0, "all trainers have left")


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    for server in servers.made:
        server.close()


def played(model: torch.nn.Module | None = None, **changes: Any) -> Trajectory:
    return toys.actor(CONFIG, model or toys.network(), **changes).sample().trajectory


def updates(server: Any, count: int) -> list[tuple[dict[str, float], list[int]]]:
    """The next so many updates, waited for."""
    found: list[tuple[dict[str, float], list[int]]] = []

    def come() -> bool:
        found.extend(server.report(0).updates)
        return len(found) >= count

    wait_until(come, f"{count} updates")
    return found


# --- losses ---------------------------------------------------------------------------------------


def some_rows() -> tuple[torch.Tensor, torch.Tensor, Transitions]:
    torch.manual_seed(0)
    policy, value = torch.randn(9, 2), torch.randn(9)
    numbers = [torch.randn(9) for _ in range(4)]
    return policy, value, Transitions(torch.randint(0, 2, (9,)), *numbers)


def test_above_the_floor_its_losses_without_a_clip_are_those_of_a2c() -> None:
    some = some_rows()
    ours = ga3c.compute_losses(*some, CONFIG, 0.01, COIN)
    torch.testing.assert_close(ours, a2c.compute_losses(*some, a2c.Config(), 0.01, COIN))


def test_with_a_clip_its_losses_are_those_of_ppo() -> None:
    some = some_rows()
    ours = ga3c.compute_losses(*some, dataclasses.replace(CONFIG, clip_range=0.3), 0.01, COIN)
    torch.testing.assert_close(
        ours, ppo.compute_losses(*some, ppo.Config(clip_range=0.3), 0.01, COIN)
    )


def one_in_a_hundred() -> tuple[torch.Tensor, Transitions]:
    """A policy that has given up the action that it once took, pi = (1/100, 99/100); A = 2."""
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
def test_an_action_that_was_given_up_meanwhile_counts_as_no_rarer_than_the_floor(
    floor: float, loss: float, pull: float
) -> None:
    policy, rows = one_in_a_hundred()
    config = dataclasses.replace(CONFIG, probability_floor=floor)
    out = ga3c.compute_losses(policy, torch.zeros(1), rows, config, 0.0, COIN)
    assert out.policy.item() == pytest.approx(loss)
    (grad,) = torch.autograd.grad(out.total, policy)
    assert grad[0].tolist() == pytest.approx([-pull, pull])


# --- the inference server -------------------------------------------------------------------------


def synchronous_config(kind: type[Any], config: ga3c.Config) -> Any:
    """Another algorithm's config with the fields that both have."""
    names = [field.name for field in dataclasses.fields(kind) if hasattr(config, field.name)]
    return kind(**{name: getattr(config, name) for name in names})


SEVERAL = dataclasses.replace(
    CONFIG, epochs=3, clip_range=0.2, normalize_advantage=True, target_kl=0.01, gae_lambda=0.9
)


@pytest.mark.parametrize(("like", "config"), [(a2c, CONFIG), (ppo, SEVERAL)], ids=["a2c", "ppo"])
def test_learning_one_by_one_its_updates_are_those_of_a2c_or_with_several_epochs_of_ppo(
    servers: Servers, like: Any, config: ga3c.Config
) -> None:
    server = servers(config)
    synchronous = Learner(synchronous_config(like.Config, config), toys.network(), COIN)
    for number in range(3):
        trajectory = played(synchronous.model, seed=number)
        want = like.update(synchronous, trajectory, 0)
        server.train_on(trajectory)
        ((numbers, staleness),) = updates(server, 1)
        assert numbers == pytest.approx(want)
        assert staleness == [number] * 4  # of the parameters of the beginning
        torch.testing.assert_close(
            toys.weights(server.learner.model), toys.weights(synchronous.model)
        )


def test_each_minibatch_of_each_epoch_is_a_step_and_all_of_them_are_one_update(
    servers: Servers,
) -> None:
    server = servers(dataclasses.replace(SEVERAL, minibatches=2))
    server.train_on(played())
    updates(server, 1)
    (kept, *_) = server.learner.optimizer.state.values()
    assert (int(kept["step"]), server.learner.version) == (6, 1)


def test_the_reward_of_an_episodes_last_step_counts(servers: Servers) -> None:
    trajectory = played()
    assert (trajectory.terminated == trajectory.valid).all()  # all steps are last ones
    without = dataclasses.replace(trajectory, reward=np.zeros_like(trajectory.reward))
    assert (trajectory.reward != without.reward).any()
    results = []
    for told in (trajectory, without):
        server = servers()
        server.train_on(told)
        updates(server, 1)
        results.append(toys.weights(server.learner.model))
    assert not torch.equal(*results)


def test_what_an_autoreset_row_holds_never_changes_an_update(servers: Servers) -> None:
    trajectory = played(rollout_steps=7)
    reset = ~trajectory.valid
    spoilt = dataclasses.replace(
        trajectory,
        action=np.where(reset, 1 - trajectory.action, trajectory.action),
        reward=np.where(reset, 1e6, trajectory.reward).astype(np.float32),
        log_prob=np.where(reset, -9.0, trajectory.log_prob).astype(np.float32),
    )
    results = []
    for told in (trajectory, spoilt):
        server = servers()
        server.train_on(told)
        updates(server, 1)
        results.append(toys.weights(server.learner.model))
    assert torch.equal(*results)


def test_a_trainer_waits_for_so_many_rows_and_learns_from_all_of_them_at_once(
    servers: Servers,
) -> None:
    server = servers(dataclasses.replace(CONFIG, train_rows=40))  # a trajectory holds 16
    for number in range(6):
        server.train_on(played(seed=number))
    assert [len(staleness) for _, staleness in updates(server, 2)] == [12, 12]


def test_several_trainers_learn_all_that_they_are_told_and_their_lag_is_counted(
    servers: Servers,
) -> None:
    server = servers(dataclasses.replace(CONFIG, trainers=3))
    told = [played(seed=number) for number in range(20)]
    for trajectory in told:
        server.train_on(trajectory)
    found = updates(server, 20)
    assert len(found) == server.learner.version == 20
    assert [staleness for _, staleness in found] == [[n] * 4 for n in range(20)]


def test_trainers_come_and_go_at_run_time_and_learning_goes_on(servers: Servers) -> None:
    wait_until(lambda: trainers() == 0, "those of the test before have left")
    server = servers()
    for count in (3, 1, 2):
        server.resize(predictors=2, trainers=count)
        for number in range(4):
            server.train_on(played(seed=number))
        assert len(updates(server, 4)) == 4
        wait_until(partial(equal, trainers, count), f"there are {count} trainers")


def test_agents_wait_where_trainers_are_slower(servers: Servers) -> None:
    server = servers()
    server.resize(1, 0)
    trajectory = played()
    told = threading.Thread(
        target=lambda: [server.train_on(trajectory) for _ in range(QUEUED + 4)], daemon=True
    )
    told.start()
    wait_until(server._queue.full, "the queue is full")
    assert told.is_alive()
    server.resize(1, 1)
    told.join(10)
    assert not told.is_alive()
    assert len(updates(server, QUEUED)) >= QUEUED


def test_a_trainer_that_fails_is_heard_of_and_nobody_waits_for_it(servers: Servers) -> None:
    server = servers()
    poison = played(env=toys.Poisoned)
    server.train_on(poison)
    with pytest.raises(LearnerLost, match="NaN or infinite at update 1"):
        updates(server, 1)
    for _ in range(2 * QUEUED):
        server.train_on(poison)  # returns, though there is no room


def test_an_answer_is_what_the_newest_parameters_say(servers: Servers) -> None:
    server = servers()
    obs = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    first = server.predict(obs)
    server.train_on(played())
    updates(server, 1)
    second = server.predict(obs)
    assert (first.version, second.version) == (0, 1)
    with torch.no_grad():
        policy, value = server.learner.model(torch.from_numpy(obs))
    np.testing.assert_allclose(second.policy, policy.numpy())
    np.testing.assert_allclose(second.value, value.numpy())
    assert (first.policy != second.policy).any()


def test_requests_that_are_answered_together_get_each_its_own_answer(servers: Servers) -> None:
    server = servers()
    random = np.random.default_rng(0)
    sizes = (1, 5, 2)
    requests = [random.normal(size=(size, 2)).astype(np.float32) for size in sizes]
    answers = Server.predict(server, requests)
    assert [len(answer.value) for answer in answers] == list(sizes)
    for request, answer in zip(requests, answers, strict=True):
        alone = server.predict(request)
        np.testing.assert_allclose(answer.policy, alone.policy, rtol=1e-5)
        np.testing.assert_allclose(answer.value, alone.value, rtol=1e-5)
    report = server.report(0)
    assert (report.requests, report.batches) == (6, 4)


def test_a_report_tells_of_what_was_since_the_one_before(servers: Servers) -> None:
    server = servers()
    server.predict(np.zeros((1, 2), np.float32))
    server.train_on(played())
    assert len(updates(server, 1)) == 1
    report = server.report(0)
    assert (report.updates, report.requests) == ([], 0)


def test_the_schedule_follows_the_steps_that_are_reported(servers: Servers) -> None:
    server = servers(dataclasses.replace(CONFIG, learning_rate_end=0.0, anneal_steps=100))
    server.report(50)
    server.train_on(played())
    wait_until(lambda: server.learner.version == 1, "an update")
    ((numbers, _),) = server.report(50).updates
    assert numbers["train/learning_rate"] == pytest.approx(0.005)


def test_a_server_that_is_restored_goes_on_to_the_same_bit(servers: Servers) -> None:
    one, other = servers(), servers()
    one.train_on(played())
    updates(one, 1)
    other.load(one.state())
    for server in (one, other):
        server.train_on(played(seed=9))
        updates(server, 1)
    assert other.learner.version == 2
    assert torch.equal(toys.weights(one.learner.model), toys.weights(other.learner.model))
    assert torch.equal(toys.weights(other.learner.model), toys.weights(other.acting))


# --- agents ---------------------------------------------------------------------------------------


class StubServer:
    """In place of a server: answers by a model, and keeps the trajectories."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.requests = 0
        self.told: list[Trajectory] = []

    @torch.no_grad()
    def predict(self, obs: NDArray[Any]) -> Prediction:
        self.requests += 1
        policy, value = self.model(torch.from_numpy(obs))
        return Prediction(policy.numpy(), value.numpy(), version=self.requests)

    def train_on(self, trajectory: Trajectory) -> None:
        self.told.append(trajectory)


def test_an_agent_plays_as_an_actor_with_the_servers_model_would() -> None:
    model = toys.network()
    server: Any = StubServer(model)
    agent = remotely.local(ga3c.Agent, CONFIG, server, 5)
    actor = toys.actor(CONFIG, model, seed=5)
    names = {field.name for field in dataclasses.fields(Trajectory)} - {"version"}
    for _ in range(3):
        told, want = agent.sample(), actor.sample()
        assert (told.steps, told.episodes) == (want.steps, want.episodes)
        for name in names:
            assert (getattr(server.told[-1], name) == getattr(want.trajectory, name)).all(), name


def test_an_agent_asks_once_for_each_observation_and_says_how_old_the_oldest_answer_is() -> None:
    server: Any = StubServer(toys.network())
    agent = remotely.local(ga3c.Agent, CONFIG, server, 5)
    for _ in range(3):
        agent.sample()
    assert server.requests == 9 + 8 + 8  # the last answer says what to do next, too
    # Answers are numbered here: 1 to 9, of which the ninth is used again, and so on.
    assert [told.version.tolist() for told in server.told] == [[1] * 4, [9] * 4, [17] * 4]


def test_an_agent_whose_server_refuses_its_experience_says_so() -> None:
    class Refusing(StubServer):
        def train_on(self, trajectory: Trajectory) -> None:
            raise RuntimeError("the queue is gone")

    server: Any = Refusing(toys.network())
    agent = remotely.local(ga3c.Agent, CONFIG, server, 5)
    with pytest.raises(RuntimeError, match="the queue is gone"):
        agent.sample()


def test_a_window_tells_the_rate_of_what_came_in_it() -> None:
    window = RateWindow(begins=10.0, length=5.0)
    assert window.add(100, now=9.0) is None  # before it begins
    assert window.add(10, now=12.0) is None
    assert window.add(10, now=15.0) == 4.0
    assert window.add(3, now=19.0) is None
    assert window.add(3, now=21.0) == 1.0


# --- all together ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("local")
def test_a_game_of_one_step_is_learnt_in_seconds(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=0.97, total_steps=30_000)
    result = ga3c.train(config, run=tmp_path / "run")
    assert "is reached" in result.ended
    resumed = ga3c.train(
        dataclasses.replace(config, target=None, total_steps=result.env_steps + 300),
        resume=tmp_path / "run",
    )
    assert resumed.updates > result.updates
    assert resumed.return_mean > 0.9  # it has forgotten nothing
    (_, row) = metrics.read(tmp_path / "run" / "metrics.csv")
    assert row["time/updates"] == resumed.updates


@pytest.mark.usefixtures("local")
def test_a_server_that_dies_ends_the_run_and_the_last_checkpoint_is_kept(
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
def test_a_memory_is_refused_with_what_would_take_one(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, lstm=4)
    with pytest.raises(
        TrainingError, match="agents keep no recurrent state; to train an LSTM use a2c, ppo"
    ):
        ga3c.train(config, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("here")
def test_in_processes_every_request_gets_its_own_answer_from_however_many_predictors() -> None:
    config = dataclasses.replace(CONFIG, predict_requests=4, train_rows=10**6)
    server: Any = ga3c.make_server(config, toys.network(), COIN)
    random = np.random.default_rng(0)
    requests = [random.normal(size=(1 + number % 4, 2)).astype(np.float32) for number in range(60)]
    calls = []
    for number, request in enumerate(requests):
        calls.append(remotely.submit(server.predict, request))
        if number in (20, 40):
            server.resize(predictors={20: 3, 40: 2}[number], trainers=1)
    with torch.no_grad():
        for request, call in zip(requests, calls, strict=True):
            answer = call.result(30)
            policy, value = toys.network()(torch.from_numpy(request))
            np.testing.assert_allclose(answer.policy, policy.numpy(), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(answer.value, value.numpy(), rtol=1e-5, atol=1e-6)
    report = server.report(0)
    assert report.requests == 60
    assert report.batches < 60  # many are answered together
    remotely.close(server)


@pytest.mark.usefixtures("here")
def test_in_processes_it_learns_while_the_numbers_of_each_are_tried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ga3c, "WARM_UP_S", 0.0)
    config = dataclasses.replace(
        CONFIG, adjust_s=0.05, most_agents=4, train_rows=32, total_steps=2000
    )
    result = ga3c.train(config, run=tmp_path / "run")
    assert result.return_mean > 0.9
    assert capsys.readouterr().out.count("updates a second; now {'agents': ") >= 2
    (row,) = metrics.read(tmp_path / "run" / "metrics.csv")
    assert row["train/staleness_mean"] > 0  # nobody waits for anybody


def test_a_run_has_room_for_the_server_beside_all_agents() -> None:
    assert dataclasses.replace(CONFIG, actors=64).processes == 65
    tried = dataclasses.replace(CONFIG, actors=4, most_agents=100, adjust_s=1.0)
    assert tried.processes == 101


@pytest.mark.usefixtures("here")
def test_a_run_ends_its_server_once_it_is_saved(tmp_path: Path) -> None:
    ga3c.train(dataclasses.replace(CONFIG, total_steps=300), run=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert not [actor for actor in remotely.status().actors if "InferenceServer" in actor.name]
