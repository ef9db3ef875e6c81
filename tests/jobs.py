"""Jobs of several ranks on one machine, started by a fake launcher.

Like srun, it starts the same line for each rank, with the variables of Slurm.
"""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clusters import DEADLINE_S, SCRIPTS

COMMAND = """
import os, sys
import remotely
print("machines", len(remotely.status().machines), flush=True)

@remotely.remote_class
class Where:
    def host(self):
        return os.environ["RANK_OF_TEST"]

wheres = [remotely.options(Where)() for _ in range(int(sys.argv[1]))]
print("ranks", *sorted(where.host() for where in wheres), flush=True)
sys.stdin.read()
sys.exit(int(sys.argv[2]))
"""


class Job:
    """The ranks of a job."""

    def __init__(self, environment: dict[str, str], folder: Path, job: int) -> None:
        self.environment = environment
        self.folder = folder
        self.job = job
        self.ranks: list[subprocess.Popen[str]] = []

    def start(
        self,
        size: int,
        *words: object,
        ranks: Any = None,
        options: tuple[object, ...] = (),
        by: tuple[str, ...] = (),
    ) -> None:
        """Start the ranks, by default all of them, prefixed with the command `by`."""
        for rank in range(size) if ranks is None else ranks:
            variables = {
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(size),
                "SLURM_JOB_ID": str(self.job),
                "SLURM_STEP_ID": "0",
                "RANK_OF_TEST": str(rank),
            }
            command = [
                *by,
                SCRIPTS / "remotely",
                "run",
                "--rendezvous",
                self.folder,
                "--cpus",
                1,
                *options,
                "--",
                *words,
            ]
            self.ranks.append(
                subprocess.Popen(
                    list(map(str, command)),
                    env={**self.environment, **variables},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def script(self, size: int, code: int = 0, **more: Any) -> None:
        self.start(size, sys.executable, "-c", COMMAND, size, code, **more)

    def line(self, rank: int = 0) -> str:
        out = self.ranks[rank].stdout
        assert out is not None
        return out.readline().strip()

    def ends(self) -> list[int]:
        """Let the command finish; return the exit codes of all ranks."""
        for rank in self.ranks:
            assert rank.stdin is not None
            with contextlib.suppress(OSError):
                rank.stdin.close()
        return [rank.wait(DEADLINE_S) for rank in self.ranks]

    def errors(self) -> list[str]:
        return [rank.stderr.read() for rank in self.ranks if rank.stderr is not None]

    def kill(self) -> None:
        """Kill and reap the ranks."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            for stream in (rank.stdin, rank.stdout, rank.stderr):
                assert stream is not None
                with contextlib.suppress(OSError):
                    stream.close()
