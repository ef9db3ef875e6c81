"""The configurations of daemons, as a launcher passes them."""

from typing import Any

import msgspec

from remotely.protocol.listening import Listening


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a master reads from standard input, as one line of JSON."""

    address: str
    key: dict[str, Any]
    lifeline: bool
    counts_cpus: bool = True  # of actors that name none; not of a script's own cluster
    key_file: str = ""  # read again at SIGHUP
    learns: bool = False  # one before it was killed, and its workers may come back
    pid_file: str = ""  # written by the launcher, removed by us
    attached: bool = False  # the end of standard input is the end of the cluster, in good order


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reads from standard input, as one line of JSON."""

    worker: str
    master: str
    key: dict[str, Any]
    listening: Listening
    folder: str
    cpus: float
    gpus: list[str]  # as CUDA knows them
    resources: dict[str, float] = {}  # of the user's
    lifeline: bool
    pid_file: str = ""  # written by the launcher, removed by us
    attached: bool = False  # the end of standard input is the end of this worker, in good order
    end_without_master_s: float = 0.0  # if not zero: leave after so long without a word from it
    nonce: str  # what makes `worker` of the key; see admission.py
    predecessors: list[str] = []  # see Register
