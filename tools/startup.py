"""How long until remotely can be used: start of a cluster, first and further actors, a call.

    python tools/startup.py [--repeats 5] [--json FILE]

Each figure is the median of the repeats with their range, measured from a script's point of view,
in processes of their own.  Run it on an idle machine; it measures nothing else beside.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent

# Each script prints one JSON object: name of the figure, seconds.
EMBEDDED = """
import json, time
import remotely
begin = time.perf_counter()
remotely.connect(cpus=32)
connected = time.perf_counter() - begin

@remotely.remote_class
class Actor:
    def ping(self):
        return None

begin = time.perf_counter()
actor = Actor()
actor.ping()
first = time.perf_counter() - begin
begin = time.perf_counter()
remotely.group(Actor, 16).ping()
sixteen = time.perf_counter() - begin
for _ in range(200):
    actor.ping()
begin = time.perf_counter()
for _ in range(1000):
    actor.ping()
call = (time.perf_counter() - begin) / 1000
begin = time.perf_counter()
for future in [actor.ping.submit() for _ in range(3000)]:
    future.result()
pipelined = (time.perf_counter() - begin) / 3000
begin = time.perf_counter()
remotely.shutdown()
print(json.dumps({
    "embedded connect()": connected,
    "first actor, with a call": first,
    "16 actors, with a call each": sixteen,
    "blocking call": call,
    "pipelined call": pipelined,
    "shutdown()": time.perf_counter() - begin,
}))
"""
TORCH = """
import json, time
import torch
import remotely
remotely.connect(cpus=32)

@remotely.remote_class
class Actor:
    def __init__(self):
        self.layer = torch.nn.Linear(8, 8)
    def ping(self):
        return float(self.layer(torch.ones(8)).sum())

begin = time.perf_counter()
Actor().ping()
first = time.perf_counter() - begin
further = []
for _ in range(5):
    begin = time.perf_counter()
    actor = Actor()
    actor.ping()
    further.append(time.perf_counter() - begin)
begin = time.perf_counter()
remotely.group(Actor, 16).ping()
sixteen = time.perf_counter() - begin
print(json.dumps({
    "first actor that uses torch": first,
    "a further one, with a call": sorted(further)[2],
    "16 that use torch": sixteen,
}))
"""


def run(script: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        file.write_text(script)
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def start() -> dict[str, float]:
    """Time `remotely start`, from the shell's prompt to the next."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "REMOTELY_HOME": home}
        begin = time.perf_counter()
        subprocess.run(
            [BIN / "remotely", "start", "--port", port], env=env, capture_output=True, check=True
        )
        seconds = time.perf_counter() - begin
        subprocess.run([BIN / "remotely", "stop", "--port", port], env=env, check=True)
    return {"remotely start": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for measured in (run(EMBEDDED), run(TORCH), start()):
            for name, seconds in measured.items():
                figures.setdefault(name, []).append(seconds)
    machine = f"{psutil.cpu_count()} cores, {platform.processor() or platform.machine()}"
    print(f"{machine}, Python {platform.python_version()}, n={options.repeats}\n")
    print(f"{'':32}{'median':>12}{'min':>12}{'max':>12}")
    for name, values in figures.items():
        row = (statistics.median(values), min(values), max(values))
        print(f"{name:32}" + "".join(f"{1000 * value:>9.2f} ms" for value in row))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "seconds": figures}, indent=1))


if __name__ == "__main__":
    main()
