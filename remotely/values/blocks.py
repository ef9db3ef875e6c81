"""A first-fit allocator: the bookkeeping of an arena, without its memory.

A block is allocated from the first gap that is large enough, from the bottom up.  So a program that
keeps sending values of the same sizes reuses the same few pages, which are mapped and warm.  The
first touch of a page costs ten times the copy into it.

The gaps are in rows, in order.  Each row has an upper bound on the size of its gaps, so a search
skips thousands of small ones, row by row.  A search that finds nothing in a row lowers its bound.
So among n gaps a search costs about the square root of n.
"""

from bisect import bisect_left
from mmap import PAGESIZE

GRANULE = PAGESIZE  # 4 KiB, on some machines 64: any block can be mapped on its own
ROW = 256  # the most gaps in a row; an arena lends 65,536 blocks at a time


class _Row:
    """The starts and ends of consecutive gaps, none of them larger than `at_most`."""

    __slots__ = ("at_most", "ends", "starts")

    def __init__(self, starts: list[int], ends: list[int], at_most: int) -> None:
        self.starts = starts
        self.ends = ends
        self.at_most = at_most


class Blocks:
    """The gaps of a space of `size` bytes, in order; adjacent gaps are merged."""

    def __init__(self, size: int) -> None:
        end = size // GRANULE * GRANULE
        self._rows = [_Row([0], [end], end)]  # only the first may be empty
        self._taken: dict[int, int] = {}  # the size of each block, by offset

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of a block of at least `nbytes`, or None if no gap is large enough."""
        size = max(GRANULE, -(-nbytes // GRANULE) * GRANULE)
        for at, row in enumerate(self._rows):
            if row.at_most < size:
                continue
            for i, start in enumerate(row.starts):
                if row.ends[i] - start >= size:
                    if row.ends[i] - start == size:
                        self._remove(at, i)
                    else:
                        row.starts[i] = start + size
                    self._taken[start] = size
                    return start
            row.at_most = size - GRANULE
        return None

    def free(self, offset: int) -> None:
        """Free the block at `offset`.  Raises KeyError if there is none."""
        end = offset + self._taken.pop(offset)
        at = len(self._rows) - 1  # the last row that begins below it
        while at and self._rows[at].starts[0] > offset:
            at -= 1
        row = self._rows[at]
        i = bisect_left(row.starts, offset)
        next_at, j = (at, i) if i < len(row.starts) else (at + 1, 0)
        if next_at < len(self._rows) and self._rows[next_at].starts[j] == end:
            end = self._rows[next_at].ends[j]
            self._remove(next_at, j)
        if i > 0 and row.ends[i - 1] == offset:
            offset = row.starts[i - 1]
            row.ends[i - 1] = end
        else:
            row.starts.insert(i, offset)
            row.ends.insert(i, end)
        row.at_most = max(row.at_most, end - offset)
        if len(row.starts) > ROW:
            self._split(at)

    def _remove(self, at: int, i: int) -> None:
        row = self._rows[at]
        del row.starts[i], row.ends[i]
        if at > 0 and not row.starts:
            del self._rows[at]

    def _split(self, at: int) -> None:
        row = self._rows[at]
        half = len(row.starts) // 2
        self._rows.insert(at + 1, _Row(row.starts[half:], row.ends[half:], row.at_most))
        del row.starts[half:], row.ends[half:]

    @property
    def taken_bytes(self) -> int:
        return sum(self._taken.values())

    def gaps(self) -> list[tuple[int, int]]:
        """Return the start and the end of each gap, in order."""
        return [gap for row in self._rows for gap in zip(row.starts, row.ends, strict=True)]
