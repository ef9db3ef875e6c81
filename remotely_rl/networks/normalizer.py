"""Normalizer, a layer that normalizes observations by running statistics, and Scaler, without.

Normalization is necessary: with Pong's pixels / 255, the background alone kills four in five units
of the first layer within 50,000 steps, and learning stops.

The difficulty is coordinates that hardly vary.  A pixel that changes once in a thousand frames
would be many deviations away when it does, so the deviation has a floor, depending on the data:

- Bytes have a known range, and the floor is a fraction of it.
- Each coordinate of a float vector has its own unit: MountainCar's velocity has a deviation of
  0.007, its position of 0.1.  The floor is only the rounding error of float32.
- The pixels of a float image share one unit.  The floor is a fraction of the deviation of the
  whole image.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl import trees
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.errors import TrainingError
from remotely_rl.networks.state import State
from remotely_rl.trees import Path, Tree

# Floor of the deviation of bytes, as a fraction of their range of 255.  All floors are added.
FLOOR = 0.03
# Floor for floats: this fraction of the mean (float32 has seven digits) plus a constant, for a mean
# of zero.
PART_OF_MEAN, LEAST = 1e-5, 1e-8
# Floor for float images: this fraction of the deviation of all pixels.
PART_OF_IMAGE = 0.1

# Row-weighted means over several learners: AllReduce.means.
Means = Callable[[float, Sequence[Tensor]], tuple[Tensor, list[Tensor]]]

# `update_normalizers` counts every seventh row, which is enough; 7 is coprime to the usual numbers
# of environments.
UPDATE_EVERY = 7


class _Cached(NamedTuple):
    """The scale and shift of observations, and the key for which they hold."""

    mean: Tensor
    key: object
    affine: tuple[Tensor, Tensor]


class Normalizer(nn.Module):
    """Subtracts the running mean of each coordinate and divides by its running deviation.

    [N, ...] of any dtype -> float32 of the same shape, clamped to 10 deviations.  `forward` does
    not change the statistics.  The learner updates them once per batch, after the update of the
    weights, so that actors and learner normalize alike.  The statistics are buffers: they are sent
    and saved with the weights.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], horizon: int = 200_000, of: Path | str = ()):
        """`of` is the leaf of a nested observation that it normalizes: a key, or a tuple of keys.

        Old batches fade out once `horizon` rows are counted.
        """
        super().__init__()
        self.horizon = horizon
        self.of: Path = (of,) if isinstance(of, str) else of
        self._cached: _Cached | None = None
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, obs: Tensor) -> Tensor:
        scale, shift = self._affine(obs)
        # In place: at these sizes, page faults of new tensors cost more than the arithmetic.
        if obs.dtype == torch.float32 and obs.dim() != 4:
            normal = obs * scale
        else:
            normal = obs.to(torch.float32, copy=True, memory_format=_layout(obs)).mul_(scale)
        return normal.sub_(shift).clamp_(-10, 10)

    def _affine(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor for observations, and the shift to subtract afterwards.

        They are cached, because actors normalize many times between updates of the statistics, and
        so does a learner with a replay or several minibatches.
        """
        # torch.compile fuses this with what follows; a CUDA graph must recompute it in each pass.
        is_recorded = obs.is_cuda and torch.cuda.is_current_stream_capturing()
        if is_recorded or torch.compiler.is_compiling():
            return self._compute_affine(obs)
        key = (self.mean._version, self.variance._version, obs.dtype, obs.dim())
        cached = self._cached
        if cached is None or cached.mean is not self.mean or cached.key != key:
            # Outside of inference mode, whose tensors cannot be used elsewhere.
            with torch.inference_mode(False), torch.no_grad():
                cached = self._cached = _Cached(self.mean, key, self._compute_affine(obs))
        return cached.affine

    def _compute_affine(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        scale = 1 / (self.variance.sqrt() + self._floor(obs.dtype))
        unit = scale / 255 if obs.dtype == torch.uint8 else scale
        return _like(unit, obs), _like(self.mean * scale, obs)

    def __getstate__(self) -> dict[str, Any]:
        # A copy's buffers restart their version counts, which may then match the cached key.
        return {**self.__dict__, "_cached": None}

    def _floor(self, dtype: torch.dtype) -> Tensor | float:
        """Return the floor of the deviations, in the units of `mean`."""
        if dtype == torch.uint8:
            return FLOOR
        if self.mean.dim() == 3:
            return self.variance.mean().sqrt() * PART_OF_IMAGE + LEAST
        return self.mean.abs() * PART_OF_MEAN + LEAST

    @torch.no_grad()
    def update(self, obs: Tensor, means: Means | None = None) -> None:
        """Add a batch [N, ...] to the statistics (Chan et al.'s parallel update).

        With `means`, the batches of all learners are added as one.
        """
        x = obs.to(torch.float32, copy=True).reshape(-1, *self.mean.shape)
        if obs.dtype == torch.uint8:
            x.div_(255)
        rows: Any = float(len(x))
        delta = x.sub_(self.mean).mean(0)
        square = x.square_().mean(0)
        if means is not None:
            rows, (delta, square) = means(rows, [delta.double(), square.double()])
        if not rows:
            return
        total = self.count + rows
        variance = square - delta.square()
        added = variance * rows + delta.square() * (self.count * rows / total)
        self.variance.mul_(self.count).add_(added).div_(total).clamp_(min=0)
        self.mean += delta * rows / total
        self.count.copy_(total.clamp(max=self.horizon))


class Scaler(nn.Module):
    """Converts observations to float32 and divides bytes by 255.

    It replaces Normalizer for observations that are already scaled or one-hot.
    """

    def forward(self, obs: Tensor) -> Tensor:
        scaled = obs.to(torch.float32, memory_format=_layout(obs))
        return scaled / 255 if obs.dtype == torch.uint8 else scaled


def _layout(obs: Tensor) -> torch.memory_format:
    """Return channels last for images, which makes convolutions on a CPU 1/6 to 1/3 faster."""
    return torch.channels_last if obs.dim() == 4 else torch.contiguous_format


def _like(statistic: Tensor, obs: Tensor) -> Tensor:
    return statistic[None].contiguous(memory_format=_layout(obs))


def update_normalizers(
    model: nn.Module, obs: Tree, every: int = UPDATE_EVERY, means: Means | None = None
) -> None:
    """Add every `every`-th of the observations [N, ...] to all Normalizers of a model.

    With `means`, adds those of all learners.  Raises TrainingError for a Normalizer without the
    `of` that nested observations need.
    """
    if isinstance(obs, dict) and ACTION_MASK in obs:
        obs = obs[OBSERVATION]
    for name, part in model.named_modules():
        if isinstance(part, Normalizer):
            leaf = trees.at(obs, part.of)
            if not isinstance(leaf, Tensor):
                keys = [trees.named(path) for path, _ in trees.items(leaf)]
                raise TrainingError(
                    f"the Normalizer {name!r} must say which observation it is for: of=KEY, one of"
                    f" {', '.join(keys)}"
                )
            part.update(leaf[::every], means)


def has_normalizer(model: nn.Module) -> bool:
    """Return whether a model has a Normalizer."""
    return any(isinstance(part, Normalizer) for part in model.modules())


def statistics_of(model: nn.Module) -> State:
    """Return a copy of the statistics of a model's Normalizers."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in _statistics(model).items()}


def load_statistics(model: nn.Module, statistics: State) -> None:
    """Load the result of `statistics_of` into a model of the same architecture."""
    for name, tensor in _statistics(model).items():
        tensor.copy_(torch.from_numpy(np.array(statistics[name])))  # writable, or torch warns


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": tensor
        for name, part in model.named_modules()
        if isinstance(part, Normalizer)
        for key, tensor in part.named_buffers()
    }
