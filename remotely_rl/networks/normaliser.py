"""A layer that standardises what a network sees, by statistics that it counts itself.

It is no nicety: Pong's background alone, at a raw pixel / 255, kills four units in five of the
first layer within 50,000 steps and learning with them.

What hardly varies must not be blown up: a pixel that changes once in a thousand frames would be
ten deviations when it does.  So bytes, whose range is known, have a floor under their deviation.
Floats have units of their own, and each coordinate another: MountainCar's velocity deviates by
0.007 where its position does by 0.1.  Under theirs is only what float32 cannot tell from nothing;
but the pixels of an image share their unit, and so a floor, a part of the whole image's deviation.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

# Tensors of a model as arrays, by their names.
State = dict[str, NDArray[Any]]

# Added to the deviation of bytes, in units of their range of 255.
FLOOR = 0.03
# To that of floats: a part of the mean, of which float32 has seven digits, and for a mean of zero.
PART_OF_MEAN, LEAST = 1e-5, 1e-8
# To that of an image of floats: a part of the deviation of all its pixels.
PART_OF_IMAGE = 0.1


class Normaliser(nn.Module):
    """Subtracts the running mean of each coordinate and divides by its running deviation.

    [N, ...] of any dtype -> float32 of the same shape, within 10 deviations.  What it is asked
    about is not counted: the learner does so once for each batch of observations (`count_in`,
    below), between two updates, so that actors and learner see the same numbers.  The statistics
    are buffers: they travel and are saved with the weights.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], horizon: int = 200_000):
        """Old batches fade once `horizon` rows are counted."""
        super().__init__()
        self.horizon = horizon
        self._kept: tuple[object, tuple[Tensor, Tensor]] | None = None
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, obs: Tensor) -> Tensor:
        scale, shift = self._affine(obs)
        # In place: at these sizes a fresh tensor costs more (page faults) than the sum on it.
        normal = obs.to(torch.float32, copy=True, memory_format=_layout(obs))
        return normal.mul_(scale).sub_(shift).clamp_(-10, 10)

    def _affine(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """By what observations are multiplied, and what is subtracted then.

        Kept for actors, who ask many times between two updates of the statistics.
        """
        of = (self.mean._version, self.variance._version, obs.dtype, obs.dim())
        if torch.is_inference_mode_enabled() and self._kept and self._kept[0] == of:
            return self._kept[1]
        scale = 1 / (self.variance.sqrt() + self._floor(obs.dtype))
        unit = scale / 255 if obs.dtype == torch.uint8 else scale
        affine = _like(unit, obs), _like(self.mean * scale, obs)
        if torch.is_inference_mode_enabled():
            self._kept = (of, affine)
        return affine

    def _floor(self, dtype: torch.dtype) -> Tensor | float:
        """What is added to deviations, in the units of `mean`."""
        if dtype == torch.uint8:
            return FLOOR
        if self.mean.dim() == 3:
            return self.variance.mean().sqrt() * PART_OF_IMAGE + LEAST
        return self.mean.abs() * PART_OF_MEAN + LEAST

    @torch.no_grad()
    def count_in(self, obs: Tensor) -> None:
        """Counts a batch [N, ...] into the statistics (Chan et al.'s parallel update)."""
        x = obs.to(torch.float32, copy=True)
        if obs.dtype == torch.uint8:
            x.div_(255)
        rows = float(len(x))
        total = self.count + rows
        away = x.sub_(self.mean).mean(0)
        spread = x.square_().mean(0) - away.square()
        joint = spread * rows + away.square() * (self.count * rows / total)
        self.variance.mul_(self.count).add_(joint).div_(total).clamp_(min=0)
        self.mean += away * rows / total
        self.count.copy_(total.clamp(max=self.horizon))


def _layout(obs: Tensor) -> torch.memory_format:
    """Channels last for images: on a CPU, convolutions are a sixth to a third faster so."""
    return torch.channels_last if obs.dim() == 4 else torch.contiguous_format


def _like(statistic: Tensor, obs: Tensor) -> Tensor:
    return statistic[None].contiguous(memory_format=_layout(obs))


# One row in 7 tells as much, and 7 is prime to the usual numbers of environments.
COUNTED_EVERY = 7


def count_in(model: nn.Module, obs: Tensor, every: int = COUNTED_EVERY) -> None:
    """Counts observations [N, ...], of which so many are one, into every Normaliser of a model."""
    for part in model.modules():
        if isinstance(part, Normaliser):
            part.count_in(obs[::every])


def statistics_of(model: nn.Module) -> State:
    """What the Normalisers of a model have counted, copied."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in _statistics(model).items()}


def load_statistics(model: nn.Module, statistics: State) -> None:
    """Writes what `statistics_of` read into a model of the same make."""
    for name, tensor in _statistics(model).items():
        tensor.copy_(torch.from_numpy(np.array(statistics[name])))  # writable, or torch warns


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": tensor
        for name, part in model.named_modules()
        if isinstance(part, Normaliser)
        for key, tensor in part.named_buffers()
    }


def normalises(model: nn.Module) -> bool:
    """Whether there is a Normaliser in a model."""
    return any(isinstance(part, Normaliser) for part in model.modules())
