"""multiprocessing: a child at the other end of a Pipe; a call is a pickle each way."""

import multiprocessing
from typing import Any

from tools.bench import stopwatch
from tools.bench.stopwatch import Array, Effort, report


def calls(effort: Effort) -> None:
    def run(count: int) -> None:
        for _ in range(count):
            pipe.send(("ping", ()))
            pipe.recv()

    pipe = _child()
    report(call_s=stopwatch.per_call(run, effort.calls, effort.repeats))


def arrays(effort: Effort) -> None:
    def run(array: Array, count: int) -> None:
        for _ in range(count):
            pipe.send(("echo", (array,)))
            pipe.recv()

    pipe = _child()
    stopwatch.echoes(run, effort)


class Actor:
    def ping(self) -> None:
        return None

    def echo(self, value: object) -> object:
        return value


def _child() -> Any:
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=_serve, args=(there,), daemon=True).start()
    return here


def _serve(pipe: Any) -> None:
    actor = Actor()
    while True:
        method, arguments = pipe.recv()
        pipe.send(getattr(actor, method)(*arguments))


if __name__ == "__main__":
    stopwatch.main({"calls": calls, "arrays": arrays})
