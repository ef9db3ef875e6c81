"""Signal and noise in gradients: what a larger batch can still improve.

The gradient of B independent rows is G + noise: G is what infinitely many rows would give, and the
squared norm of the noise is S / B on average.  S / |G|^2 is the noise scale, in rows.  Far below it
a batch of twice the size is worth nearly two steps; far above it, hardly more than one (McCandlish
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
    """The cosine of the angle between two vectors; NaN if one of them is 0."""
    one, other = one.double(), other.double()
    return float(one @ other / (one.norm() * other.norm()))


def sign_agreement(one: Tensor, other: Tensor) -> float:
    """The share of coordinates whose signs agree, of those where neither vector is 0."""
    product = one.sign() * other.sign()
    return float((product > 0).sum() / (product != 0).sum())


def cosine_of_half(signal_to_noise: float) -> float:
    """The cosine of a half batch's gradient and the whole's, by |G|^2 / E|noise|^2 of a half."""
    return math.sqrt((2 * signal_to_noise + 1) / (2 * (signal_to_noise + 1)))


def sign_agreement_at(cosine: float) -> float:
    """The share of signs that agree, of vectors at this cosine whose coordinates are Gaussian."""
    return 0.5 + math.asin(cosine) / math.pi


class NoiseScale(NamedTuple):
    """An estimate without bias of |G|^2 and of S.

    Both vary much and |G|^2 may be negative: take the means of many estimates before the ratio.
    """

    signal: float  # |G|^2
    noise: float  # S, of a single row

    @property
    def rows(self) -> float:
        """S / |G|^2: the batch at which noise and signal are as large."""
        return self.noise / self.signal if self.signal > 0 else math.inf


def noise_scale(small: float, small_rows: float, large: float, large_rows: float) -> NoiseScale:
    """Signal and noise from the squared norms of gradients over few rows and over many.

    McCandlish et al. 2018, appendix A.1.
    """
    signal = (large_rows * large - small_rows * small) / (large_rows - small_rows)
    noise = (small - large) / (1 / small_rows - 1 / large_rows)
    return NoiseScale(signal, noise)


def flat(gradients: Iterable[Tensor]) -> Tensor:
    """Gradients of several parameters as one vector."""
    return torch.cat([gradient.flatten() for gradient in gradients])
