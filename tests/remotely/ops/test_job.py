"""The search of a rank for rank 0; tests/remotely/test_run.py runs whole jobs."""

from pathlib import Path
from typing import Any

import pytest

from remotely.errors import MasterLost, RemotelyError
from remotely.machine.gpus import OfferedResources
from remotely.ops import cluster, job
from remotely.ops.cluster import Network
from remotely.ops.launchers import ALONE, JobRank
from remotely.ops.rendezvous import Rendezvous

PATIENCE_S = 600.0


def test_a_rank_does_not_wait_for_a_rank_0_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = Rendezvous(tmp_path / "job", 0)
    first.open()
    first.invite(["127.0.0.1:1"])

    def end_first(*_: Any, **__: Any) -> None:
        first.close()
        raise MasterLost("no reply")

    monkeypatch.setattr(job, "answering", lambda addresses: None)
    monkeypatch.setattr(cluster, "join", end_first)
    monkeypatch.setattr(job, "FOLDER_GONE_S", 0.1)
    rank = JobRank(ALONE, rank=1, size=2, job="job")
    with pytest.raises(RemotelyError, match="rank 0 ended before this rank had joined it"):
        job.follow(rank, tmp_path / "job", Network(), OfferedResources(), PATIENCE_S)
