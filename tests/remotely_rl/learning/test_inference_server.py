"""The inference server: predictors and trainers."""

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import remotely
from remotely_rl import a2c, ppo
from remotely_rl.algorithms import ga3c
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import LearnerLost
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.learning.inference_server import QUEUED, Server, Update, inference_server
from remotely_rl.learning.learner import Learner
from tests.clusters import wait_until
from tests.remotely_rl import toys

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


class Servers:
    """Creates servers in this process, and ends their trainers after the test."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, config: ga3c.Config = CONFIG, update: Update = ga3c.update) -> Any:
        kind = inference_server(config)
        self.made.append(remotely.local(kind, config, toys.network(), COIN, update))
        return self.made[-1]


def trainers() -> int:
    return sum("(_train)" in thread.name for thread in threading.enumerate())


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
    """Wait for the next `count` updates."""
    found: list[tuple[dict[str, float], list[int]]] = []

    def arrived() -> bool:
        found.extend(server.report(0).updates)
        return len(found) >= count

    wait_until(arrived, f"{count} updates")
    return found


def learnt(server: Any, trajectory: Trajectory) -> torch.Tensor:
    """The weights after an update on a trajectory."""
    server.train_on(trajectory)
    updates(server, 1)
    return toys.weights(server.learner.model)


SEVERAL = dataclasses.replace(
    CONFIG, epochs=3, clip_range=0.2, normalize_advantage=True, target_kl=0.01, gae_lambda=0.9
)


@pytest.mark.parametrize(("like", "config"), [(a2c, CONFIG), (ppo, SEVERAL)], ids=["a2c", "ppo"])
def test_one_trainer_makes_the_updates_of_a2c_or_ppo(
    servers: Servers, like: Any, config: ga3c.Config
) -> None:
    server = servers(config)
    unscaled = {"rate_rule": "none"} if like is a2c else {}
    as_other = toys.converted(config, like.Config, **unscaled)
    synchronous = Learner(as_other, toys.network(), COIN)
    for number in range(3):
        trajectory = played(synchronous.model, seed=number)
        want = like.update(synchronous, trajectory, 0)
        server.train_on(trajectory)
        ((numbers, staleness),) = updates(server, 1)
        assert numbers == pytest.approx(want)
        assert staleness == [number] * 4  # the trajectories are of version 0
        torch.testing.assert_close(
            toys.weights(server.learner.model), toys.weights(synchronous.model)
        )


def test_each_minibatch_is_a_step_and_all_epochs_are_one_update(servers: Servers) -> None:
    server = servers(dataclasses.replace(SEVERAL, minibatches=2))
    server.train_on(played())
    updates(server, 1)
    (kept, *_) = server.learner.optimizer.state.values()
    assert (int(kept["step"]), server.learner.version) == (6, 1)


def test_the_reward_of_an_episodes_last_step_counts(servers: Servers) -> None:
    trajectory = played()
    assert (trajectory.terminated == trajectory.valid).all()  # every step is a last one
    without = dataclasses.replace(trajectory, reward=np.zeros_like(trajectory.reward))
    assert (trajectory.reward != without.reward).any()
    assert not torch.equal(learnt(servers(), trajectory), learnt(servers(), without))


def test_the_contents_of_reset_rows_never_change_an_update(servers: Servers) -> None:
    trajectory = played(rollout_steps=7)
    reset = ~trajectory.valid
    spoilt = dataclasses.replace(
        trajectory,
        action=np.where(reset, 1 - trajectory.action, trajectory.action),
        reward=np.where(reset, 1e6, trajectory.reward).astype(np.float32),
        log_prob=np.where(reset, -9.0, trajectory.log_prob).astype(np.float32),
    )
    assert torch.equal(learnt(servers(), trajectory), learnt(servers(), spoilt))


def test_a_trainer_waits_for_train_rows_and_learns_from_all_of_them(servers: Servers) -> None:
    server = servers(dataclasses.replace(CONFIG, train_rows=40))  # a trajectory holds 16
    for number in range(6):
        server.train_on(played(seed=number))
    assert [len(staleness) for _, staleness in updates(server, 2)] == [12, 12]


def test_several_trainers_learn_from_every_trajectory_and_record_staleness(
    servers: Servers,
) -> None:
    server = servers(dataclasses.replace(CONFIG, trainers=3))
    for trajectory in [played(seed=number) for number in range(20)]:
        server.train_on(trajectory)
    found = updates(server, 20)
    assert len(found) == server.learner.version == 20
    assert [staleness for _, staleness in found] == [[n] * 4 for n in range(20)]


def test_train_on_blocks_while_the_queue_is_full(servers: Servers) -> None:
    go_on = threading.Event()

    def update(*given: Any) -> None:
        go_on.wait(40)
        ga3c.update(*given)

    server = servers(update=update)
    trajectory = played()
    accepted: list[int] = []

    def send() -> None:
        for number in range(QUEUED + 4):
            server.train_on(trajectory)
            accepted.append(number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    wait_until(lambda: len(accepted) == QUEUED + 1, "the trainer has one, and the queue is full")
    assert sender.is_alive()
    go_on.set()
    sender.join(40)
    assert not sender.is_alive()
    assert len(updates(server, QUEUED)) >= QUEUED


def test_the_error_of_a_trainer_is_reported_and_unblocks_agents(servers: Servers) -> None:
    server = servers()
    poison = played(env=toys.poisoned)
    server.train_on(poison)
    with pytest.raises(LearnerLost, match="NaN or infinite at update 1"):
        updates(server, 1)
    for _ in range(2 * QUEUED):
        server.train_on(poison)  # returns, although the queue is full


def test_predictions_use_the_newest_parameters(servers: Servers) -> None:
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


def test_batched_requests_get_their_own_answers(servers: Servers) -> None:
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


def test_a_report_covers_the_time_since_the_last_one(servers: Servers) -> None:
    server = servers()
    server.predict(np.zeros((1, 2), np.float32))
    server.train_on(played())
    assert len(updates(server, 1)) == 1
    report = server.report(0)
    assert (report.updates, report.requests) == ([], 0)


def test_report_sets_the_progress_of_the_schedule(servers: Servers) -> None:
    server = servers(dataclasses.replace(CONFIG, learning_rate_end=0.0))
    server.report(0.5)
    server.train_on(played())
    wait_until(lambda: server.learner.version == 1, "an update")
    ((numbers, _),) = server.report(0.5).updates
    assert numbers["train/learning_rate"] == pytest.approx(0.005)


def test_a_restored_server_continues_bit_for_bit(servers: Servers) -> None:
    one, other = servers(), servers()
    learnt(one, played())
    other.load(one.state())
    weights = [learnt(server, played(seed=9)) for server in (one, other)]
    assert other.learner.version == 2
    assert torch.equal(*weights)
    assert torch.equal(weights[1], toys.weights(other.acting))
