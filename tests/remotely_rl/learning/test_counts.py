"""Operations and waits of an update, counted on a CPU: on a GPU, they are its time."""

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from remotely_rl import ppo
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.learning.learner import Learner
from tests.remotely_rl import toys

# What needs values, or a size that depends on them, and so would wait for a GPU.
READS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
)
INDEX = torch.ops.aten.index.Tensor


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations other than views, and those of them that wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        indices = args[1] if func is INDEX else ()
        if func in READS or any(x is not None and x.dtype == torch.bool for x in indices):
            self.waits.append(str(func))
        return func(*args, **(kwargs or {}))


class Lists(TorchFunctionMode):
    """Counts conversions to lists, which are no operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("clip", "waits"), [(1.0, 1), (0.0, 2)], ids=["clipped", "normalized"])
def test_an_update_of_ppo_waits_for_its_device_once_for_its_metrics_and_once_for_its_scale(
    clip: float, waits: int
) -> None:
    config = ppo.Config(
        env=toys.Guess, actors=1, envs_per_actor=8, rollout_steps=16, reward_clip=clip, device="cpu"
    )
    learner = Learner(config, toys.network(), Discrete(2))
    trajectory = toys.actor(config, learner.model).sample().trajectory
    ppo.update(learner, trajectory, 0.0)  # makes the optimizer
    trajectory.version[...] = learner.version

    with Operations() as operations, Lists() as lists:
        ppo.update(learner, trajectory, 0.0)

    assert operations.waits == []
    assert lists.count == waits
    steps = config.epochs * config.minibatches
    assert operations.count <= 60 + 140 * steps
