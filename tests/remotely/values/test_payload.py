"""The layout of a value in one block of memory."""

from typing import Any
from unittest import mock

import hypothesis.strategies as st
from hypothesis import given

from remotely.protocol.numbers import NAME_BYTES
from remotely.values import layout, payload
from remotely.values.codec import Encoded

ENCODED = st.builds(
    Encoded,
    st.lists(st.binary(max_size=200), min_size=1, max_size=3),
    st.lists(st.binary(max_size=300).map(memoryview), max_size=4),
    travelling=st.just(()),
)
# With the first, pickles are huge too.
HUGE_FROM = st.sampled_from([10, layout.HUGE_FROM]).map(
    lambda nbytes: mock.patch.object(layout, "HUGE_FROM", nbytes)
)


@given(ENCODED, HUGE_FROM)
def test_cutting_undoes_the_layout(encoded: Encoded, huge: Any) -> None:
    with huge:
        parcel = payload.parcel_of(encoded)
        memory = memoryview(bytearray(parcel.nbytes))
        payload.lay_out(encoded, memory)

    pickled, buffers = parcel.cut(memory)
    assert bytes(pickled) == encoded.payload
    assert [bytes(buffer) for buffer in buffers] == [bytes(b) for b in encoded.buffers]


@given(ENCODED, st.integers(1, 4), HUGE_FROM)
def test_stripes_together_are_the_whole_memory(encoded: Encoded, count: int, huge: Any) -> None:
    with huge:
        parcel = payload.parcel_of(encoded)
        memory = memoryview(bytearray(parcel.nbytes))
        payload.lay_out(encoded, memory)
        segments = list(payload.segments(encoded))
    size = max(1, -(-parcel.nbytes // count))

    joined = b"".join(
        bytes(view)
        for start in range(0, parcel.nbytes, size)
        for view in payload.stripe_of(segments, start, size)
    )

    assert joined == bytes(memory)


def test_each_buffer_is_aligned() -> None:
    parcel = payload.parcel_of(Encoded([b"abc"], [memoryview(b"d"), memoryview(b"e" * 65)]))
    assert [start % layout.ALIGNMENT for start, _ in parcel.pieces] == [0, 0, 0]


def test_a_huge_buffer_begins_far_from_the_page_offset_that_allocators_choose() -> None:
    pieces, total = layout.laid_out((100, layout.HUGE_FROM, 7, layout.HUGE_FROM + 1))
    assert [start % layout.PAGE for start, _ in pieces] == [0, 2048, 2048, 2048]
    ends = [start + nbytes for start, nbytes in pieces]
    assert all(end <= start for end, (start, _) in zip(ends, pieces[1:], strict=False))
    assert ends[-1] <= total < ends[-1] + layout.ALIGNMENT


def test_no_two_parcels_have_the_same_name() -> None:
    encoded = Encoded([b"x"], [])
    names = {payload.parcel_of(encoded).value for _ in range(100)}
    assert len(names) == 100
    assert {len(name) for name in names} == {NAME_BYTES}
