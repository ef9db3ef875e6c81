"""Workers that share parameters: their gradients, and what is kept of the shared ones."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

import remotely
from remotely_rl import a2c, a3c, sharing
from remotely_rl.acting import Actor
from remotely_rl.errors import TrainingError
from remotely_rl.learner import Learner
from tests.remotely_rl import toys

CONFIG = a3c.Config(
    env=toys.Guess, actors=2, envs_per_actor=4, trajectory_steps=6, random_start=0,
    max_grad_norm=0.0, entropy=0.02, entropy_end=0.02, optimizer="sgd",
)  # fmt: skip


def work(config: a3c.Config = CONFIG, seed: int = 5) -> sharing.SegmentWork:
    return a3c.make_work(config, toys.network(2), seed)


def test_a_worker_computes_without_the_slow_imports_of_drawing_and_stepping() -> None:
    code = """
import sys
from tests.remotely_rl import test_sharing
works = test_sharing.work()
works.gradient(works.flat.vector, 0)
slow = {"matplotlib", "torch.utils.tensorboard", "torch._dynamo"}
sys.exit(", ".join(slow & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_segment_s_gradient_is_that_of_a2c_s_losses() -> None:
    works = work()
    start = works.flat.vector.clone()

    gradient = works.gradient(start, 0)

    model = toys.network(2)
    fields = {
        field.name: getattr(CONFIG, field.name)
        for field in dataclasses.fields(a2c.Config)
        if hasattr(CONFIG, field.name)
    }
    learner = Learner(a2c.Config(**fields), model, works.learner.actions)
    trajectory = remotely.local(Actor, CONFIG, model, 5).sample().trajectory
    lesson = learner.on_policy(trajectory)
    losses = learner.losses(lesson, a2c.compute_losses)
    losses.total.backward()  # type: ignore[no-untyped-call]
    expected = torch.cat(
        [part.grad.reshape(-1) for part in model.parameters() if part.grad is not None]
    )
    torch.testing.assert_close(gradient, expected)


def test_a_worker_acts_by_the_parameters_that_it_is_given() -> None:
    works = work()
    start = works.flat.vector.clone()
    works.gradient(start, 0)

    works.gradient(torch.zeros_like(start), 0)

    assert not any(bool(part.any()) for part in works.actor.model.parameters())


def test_with_passes_and_minibatches_a_segment_is_played_once_and_gone_through_in_parts() -> None:
    works = work(dataclasses.replace(CONFIG, passes=2, minibatches=3, clip=0.2))
    start = works.flat.vector.clone()

    steps = []
    for _ in range(12):
        works.gradient(start, 0)
        steps.append(works.report().steps)

    assert [at for at, count in enumerate(steps) if count] == [0, 6]


def test_a_report_tells_what_was_played_since_the_one_before() -> None:
    works = work()
    works.gradient(works.flat.vector.clone(), 0)

    report = works.report()

    assert report.steps > 0
    assert report.seconds.keys() >= {"environment", "inference", "learning"}
    assert report.numbers.keys() == {"loss_policy", "loss_value", "entropy"}
    assert works.report() == sharing.Report(0, [], {}, {})


def test_entropy_s_weight_follows_the_steps_of_all() -> None:
    works = work(dataclasses.replace(CONFIG, entropy=1.0, entropy_end=0.0, decay_steps=100))

    works.gradient(works.flat.vector.clone(), 75)

    assert works.learner.entropy_weight == pytest.approx(0.25)


def test_what_is_kept_brings_back_model_optimizer_and_version() -> None:
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


def test_the_rate_follows_the_steps_of_all() -> None:
    config = dataclasses.replace(
        CONFIG, learning_rate=1.0, learning_rate_end=0.0, decay_steps=100, max_grad_norm=0.0
    )
    learner = sharing.SharedLearner(config, toys.network(2))
    before = learner.rule.parameters

    assert learner.follow(75) == pytest.approx(0.25)

    learner.rule.push(0, torch.ones_like(before), 0)
    np.testing.assert_allclose(before - learner.rule.parameters, 0.25, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adm"}, "optimizer must be rmsprop, adam, sgd, not 'adm', did you mean"),
        ({"sync": "semiasync"}, "no rule is called 'semiasync', did you mean 'semi_async'"),
        ({"kl_target": 0.01}, "scale_values and kl_target need one learner"),
        ({"scale_values": True}, "scale_values and kl_target need one learner"),
    ],
)
def test_what_cannot_be_shared_so_is_refused(changes: dict[str, object], message: str) -> None:
    def make() -> None:
        config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
        sharing.SharedLearner(config, toys.network(2))

    with pytest.raises(TrainingError, match=message):
        make()


@pytest.mark.parametrize(
    ("word", "moved"),
    [
        ("asynchronous", 0.25),
        ("asynchronous:rate=0.5", 0.5),  # a word with a rate has said so
        ("local_sgd", 1.0),  # outer rates are not the learner's
        ("elastic_averaging:moving_rate=0.5", None),
    ],
)
def test_a_schedule_moves_the_rate_of_rules_that_have_none_of_their_own(
    word: str, moved: float | None
) -> None:
    config = dataclasses.replace(
        CONFIG, sync=word, actors=1, learning_rate=1.0, learning_rate_end=0.0, decay_steps=100
    )
    learner = sharing.SharedLearner(config, toys.network(2))
    before = learner.rule.parameters
    learner.follow(75)

    pushed = torch.ones_like(before) if moved else before - 1.0
    learner.rule.push(0, pushed, 0)

    way = before - learner.rule.parameters
    np.testing.assert_allclose(way, 0.5 if moved is None else moved, rtol=1e-4)
