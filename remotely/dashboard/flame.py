"""The flame graph of one actor: its stacks, sampled by py-spy for a few seconds.

py-spy reads the memory of the process and does not stop it.  It is not a dependency: users who want
flame graphs install it next to the dashboard.
"""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

SECONDS = 3
SAMPLES_PER_S = 100
MIN_SHARE = 0.005  # frames below this share of all samples are left out
OUR_THREAD = "(remotely/transport/loop.py:"  # the background thread of an actor
AROUND = "(remotely/actor/"  # the frames that lead to the user's method
IDLE = "waits for a call"


class NoFlame(Exception):
    """The actor cannot be sampled; the message says why."""


def command() -> str:
    """Return the path of py-spy, beside this Python or on PATH; "" if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


async def record(pid: int) -> dict[str, Any]:
    """Sample a process of this machine; return its tree of frames.  Raises NoFlame."""
    if not (py_spy := command()):
        raise NoFlame("py-spy is not installed here: pip install py-spy")
    process = await asyncio.create_subprocess_exec(
        py_spy,
        "record",
        "--pid",
        str(pid),
        "--duration",
        str(SECONDS),
        "--rate",
        str(SAMPLES_PER_S),
        "--format",
        "raw",
        "--nonblocking",
        "--idle",
        "--output",
        "/dev/stdout",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS + 10)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    samples = [line for line in out.decode(errors="replace").splitlines() if is_stack(line)]
    if not samples:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no sample was taken"]
        hint = (
            "; the kernel lets only root inspect other processes here: "
            "`sysctl kernel.yama.ptrace_scope=0` allows it for your own processes"
        )
        denied = "permission" in last[0].lower() or "not permitted" in last[0].lower()
        raise NoFlame(f"py-spy: {last[0]}{hint if denied else ''}")
    return tree(samples)


def is_stack(line: str) -> bool:
    stack, _, count = line.rpartition(" ")
    return bool(stack) and count.isdecimal()


def tree(samples: list[str]) -> dict[str, Any]:
    """Return nested frames {name, samples, calls} of stacks as "a;b;c 12", widest first.

    They begin with the user's method: the frames outside it are the same for all.
    """
    root: dict[str, Any] = {"name": "all", "samples": 0, "calls": {}}
    for line in samples:
        text, _, count = line.rpartition(" ")
        if OUR_THREAD in text:
            continue
        stack = text.split(";")
        outer = max((index for index, name in enumerate(stack) if AROUND in name), default=-1)
        frame = root
        frame["samples"] += int(count)
        for name in stack[outer + 1 :] or [IDLE]:
            frame = frame["calls"].setdefault(name, {"name": name, "samples": 0, "calls": {}})
            frame["samples"] += int(count)
    return _pruned(root, root["samples"] * MIN_SHARE)


def _pruned(frame: dict[str, Any], min_samples: float) -> dict[str, Any]:
    kept = [each for each in frame["calls"].values() if each["samples"] >= min_samples]
    kept.sort(key=lambda each: -each["samples"])
    return {**frame, "calls": [_pruned(each, min_samples) for each in kept]}
