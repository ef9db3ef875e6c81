"""The learner of a run, made from a probe of its environment."""

import pytest
import torch

from remotely_rl import a2c, networks
from remotely_rl.runs import setup
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")


@pytest.mark.usefixtures("local")
def test_statistics_begin_with_random_play_where_there_is_something_to_normalise() -> None:
    config = a2c.Config(env=toys.Counting)
    learner = setup.make_learner(config)
    assert learner.model.state_dict()["normalizer.count"].item() > 0

    class Plain(networks.MLP):
        def __init__(self, observation_shape: tuple[int, ...], outputs: int):
            super().__init__(observation_shape, outputs)
            self.normalizer = torch.nn.Identity()

    plain = setup.make_learner(config, Plain)
    assert not any("count" in name for name in plain.model.state_dict())
