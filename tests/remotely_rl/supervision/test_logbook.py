"""Reports in a file are those that were written, and can be replayed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from remotely_rl.supervision import Cause, CrashReport, SupervisedVectorEnv, logbook
from remotely_rl.supervision.logbook import Logbook
from tests.remotely_rl.supervision.fragile import Faults, Fragile


class Tree(Fragile):
    """Acts by a tree of arrays, and remembers what it was told."""

    action_space = spaces.Dict(  # type: ignore[assignment]
        turn=spaces.Box(-1, 1, (2,), np.float32), keys=spaces.Tuple((spaces.Discrete(300),))
    )

    def step(self, action: Any) -> Any:
        if self.now == 2:
            raise RuntimeError(
                f"{action['turn'].dtype} {action['turn'][0]:.3f} {int(action['keys'][0])}"
            )
        return super().step(action)


def test_a_report_from_a_file_is_replayed_as_it_was(tmp_path: Path) -> None:
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


def test_a_file_does_not_grow_for_ever_and_a_full_disk_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logbook, "MAX_REPORTS", 3)
    book = Logbook(tmp_path / "crashes.jsonl")
    for _ in range(5):
        book(CrashReport(1, Cause.DIED, "SIGKILL"))
    assert len(logbook.load(tmp_path / "crashes.jsonl")) == 3
    Logbook(Path("/dev/full"))(CrashReport(1, Cause.DIED, "SIGKILL"))


def test_a_line_that_was_cut_off_takes_no_other_report_with_it(tmp_path: Path) -> None:
    path = tmp_path / "crashes.jsonl"
    Logbook(path)(CrashReport(1, Cause.DIED, "SIGKILL"))
    Logbook(path)(CrashReport(2, Cause.DIED, "SIGKILL"))
    path.write_bytes(path.read_bytes()[:-20])
    Logbook(path)(CrashReport(3, Cause.DIED, "SIGKILL"))
    assert [report.env for report in logbook.load(path)] == [1, 3]
    path.write_text("a letter\n")
    with pytest.raises(ValueError, match="has no crash report"):
        logbook.load(path)


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text('{"cause": "raised"}\n')
    with pytest.raises(ValueError, match="this is not a crash report"):
        logbook.load(tmp_path / "odd")
