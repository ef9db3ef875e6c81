"""Workers that share parameters: gradients, reports, statistics and checkpoints."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import remotely
from remotely_rl import a2c, a3c, n_step_q, networks
from remotely_rl.acting.actor import Actor
from remotely_rl.errors import TrainingError
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import Learner, ValueScale, gae_batch, saved_scale
from remotely_rl.learning.parameter_server import PushResult
from remotely_rl.runs import run_folder
from remotely_rl.sync import Reply
from remotely_rl.sync.rule import Accepted
from tests.remotely_rl import toys

CONFIG = a3c.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=6,
    random_start=0,
    max_grad_norm=0.0,
    entropy_coef=0.02,
    entropy_coef_end=0.02,
    optimizer="sgd",
)


def make_work(config: a3c.Config = CONFIG, seed: int = 5) -> sharing.SegmentWork:
    return a3c.make_work(config, toys.network(2), seed)


def statistics(mean: float, count: float = 50.0) -> networks.State:
    """Statistics of a normalizer of two coordinates."""
    return {
        "normalizer.mean": np.full(2, mean, np.float32),
        "normalizer.variance": np.ones(2, np.float32),
        "normalizer.count": np.array(count, np.float32),
    }


def pushed(client: int, version: int, obs: float) -> PushResult:
    """A push with four equal rows of observations."""
    report = sharing.WorkReport(np.full((4, 2), obs, np.float32), 4, [], {}, {})
    return PushResult(client, Reply(Accepted.COUNTED, version, 0), report)


def test_a_worker_does_not_import_slow_modules() -> None:
    code = """
import sys
from tests.remotely_rl.learning import test_sharing
work = test_sharing.make_work()
work.gradient(work.flat.vector, None)
slow = {"matplotlib", "torch.utils.tensorboard", "torch._dynamo"}
sys.exit(", ".join(slow & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_gradient_of_a_segment_is_that_of_a2c() -> None:
    work = make_work()
    start = work.flat.vector.clone()

    gradient = work.gradient(start, None)

    model = toys.network(2)
    config = toys.converted(CONFIG, a2c.Config)
    learner = Learner(config, model, work.learner.actions)
    trajectory = remotely.local(Actor, CONFIG, model, 5).sample().trajectory
    batch = gae_batch(learner, trajectory, normalize_advantage=False)
    policy, value, rows = learner.forward(batch)
    coef = config.entropy_coef
    losses = a2c.compute_losses(policy, value, rows, config, coef, learner.actions)
    losses.total.backward()  # type: ignore[no-untyped-call]
    expected = torch.cat(
        [part.grad.reshape(-1) for part in model.parameters() if part.grad is not None]
    )
    torch.testing.assert_close(gradient, expected)


def test_a_worker_acts_with_the_given_parameters() -> None:
    work = make_work()
    start = work.flat.vector.clone()
    work.gradient(start, None)

    work.gradient(torch.zeros_like(start), None)

    assert not any(bool(part.any()) for part in work.actor.model.parameters())


def test_all_minibatches_of_all_epochs_come_from_one_segment() -> None:
    work = make_work(dataclasses.replace(CONFIG, epochs=2, minibatches=3, clip_range=0.2))
    start = work.flat.vector.clone()

    steps = []
    for _ in range(12):
        work.gradient(start, None)
        steps.append(work.report().steps)

    assert [at for at, count in enumerate(steps) if count] == [0, 6]


def test_a_workers_report_covers_the_time_since_the_last_one() -> None:
    work = make_work()
    work.gradient(work.flat.vector.clone(), None)

    report = work.report()

    assert report.steps > 0
    assert report.seconds.keys() >= {"environment", "inference", "learning"}
    assert report.metrics.keys() == {"train/policy_loss", "train/value_loss", "train/entropy"}
    assert work.report() == sharing.WorkReport(None, 0, [], {}, {})


def test_the_entropy_coefficient_follows_the_broadcast_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []
    compute_losses = a3c.compute_losses

    def spy(*given: Any) -> Any:
        seen.append(given[4])
        return compute_losses(*given)

    monkeypatch.setattr(a3c, "compute_losses", spy)
    work = make_work(dataclasses.replace(CONFIG, entropy_coef=1.0, entropy_coef_end=0.0))

    work.gradient(work.flat.vector.clone(), sharing.Broadcast(7, 0.75, statistics(0.0)))

    assert seen == [pytest.approx(0.25)]


def test_a_checkpoint_restores_model_optimizer_and_version() -> None:
    config = dataclasses.replace(CONFIG, optimizer="rmsprop")
    before = sharing.SharedLearner(config, toys.network(2))
    ones = torch.ones_like(before.flat.vector)
    before.rule.push(0, ones, 0)
    after = sharing.SharedLearner(config, toys.network(2, seed=1))
    after.load(before.state())

    for learner in (before, after):
        learner.rule.push(1, 2 * ones, 1)

    assert torch.equal(toys.weights(before.model), toys.weights(after.model))
    assert after.rule.version == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adm"}, "optimizer must be rmsprop, adam, sgd, not 'adm', did you mean"),
        ({"sync": "semiasync"}, "no rule is called 'semiasync', did you mean 'semi_async'"),
    ],
)
def test_unknown_rules_and_optimizers_are_refused(changes: dict[str, object], message: str) -> None:
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match=message):
        sharing.SharedLearner(config, toys.network(2))


@pytest.mark.parametrize(
    ("word", "moved"),
    [
        ("asynchronous", 0.25),
        ("asynchronous:rate=0.5", 0.5),
        ("local_sgd", 1.0),  # its outer rate is not the learner's
        ("elastic_averaging:moving_rate=0.5", None),
    ],
)
def test_the_schedule_applies_only_to_rules_without_their_own_rate(
    word: str, moved: float | None
) -> None:
    config = dataclasses.replace(
        CONFIG, sync=word, actors=1, learning_rate=1.0, learning_rate_end=0.0
    )
    learner = sharing.SharedLearner(config, toys.network(2))
    before = learner.rule.parameters
    assert learner.broadcast(7, 0.75)[:2] == (7, 0.75)

    pushed = torch.ones_like(before) if moved else before - 1.0
    learner.rule.push(0, pushed, 0)

    way = before - learner.rule.parameters
    np.testing.assert_allclose(way, 0.5 if moved is None else moved, rtol=1e-4)


def test_new_statistics_take_effect_with_the_next_segment() -> None:
    work = make_work(dataclasses.replace(CONFIG, epochs=2, clip_range=0.2))
    means = []
    for mean in (1.0, 2.0, 3.0):
        work.gradient(work.flat.vector.clone(), sharing.Broadcast(0, 0.0, statistics(mean)))
        means.append(float(work.actor.model.state_dict()["normalizer.mean"][0]))

    assert means == [1.0, 1.0, 3.0]


def test_workers_use_the_broadcast_value_scale_and_report_targets() -> None:
    work = make_work(dataclasses.replace(CONFIG, normalize_values=True))
    scale = saved_scale(ValueScale(5.0, 4.0, 1e6))  # mean 5, standard deviation 2
    broadcast = sharing.Broadcast(0, 0.0, statistics(0.0), scale)

    work.gradient(work.flat.vector.clone(), broadcast)
    values = work.report().values

    found = work.learner.value_scale
    assert found.mean == pytest.approx(5.0, abs=1e-3)
    assert found.denormalize(torch.ones(1)).item() == pytest.approx(7.0, abs=1e-2)
    assert values is not None
    assert len(values) > 0
    # A new network predicts 0, which stands for 5; Guess has rewards of 0 or 1.
    assert 0.0 <= values.min() <= values.max() <= 7.0
    assert work.report().values is None

    work = make_work(dataclasses.replace(CONFIG, normalize_values=False))
    work.gradient(work.flat.vector.clone(), None)
    assert work.report().values is None


def test_the_shared_value_scale_counts_the_targets_of_all_workers() -> None:
    learner = sharing.SharedLearner(CONFIG, toys.network(2))
    ones = torch.ones_like(learner.flat.vector)
    for client, values in enumerate(([1.0, 3.0], [5.0, 7.0])):
        reply = learner.rule.push(client, ones, learner.rule.version)
        report = sharing.WorkReport(None, 2, [], {}, {}, np.array(values, np.float32))
        learner.record(PushResult(client, reply, report))
    # Of 1, 3, 5 and 7: (9 + 1 + 1 + 9) / 4.
    assert learner.scale.moments == pytest.approx((4.0, 5.0, 4.0))
    again = sharing.SharedLearner(CONFIG, toys.network(2))
    again.load(learner.state())
    assert again.broadcast(0, 0.0).scale == learner.broadcast(0, 0.0).scale


def test_a_report_has_one_in_seven_of_the_observations() -> None:
    work = make_work(dataclasses.replace(CONFIG, env=toys.guess_in_pairs))  # all rows are valid
    for _ in range(2):
        work.gradient(work.flat.vector.clone(), None)
    report = work.report()

    assert report.steps == 2 * 24
    assert report.obs is not None
    assert report.obs.shape == (2 * 4, 2)
    assert set(report.obs.flatten().tolist()) == {0.0, 1.0}
    assert work.report().obs is None


def test_a_model_without_a_normalizer_reports_no_observations() -> None:
    work = a3c.make_work(CONFIG, WithDropout(), 5)
    work.gradient(work.flat.vector.clone(), sharing.Broadcast(0, 0.0, {}))

    assert work.report().obs is None


def test_reports_are_counted_after_a_step_in_the_order_of_clients() -> None:
    def learnt(order: list[int]) -> networks.State:
        config = dataclasses.replace(CONFIG, sync="synchronous")
        learner = sharing.SharedLearner(config, toys.network(2))
        ones = torch.ones_like(learner.flat.vector)
        before = learner.broadcast(0, 0.0).statistics
        for at, client in enumerate(order):
            learner.rule.push(client, ones, 0)
            learner.record(pushed(client, learner.rule.version, 0.1 + client))
            if at == 0:
                assert learner.broadcast(0, 0.0).statistics is before  # not yet stepped
        return learner.broadcast(0, 0.0).statistics

    one, other = learnt([0, 1]), learnt([1, 0])

    assert one["normalizer.count"] == 8
    np.testing.assert_allclose(one["normalizer.mean"], 0.6)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize("template", [a3c, n_step_q])
def test_observation_statistics_are_saved_and_resumed(template: Any, tmp_path: Path) -> None:
    config = template.Config(
        env=toys.Counting,
        actors=2,
        envs_per_actor=4,
        rollout_steps=6,
        random_start=0,
        total_steps=400,
        log_interval_s=1e6,
        checkpoint_interval_s=1e6,
    )
    counts = []
    for steps, where in ((400, {"run": tmp_path / "run"}), (800, {"resume": tmp_path / "run"})):
        template.train(dataclasses.replace(config, total_steps=steps), **where)
        saved = run_folder.load_checkpoint(tmp_path / "run" / "checkpoint.pt")["learner"]["model"]
        counts.append(float(saved["normalizer.count"]))

    probed = -(-config.probe_steps // networks.UPDATE_EVERY)
    assert counts[0] == pytest.approx(probed + 400 / networks.UPDATE_EVERY, rel=0.2)
    assert counts[1] == pytest.approx(counts[0] + 400 / networks.UPDATE_EVERY, rel=0.2)


class WithDropout(nn.Module):
    """Records whether gradients are enabled, and dropout, in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.modes.add((torch.is_grad_enabled(), self.training))
        out = nn.functional.dropout(self.layer(obs), 0.5, self.training)
        return out[:, :2], out[:, 2]


@pytest.mark.parametrize("template", [a3c, n_step_q])
def test_dropout_is_off_while_acting_and_on_while_learning(template: Any) -> None:
    config = template.Config(env=toys.Guess, envs_per_actor=4, rollout_steps=6)
    work = template.make_work(config, WithDropout(), 5)
    for _ in range(2):
        work.gradient(work.flat.vector.clone(), None)

    assert work.actor.model.modes == {(False, False), (True, True)}
