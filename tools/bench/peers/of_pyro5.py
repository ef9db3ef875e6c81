"""Pyro5: a daemon in a child, and a proxy here.

It has blocking calls only: a proxy has one call in flight, a batch is one message of many calls
instead of a pipeline, and its serialisers do not support arrays.
"""

import multiprocessing
from typing import Any

import Pyro5.api

from tools.bench import stopwatch
from tools.bench.stopwatch import Effort, report


@Pyro5.api.expose
class Actor:
    def ping(self) -> None:
        return None


def calls(effort: Effort) -> None:
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=_serve, args=(there,), daemon=True).start()
    actor = Pyro5.api.Proxy(here.recv())

    def run(count: int) -> None:
        for _ in range(count):
            actor.ping()

    report(call_s=stopwatch.per_call(run, effort.calls, effort.repeats))


def _serve(pipe: Any) -> None:
    daemon = Pyro5.api.Daemon()
    pipe.send(str(daemon.register(Actor())))
    daemon.requestLoop()


if __name__ == "__main__":
    stopwatch.main({"calls": calls})
