"""Rings: arrays in which the newest entries replace the oldest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ring:
    """The rings of all columns laid end to end, and the numbers of the entries they hold.

    Entry i of a column lies at i modulo the length of a ring.  Entries before `settled` no longer
    change; numbers are [width] each.
    """

    data: NDArray[Any]  # [width * length, ...]
    first: NDArray[np.int64]
    settled: NDArray[np.int64]
    end: NDArray[np.int64]

    def pieces(self, first: Sequence[int], end: Sequence[int]) -> Iterator[memoryview]:
        """Yield the bytes of entries from `first` to `end` of each column, to read or to write."""
        length = len(self.data) // len(end)
        for column, (at, stop) in enumerate(zip(first, end, strict=True)):
            while at < stop:
                start = column * length + at % length
                count = min(stop - at, length - at % length)
                yield self.data[start : start + count].reshape(-1).view(np.uint8).data
                at += count
