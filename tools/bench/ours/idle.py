"""The share of one core that an idle embedded cluster uses, by process."""

import os
import time
from collections import defaultdict

import remotely
from tools.bench import processes, stopwatch
from tools.bench.ours.calls import Actor
from tools.bench.stopwatch import Effort, report

SETTLE_S = 3.0
DAEMONS = ("master", "worker", "zygote")


def idle(effort: Effort) -> None:
    remotely.connect(cpus=32)
    _report(0, effort.idle_s)
    actors = remotely.group(Actor, 16)
    actors.ping()
    _report(16, effort.idle_s)


def _report(actors: int, for_s: float) -> None:
    processes.wait_until_quiet(SETTLE_S)
    roles = _roles()
    mine = os.getpid()
    # This process last and then first, so that the readings themselves do not count.
    before = processes.cpu_of([*roles, mine])
    time.sleep(for_s)
    after = processes.cpu_of([mine, *roles])
    share: defaultdict[str, float] = defaultdict(float)
    for pid, role in {**roles, mine: "client"}.items():
        share[role] += (after[pid] - before[pid]) / for_s
    report(**{f"idle_{actors}_share": sum(share.values())})
    report(**{f"idle_{actors}_{role}_share": value for role, value in share.items()})


def _roles() -> dict[int, str]:
    """Return the role of each process; actors are forks and look like their zygote."""
    roles: dict[int, str] = {}
    for pid in processes.descendants(os.getpid()):
        words = processes.command(pid)
        named = next((role for role in DAEMONS if f"remotely.{role}" in words), "actors")
        roles[pid] = "actors" if named in roles.values() else named
    return roles


if __name__ == "__main__":
    stopwatch.main({"idle": idle})
