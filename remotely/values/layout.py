"""The layout of a value in one block of memory: where its pickle and each of its buffers begin.

Each part is aligned to ALIGNMENT, as numpy and torch prefer.  One of HUGE_FROM or more begins in
the middle of a page (HUGE_AT), because an allocator places an array of that size just behind the
beginning of one: from and to places at nearly the same distance to a page, glibc 2.36 copies 300 MB
and more at a third of the speed (docs/lab).  So a block with such parts begins with a page.
"""

from collections.abc import Iterable, Sequence

ALIGNMENT = 64
HUGE_FROM = 1 << 24
HUGE_AT, PAGE = 2048, 4096


def aligned(nbytes: int) -> int:
    """Round a size up to ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def laid_out(sizes: Iterable[int]) -> tuple[list[tuple[int, int]], int]:
    """Return start and length of parts of these sizes, and the bytes of it all."""
    pieces = []
    at = 0
    for nbytes in sizes:
        if nbytes >= HUGE_FROM:
            at += (HUGE_AT - at) % PAGE
        pieces.append((at, nbytes))
        at += aligned(nbytes)
    return pieces, at


def write(
    into: memoryview,
    pieces: Iterable[tuple[int, int]],
    parts: Iterable[Sequence[bytes | memoryview]],
) -> None:
    """Write parts, each given as flat pieces, to where they begin."""
    for (at, _), part in zip(pieces, parts, strict=True):
        for view in part:
            end = at + len(view)
            into[at:end] = view
            at = end


def behind(nbytes: int, pieces: Iterable[tuple[int, int]]) -> int:
    """Return where the block of these pieces begins behind so many bytes."""
    is_huge = any(length >= HUGE_FROM for _, length in pieces)
    return -(-nbytes // PAGE) * PAGE if is_huge else aligned(nbytes)
