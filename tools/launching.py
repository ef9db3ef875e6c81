"""The time to start a cluster: by ssh, and by a launcher of ranks.

python tools/launching.py            # the published figures
python tools/launching.py -n 3 --hosts 4 --ranks 4

All runs on this machine, whose cores all processes share: the hosts are OpenSSH servers on loopback
addresses, and the ranks are started as srun starts them.  The hosts need root and openssh-server.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.clusters import SCRIPTS, free_port, processes, wait_until
from tests.jobs import Job
from tests.sshd import Hosts, why_no_sshd

UP_S, DEAD_S, RANKS_S = 5.0, 10.0, 4.0  # the targets


def ssh(folder: Path, environment: dict[str, str], hosts: int, dead: bool) -> float:
    """Return the seconds of `remotely up`, with or without a host that does not answer."""
    made, port = Hosts(folder, Hosts.on_loopback(hosts), environment), free_port()
    file = made.file(f"127.0.0.1:{port}")
    silent = socket.create_server(("127.0.0.9", made.port), backlog=0)
    filler = socket.create_connection(silent.getsockname())
    try:
        if dead:
            file.write_text(f'{file.read_text()}[[host]]\nssh = "127.0.0.9"\n')
            config = file.with_name("config")
            config.write_text(f"{config.read_text()}Host 127.0.0.9\n  Port {made.port}\n")
        begun = time.monotonic()
        up = _remotely(made.environment, "up", str(file))
        took = time.monotonic() - begun
        joined = f"{hosts} of {hosts + dead} machines have joined"
        if joined not in up.stdout + up.stderr or up.returncode != dead:
            raise SystemExit(f"it did not come up:\n{up.stdout}{up.stderr}")
        _remotely(made.environment, "down", str(made.file(f"127.0.0.1:{port}")))
        return took
    finally:
        made.close()
        filler.close()
        silent.close()


def ranks(folder: Path, environment: dict[str, str], count: int) -> float:
    """Return the seconds from the start of the ranks to the first line of the command."""
    job = Job(environment, folder / "shared", 1)
    try:
        begun = time.monotonic()
        job.start(count, "echo", "there")
        if job.line() != "there":
            raise SystemExit("\n".join(job.errors()))
        took = time.monotonic() - begun
        job.ends()
        return took
    finally:
        job.kill()


def _remotely(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(SCRIPTS / "remotely"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _measured(n: int, once: Callable[[Path, dict[str, str]], float]) -> list[float]:
    """Measure n times, each in a new temporary folder."""
    took = []
    for _ in range(n):
        folder = Path(tempfile.mkdtemp(prefix="launch-"))
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("REMOTELY_", "SLURM_"))},
            "REMOTELY_HOME": str(folder / "home"),
            "TMPDIR": str(folder),
        }
        try:
            took.append(once(folder, environment))
            tag = str(folder)
            wait_until(lambda tag=tag: not processes(tag), "nothing is left")  # type: ignore[misc]
        finally:
            shutil.rmtree(folder)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python tools/launching.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", type=int, default=10, help="repetitions")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8)
    asked = parser.parse_args()
    rows: list[tuple[str, float, Callable[[Path, dict[str, str]], float]]] = [
        (f"{asked.ranks} ranks", RANKS_S, lambda f, e: ranks(f, e, asked.ranks)),
    ]
    if why := why_no_sshd():
        print(f"not by ssh: {why}", file=sys.stderr)
    else:
        rows += [
            (f"{asked.hosts} hosts", UP_S, lambda f, e: ssh(f, e, asked.hosts, False)),
            ("and a dead one", DEAD_S, lambda f, e: ssh(f, e, asked.hosts, True)),
        ]
    print("| what | n | median | slowest | bar |\n| --- | --- | --- | --- | --- |")
    for what, bar_s, once in rows:
        took = _measured(asked.n, once)
        middle, slowest = statistics.median(took), max(took)
        print(f"| {what} | {asked.n} | {middle:.2f} s | {slowest:.2f} s | {bar_s:.0f} s |")


if __name__ == "__main__":
    main()
