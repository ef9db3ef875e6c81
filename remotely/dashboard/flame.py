"""The flame of one actor: where its time goes, as py-spy samples it for a few seconds.

py-spy reads the memory of the process and does not stop it.  It is not a dependency: who wants
flames installs it beside the dashboard.
"""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

SECONDS = 3
SAMPLES_PER_S = 100
LEAST_SHARE = 0.005  # frames below this share of all samples are left out
OUR_THREAD = "(remotely/transport/loop.py:"  # the background thread of an actor
AROUND = "(remotely/actor/"  # what stands around the user's method
IDLE = "waits for a call"


class NoFlame(Exception):
    """There is none, and this is why, for whoever asked for it."""


def command() -> str:
    """Return where py-spy is, beside this Python or on PATH; empty if it is nowhere."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


async def record(pid: int) -> dict[str, Any]:
    """Sample a process of this machine; return its tree of frames.  Raises NoFlame."""
    if not (py_spy := command()):
        raise NoFlame("py-spy is not installed beside the dashboard: pip install py-spy")
    process = await asyncio.create_subprocess_exec(
        py_spy, "record", "--pid", str(pid), "--duration", str(SECONDS),
        "--rate", str(SAMPLES_PER_S), "--format", "raw", "--nonblocking", "--idle",
        "--output", "/dev/stdout",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS + 10)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    samples = [line for line in out.decode(errors="replace").splitlines() if is_stack(line)]
    if not samples:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no sample was taken"]
        hint = (
            "; the kernel lets only root look into other processes here: "
            "`sysctl kernel.yama.ptrace_scope=0` allows your own"
        )
        denied = "permission" in last[0].lower() or "not permitted" in last[0].lower()
        raise NoFlame(f"py-spy: {last[0]}{hint if denied else ''}")
    return tree(samples)


def is_stack(line: str) -> bool:
    stack, _, count = line.rpartition(" ")
    return bool(stack) and count.isdecimal()


def tree(samples: list[str]) -> dict[str, Any]:
    """Return nested frames {name, samples, calls} of stacks as "a;b;c 12", widest first.

    They begin with the user's method: what leads to it is the same for all.
    """
    root: dict[str, Any] = {"name": "all", "samples": 0, "calls": {}}
    for line in samples:
        text, _, count = line.rpartition(" ")
        if OUR_THREAD in text:
            continue
        stack = text.split(";")
        outer = max((place for place, name in enumerate(stack) if AROUND in name), default=-1)
        at = root
        at["samples"] += int(count)
        for name in stack[outer + 1 :] or [IDLE]:
            at = at["calls"].setdefault(name, {"name": name, "samples": 0, "calls": {}})
            at["samples"] += int(count)
    return _pruned(root, root["samples"] * LEAST_SHARE)


def _pruned(frame: dict[str, Any], least: float) -> dict[str, Any]:
    kept = [each for each in frame["calls"].values() if each["samples"] >= least]
    kept.sort(key=lambda each: -each["samples"])
    return {**frame, "calls": [_pruned(each, least) for each in kept]}
