"""Calls to an object that dialled in, over TCP through a worker's relay."""

import os
import subprocess
import sys

import numpy as np

import remotely
from tools.bench import stopwatch
from tools.bench.ours.calls import Actor, blocking, pipelined
from tools.bench.ours.started import started
from tools.bench.stopwatch import Effort, report

LARGE = np.zeros(10_000_000, np.uint8)


class Served(Actor):
    def echo(self, value: object) -> object:
        return value


def served(effort: Effort) -> None:
    with started() as (address, key):
        os.environ["REMOTELY_HOST"] = "another"
        worker_key = str(key).replace("client.key", "worker.key")
        command = [sys.executable, "-m", "tools.bench.ours.served", "serve", address, worker_key]
        process = subprocess.Popen(command, env={**os.environ, "REMOTELY_HOST": "a third"})
        try:
            remotely.connect(address, key=key)
            actor = next(remotely.arrivals(Served, timeout=30))
            echo = lambda count: [actor.echo(LARGE) for _ in range(count)]
            report(
                call_served_s=stopwatch.per_call(blocking(actor), effort.calls, effort.repeats),
                pipelined_served_per_s=1
                / stopwatch.per_call(pipelined(actor), effort.pipelined, effort.repeats),
                echo_served_10mb_s=stopwatch.per_call(echo, 3, effort.repeats),
            )
            remotely.close(actor)
            remotely.shutdown()
        finally:
            process.wait(timeout=30)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        remotely.serve(remotely.local(Served), address=sys.argv[2], key=sys.argv[3])
    else:
        stopwatch.main({"served": served})
