"""Simulators that dial in to a learner: processes that already run, on any machine.

On a cluster started by `remotely start --host ADDRESS`:

    python examples/dial_in.py simulate ADDRESS:8010    on each machine with a simulator; needs a
                                                        copy of the cluster's worker.key
    python examples/dial_in.py learn ADDRESS:8010       where the learner runs; needs client.key

A simulator dials out, so it may be behind NAT or a firewall.  It waits for a learner, and for the
next learner when that one has ended.

Without arguments, this file runs a cluster, two simulators and a learner on this machine:

    python examples/dial_in.py
"""

import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import remotely

SIMULATORS = 2
GUESSES = 12


class Simulator:
    """Hides a number and measures a guess; stands for a robot, a game or a licensed program."""

    def __init__(self) -> None:
        self.target = random.Random(0).uniform(0.0, 100.0)

    def measure(self, guess: float) -> float:
        return abs(guess - self.target)


def simulate(address: str) -> None:
    remotely.serve(Simulator(), address=address)  # returns when a client closes it


def learn(address: str) -> None:
    remotely.connect(address)
    simulators = list(remotely.arrivals(Simulator, count=SIMULATORS, timeout=60))
    print(f"{len(simulators)} simulators have dialled in", flush=True)
    low, high = 0.0, 100.0
    for _ in range(GUESSES):  # ternary search: the two simulators measure at the same time
        guesses = low + (high - low) / 3, high - (high - low) / 3
        futures = [s.measure.submit(g) for s, g in zip(simulators, guesses, strict=True)]
        left, right = (future.result() for future in futures)
        low, high = (low, guesses[1]) if left < right else (guesses[0], high)
    print(f"the target is about {(low + high) / 2:.0f}", flush=True)
    for simulator in simulators:
        remotely.close(simulator)  # its `serve` returns
    remotely.shutdown()


def demonstrate() -> None:
    """Run a cluster, its simulators and a learner on this machine."""
    with tempfile.TemporaryDirectory(prefix="rt-") as home, socket.create_server(("", 0)) as probe:
        port = str(probe.getsockname()[1])
        probe.close()
        os.environ["REMOTELY_HOME"] = home  # where this cluster's keys are
        command = Path(sys.executable).with_name("remotely")
        subprocess.run([command, "start", "--port", port], check=True, stdout=subprocess.DEVNULL)
        address = f"127.0.0.1:{port}"
        simulator = [sys.executable, __file__, "simulate", address]
        running = [subprocess.Popen(simulator) for _ in range(SIMULATORS)]
        try:
            learn(address)
            for process in running:
                process.wait(timeout=10)
        finally:
            for process in running:
                process.kill()
                process.wait()
            subprocess.run([command, "stop", "--port", port], check=True, capture_output=True)


def main(role: str = "", address: str = "") -> None:
    if role == "simulate":
        simulate(address)
    elif role == "learn":
        learn(address)
    else:
        demonstrate()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C ends the script and its processes
        raise SystemExit(130) from None
