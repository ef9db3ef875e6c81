"""The learner's update, and the actor, without a cluster."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from remotely import local
from remotely_rl import impala, models, returns
from remotely_rl.environments import Source
from remotely_rl.errors import TrainingError
from remotely_rl.sampler import Parameters
from tests.remotely_rl import toys

CONFIG = impala.Config(
    env=toys.Guess,
    envs_per_actor=4,
    trajectory_steps=6,
    batch_trajectories=1,
    minibatches=2,
    decay_steps=1000,
)
PAPER = dataclasses.replace(CONFIG, passes=1, minibatches=1, standardise=False, trace_decay=1.0)


def network(observations: int = 2) -> models.MLP:
    torch.manual_seed(0)
    return models.MLP((observations,), 2)


def learner(config: impala.Config = CONFIG, observations: int = 2) -> impala.Learner:
    return impala.Learner(config, network(observations))


def actor(of: impala.Learner, env: Source = toys.Guess, **changes: Any) -> impala.Actor:
    config = dataclasses.replace(of.config, env=env, **changes)
    return local(impala.Actor, config, of.model, 5)


def weights(of: impala.Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.model.parameters()])


def test_a_rollout_goes_on_where_the_last_one_ended() -> None:
    sampler = actor(learner(observations=1), toys.Counting)
    first, second = sampler.sample().trajectory, sampler.sample().trajectory
    assert first.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2]  # episodes of 3, and a reset row
    assert first.valid[:, 0].tolist() == [True, True, True, False, True, True]
    assert second.obs[:, 0, 0].tolist() == [2, 3, 0, 1, 2, 3, 0]
    assert second.valid[:, 0].tolist() == [True, False, True, True, True, False]


def test_a_rollout_tells_its_games_its_seconds_and_the_version_it_was_sampled_with() -> None:
    learns = learner(observations=1)
    sampler = actor(learns, toys.Counting)
    sampler.set_param(Parameters(7, models.state_of(learns.model)))
    rollout = sampler.sample()
    assert rollout.trajectory.version.tolist() == [7] * 4
    assert [tuple(game) for game in rollout.episodes] == [(60.0, 3)] * 4
    assert rollout.seconds.keys() == {"environment", "inference", "idle"}
    assert all(spent >= 0 for spent in rollout.seconds.values())


def test_the_log_probability_is_that_of_the_policy_that_chose() -> None:
    model = network()
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, math.log(3.0)]))
        model.policy.weight.zero_()
    learns = impala.Learner(CONFIG, model)
    sampler = actor(learns, trajectory_steps=500)
    played = sampler.sample().trajectory
    want = np.where(played.action == 1, 0.75, 0.25)
    np.testing.assert_allclose(np.exp(played.log_prob), want, rtol=1e-5)
    assert abs((played.action == 1).mean() - 0.75) < 0.05


def test_the_same_seed_samples_the_same_and_another_does_not() -> None:
    learns = learner()
    one, same = actor(learns).sample().trajectory, actor(learns).sample().trajectory
    other = local(impala.Actor, learns.config, learns.model, 6).sample().trajectory
    assert (one.action == same.action).all()
    assert (one.action != other.action).any()


def test_an_actor_does_not_act_by_the_learners_own_weights_when_they_share_a_process() -> None:
    learns = learner()
    assert actor(learns).model is not learns.model


@pytest.mark.parametrize("config", [CONFIG, PAPER], ids=["ours", "the paper's"])
def test_what_an_autoreset_row_holds_never_changes_an_update(config: impala.Config) -> None:
    trajectory = actor(learner(config, observations=1), toys.Counting).sample().trajectory
    reset = ~trajectory.valid
    assert reset.any()
    spoilt = dataclasses.replace(
        trajectory,
        action=np.where(reset, 1 - trajectory.action, trajectory.action),
        reward=np.where(reset, 1e6, trajectory.reward).astype(np.float32),
        log_prob=np.where(reset, -9.0, trajectory.log_prob).astype(np.float32),
    )
    results = []
    for fed in (trajectory, spoilt):
        learns = learner(config, observations=1)
        torch.manual_seed(1)
        learns.update(fed, env_steps=0)
        results.append(weights(learns))
    assert torch.equal(*results)


def test_rows_that_are_no_experience_never_reach_the_losses() -> None:
    learns = learner(observations=1)
    trajectory = actor(learns, toys.Counting).sample().trajectory
    rows = impala.targets(learns.model, trajectory, CONFIG)
    assert len(rows.action) == trajectory.valid.sum() < trajectory.valid.size
    assert 3.0 not in rows.obs  # the observation that a Counting episode ends with
    assert all(len(part) == len(rows.action) for part in rows)


def test_the_first_step_follows_the_gradient_of_the_paper() -> None:
    learns = learner(PAPER)
    learns.model.eval()
    trajectory = actor(learns).sample().trajectory
    stale = dataclasses.replace(trajectory, log_prob=trajectory.log_prob + 0.5)  # mu is not pi
    rows = impala.targets(learns.model, stale, PAPER)
    parts = impala.compute_losses(learns.model, rows, PAPER, entropy_weight=0.0)

    # Section 4.2, written out: rho_s grad log pi(a_s) (r_s + gamma v_{s+1} - V_s), with rho < 1.
    logits, value = learns.model(torch.from_numpy(stale.obs).flatten(0, 1))
    log_prob = logits.log_softmax(-1).view(7, 4, 2)[:-1]
    log_prob = log_prob.gather(-1, torch.from_numpy(stale.action)[..., None])[..., 0]
    target = returns.v_trace(
        log_prob.detach() - torch.from_numpy(stale.log_prob),
        torch.from_numpy(stale.reward),
        PAPER.gamma * ~torch.from_numpy(stale.terminated),
        value.detach().view(7, 4),
        valid=torch.from_numpy(stale.valid),
    )
    by_hand = -(log_prob * target.advantage)[torch.from_numpy(stale.valid)].mean()
    weights = list(learns.model.parameters())
    ours = torch.autograd.grad(parts.policy, weights, allow_unused=True, retain_graph=True)
    theirs = torch.autograd.grad(by_hand, weights, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert parts.kl.item() == pytest.approx(0.0, abs=1e-6)


def test_rewards_are_clipped_in_the_learner_alone() -> None:
    model = network(observations=1)
    with torch.no_grad():
        model.value.weight.zero_()
    trajectory = actor(impala.Learner(PAPER, model), toys.Counting).sample().trajectory
    assert trajectory.reward.max() == 30.0
    clipped = impala.targets(model, trajectory, PAPER).target
    raw = impala.targets(model, trajectory, dataclasses.replace(PAPER, reward_clip=0.0)).target
    assert clipped.max() <= 3.0 < 30.0 <= raw.max()


def test_a_truncated_step_bootstraps_and_a_terminated_one_does_not() -> None:
    model = network(observations=1)
    with torch.no_grad():  # V is 8 everywhere
        model.value.weight.zero_()
        model.value.bias.fill_(8.0)
    learns = impala.Learner(PAPER, model)

    def target(truncates: bool) -> float:
        played = actor(
            learns, lambda: toys.Counting(length=1, truncates=truncates), trajectory_steps=1
        )
        return impala.targets(model, played.sample().trajectory, PAPER).target[0].item()

    assert target(truncates=False) == pytest.approx(1.0)
    assert target(truncates=True) == pytest.approx(1.0 + PAPER.gamma * 8.0)


def test_rate_and_entropy_go_to_their_ends_and_stay_there() -> None:
    learns = learner(dataclasses.replace(CONFIG, kl_target=0.0))
    trajectory = actor(learns).sample().trajectory
    rates = [learns.update(trajectory, steps)["learning_rate"] for steps in (0, 500, 1000, 9000)]
    low, high = CONFIG.learning_rate_end, CONFIG.learning_rate
    assert rates == pytest.approx([high, (low + high) / 2, low, low])
    assert learns.version == 4


@pytest.mark.parametrize(
    ("moved", "rate"), [(0.001, 4.5e-4), (0.01, 3e-4), (0.03, 2e-4), (math.inf, 2e-4)]
)
def test_the_rate_is_steered_to_how_far_an_update_is_to_move(moved: float, rate: float) -> None:
    assert impala.steered(3e-4, moved, CONFIG) == pytest.approx(rate)


def test_the_steered_rate_has_bounds() -> None:
    rate = CONFIG.learning_rate
    for _ in range(20):
        rate = impala.steered(rate, 0.0, CONFIG)
    assert rate == CONFIG.learning_rate * 4
    for _ in range(30):
        rate = impala.steered(rate, 1.0, CONFIG)
    assert rate == CONFIG.learning_rate_end / 10


def test_a_learner_that_is_restored_goes_on_to_the_same_bit() -> None:
    learns = learner()
    trajectory = actor(learns).sample().trajectory
    learns.update(trajectory, 0)
    again = learner()
    again.load(learns.state())
    for one in (learns, again):
        torch.manual_seed(3)
        one.update(trajectory, 24)
    assert torch.equal(weights(learns), weights(again))
    assert again.version == learns.version == 2


@pytest.mark.parametrize("config", [CONFIG, PAPER], ids=["ours", "the paper's"])
def test_a_game_of_one_step_is_learnt_in_seconds(config: impala.Config) -> None:
    config = dataclasses.replace(config, learning_rate=5e-3, kl_target=0.0)
    learns = learner(config)
    sampler = actor(learns, trajectory_steps=16)
    scores: list[float] = []
    for _ in range(80):
        rollout = sampler.sample()
        scores = [game.score for game in rollout.episodes]
        learns.update(rollout.trajectory, 0)
        sampler.set_param(learns.parameters())
    assert np.mean(scores) > 0.9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"actors": 0}, "actors must be at least 1, not 0"),
        ({"rho_bar": 0.5}, r"rho_bar \(0.5\) must be at least c_bar"),
        ({"clip": 0.0}, "clip must be above 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_a_sentence(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        dataclasses.replace(CONFIG, **changes)
