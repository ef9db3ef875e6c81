"""What a launcher tells the daemons that it starts."""

from typing import Any

import msgspec


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a master reads from standard input, as one line of JSON."""

    address: str
    key: dict[str, Any]
    lifeline: bool
    key_file: str = ""  # read again at SIGHUP
    learns: bool = False  # one before it was killed, and its workers may come back
    pid_file: str = ""  # written by the launcher, removed by us


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reads from standard input, as one line of JSON."""

    worker: str
    master: str
    key: dict[str, Any]
    tcp_host: str
    folder: str
    cpus: float
    gpus: list[str]  # as CUDA knows them
    resources: dict[str, float] = {}  # of the user's
    lifeline: bool
    pid_file: str = ""  # written by the launcher, removed by us
    nonce: str  # what makes `worker` of the key; see admission.py
