"""The studies: their measurements and their tables of results."""

import math
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from remotely_rl import a2c, dqn
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.experience.replay import Draw, Replay
from remotely_rl.functions import gradients
from remotely_rl.learning.learner import Learner
from tests.remotely_rl import toys
from tools import runs
from tools.studies import norms, second_learner, simulators
from tools.studies.from_replay import FromReplay, play
from tools.studies.simulators import Row

pytestmark = pytest.mark.usefixtures("local")

REPLAY: dict[str, Any] = {
    "env": toys.Guess, "actors": 1, "envs_per_actor": 4, "rollout_steps": 4, "learn_from": 32,
    "replay_rows": 1000, "replay_ratio": 4.0, "target_update_interval": 40, "probe_steps": 8,
}  # fmt: skip


def test_a_second_learner_that_draws_the_same_batches_has_the_same_weights_bit_by_bit() -> None:
    drawn: deque[Draw] = deque()

    def keep(replay: Replay, count: int) -> Draw:
        drawn.append(replay.draw(count))
        return drawn[-1]

    config = second_learner.config_of(REPLAY, 16, 1)
    first = FromReplay(config, draw=keep)
    second = FromReplay(config, draw=lambda replay, count: drawn.popleft())
    began = toys.weights(first.learner.model)
    for _ in play([first, second], 80):
        assert torch.equal(toys.weights(first.learner.model), toys.weights(second.learner.model))
    assert first.learner.version == second.learner.version == (80 - 32) * 4 / 16
    assert not torch.equal(toys.weights(first.learner.model), began)


def test_a_second_learner_uses_each_step_as_often_with_another_batch_size() -> None:
    pair = [FromReplay(second_learner.config_of(REPLAY, batch, 1)) for batch in (16, 64)]
    (*_, (steps, _)) = play(pair, 80)
    assert [one.learner.version * one.learner.config.batch_size for one in pair] == [
        (steps - 32) * 4 // batch * batch for batch in (16, 64)
    ]


def test_the_norms_of_an_update_are_those_of_its_weights_its_gradient_and_its_step() -> None:
    config = dqn.Config(**REPLAY, batch_size=32, learning_rate=0.5, max_grad_norm=0.0)
    watched = norms.Watched(config, norms.RMSPropLearner, {"last": "policy.weight"})
    weight = watched.learner.model.get_parameter("model.policy.weight")
    assert isinstance(watched.learner.optimizer, torch.optim.RMSprop)
    before = weight.detach().clone()
    for _ in play([watched], 40):  # one update
        pass
    assert weight.grad is not None
    ((*seen,),) = watched.norms["last"]
    # The first step of RMSProp divides a gradient by its size times the root of 1 - alpha.
    step = 0.5 * weight.grad / (weight.grad.abs() * 0.05**0.5 + 1e-6)
    torch.testing.assert_close(weight.detach(), before - step)
    assert seen == pytest.approx([float(x.norm()) for x in (weight.detach(), weight.grad, step)])
    ((*all_of_them,),) = watched.norms[norms.ALL]
    assert all(of_all > of_one for of_all, of_one in zip(all_of_them, seen, strict=True))


def test_the_gradient_of_all_simulators_is_the_mean_of_those_of_the_halves() -> None:
    config = a2c.Config(
        env=toys.Guess, actors=1, envs_per_actor=6, rollout_steps=2, random_start=0,
        normalize_values=False,
    )  # fmt: skip
    learner = Learner(config, toys.network(), Discrete(2))
    trajectory = toys.actor(config, learner.model, seed=0).sample().trajectory
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulators, "compare", lambda *given: seen.append(given))
        simulators.update(learner, trajectory, compares=True)
    ((whole, (one, other), rows),) = seen
    assert rows == trajectory.valid.sum() == 6  # half of the rows reset
    torch.testing.assert_close(whole, (one + other) / 2)
    assert 0.1 < gradients.cosine(one, whole) < 0.9999


def test_without_a_comparison_the_studys_update_is_a2cs() -> None:
    config = a2c.Config(
        env=toys.Guess, actors=1, envs_per_actor=4, random_start=0, learning_rate_end=7e-4,
        entropy_coef_end=0.004,
    )  # fmt: skip
    ours, theirs = (Learner(config, toys.network(), Discrete(2)) for _ in range(2))
    trajectory = toys.actor(config, ours.model).sample().trajectory
    simulators.update(ours, trajectory, compares=True)
    a2c.update(theirs, trajectory, 0.0)
    assert torch.equal(toys.weights(ours.model), toys.weights(theirs.model))


def test_halves_of_pure_noise_are_compared_as_the_formulas_say() -> None:
    random = torch.Generator().manual_seed(1)
    one, other = torch.randn(2, 100_000, generator=random)
    found = simulators.compare((one + other) / 2, [one, other], rows=64)
    assert found.cosine == pytest.approx(1 / math.sqrt(2), abs=3e-3)
    assert found.signs == pytest.approx(0.75, abs=3e-3)
    assert found.scale.noise == pytest.approx(32 * 100_000, rel=0.02)
    assert abs(found.scale.signal) < 0.01 * 100_000


def test_steps_are_counted_until_the_target_is_held_and_first_seen(tmp_path: Path) -> None:
    def rows(simulated: int, *ends: tuple[int, float]) -> list[Row]:
        return [
            Row("sqrt", simulated, seed, steps, 9, looked, returned, 0.8, 0.75, 1.0, 64.0)
            for seed, (end, score) in enumerate(ends, 1)
            for steps, looked, returned in ((end // 2, 490.0, 20.0), (end, 480.0, score))
        ]

    file = tmp_path / "rows.jsonl"
    few = rows(16, (1000, 480.0), (4000, 476.0), (9000, 100.0))
    more = rows(32, (8000, 480.0), (9000, 10.0))
    runs.add(file, *few)
    runs.add(file, *more)
    read = runs.read(file, Row)
    assert read == few + more
    of_few, of_more = simulators.summaries(read, 475.0)
    assert (of_few.simulators, of_few.seeds, of_few.noise_rows) == (16, 3, 64)
    assert (of_few.touched, of_few.reached) == ([500, 2000, 4500], [1000, 4000, math.inf])
    assert (of_more.touched, of_more.reached) == ([4000, 4500], [8000, math.inf])
    said = simulators.table([of_few, of_more])
    assert "| sqrt | 16 | 1,000, 4,000, inf | 1.00 | 500, 2,000, 4,500 | 1.00 | 9 |" in said
    assert "| sqrt | 32 | 8,000, inf | inf | 4,000, 4,500 | 2.12 | 9 |" in said
