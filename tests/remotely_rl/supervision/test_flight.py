"""Tests of FlightRecord: what it says of the environments of a process, alive or dead."""

import mmap
import os
import time

import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from remotely_rl.supervision import Cause
from remotely_rl.supervision.flight import ACTIONS_KEPT, FlightRecord, nbytes_of


def steps(record: FlightRecord, count: int) -> None:
    for step in range(count):
        record.begin(1, np.full(record.count, step % 100))
        for env in range(record.count):
            record.began[env] = time.monotonic()
        record.end()


def reset(record: FlightRecord, seed: int | None = 5) -> None:
    record.begin(1, is_step=False)
    for env in range(record.count):
        record.reset_now(env, seed, 0, None)
    record.end()


def test_a_record_is_read_from_its_bytes_alone() -> None:
    record = FlightRecord(2, spaces.Discrete(200))
    reset(record)
    steps(record, 3)
    record.begin(1, [7, 8])
    record.began[1] = time.monotonic() + 1
    again = FlightRecord.read(bytes(record.memory))
    assert again is not None
    assert again.env == 1
    report = again.report(1, Cause.DIED, "SIGKILL")
    assert (report.step, report.seed, report.episode) == (4, 5, 0)
    assert report.actions == (0, 1, 2, 8)
    assert report.is_complete


def test_a_record_survives_sigkill() -> None:
    file = os.memfd_create("flight")
    os.ftruncate(file, nbytes_of(4))
    memory = mmap.mmap(file, nbytes_of(4))
    child = os.fork()
    if not child:
        record = FlightRecord(4, spaces.Discrete(2), memory)
        reset(record)
        record.begin(1, [0, 1, 0, 1])
        record.began[3] = time.monotonic()
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    record = FlightRecord.read(memory[:])  # type: ignore[assignment]
    assert record.env == 3
    assert record.report(3, Cause.DIED, "SIGKILL").actions == (1,)


def test_the_last_actions_of_a_long_episode_are_kept() -> None:
    record = FlightRecord(2, spaces.Discrete(200))
    reset(record)
    steps(record, ACTIONS_KEPT + 50)
    report = record.report(0, Cause.DIED, "")
    assert len(report.actions) == ACTIONS_KEPT
    assert report.actions[-1] == (ACTIONS_KEPT + 49) % 100
    assert not report.is_complete


def test_large_actions_are_kept_as_far_as_there_is_room() -> None:
    record = FlightRecord(16, spaces.Box(-1, 1, (100,), np.float64))
    reset(record)
    for _ in range(30):
        record.begin(1, np.zeros((16, 100)))
    assert 5 < len(record.report(0, Cause.DIED, "").actions) < 30
    without = FlightRecord(16, spaces.Box(-1, 1, (100_000,), np.float64))
    without.begin(1, np.zeros((16, 100_000)))
    assert without.report(0, Cause.DIED, "").actions == ()


def test_a_partial_reset_does_not_affect_other_environments() -> None:
    record = FlightRecord(2, spaces.Discrete(200))
    reset(record)
    steps(record, 2)
    record.begin(1, is_step=False)
    record.reset_now(0, 6, 0, None)
    record.end()
    record.begin(1, [7, 8])
    one, other = (record.report(env, Cause.DIED, "") for env in (0, 1))
    assert (one.step, one.seed, one.actions, one.lived) == (1, 6, (7,), 3)
    assert (other.step, other.seed, other.actions, other.lived) == (3, 5, (0, 1, 8), 3)
    assert other.is_complete


def test_a_report_has_the_options_of_its_environment_or_is_incomplete() -> None:
    record = FlightRecord(3, spaces.Discrete(2))
    for env, options in enumerate([{"level": 3}, {"level": 3}, None]):
        record.reset_now(env, 5, 0, options)
    reports = [record.report(env, Cause.DIED, "") for env in range(3)]
    assert [report.options for report in reports] == [{"level": 3}, {"level": 3}, None]
    assert all(report.is_complete for report in reports)
    record.reset_now(1, 5, 0, {"level": 4})
    record.reset_now(2, 5, 0, None)
    reports = [record.report(env, Cause.DIED, "") for env in range(3)]
    assert [report.options for report in reports] == [None, {"level": 4}, None]
    assert [report.is_complete for report in reports] == [False, True, True]
    record.reset_now(1, 5, 0, {"level": object()})  # not JSON
    assert record.report(1, Cause.DIED, "").seed is None


def test_a_record_of_a_whole_vector_env_says_whether_it_is_stepped() -> None:
    record = FlightRecord(0)
    record.begin(1)
    assert (record.busy, record.env) == (True, None)
    record.end()
    assert not record.busy


def test_a_record_can_move_to_other_memory() -> None:
    record = FlightRecord(2, spaces.Discrete(9))
    reset(record)
    steps(record, 2)
    memory = bytearray(nbytes_of(2))
    moved = record.move_to(memory)
    steps(moved, 1)
    assert FlightRecord.read(bytes(memory)).report(0, Cause.DIED, "").actions == (0, 1, 0)  # type: ignore[union-attr]
    assert record.now == 2


@given(st.binary(max_size=200))
def test_reading_random_bytes_never_raises(data: bytes) -> None:
    FlightRecord.read(data)
    FlightRecord.read(b"flight-1" + data)


def test_reading_empty_memory_returns_none() -> None:
    for data in (None, b"", bytes(1000)):
        assert FlightRecord.read(data) is None
