"""RPyC: a service in a child, on tcp; without arrays, of which it passes references."""

import multiprocessing
from typing import Any

import rpyc
from rpyc.utils.server import ThreadedServer

from tools.bench import stopwatch
from tools.bench.stopwatch import Effort, report


class Service(rpyc.Service):  # type: ignore[misc]
    def exposed_ping(self) -> None:
        return None


def calls(effort: Effort) -> None:
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=_serve, args=(there,), daemon=True).start()
    ping = rpyc.connect("127.0.0.1", here.recv()).root.ping
    submit = rpyc.async_(ping)

    def blocking(count: int) -> None:
        for _ in range(count):
            ping()

    def pipelined(count: int) -> None:
        for result in [submit() for _ in range(count)]:
            result.wait()

    report(
        call_s=stopwatch.per_call(blocking, effort.calls, effort.repeats),
        pipelined_per_s=1 / stopwatch.per_call(pipelined, effort.pipelined, effort.repeats),
    )


def _serve(pipe: Any) -> None:
    server = ThreadedServer(Service, hostname="127.0.0.1", port=0)
    pipe.send(server.port)
    server.start()


if __name__ == "__main__":
    stopwatch.main({"calls": calls})
