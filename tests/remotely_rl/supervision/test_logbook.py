"""Tests of Logbook: reports are written, read and replayed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from remotely_rl.supervision import Cause, CrashReport, SupervisedVectorEnv, logbook
from remotely_rl.supervision.logbook import Logbook
from tests.remotely_rl.supervision.fragile import Faults, Fragile


class Tree(Fragile):
    """Has a tree of action spaces; the error has the last action."""

    action_space = spaces.Dict(  # type: ignore[assignment]
        turn=spaces.Box(-1, 1, (2,), np.float32), keys=spaces.Tuple((spaces.Discrete(300),))
    )

    def step(self, action: Any) -> Any:
        if self.now == 2:
            raise RuntimeError(
                f"{action['turn'].dtype} {action['turn'][0]:.3f} {int(action['keys'][0])}"
            )
        return super().step(action)


def test_a_report_from_a_file_can_be_replayed(tmp_path: Path) -> None:
    envs = SupervisedVectorEnv([lambda: Tree(Faults())] * 2)
    envs.reset(seed=1, options={"level": 2})
    for _ in range(3):
        envs.step(envs.action_space.sample())
    for report in envs.crashes:
        Logbook(tmp_path / "crashes.jsonl")(report)
    for report, loaded in zip(envs.crashes, logbook.load(tmp_path / "crashes.jsonl"), strict=True):
        assert str(loaded) == str(report)
        assert loaded.options == {"level": 2}
        with pytest.raises(RuntimeError) as again:
            loaded.replay(lambda: Tree(Faults()))
        assert f"RuntimeError: {again.value}" == report.what


def test_a_file_has_a_limited_size_and_a_full_disk_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logbook, "MAX_REPORTS", 3)
    book = Logbook(tmp_path / "crashes.jsonl")
    for _ in range(5):
        book(CrashReport(1, Cause.DIED, "SIGKILL"))
    assert len(logbook.load(tmp_path / "crashes.jsonl")) == 3
    Logbook(Path("/dev/full"))(CrashReport(1, Cause.DIED, "SIGKILL"))


def test_a_line_that_was_cut_off_does_not_affect_other_reports(tmp_path: Path) -> None:
    path = tmp_path / "crashes.jsonl"
    Logbook(path)(CrashReport(1, Cause.DIED, "SIGKILL"))
    Logbook(path)(CrashReport(2, Cause.DIED, "SIGKILL"))
    path.write_bytes(path.read_bytes()[:-20])
    Logbook(path)(CrashReport(3, Cause.DIED, "SIGKILL"))
    assert [report.env for report in logbook.load(path)] == [1, 3]


def test_a_file_without_crash_reports_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    for text, words in (("a letter", "has no crash report"), ("{}", "this is not a crash report")):
        path.write_text(f"{text}\n")
        with pytest.raises(ValueError, match=words):
            logbook.load(path)
