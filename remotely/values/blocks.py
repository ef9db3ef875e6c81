"""A first-fit allocator: the bookkeeping of an arena, without its memory.

A block is taken from the first gap that is large enough, from the bottom up.  So a program that
sends values of the same sizes again and again uses the same few pages, which are mapped and warm.
The first touch of a page costs ten times the copy into it.
"""

from bisect import bisect_left
from mmap import PAGESIZE

GRANULE = PAGESIZE  # 4 KiB, on some machines 64: any block can be mapped by itself


class Blocks:
    """The gaps of a space of `size` bytes, in order; a gap never touches the next."""

    def __init__(self, size: int) -> None:
        self._starts = [0]
        self._ends = [size // GRANULE * GRANULE]
        self._taken: dict[int, int] = {}

    def take(self, nbytes: int) -> int | None:
        """Return the offset of a block of at least `nbytes`, or None if no gap is large enough."""
        size = max(GRANULE, -(-nbytes // GRANULE) * GRANULE)
        for i, start in enumerate(self._starts):
            if self._ends[i] - start >= size:
                if self._ends[i] - start == size:
                    del self._starts[i], self._ends[i]
                else:
                    self._starts[i] = start + size
                self._taken[start] = size
                return start
        return None

    def give(self, offset: int) -> None:
        """Give back the block at `offset`.  Raises KeyError if none was taken there."""
        end = offset + self._taken.pop(offset)
        i = bisect_left(self._starts, offset)
        if i < len(self._starts) and self._starts[i] == end:
            end = self._ends[i]
            del self._starts[i], self._ends[i]
        if i > 0 and self._ends[i - 1] == offset:
            self._ends[i - 1] = end
        else:
            self._starts.insert(i, offset)
            self._ends.insert(i, end)

    @property
    def taken_bytes(self) -> int:
        return sum(self._taken.values())

    def gaps(self) -> list[tuple[int, int]]:
        """Return the start and the end of each gap, in order."""
        return list(zip(self._starts, self._ends, strict=True))
