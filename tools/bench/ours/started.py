"""A started cluster of a home of its own, and how long the command takes."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REMOTELY = Path(sys.executable).parent / "remotely"


@contextlib.contextmanager
def started() -> Iterator[tuple[str, Path]]:
    """Give the address and the client's key of a cluster that ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as home:
        _run(home, "start", "--host", "127.0.0.1", "--cpus", "32", "--port", port)
        try:
            yield f"127.0.0.1:{port}", Path(home) / "keys" / "client.key"
        finally:
            _run(home, "stop", "--port", port)


def _run(home: str, *words: str) -> None:
    env = {**os.environ, "REMOTELY_HOME": home}
    subprocess.run([REMOTELY, *words], env=env, stdout=subprocess.DEVNULL, check=True)
