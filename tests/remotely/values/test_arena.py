"""Lent values arrive unchanged, and their memory is reclaimed when the reader has released them."""

import contextlib
import gc
import itertools
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

from remotely.values import codec, forks, layout
from remotely.values.arena import SHARE_FROM_BYTES, Arena, ArenaAddress, Loan
from remotely.values.blocks import GRANULE
from remotely.values.borrowing import Lender
from remotely.values.codec import Encoded
from remotely.values.owned import NOTHING
from tests.clusters import wait_until

Array = np.ndarray[Any, Any]
LARGE = SHARE_FROM_BYTES


class Reader:
    def __init__(self) -> None:
        self.lives = True

    def alive(self) -> bool:
        return self.lives


@pytest.fixture
def arena() -> Arena:
    return Arena(64 << 20)


def lend(arena: Arena, value: object, private: bool = False, reader: Reader | None = None) -> Loan:
    """Place a value and lend it to one reader."""
    placed = arena.place(codec.encode(value))
    assert placed is not None
    loan = placed.lend(reader or Reader(), private)
    assert loan is not None
    return loan


def read(lender: Lender, loan: Loan, encoded: Encoded) -> Any:
    payload, buffers = lender.open(loan)
    return codec.decode(encoded.payload if payload is None else payload, buffers)


def crossed(arena: Arena, value: object, private: bool = False) -> Any:
    lender = Lender(arena.address)
    return read(lender, lend(arena, value, private), codec.encode(value))


# --- lending --------------------------------------------------------------------------------------

arrays = hnp.arrays(
    hnp.scalar_dtypes() | hnp.array_dtypes(max_size=3),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
)


@hypothesis.settings(
    max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    st.recursive(
        arrays | st.binary(max_size=100) | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=6,
    ),
    st.booleans(),
)
def test_any_value_arrives_as_it_would_by_socket(arena: Arena, value: Any, private: bool) -> None:
    value = [value, np.arange(LARGE, dtype=np.uint8)]
    encoded = codec.encode(value)
    by_socket = codec.decode(encoded.payload, [bytearray(b) for b in encoded.buffers])
    by_memory = crossed(arena, value, private)
    assert codec.encode(by_memory).payload == codec.encode(by_socket).payload
    same_buffers = zip(
        codec.encode(by_memory).buffers, codec.encode(by_socket).buffers, strict=True
    )
    assert all(bytes(here) == bytes(there) for here, there in same_buffers)


@pytest.mark.parametrize("private", [False, True])
def test_an_array_arrives_writable_without_a_copy(arena: Arena, private: bool) -> None:
    sent = np.arange(LARGE, dtype=np.float32)
    got = crossed(arena, sent, private)
    assert got.flags.writeable
    assert not got.flags.owndata
    got += 1
    assert (got == sent + 1).all()


def test_large_bytes_in_a_value_are_lent_with_its_pickle(arena: Arena) -> None:
    sent = {"deep": [b"x" * LARGE, "y" * LARGE, bytearray(b"z" * LARGE)]}
    loan = lend(arena, sent)
    assert loan.has_payload
    assert read(Lender(arena.address), loan, NOTHING) == sent


def test_readers_of_one_value_do_not_see_each_others_writes(arena: Arena) -> None:
    encoded = codec.encode(np.zeros(LARGE))
    placed = arena.place(encoded)
    assert placed is not None
    lender = Lender(arena.address)
    loans = [placed.lend(Reader()) for _ in range(2)]
    one, two = (read(lender, loan, encoded) for loan in loans if loan)
    one[:] = 1
    assert (two == 0).all()
    two[:] = 2
    assert (one == 1).all()


def test_a_readers_writes_are_gone_when_its_pages_are_lent_again(arena: Arena) -> None:
    lender = Lender(arena.address)
    for number in range(3):
        sent = np.full(LARGE, number)
        got = read(lender, lend(arena, sent, private=True), codec.encode(sent))
        assert (got == number).all()
        got[:] = -1
        del got


def test_changes_after_lending_do_not_reach_the_reader(arena: Arena) -> None:
    sent = np.zeros(LARGE)
    loan = lend(arena, sent)
    sent += 1
    assert (read(Lender(arena.address), loan, codec.encode(sent)) == 0).all()


def test_a_huge_pickle_crosses_with_the_buffers_behind_it(arena: Arena) -> None:
    value = "a" * (layout.HUGE_FROM - 1) + "z", np.arange(9000.0)
    word, array = crossed(arena, value)
    assert word == value[0]
    assert np.array_equal(array, value[1])


# --- reclaiming -----------------------------------------------------------------------------------


def test_a_block_is_reclaimed_when_its_last_view_is_gone(arena: Arena) -> None:
    got = crossed(arena, {"a": np.zeros(LARGE), "b": np.ones(LARGE)})
    view = got["b"][5:7]
    del got
    gc.collect()
    assert arena.lent_bytes > 0
    assert (view == 1).all()
    del view
    gc.collect()
    assert arena.lent_bytes == 0


@pytest.mark.parametrize("private", [False, True])
def test_ten_thousand_values_in_turn_use_the_same_pages(arena: Arena, private: bool) -> None:
    sent, encoded = np.zeros(LARGE, np.uint8), codec.encode(np.zeros(LARGE, np.uint8))
    lender = Lender(arena.address)
    read(lender, lend(arena, sent, private), encoded)
    descriptors = len(os.listdir("/proc/self/fd"))
    offsets = set()
    for _ in range(10_000):
        loan = lend(arena, sent, private)
        offsets.add(loan.blocks[0][1])
        read(lender, loan, encoded)
    assert len(offsets) == 1
    assert arena.lent_bytes == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_blocks_of_dead_borrowers_are_reclaimed(arena: Arena) -> None:
    reader, other = Reader(), Reader()
    lend(arena, np.zeros(LARGE), reader=reader)
    kept = lend(arena, np.zeros(LARGE), reader=other)
    reader.lives = False
    arena.tidy()
    assert arena.lent_bytes == kept.blocks[0][2] // GRANULE * GRANULE


def test_an_unread_loan_can_be_declined_or_taken_back(arena: Arena) -> None:
    Lender(arena.address).decline(lend(arena, np.zeros(LARGE)))
    assert arena.lent_bytes == 0
    arena.take_back(lend(arena, np.zeros(LARGE)))
    assert arena.lent_bytes == 0


def test_only_loans_that_were_not_opened_end_with_their_connection(arena: Arena) -> None:
    reader, other = Reader(), Reader()
    opened = lend(arena, np.ones(LARGE), reader=reader)
    got = read(Lender(arena.address), opened, codec.encode(np.ones(LARGE)))
    lend(arena, np.zeros(LARGE), reader=reader)
    arena.end_unopened(reader)
    assert arena.lent_bytes == opened.blocks[0][2] // GRANULE * GRANULE
    lend(arena, np.zeros(LARGE), reader=other)
    arena.end_unopened(reader)
    del got
    gc.collect()
    assert arena.lent_bytes == opened.blocks[0][2] // GRANULE * GRANULE, "the other one's"


def test_taking_back_a_stale_loan_does_not_end_the_next_loan_of_its_slot(arena: Arena) -> None:
    reader = Reader()
    stale = lend(arena, np.zeros(LARGE), reader=reader)
    reader.lives = False
    arena.tidy()
    arena.take_back(stale)
    slots = [lend(arena, np.zeros(LARGE)).blocks[0][0] for _ in range(3)]
    assert len(set(slots)) == 3, "no slot is used twice"


def test_a_full_arena_warns_once_and_lends_again_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arena = Arena(1 << 20)
    kept = crossed(arena, np.zeros(800_000, np.uint8))
    for _ in range(3):
        assert arena.place(codec.encode(np.zeros(800_000, np.uint8))) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "REMOTELY_ARENA" in caplog.text
    del kept
    assert (crossed(arena, np.ones(800_000, np.uint8)) == 1).all()


def test_idle_memory_returns_to_the_operating_system_after_each_release(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resident() -> int:
        return os.stat(f"/proc/self/fd/{arena.address.fd}").st_blocks * 512

    crossed(arena, np.zeros(10 << 20, np.uint8))
    kept = crossed(arena, np.zeros(10 << 20, np.uint8))
    also_kept = crossed(arena, np.zeros(10 << 20, np.uint8))
    arena.tidy()
    assert resident() > 20 << 20, "it is not idle yet"
    monkeypatch.setattr("remotely.values.arena.IDLE_S", 0.0)
    arena.tidy()
    assert 20 << 20 <= resident() < 21 << 20
    del kept
    arena.tidy()
    assert 10 << 20 <= resident() < 11 << 20
    del also_kept
    arena.tidy()
    assert resident() < 1 << 20
    assert (crossed(arena, np.ones(10 << 20, np.uint8)) == 1).all()


# --- forks ----------------------------------------------------------------------------------------


class Child:
    """A forked child that runs `work` on `end`, which returns its exit code."""

    def __init__(self, work: Callable[[], int]) -> None:
        go, self._tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 255
            try:
                os.read(go, 1)
                code = work()
            finally:
                os._exit(code)
        os.close(go)

    def end(self) -> int:
        os.write(self._tell, b".")
        os.close(self._tell)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def overwrite(arena: Arena) -> None:
    """Write to all free memory of the arena, as a busy lender does."""
    taken = []
    for nbytes in (32 << 20, 8 << 20, 1 << 20, LARGE):
        while (placed := arena.place(codec.encode(np.full(nbytes, 255, np.uint8)))) is not None:
            taken.append(placed)


@pytest.mark.parametrize("private", [False, True])
def test_a_forked_child_can_read_what_its_parent_has_dropped(arena: Arena, private: bool) -> None:
    got = [crossed(arena, np.arange(LARGE), private)]

    def unchanged() -> int:
        os.closerange(3, 1000)  # as a daemon does
        return int((got[0] == np.arange(LARGE)).all())

    child = Child(unchanged)
    got.clear()
    overwrite(arena)
    assert child.end() == 1
    forks.tidy()
    assert arena.lent_bytes == 0


def test_a_grandchild_can_read_what_its_ancestor_has_dropped(arena: Arena) -> None:
    got = [crossed(arena, np.ones(LARGE))]
    result, answer = os.pipe()
    go, tell = os.pipe()

    def orphan() -> int:
        if os.fork() == 0:
            os.read(go, 1)
            os.write(answer, b"same" if (got[0] == 1).all() else b"else")
            os._exit(0)
        return 0

    Child(orphan).end()
    got.clear()
    forks.tidy()
    overwrite(arena)
    assert arena.lent_bytes > 0
    os.write(tell, b".")
    assert os.read(result, 9) == b"same"

    def is_back() -> bool:
        forks.tidy()
        return arena.lent_bytes == 0

    wait_until(is_back, "the orphan has ended")
    for end in (result, answer, go, tell):
        os.close(end)


@pytest.mark.parametrize("private", [False, True])
def test_a_fork_and_its_parent_do_not_see_each_others_writes(arena: Arena, private: bool) -> None:
    held = [crossed(arena, np.zeros(LARGE), private)]
    held[0][0] = 1

    def write() -> int:
        seen = int(held[0][:2].sum())
        held[0][:] = 5
        return seen

    child = Child(write)
    held[0][1] = 7
    assert child.end() == 1, "as at the fork"
    assert held[0][:3].tolist() == [1, 7, 0]
    held.clear()
    forks.tidy()
    later = np.arange(LARGE)
    assert (crossed(arena, later, private) == later).all(), "no page from before is left"


def test_a_fork_at_the_limit_of_mappings_is_private_too(arena: Arena) -> None:
    got = crossed(arena, np.zeros(LARGE))
    mappings = []
    with contextlib.suppress(OSError):
        for number in itertools.count():  # neighbours that are alike would be one mapping
            access = mmap.PROT_READ | (mmap.PROT_WRITE if number % 2 else 0)
            mappings.append(mmap.mmap(-1, mmap.PAGESIZE, prot=access))
    child = Child(lambda: int(got[0]))
    mappings.clear()
    got[:] = 7
    assert child.end() == 0


def test_a_process_that_cannot_make_its_memory_private_says_so(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(forks, "make_private", refuse)
    got = crossed(arena, np.zeros(LARGE))
    Child(lambda: 0).end()
    assert "Copy them before you fork" in caplog.text
    del got


def test_a_value_borrowed_after_a_fork_does_not_wait_for_the_child(arena: Arena) -> None:
    child = Child(lambda: 0)
    got = crossed(arena, np.ones(LARGE))
    del got
    assert arena.lent_bytes == 0
    child.end()


def test_many_forks_leave_nothing(arena: Arena) -> None:
    forks.tidy()  # other tests have forked too
    lender = Lender(arena.address)
    descriptors = len(os.listdir("/proc/self/fd"))
    for number in range(6):
        got = read(lender, lend(arena, np.full(LARGE, number)), codec.encode(np.zeros(LARGE)))
        child = Child(lambda: 0)
        del got
        assert child.end() == 0
    forks.tidy()
    assert arena.lent_bytes == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors


# --- refs -----------------------------------------------------------------------------------------


def test_a_pinned_value_is_lent_repeatedly_without_a_copy(arena: Arena) -> None:
    params = {"w": np.arange(LARGE, dtype=np.float32), "b": np.arange(LARGE, dtype=np.float64)}
    encoded = codec.encode(params)
    placed = arena.place(encoded)
    assert placed is not None
    _, views = placed.pin()
    taken = arena.lent_bytes
    lender = Lender(arena.address)
    for _ in range(3):
        once_more = arena.place(Encoded(encoded.pieces, views_of(views)))
        assert once_more is not None
        loan = once_more.lend(Reader(), private=False)
        assert loan is not None
        assert all(private for *_, private in loan.blocks), "the ref stays as it is"
        got = read(lender, loan, encoded)
        got["w"][:] = -1
        del once_more
        assert arena.lent_bytes == taken
        del got
    del placed
    assert arena.lent_bytes == taken
    views.clear()
    assert arena.lent_bytes == 0


def views_of(buffers: list[memoryview]) -> list[memoryview]:
    """Return the buffers as they are when the ref is pickled within another value."""
    return [buffer.raw() for buffer in codec.parts(b"", buffers)[1]]


# --- errors ---------------------------------------------------------------------------------------


def test_a_wrong_size_in_the_environment_warns_once_and_uses_the_default() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from remotely.values.arena import ours; ours(); print(ours())"],
        env={**os.environ, "REMOTELY_ARENA": "half"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("REMOTELY_ARENA='half' is not an amount of memory") == 1
    assert "Arena" in done.stdout


def test_only_an_arena_that_exists_can_be_opened(tmp_path: Any) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(OSError, match="No such file"):
        Lender(ArenaAddress(1, child, 3, 4096))
    with (tmp_path / "file").open("wb+") as file:
        address = ArenaAddress(1, os.getpid(), file.fileno(), 4096)
        with pytest.raises(OSError, match="another file"):
            Lender(address)
