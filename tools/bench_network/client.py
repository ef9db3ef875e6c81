"""The client of the benchmark on machine 0, which prints a line of JSON.

python -m tools.bench_network.client ADDRESS ROW [NBYTES TIMES]
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np

import remotely


@remotely.remote_class(cpus=1)
class Peer:
    def echo(self, value: Any) -> Any:
        return value

    def take(self, value: Any) -> int:
        return int(value.nbytes)

    def make(self, nbytes: int) -> Any:
        return np.ones(nbytes, np.uint8)

    def follow(self, params: Any) -> None:
        self.params = params

    def has_newer(self, version: int) -> bool:
        return bool(self.params.wait(newer_than=version))

    def add(self, a: int, b: int) -> int:
        return a + b

    def where(self) -> str:
        return next(
            line.split("|--")[1].strip()
            for line in Path("/proc/net/fib_trie").read_text().splitlines()
            if "|-- 10.232.0." in line and not line.endswith((".0", ".255"))
        )


def timed(call: Callable[[], Any], times: int) -> list[float]:
    """Return the seconds of each call, after one that is not counted."""
    call()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return taken


def array(nbytes: int, times: int) -> dict[str, Any]:
    peer, value = Peer(), np.ones(nbytes, np.uint8)
    there = timed(lambda: peer.take(value), times)
    both = timed(lambda: peer.echo(value), times)
    call = timed(lambda: [peer.add(1, 2) for _ in range(1000)], 3)
    return {"there_s": there, "both_s": both, "call_s": [s / 1000 for s in call]}


def group(nbytes: int, times: int) -> dict[str, Any]:
    group, value = remotely.group(Peer, 8), np.ones(nbytes, np.uint8)
    one = timed(lambda: group[0].take(value), times)
    eight = timed(lambda: group.take(value), times)
    ref = remotely.put(value)
    return {"one_s": one, "eight_s": eight, "put_s": timed(lambda: group.take(ref), times)}


def machines(nbytes: int, times: int) -> dict[str, Any]:
    members = remotely.group(Peer, 8)
    found = dict(zip(members.where(), members, strict=True))
    spread, value = remotely.Group(found.values()), np.ones(nbytes, np.uint8)
    one = timed(lambda: spread[0].take(value), times)
    return {
        "machines": len(spread),
        "one_s": one,
        "all_s": timed(lambda: spread.take(value), times),
    }


def published(nbytes: int, times: int) -> dict[str, Any]:
    """Measure the arrival of new versions on one machine, and on all."""
    members = remotely.group(Peer, 8)
    found = dict(zip(members.where(), members, strict=True))
    value = np.ones(nbytes, np.uint8)

    def arrival(readers: Any) -> list[float]:
        params = remotely.Published(value, eager=True)
        readers.follow(params)

        def new_version() -> None:
            waiting = readers.has_newer.submit(params.version)
            params.set(value)
            wait(waiting)

        return timed(new_version, times)

    one = arrival(remotely.Group([*found.values()][:1]))
    return {
        "machines": len(found),
        "one_s": one,
        "all_s": arrival(remotely.Group(found.values())),
    }


def future(nbytes: int, times: int) -> dict[str, Any]:
    members = remotely.group(Peer, 4)
    by_address = dict(zip(members.where(), members, strict=True))
    one, two = [*by_address.values()][:2]
    two.take(one.make.submit(nbytes))
    print("ready", flush=True)  # the traffic is counted from here
    sys.stdin.readline()
    taken = timed(lambda: two.take(one.make.submit(nbytes)), times)
    return {"future_s": taken, "calls": times + 1}


def many(nbytes: int, times: int) -> dict[str, Any]:
    members = remotely.group(remotely.options(Peer, cpus=0.05), 200)
    return {
        "s": timed(lambda: wait(members.make.submit(nbytes)), times),
        "actors": len(members),
        "machines": len(set(members.where())),
    }


def calls(nbytes: int, times: int) -> dict[str, Any]:
    """Measure calls over a bad line, some of them with arrays."""
    peer, value = Peer(), np.ones(nbytes, np.uint8)
    begin = time.perf_counter()
    futures = []
    for i in range(times):
        futures.append((i, remotely.submit(peer.add, i, i)))
        if i % 500 == 0:
            futures.append((-1, remotely.submit(peer.take, value)))
    wrong = sum((future.result() != (nbytes if i < 0 else 2 * i)) for i, future in futures)
    took = time.perf_counter() - begin
    return {
        "s": took,
        "calls": len(futures),
        "anomalies": wrong,
        "echo_s": timed(lambda: peer.echo(value), 3),
    }


ROWS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "array": array,
    "group": group,
    "machines": machines,
    "published": published,
    "future": future,
    "many": many,
    "calls": calls,
}

if __name__ == "__main__":
    address, row, nbytes, times = sys.argv[1:]
    remotely.connect(address)
    print(json.dumps(ROWS[row](int(nbytes), int(times))), flush=True)
    remotely.shutdown()
