"""Published values, whose writers and readers are killed or stopped at random; all bytes checked.

A value is its life, its version, and as many numbers as a function of both says, which follow from
them too.  So a version that is torn, old or of another life is detected, whatever part of it is.
"""

import contextlib
import gc
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import remotely
from remotely.values import published
from remotely.values.shared_memory import MemoryAddress
from tests.chaos.finding import Finding, Trial
from tests.clusters import wait_until

READERS = 4
LIFE = 500  # versions, after which a writer that was not killed ends
SET_S = 5.0  # a writer that takes longer for one version has waited for somebody


def value_of(life: int, version: int, least: int = 100) -> dict[str, Any]:
    """Return what is published as a version, with at least so many numbers."""
    size = least + (life * 7919 + version // 20 * 104729) % 5000
    numbers = np.arange(size, dtype=np.uint64) * np.uint64(2 * version + 1) + np.uint64(life)
    return {"life": life, "version": np.uint64(version), "numbers": numbers}


def wrong_in(latest: "remotely.Latest[Any]", life: int, least: int = 100) -> str:
    """Return what is wrong with a version that was read; "" if it is whole."""
    value, version = latest
    expected = value_of(life, version, least)
    whole: NDArray[Any] = value["numbers"]
    if value["life"] != life or value["version"] != version:
        return f"life {value['life']}, version {value['version']} is read as {life}, {version}"
    if not np.array_equal(whole, expected["numbers"]):
        return f"version {version} of life {life} is torn"
    return ""


def forked(run: Any, *args: object) -> int:
    """Run a function in a forked child, and return its pid."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(*args)
            code = 0
        finally:
            os._exit(code)
    return child


def write(life: int, told: int) -> None:
    """Publish the versions of a life."""
    params = remotely.Published(value_of(life, 1))
    os.write(told, (json.dumps(params._memory.address()) + "\n").encode())
    for version in range(2, LIFE + 1):
        begun = time.monotonic()
        params.set(value_of(life, version))
        if time.monotonic() - begun > SET_S:
            os._exit(3)
    signal.pause()  # until it is killed


def read(params: "remotely.Published[Any]", life: int, seed: float, told: int) -> None:
    """Read until killed: views, copies, or both; keep some of them for a while."""
    draw, seen = random.Random(seed), 0
    kept: list[remotely.Latest[Any]] = []
    while True:
        latest = params.latest(copy=draw.random() < 0.3)
        kept = [*kept, latest][-draw.randrange(1, 5) :]
        says = wrong_in(draw.choice(kept), life) or wrong_in(latest, life)
        if latest.version < seen:
            says = f"version {latest.version} of life {life} came after {seen}"
        seen = latest.version
        if says:
            os.write(told, f"{says}\n".encode())
        if draw.random() < 0.1:
            with contextlib.suppress(remotely.PublisherGone):
                params.wait(newer_than=seen, timeout=0.01)


def one_life(life: int, draw: random.Random) -> tuple[int, list[str]]:
    """Run one writer with its readers; return how many versions there were, and what was wrong."""
    hears, told = os.pipe()
    wrong: list[str] = []
    writer = forked(write, life, told)
    with os.fdopen(hears) as heard:
        address = MemoryAddress(*json.loads(heard.readline()))
        params = published._receive(address, address.token, None)
        readers = [forked(read, params, life, draw.random(), told) for _ in range(READERS)]
        stopped: list[int] = []
        last = LIFE if draw.random() < 0.3 else draw.randrange(1, LIFE)
        ends_at = time.monotonic() + 60
        while params.version < last and time.monotonic() < ends_at:
            time.sleep(draw.random() * 0.01)
            at = draw.randrange(READERS)
            if draw.random() < 0.2 and len(stopped) < 2 and readers[at] not in stopped:
                os.kill(readers[at], signal.SIGSTOP)
                stopped.append(readers[at])
            else:
                _kill(readers[at])
                stopped = [pid for pid in stopped if pid != readers[at]]
                readers[at] = forked(read, params, life, draw.random(), told)
            says = wrong_in(params.latest(), life)
            wrong += [says] if says else []
        if os.waitpid(writer, os.WNOHANG)[0]:
            wrong.append(f"the writer of life {life} waited for {SET_S} s, or raised")
        else:
            _kill(writer)
        for pid in readers:
            _kill(pid)
        os.close(told)
        latest = params.latest()
        says = wrong_in(latest, life)
        wrong += [says] if says else []
        if not latest.is_final:
            wrong.append(f"the writer of life {life} is dead, and its last version not final")
        largest = value_of(life, 1)["numbers"].nbytes + 5000 * 8
        if params.held_bytes > largest * (READERS * 5 + 5):
            wrong.append(f"{params.held_bytes} bytes are held by {READERS} readers")
        wrong += heard.read().splitlines()
    return latest.version, wrong


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def versions(n: int, seed: int, folder: Path) -> Finding:
    """Publish n versions in many lives."""
    del folder
    begun, draw = time.monotonic(), random.Random(seed)
    done = lives = 0
    wrong: list[str] = []
    while done < n and not wrong:
        lives += 1
        count, says = one_life(lives, draw)
        done, wrong = done + count, wrong + says
        gc.collect()
    maps = Path("/proc/self/maps")
    wait_until(lambda: "remotely-published" not in maps.read_text(), "no memory is left")
    seconds = time.monotonic() - begun
    return Finding(done, seconds, f"{lives} writers, {READERS} readers at a time", wrong)


TRIALS = {"versions": Trial(100_000, versions)}
