"""How a rank looks for rank 0; tests/remotely/test_run.py has whole jobs."""

from pathlib import Path
from typing import Any

import pytest

from remotely.errors import MasterLost, RemotelyError
from remotely.ops import job
from remotely.ops.rendezvous import Rendezvous

PATIENCE_S = 600.0


def test_a_rank_that_saw_rank_0_only_once_does_not_wait_for_it_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = Rendezvous(tmp_path / "job", 0)
    first.open()
    first.invite(["127.0.0.1:1"])

    def end_first(*_: Any) -> None:
        first.close()
        raise MasterLost("nobody answers")

    monkeypatch.setattr(job, "_join_at", end_first)
    monkeypatch.setattr(job, "GONE_S", 0.1)
    nothing: Any = None
    with pytest.raises(RemotelyError, match="rank 0 ended before this rank had joined it"):
        job._join(Rendezvous(tmp_path / "job", 1), nothing, nothing, PATIENCE_S, nothing)
