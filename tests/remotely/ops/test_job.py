"""The search of a rank for rank 0; tests/remotely/test_run.py runs whole jobs."""

import functools
import os
from pathlib import Path
from typing import Any

import pytest

from remotely.errors import MasterLost, RemotelyError
from remotely.machine import pid_file, processes
from remotely.machine.gpus import OfferedResources
from remotely.machine.pid_file import Running
from remotely.ops import cluster, job
from remotely.ops.cluster import Network
from remotely.ops.launchers import ALONE, JobRank
from remotely.ops.rendezvous import Rendezvous
from remotely.transport import key_files

PATIENCE_S = 600.0


def test_a_rank_joins_a_machine_that_is_on_another_cluster_with_its_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rank 0 takes a free port of its own machine, which another job may have taken on this one."""
    monkeypatch.setenv("REMOTELY_HOME", str(tmp_path / "home"))
    started = processes.birth(os.getpid())
    assert started is not None
    with pid_file.entering(8010) as folder:
        other = Running(
            role="joined",
            address="other:8010",
            cluster="other",
            pid=os.getpid(),
            started=started,
            log="",
        )
        pid_file.write(folder / "joined-1.json", other)
    key_files.make_keys(tmp_path / "keys")
    key = key_files.load_member(tmp_path / "keys" / "worker.key", "worker")

    class Joined(Exception):
        """It has come to start its worker."""

    def begin(*_: Any) -> None:
        raise Joined

    monkeypatch.setattr(cluster, "reach", lambda *_: "127.0.0.1:8010")
    monkeypatch.setattr(cluster, "PersistentDaemon", begin)
    join = functools.partial(
        cluster.join, "here", 8010, key, Network("127.0.0.1"), OfferedResources(1)
    )
    with pytest.raises(RemotelyError, match="on another cluster with port 8010 already"):
        join()
    with pytest.raises(Joined):
        join(is_of_job=True)


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
