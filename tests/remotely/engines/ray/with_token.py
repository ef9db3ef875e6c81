"""A script that starts a Ray with a token, and has other processes connect to it."""

import json
import os
import subprocess
import sys

import ray

CONNECT = """
import json, sys, remotely
try:
    remotely.connect(sys.argv[1])
    outcome = [len(remotely.status().machines), ""]
except remotely.RemotelyError as error:
    outcome = [type(error).__name__, str(error)]
print(json.dumps(outcome))
"""
OF_ANOTHER_RAY = """
import ray._private.utils
ray._private.utils.compute_version_info = lambda: ("2.0.77", "3.11.0")
"""


def connect(
    address: str, without: str = "", script: str = CONNECT, **settings: str
) -> list[object]:
    """Run the script in another process with these settings, `without` one; return its outcome."""
    kept = {name: value for name, value in os.environ.items() if name != without}
    done = subprocess.run(
        [sys.executable, "-c", script, f"ray:{address}"],
        env={**kept, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    outcome: list[object] = json.loads(done.stdout.splitlines()[-1])
    return outcome


if __name__ == "__main__":
    context = ray.init("local", num_cpus=1, include_dashboard=False, logging_level="ERROR")
    address = context.address_info["gcs_address"]
    outcomes = {
        "right": connect(address),
        "right, default mode": connect(address, without="RAY_AUTH_MODE"),
        "wrong": connect(address, RAY_AUTH_TOKEN="b" * 64),
        "of another Ray": connect(address, script=OF_ANOTHER_RAY + CONNECT),
        "none": connect(address, RAY_AUTH_MODE="disabled"),
    }
    ray.shutdown()
    print(json.dumps(outcomes))
