"""The replay of a run: its columns, when updates are due, and its messages."""

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import remotely
from remotely_rl import dqn, networks
from remotely_rl.acting.actor import Rollout
from remotely_rl.algorithms.dqn import QActor, QLearner
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.experience.replay import Replay
from remotely_rl.runs import replaying
from remotely_rl.runs.replaying import RunReplay
from remotely_rl.runs.session import Session
from tests.remotely_rl import toys
from tests.remotely_rl.runs import sessions

CONFIG = dqn.Config(
    env=toys.Counting,
    actors=2,
    envs_per_actor=3,
    rollout_steps=8,
    learn_from=24,
    batch_size=8,
    replay_ratio=2.0,
    replay_rows=600,
    n_step=1,
    device="cpu",
    reward_clip=15.0,
    gamma=0.5,
)
ACTIONS = Discrete(2)
Make = Callable[..., RunReplay]


def model() -> networks.QNetwork:
    return CONFIG.make_model(None, ObservationLeaf((1,), np.dtype("float32")), ACTIONS)


@pytest.fixture
def run_replay(tmp_path: Path, no_curve: None) -> Iterator[Make]:
    """Return a function that makes the replay of a run with changes of the config."""
    with contextlib.ExitStack() as stack:

        def make(**changes: Any) -> RunReplay:
            config = dataclasses.replace(CONFIG, **changes)
            learner = QLearner(config, model(), ACTIONS)
            session = stack.enter_context(sessions.session(tmp_path, config, learner=learner))
            return RunReplay(session)

        yield make


def rollout(actor: int = 0) -> Rollout:
    played: Rollout = remotely.local(QActor, CONFIG, model(), 5).sample()
    return played._replace(actor=actor)


def test_each_actor_fills_the_columns_of_its_own_environments(run_replay: Make) -> None:
    experience = run_replay()

    experience.append([rollout(actor=1)])  # the other one has failed in this round

    drawn = experience.draw(0)
    assert set((drawn.rows % 6).tolist()) <= {3, 4, 5}


def test_a_round_from_which_nothing_can_be_drawn_is_kept(run_replay: Make) -> None:
    experience, played = run_replay(), rollout()
    absent = np.zeros_like(played.trajectory.valid)
    nothing = dataclasses.replace(played.trajectory, valid=absent)

    experience.append([played._replace(trajectory=nothing)])
    first = experience.replay
    experience.append([rollout(actor=1)])

    assert experience.replay is first is not None


def test_rewards_are_kept_raw_and_clipped_as_the_config_says(run_replay: Make) -> None:
    experience = run_replay()

    experience.append([rollout()])

    assert set(experience.draw(0).reward.tolist()) == {10.0, 15.0}


def test_the_number_of_updates_per_step_is_printed(
    run_replay: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Session, "say", lambda session, text: said.append(text))
    run_replay(batch_size=5)
    assert "an update for every 2.5 steps (replay_ratio / batch_size)" in said
    assert replaying.updates_per_step(1.0) == "1 update for each step (replay_ratio / batch_size)"
    assert replaying.updates_per_step(4.0) == "4 updates for each step (replay_ratio / batch_size)"


@pytest.mark.parametrize(("reward_clip", "unit"), [(0.0, (1400 / 3) ** 0.5), (15.0, 1.0)])
def test_the_unit_of_values_is_that_of_the_rewards_played(reward_clip: float, unit: float) -> None:
    learner = QLearner(dataclasses.replace(CONFIG, reward_clip=reward_clip), model(), ACTIONS)
    replaying.count_in(learner, [rollout()])  # two episodes of 10, 20 and 30 each
    assert learner.value_scale.std == pytest.approx(unit)


def test_updates_are_due_after_learn_from_steps(run_replay: Make) -> None:
    experience = run_replay()
    first = rollout()
    assert first.steps == 18  # of 24 rows, as every fourth is a reset

    experience.append([first])
    assert experience.ratio.updates_owed == 0

    experience.append([rollout(actor=1)])
    assert experience.ratio.updates_owed == (36 - 24) * 2 // 8
    drawn = experience.draw(0)
    experience.update(drawn, np.ones(8))
    assert experience.ratio.updates_owed == 2


def test_n_step_and_gamma_of_a_draw_default_to_the_config(
    run_replay: Make,
) -> None:
    experience = run_replay(reward_clip=0.0)
    experience.append([rollout(), rollout(actor=1)])

    early = experience.draw(0, n_step=3, gamma=0.25)
    late = experience.draw(0)

    assert set(early.discount.tolist()) == {0.0}  # three steps go to the end of an episode
    assert set(early.reward.tolist()) == {10 + 20 / 4 + 30 / 16, 20 + 30 / 4, 30.0}
    assert set(late.discount.tolist()) <= {0.0, 0.5}
    assert set(late.reward.tolist()) == {10.0, 20.0, 30.0}


def test_a_gamma_changed_by_a_hook_applies_to_later_draws(tmp_path: Path) -> None:
    learner = QLearner(CONFIG, model(), ACTIONS)
    with sessions.session(tmp_path, CONFIG, learner=learner) as session:
        experience = RunReplay(session)
        experience.append([rollout()])
        session.change(gamma=0.25)
        assert set(experience.draw(0).discount.tolist()) <= {0.0, 0.25}


def test_beta_rises_to_1_by_the_end_of_the_schedule(
    run_replay: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    betas: list[float] = []
    monkeypatch.setattr(Replay, "draw", lambda replay, size, beta: betas.append(beta))
    experience = run_replay(prioritized_alpha=0.5, prioritized_beta=0.4)
    experience.append([rollout()])

    for progress in (0.0, 0.5, 1.0):
        experience.draw(progress)

    assert betas == pytest.approx([0.4, 0.7, 1.0])


def test_new_steps_update_the_statistics_once() -> None:
    learner = QLearner(CONFIG, model(), ACTIONS)

    replaying.count_in(learner, [rollout()])

    counted = networks.statistics_of(learner.model)
    (count,) = [value for name, value in counted.items() if name.endswith("count")]
    assert float(count) == 3  # one in seven of eighteen
    assert learner.reward_clipper.pop_metrics()["train/rewards_clipped"] == 2 / 3


def test_images_of_a_batch_become_channels_last_with_equal_values(run_replay: Make) -> None:
    learner = QLearner(CONFIG, model(), ACTIONS)
    experience = run_replay()
    experience.append([rollout()])
    images = np.random.default_rng(0).integers(0, 255, (8, 4, 5, 6), np.uint8)

    steps = replaying.to_device(learner, experience.draw(0)._replace(obs=images))

    assert torch.equal(steps.obs, torch.from_numpy(images))
    assert steps.obs.is_contiguous(memory_format=torch.channels_last)


def test_a_replay_that_does_not_fit_the_disk_is_reported_once_and_not_in_the_checkpoint(
    run_replay: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    experience = run_replay()
    said: list[str] = []
    monkeypatch.setattr(experience, "_say", said.append)
    experience.append([rollout()])

    def full(replay: Replay, folder: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Replay, "save", full)
        assert experience.save() == {}
        assert experience.save() == {}
    assert said == ["No space left on device; the checkpoint is without the replay"]

    assert experience.save()["rows"] == 18
