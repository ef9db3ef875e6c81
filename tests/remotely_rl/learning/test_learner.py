"""Who learns, without a cluster: lessons, steps, rates, and what is kept of it all."""

import copy
import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remotely_rl import a2c, algorithms, ga3c, networks, ppo
from remotely_rl.config import Common
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import returns
from remotely_rl.learning.learner import Learner, Lesson, Memory, Rows, join, steered
from tests.remotely_rl import toys

CONFIG = a2c.Config(
    env=toys.Guess, envs_per_actor=4, rollout_steps=6, random_start=0, anneal_steps=1000,
    scale_rate=False,
)  # fmt: skip
ACTIONS = Discrete(2)


def learner(config: Common = CONFIG, model: nn.Module | None = None) -> Learner:
    return Learner(config, model or toys.network(), ACTIONS)


def remembering() -> nn.Module:
    torch.manual_seed(0)
    return networks.recurrent_network((2,), 2, units=5)


def played(config: Common = CONFIG, model: nn.Module | None = None, **changes: Any) -> Trajectory:
    return toys.actor(config, model or toys.network(), **changes).sample().trajectory


def lesson_of(learns: Learner, trajectory: Trajectory) -> Lesson:
    batch = learns.take(trajectory)
    target = returns.gae(batch.reward, batch.discount, batch.value, valid=batch.valid)
    return learns.lesson(batch, batch.log_prob, target)


def numbered(rows: int) -> Lesson:
    """Rows that say which they are."""
    number = torch.arange(rows)
    column = number.float()
    return Lesson(column[:, None], Rows(number, column, column, column, column))


def numbered_pieces(steps: int, width: int) -> Lesson:
    """Rows that say which they are, 100 * step + environment, with a memory."""
    number = 100 * torch.arange(steps)[:, None] + torch.arange(width)
    column = number.float()
    memory = Memory(torch.arange(width).float()[:, None], number % 3 == 0, number % 5 > 0)
    return Lesson(column[..., None], Rows(number, column, column, column, column), memory)


# --- lessons --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "count"), [(8, 4), (10, 4), (9, 4), (7, 7), (3, 8), (1, 1)])
def test_the_parts_of_a_lesson_hold_every_row_once(rows: int, count: int) -> None:
    parts = list(numbered(rows).parts(count, torch.Generator()))
    met = torch.cat([part.rows.action for part in parts])
    assert sorted(met.tolist()) == list(range(rows))
    sizes = [len(part.obs) for part in parts]
    assert len(sizes) == min(rows, count)
    assert max(sizes) - min(sizes) <= 1
    for part in parts:  # what is learnt of an observation stays with it
        assert torch.equal(part.obs[:, 0], part.rows.action.float())
        assert all(torch.equal(part.obs[:, 0], column) for column in part.rows[1:])


@pytest.mark.parametrize(("width", "count"), [(8, 4), (10, 4), (9, 4), (3, 8)])
def test_the_parts_of_a_lesson_with_memory_hold_every_environment_whole(
    width: int, count: int
) -> None:
    parts = list(numbered_pieces(5, width).parts(count, torch.Generator()))
    met = torch.cat([part.rows.action[0] for part in parts])
    assert sorted(met.tolist()) == list(range(width))
    sizes = [part.obs.shape[1] for part in parts]
    assert len(sizes) == min(width, count)
    assert max(sizes) - min(sizes) <= 1
    whole = numbered_pieces(5, width)
    assert whole.memory is not None
    for part in parts:
        which = part.rows.action[0]
        assert part.memory is not None
        assert torch.equal(part.obs, whole.obs[:, which])  # time is never shuffled
        assert torch.equal(part.memory.state, whole.memory.state[which])
        assert torch.equal(part.memory.begins, whole.memory.begins[:, which])
        assert torch.equal(part.memory.valid, whole.memory.valid[:, which])


def test_parts_are_drawn_anew_each_time() -> None:
    random = torch.Generator()
    one, other = (next(iter(numbered(100).parts(2, random))).rows.action for _ in range(2))
    assert not torch.equal(one, other)


def test_joined_lessons_hold_the_rows_of_all() -> None:
    both = join([numbered(3), numbered(4)])
    assert both.rows.action.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert both.obs.shape == (7, 1)
    assert both.memory is None
    alone = numbered(3)
    assert join([alone]) is alone


def test_joined_lessons_with_memory_stand_side_by_side() -> None:
    both = join([numbered_pieces(5, 2), numbered_pieces(5, 3)])
    assert both.obs.shape == (5, 5, 1)
    assert both.rows.action[1].tolist() == [100, 101, 100, 101, 102]
    assert both.memory is not None
    assert both.memory.state[:, 0].tolist() == [0, 1, 0, 1, 2]
    assert both.memory.begins.shape == both.memory.valid.shape == (5, 5)


def test_a_model_with_a_memory_is_asked_about_pieces_and_learns_of_the_experience_in_them() -> None:
    lesson = numbered_pieces(4, 3)
    seen: list[tuple[Tensor, ...]] = []

    def model(*asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(asked)
        obs, state, _ = asked
        return obs.expand(-1, -1, 2), obs[..., 0], state

    policy, value, rows = lesson.ask(model)
    assert lesson.memory is not None
    ((obs, state, begins),) = seen
    assert obs is lesson.obs
    assert state is lesson.memory.state
    assert begins is lesson.memory.begins
    valid = lesson.rows.action[lesson.memory.valid]
    assert 0 < len(valid) < 12
    assert torch.equal(rows.action, valid)
    assert torch.equal(value, valid.float())
    assert torch.equal(policy[:, 1], valid.float())


def test_rows_that_are_no_experience_are_left_out_of_a_lesson() -> None:
    learns = learner(model=toys.network(1))
    trajectory = played(model=learns.model, env=toys.Counting)
    lesson = lesson_of(learns, trajectory)
    assert len(lesson.obs) == trajectory.valid.sum() < trajectory.valid.size
    assert 3.0 not in lesson.obs  # the observation that a Counting episode ends with
    assert all(len(part) == len(lesson.obs) for part in lesson.rows)


def test_advantages_are_scaled_by_what_is_experience_alone() -> None:
    learns = learner(dataclasses.replace(CONFIG, normalize_advantage=True), toys.network(1))
    lesson = lesson_of(learns, played(model=learns.model, env=toys.Counting))
    torch.testing.assert_close(lesson.rows.advantage.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    deviation = lesson.rows.advantage.std(correction=0)
    torch.testing.assert_close(deviation, torch.tensor(1.0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("make", [lambda: toys.network(2), remembering], ids=["rows", "memory"])
@pytest.mark.parametrize("normalize_advantage", [False, True], ids=["plain", "standardised"])
def test_what_an_autoreset_row_holds_never_changes_an_update(
    make: Any, minibatches: int, normalize_advantage: bool
) -> None:
    config = ppo.Config(
        env=toys.Guess, envs_per_actor=4, rollout_steps=7, minibatches=minibatches,
        normalize_advantage=normalize_advantage, normalize_values=normalize_advantage,
    )  # fmt: skip
    trajectory = played(config, make())
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
        learns = learner(config, make())
        torch.manual_seed(1)
        ppo.update(learns, fed, env_steps=0)
        results.append(toys.weights(learns.model))
    assert torch.equal(*results)
    assert not torch.equal(results[0], toys.weights(make()))


# --- what is learnt from --------------------------------------------------------------------------


def test_rewards_are_clipped_in_the_learner_alone() -> None:
    trajectory = played(model=toys.network(1), env=toys.Counting)
    assert trajectory.reward.max() == 30.0
    by_one = dataclasses.replace(CONFIG, reward_clip=1.0)
    clipped = learner(by_one, toys.network(1)).take(trajectory)
    raw = learner(dataclasses.replace(CONFIG, reward_clip=0.0), toys.network(1)).take(trajectory)
    assert clipped.reward.max() == 1.0
    assert raw.reward.max() == 30.0


@pytest.mark.parametrize(("env", "bound"), [("ALE/Pong-v5", 1.0), ("CartPole-v1", 0.0)])
def test_by_default_rewards_are_clipped_in_atari_alone_and_values_scaled_where_they_are_not(
    env: str, bound: float
) -> None:
    config = dataclasses.replace(CONFIG, env=env)
    assert config.clips_rewards_at == bound
    assert config.normalizes_values == (bound == 0.0)
    given = dataclasses.replace(config, reward_clip=2.0, normalize_values=True)
    assert (given.clips_rewards_at, given.normalizes_values) == (2.0, True)


def test_an_update_says_which_part_of_the_rewards_was_clipped() -> None:
    # Episodes of three steps give 10, 20 and 30; the row after is no experience.
    config = dataclasses.replace(CONFIG, env=toys.Counting, reward_clip=10.0)
    learns = learner(config, toys.network(1))
    numbers = a2c.update(learns, played(config, toys.network(1), rollout_steps=8), 0)
    assert numbers["train/rewards_clipped"] == pytest.approx(2 / 3)
    unclipped = learner(dataclasses.replace(config, reward_clip=0.0), toys.network(1))
    assert "train/rewards_clipped" not in a2c.update(unclipped, played(config, toys.network(1)), 0)


def test_only_a_terminated_step_has_no_discount() -> None:
    for truncates in (False, True):
        env = lambda truncates=truncates: toys.Counting(2, truncates)
        batch = learner(model=toys.network(1)).take(played(model=toys.network(1), env=env))
        gamma = CONFIG.gamma
        want = [gamma, gamma if truncates else 0.0, gamma] * 2
        assert batch.discount[:, 0].tolist() == pytest.approx(want)


def test_values_are_taken_as_the_actor_found_them_unless_they_are_scaled() -> None:
    trajectory = played()
    assert torch.equal(learner().take(trajectory).value, torch.from_numpy(trajectory.value))


@torch.no_grad()
def test_the_newest_parameters_say_what_they_would_have_done() -> None:
    trajectory = played()
    learns = learner(model=toys.network(seed=9))
    said, value = learns.look(learns.take(trajectory))
    log_prob = ACTIONS.log_prob(said[:-1], torch.from_numpy(trajectory.action))
    policy, want = learns.model(torch.from_numpy(trajectory.obs).flatten(0, 1))
    torch.testing.assert_close(value, want.view(7, 4))
    taken = policy.log_softmax(-1).view(7, 4, 2)[:-1]
    taken = taken.gather(-1, torch.from_numpy(trajectory.action)[..., None])[..., 0]
    torch.testing.assert_close(log_prob, taken)


# --- updates --------------------------------------------------------------------------------------


def test_an_update_is_one_step_of_adam_on_the_losses_written_out() -> None:
    config = dataclasses.replace(CONFIG, max_grad_norm=0.1, learning_rate=0.01)
    learns = learner(config)
    networks.update_normalizers(learns.model, torch.randn(50, 2))
    learns.version = 5  # not the first
    lesson = lesson_of(learns, played())

    by_hand = copy.deepcopy(learns.model)
    policy, value = by_hand(lesson.obs)
    probability = policy.softmax(-1)
    chosen = probability.gather(-1, lesson.rows.action[:, None])[:, 0]
    total = (
        -(chosen.log() * lesson.rows.advantage).mean()
        + config.value_coef * 0.5 * ((value - lesson.rows.target) ** 2).mean()
        - config.entropy_coef * -(probability * probability.log()).sum(-1).mean()
    )
    gradients = torch.autograd.grad(total, list(by_hand.parameters()))
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norm > 0.1
    for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
        clipped = gradient * 0.1 / norm
        with torch.no_grad():  # Adam's first step: m / (1 - b1) is g, v / (1 - b2) is g^2
            parameter.sub_(0.01 * clipped / (clipped.abs() + 1e-5))

    numbers = learns.learn(lesson, a2c.compute_losses)
    for ours, theirs in zip(learns.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert numbers["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert learns.version == 6


def test_an_update_goes_over_its_lesson_as_often_as_it_is_told_in_as_many_parts() -> None:
    learns = learner()
    sizes: list[int] = []

    def compute_losses(policy: Tensor, *rest: Any) -> Any:
        sizes.append(len(policy))
        return a2c.compute_losses(policy, *rest)

    lesson = lesson_of(learns, played(rollout_steps=5))
    rows = len(lesson.obs)
    learns.learn(lesson, compute_losses, epochs=3, minibatches=2)
    assert len(sizes) == 6
    assert [sum(pair) for pair in zip(sizes[::2], sizes[1::2], strict=True)] == [rows] * 3
    assert learns.version == 1  # one update, of six steps


def test_the_distance_moved_is_that_of_the_last_pass() -> None:
    learns = learner()
    kl = iter([8.0, 8.0, 8.0, 1.0, 2.0, 3.0])

    def compute_losses(*given: Any) -> Any:
        return a2c.compute_losses(*given)._replace(kl=torch.tensor(next(kl)))

    lesson = lesson_of(learns, played())
    numbers = learns.learn(lesson, compute_losses, epochs=2, minibatches=3)
    assert numbers["train/approx_kl"] == 2.0


def test_observations_are_counted_in_once_and_never_between_acting_and_learning() -> None:
    learns = learner()
    counts: list[float] = []

    def compute_losses(*given: Any) -> Any:
        counts.append(learns.model.state_dict()["normalizer.count"].item())
        return a2c.compute_losses(*given)

    sizes = []
    for _ in range(3):
        lesson = lesson_of(learns, played(rollout_steps=8))
        sizes.append(len(range(0, len(lesson.obs), 7)))
        learns.learn(lesson, compute_losses)
    one, two, three = itertools.accumulate(sizes)
    assert counts == [0, one, two]
    assert learns.model.state_dict()["normalizer.count"].item() == three


def test_a_step_by_gradients_from_elsewhere_is_the_same_step() -> None:
    trajectory = played()
    here, there = learner(), learner()
    for _ in range(3):
        numbers = here.learn(lesson_of(here, trajectory), a2c.compute_losses)
        lesson = lesson_of(there, trajectory)
        elsewhere = copy.deepcopy(there.model)
        found, gradients = there.gradient(lesson, a2c.compute_losses, elsewhere)
        assert there.finish([there.apply(found, gradients)], lesson, 1) == numbers
        assert torch.equal(toys.weights(here.model), toys.weights(there.model))
    assert here.version == there.version == 3


def test_what_actors_are_sent_is_a_copy_and_says_its_version() -> None:
    learns = learner()
    sent = learns.parameters()
    assert sent.version == 0
    before = sent.state["policy.weight"].copy()
    learns.learn(lesson_of(learns, played()), a2c.compute_losses)
    assert (sent.state["policy.weight"] == before).all()
    assert learns.parameters().version == 1


def test_a_reward_that_is_no_number_loses_the_learner_and_the_update_is_named() -> None:
    learns = learner()
    a2c.update(learns, played(), 0)
    with pytest.raises(LearnerLost, match=r"update 2 diverged: .* look for rewards or"):
        a2c.update(learns, played(env=toys.Poisoned), 0)


def test_an_error_of_the_gpu_loses_the_learner_too() -> None:
    def compute_losses(*given: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nmore of it")

    learns = learner()
    with pytest.raises(LearnerLost, match=r"the GPU is gone: CUDA error: unspecified launch failu"):
        learns.learn(lesson_of(learns, played()), compute_losses)


def test_a_learner_that_is_restored_goes_on_to_the_same_bit() -> None:
    config = ppo.Config(env=toys.Guess, envs_per_actor=4, rollout_steps=6, normalize_values=True)
    learns = learner(config)
    ppo.update(learns, played(config), 0)
    again = learner(config, toys.network(seed=3))
    again.load(learns.state())
    for one in (learns, again):
        torch.manual_seed(3)
        ppo.update(one, played(config), 24)
    assert torch.equal(toys.weights(learns.model), toys.weights(again.model))
    assert again.version == learns.version == 2
    assert again.rate == learns.rate
    assert again.scale.moments == learns.scale.moments


def test_a_learner_that_is_restored_shares_nothing_with_what_it_was_restored_from() -> None:
    learns = learner()
    a2c.update(learns, played(), 0)
    kept = copy.deepcopy(learns.state())
    again = learner()
    given = copy.deepcopy(kept)
    again.load(given)
    a2c.update(again, played(), 0)
    of_first, of_given, of_now = (
        state["optimizer"]["state"][0]["exp_avg"] for state in (kept, given, again.state())
    )
    assert torch.equal(of_given, of_first)
    assert not torch.equal(of_now, of_first)


# --- random numbers -------------------------------------------------------------------------------


def test_a_learner_draws_from_a_stream_of_its_own_which_goes_on_after_a_resume() -> None:
    config = ppo.Config(env=toys.Guess, minibatches=4)
    one, other = learner(config), learner(config)
    lesson = numbered(100)
    torch.manual_seed(1)
    first = [part.rows.action for part in lesson.over(1, 4, one.random)]
    state = copy.deepcopy(one.state())
    second = [part.rows.action for part in lesson.over(1, 4, one.random)]
    torch.manual_seed(2)
    again = [part.rows.action for part in lesson.over(1, 4, other.random)]
    assert all(map(torch.equal, first, again))
    other.load(state)
    again = [part.rows.action for part in lesson.over(1, 4, other.random)]
    assert all(map(torch.equal, second, again))


def test_the_random_numbers_of_a_gpu_are_saved_with_its_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = {"state": torch.tensor([7], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: stream["state"])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: stream.update(state=state)
    )
    learns = learner()
    assert learns.state()["cuda_random"] is None
    learns.device = torch.device("cuda")
    state = learns.state()
    stream["state"] = torch.tensor([8], dtype=torch.uint8)
    learns.load(state)
    assert stream["state"].item() == 7


# --- rates and units ------------------------------------------------------------------------------


def test_rate_and_entropy_go_to_their_ends_and_stay_there() -> None:
    learns = learner()
    rates, weights = [], []
    for steps in (0, 500, 1000, 9000):
        learns.follow(steps)
        rates.append(learns.rate)
        weights.append(learns.entropy_coef)
    low, high = 1e-4, CONFIG.learning_rate
    assert rates == pytest.approx([high, (low + high) / 2, low, low])
    low, high = CONFIG.entropy_coef_end, CONFIG.entropy_coef
    assert weights == pytest.approx([high, (low + high) / 2, low, low])


@pytest.mark.parametrize(
    ("given", "end"),
    [({}, 1e-4), ({"learning_rate": 1e-6}, 1e-6), ({"learning_rate_end": 3e-3}, 3e-3)],
)
def test_a_schedule_never_goes_up_unless_that_is_asked_for(
    given: dict[str, Any], end: float
) -> None:
    assert a2c.Config(anneal_steps=100, **given).learning_rate_at(100) == pytest.approx(end)


STEERED = ppo.Config(learning_rate=3e-4, learning_rate_end=1e-4, target_kl=0.01)


@pytest.mark.parametrize(
    ("moved", "rate"),
    [(0.001, 4.5e-4), (0.005, 3e-4), (0.01, 3e-4), (0.02, 3e-4), (0.03, 2e-4), (math.inf, 2e-4)],
)
def test_the_rate_is_steered_to_how_far_an_update_is_to_move(moved: float, rate: float) -> None:
    assert steered(3e-4, moved, STEERED) == pytest.approx(rate)


def test_the_steered_rate_has_bounds() -> None:
    rate = STEERED.learning_rate
    for _ in range(20):
        rate = steered(rate, 0.0, STEERED)
    assert rate == STEERED.learning_rate * 4
    for _ in range(30):
        rate = steered(rate, 1.0, STEERED)
    assert rate == pytest.approx(1e-4 / 10)


def test_a_steered_rate_follows_no_schedule_and_holds_from_the_next_update_on() -> None:
    learns = learner(ppo.Config(target_kl=1000.0))  # nothing moves so far
    first = ppo.update(learns, played(), 500)
    second = ppo.update(learns, played(), 500)
    assert first["train/learning_rate"] == 1e-3
    assert second["train/learning_rate"] == pytest.approx(1e-3 * 1.5)
    assert learns.optimizer.param_groups[0]["lr"] == second["train/learning_rate"]


def test_a_steered_rate_is_resumed_unless_another_is_given() -> None:
    learns = learner(ppo.Config(target_kl=1000.0))
    ppo.update(learns, played(), 0)
    for given, goes_on_at in ((1e-3, 1.5e-3), (1e-5, 1e-5)):
        again = learner(ppo.Config(target_kl=1000.0, learning_rate=given))
        again.load(learns.state())
        assert again.rate == pytest.approx(goes_on_at)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("a2c", {}),
        ("a3c", {}),
        ("ppo", {"epochs": 1, "minibatches": 1}),
        ("impala", {"epochs": 1, "minibatches": 1}),
        ("ga3c", {"epochs": 1, "minibatches": 1}),
    ],
)
def test_no_rate_is_steered_where_an_update_is_one_step(name: str, given: dict[str, int]) -> None:
    with pytest.raises(TrainingError, match="target_kl must be 0"):
        algorithms.named(name).Config(target_kl=0.01, **given)


@pytest.mark.parametrize("template", [ppo, ga3c])
def test_the_rate_is_steered_by_the_update_alone_however_old_its_experience_is(
    template: Any,
) -> None:
    config = template.Config(env=toys.Guess, envs_per_actor=4)
    learns = learner(config, toys.network(seed=9))
    learns.version = 1  # what acted is of version 0, and another network
    lesson = learns.on_policy(played(config))
    assert (lesson.rows.begun - lesson.rows.log_prob).abs().max() > 0.001
    assert learns.losses(lesson, template.compute_losses).kl.item() == pytest.approx(0, abs=1e-6)


def test_decoupled_the_bound_is_around_the_policy_before_the_update_and_rho_weighs_advantages() -> (
    None
):
    config = ppo.Config(env=toys.Guess, envs_per_actor=4, normalize_advantage=False)
    learns = learner(config, toys.network(seed=9))
    trajectory = played(config)
    fresh = learns.on_policy(trajectory, decoupled=True)
    learns.version = 1  # what acted is of version 0, and another network
    behind, coupled = learns.on_policy(trajectory, decoupled=True), learns.on_policy(trajectory)
    assert torch.equal(fresh.rows.log_prob, coupled.rows.log_prob)  # of who acted
    assert torch.equal(behind.rows.log_prob, coupled.rows.begun)  # of who learns
    rho = (coupled.rows.begun - coupled.rows.log_prob).exp().clamp(max=2)
    assert (rho - 1).abs().max() > 0.001
    torch.testing.assert_close(behind.rows.advantage, coupled.rows.advantage * rho)


def test_scaled_values_are_learnt_in_their_own_units_and_used_in_those_of_rewards() -> None:
    config = dataclasses.replace(CONFIG, normalize_values=True, reward_clip=0.0)
    learns = learner(config, toys.network(1))
    trajectory = played(config, toys.network(1), env=toys.Counting)
    lesson = lesson_of(learns, trajectory)
    target = lesson.rows.target
    torch.testing.assert_close(target.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(target.std(correction=0), torch.tensor(1.0), atol=1e-2, rtol=0)
    mean, deviation = learns.scale.mean, learns.scale.deviation
    assert mean > 10  # rewards are 10, 20, 30
    batch = learns.take(trajectory)
    want = torch.from_numpy(trajectory.value) * deviation + mean
    torch.testing.assert_close(batch.value, want)
    with torch.no_grad():
        _, value = learns.look(batch)
    torch.testing.assert_close(learns.unscaled(value), want)
