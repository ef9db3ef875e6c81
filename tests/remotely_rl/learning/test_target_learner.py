"""Target networks: copied at intervals, or Polyak-averaged in each update."""

import torch

from remotely_rl import dqn
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.learning.learner import TargetLearner
from tests.remotely_rl import toys

CONFIG = dqn.Config(env=toys.Guess, device="cpu")


def learner() -> TargetLearner[dqn.Config]:
    return TargetLearner(CONFIG, toys.network(), Discrete(2))


def shift(of: TargetLearner[dqn.Config], by: float) -> None:
    with torch.no_grad():
        for tensor in of.model.state_dict().values():
            tensor.add_(by)


def test_polyak_averaging_moves_parameters_by_tau_and_copies_statistics() -> None:
    made = learner()
    before = {name: tensor.clone() for name, tensor in made.target.state_dict().items()}
    statistics = {name for name, _ in made.target.named_buffers()}
    shift(made, 1.0)

    made.average_target(0.25)
    made.average_target(0.25)

    assert statistics
    for name, tensor in made.target.state_dict().items():
        moved = 1.0 if name in statistics else 1 - 0.75**2
        torch.testing.assert_close(tensor, before[name] + moved)


def test_the_target_is_copied_when_steps_pass_a_multiple_of_the_interval() -> None:
    made = learner()
    shift(made, 1.0)
    made.renew_target(99, 100)
    assert not torch.equal(toys.weights(made.target), toys.weights(made.model))
    made.renew_target(105, 100)
    assert torch.equal(toys.weights(made.target), toys.weights(made.model))
    shift(made, 1.0)
    made.renew_target(199, 100)
    assert not torch.equal(toys.weights(made.target), toys.weights(made.model))


def test_the_target_has_no_gradient_and_is_saved() -> None:
    made, other = learner(), learner()
    assert not any(parameter.requires_grad for parameter in made.target.parameters())
    shift(made, 1.0)
    made.average_target(0.5)
    other.load(made.state())
    assert torch.equal(toys.weights(other.target), toys.weights(made.target))
