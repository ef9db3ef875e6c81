"""PARL: a cluster by `xparl start`, whose processes end with this one."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import parl

from tools.bench import processes, stopwatch
from tools.bench.stopwatch import Array, Effort, report, seconds

XPARL = Path(sys.executable).parent / "xparl"
ACTORS = 8  # each takes more than a second to start


@parl.remote_class
class Actor:
    def ping(self) -> None:
        return None

    def echo(self, value: Any) -> Any:
        return value

    def set_param(self, param: Any) -> None:
        self.param = param


@parl.remote_class(wait=False)
class Submitting:
    def ping(self) -> Any:
        return None


def calls(effort: Effort) -> None:
    _connect()
    actor, submitting = Actor(), Submitting()

    def blocking(count: int) -> None:
        for _ in range(count):
            actor.ping()

    def pipelined(count: int) -> None:
        for future in [submitting.ping() for _ in range(count)]:
            future.get()

    report(
        call_s=stopwatch.per_call(blocking, effort.calls, effort.repeats),
        pipelined_per_s=1 / stopwatch.per_call(pipelined, effort.pipelined // 3, effort.repeats),
    )


def arrays(effort: Effort) -> None:
    def run(array: Array, count: int) -> None:
        for _ in range(count):
            actor.echo(array)

    _connect()
    actor = Actor()
    # 100 MB takes minutes.
    stopwatch.echoes(run, effort, largest=10_000_000)


def broadcast(effort: Effort) -> None:
    def run(count: int) -> None:
        for _ in range(count):
            threads = [threading.Thread(target=a.set_param, args=(param,)) for a in actors]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    _connect(ACTORS)
    actors = [Actor() for _ in range(ACTORS)]
    param = stopwatch.parameters()
    report(broadcast_8_s=stopwatch.per_call(run, effort.broadcasts, effort.repeats))


def start(_: Effort) -> None:
    report(start_s=seconds(lambda: _connect(settle=False)))
    report(first_actor_s=seconds(lambda: Actor().ping()))


def _connect(actors: int = 2, settle: bool = True) -> None:
    port = stopwatch.free_port()
    subprocess.run(
        [XPARL, "start", "--port", str(port), "--cpu_num", str(actors)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    parl.connect(f"localhost:{port}")
    if settle:  # its processes, one per core, are still starting
        processes.wait_until_quiet()


if __name__ == "__main__":
    stopwatch.main({"calls": calls, "arrays": arrays, "broadcast": broadcast, "start": start})
