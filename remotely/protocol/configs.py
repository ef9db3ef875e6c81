"""The configurations that a launcher passes to the daemons."""

from typing import Any

import msgspec

from remotely.protocol.listening import Listening


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a master: one line of JSON on its standard input."""

    address: str
    key: dict[str, Any]
    lifeline: bool
    counts_cpus: bool = True  # of actors that name none; false for an embedded cluster
    key_file: str = ""  # watched for changes
    learns: bool = False  # an earlier master may have left workers, which may come back
    pid_file: str = ""  # written by the launcher, removed by the daemon
    log: str = ""  # the file to which standard error leads, if it is one
    attached: bool = False  # the end of standard input stops the cluster gracefully


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a worker: one line of JSON on its standard input."""

    worker: str
    master: str
    key: dict[str, Any]
    listening: Listening
    folder: str
    cpus: float
    gpus: list[str]  # as CUDA knows them
    memory: int = 0  # bytes; zero means all but what is kept for the system
    resources: dict[str, float] = {}  # custom resources
    labels: list[str] = []
    lifeline: bool
    pid_file: str = ""  # written by the launcher, removed by the daemon
    log: str = ""  # the file to which standard error leads, if it is one
    attached: bool = False  # the end of standard input stops this worker gracefully
    end_without_master_s: float = 0.0  # if nonzero: leave if the master is silent for this long
    nonce: str  # `worker` is derived from it and the key; see admission.py
    predecessors: list[str] = []  # see Register
    grace_s: float = 0.0  # how long the machine is drained after SIGTERM
