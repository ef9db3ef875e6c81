"""Signal and noise in gradients: the noise scale, and comparisons of half batches.

The gradient of B independent rows is G + noise: G is the limit for infinitely many rows, and the
mean squared norm of the noise is S / B.  S / |G|^2 is the noise scale, in rows.  Far below it a
batch of twice the size is worth nearly two steps; far above it, hardly more than one (McCandlish
et al. 2018, https://arxiv.org/abs/1812.06162).

`cosine` and `sign_agreement` compare the gradient of half a batch with that of the whole (Stooke
and Abbeel 2018, https://arxiv.org/abs/1803.02811).  Without any signal, the halves are orthogonal:
the cosine is 1 / sqrt 2 and three signs of four agree.

Gradients are flat vectors.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


def cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine of the angle between two vectors; NaN if one of them is 0."""
    one, other = one.double(), other.double()
    return float(one @ other / (one.norm() * other.norm()))


def sign_agreement(one: Tensor, other: Tensor) -> float:
    """Return the fraction of coordinates with equal signs, among those where neither is 0."""
    product = one.sign() * other.sign()
    return float((product > 0).sum() / (product != 0).sum())


def cosine_of_half(signal_to_noise: float) -> float:
    """Return the expected cosine of a half batch's gradient and the whole batch's.

    `signal_to_noise` is |G|^2 / E|noise|^2 of a half batch.
    """
    return math.sqrt((2 * signal_to_noise + 1) / (2 * (signal_to_noise + 1)))


def sign_agreement_at(cosine: float) -> float:
    """Return the expected fraction of equal signs of Gaussian vectors with this cosine."""
    return 0.5 + math.asin(cosine) / math.pi


class NoiseScale(NamedTuple):
    """Unbiased estimates of |G|^2 and S.

    Their variance is high and |G|^2 may be negative: average many before taking the ratio.
    """

    signal: float  # |G|^2
    noise: float  # S, of a single row

    @property
    def rows(self) -> float:
        """S / |G|^2: the batch size at which noise and signal are equal."""
        return self.noise / self.signal if self.signal > 0 else math.inf


def noise_scale(small: float, small_rows: float, large: float, large_rows: float) -> NoiseScale:
    """Estimate signal and noise from the squared norms of a small and a large batch's gradients.

    McCandlish et al. 2018, appendix A.1.
    """
    signal = (large_rows * large - small_rows * small) / (large_rows - small_rows)
    noise = (small - large) / (1 / small_rows - 1 / large_rows)
    return NoiseScale(signal, noise)


def flat(gradients: Iterable[Tensor]) -> Tensor:
    """Concatenate the gradients of several parameters to one vector."""
    return torch.cat([gradient.flatten() for gradient in gradients])
