"""Environments that fail at random under a trainer: no run is lost, and no row is wrong.

Each draws when and how it fails: by a kill, a native crash, an exception, or a hang, with the GIL
or without.  The trainers are in trainers.py, each in a separate process, as a user's script would
be; the environments and their oracle in numbered.py.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.finding import Finding, Trial
from tests.clusters import Traces

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 7_200


def _under(trainer: str) -> Callable[[int, int, Path], Finding]:
    def run(n: int, seed: int, folder: Path) -> Finding:
        del seed  # each environment draws by itself; only their number matters
        python = _python_for(trainer)
        if python is None:
            return Finding(0, 0.0, "Stable-Baselines3 is not installed: make bench-rl-peers", [])
        began, before = time.monotonic(), Traces()
        command = [python, "-m", "tests.chaos.trainers", trainer, str(n), str(folder)]
        with (folder / "stderr").open("w") as errors:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=RUN_S,
                check=False,
            )
        seconds = time.monotonic() - began
        if done.returncode:
            return Finding(n, seconds, "the run was lost", [f"it ended with {done.returncode}"])
        seen = json.loads(done.stdout.splitlines()[-1])
        told = [
            f"{seen['broken']:,} broken in {seen['rows']:,} rows",
            *_figures("told with the cause after", seen["told_s"]),
            *_figures("a hang, after its limit", seen["hung_s"]),
            *_figures("replaced after", seen["replaced_s"]),
        ]
        wrong = seen["wrong"] + [f"left behind: {left}" for left in _left(before)]
        return Finding(seen["broken"], seconds, "; ".join(told), wrong)

    return run


def _python_for(trainer: str) -> str | None:
    if trainer != "sb3" or importlib.util.find_spec("stable_baselines3"):
        return sys.executable
    peers = ROOT / ".peers-rl" / "bin" / "python"
    return str(peers) if peers.exists() else None


def _figures(what: str, seconds: list[float]) -> list[str]:
    if not seconds:
        return []
    seconds.sort()
    at = {
        name: seconds[int(part * (len(seconds) - 1))]
        for name, part in (("p50", 0.5), ("p99", 0.99), ("at most", 1.0))
    }
    return [f"{what} " + ", ".join(f"{name} {1000 * s:,.0f} ms" for name, s in at.items())]


def _left(before: Traces) -> list[str]:
    return [f"{name}: {what}" for name, what in before.left_after(20).items()]


TRIALS = {
    "environments under CleanRL's PPO": Trial(334, _under("cleanrl")),
    "environments under SB3's PPO": Trial(333, _under("sb3")),
    "environments under our PPO": Trial(333, _under("local")),
    "environments sampled centrally": Trial(300, _under("central")),
    "environments sampled in two halves": Trial(300, _under("alternating")),
}
