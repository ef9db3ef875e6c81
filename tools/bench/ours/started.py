"""A cluster by `remotely start`, with its own home folder."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.bench.stopwatch import free_port

REMOTELY = Path(sys.executable).parent / "remotely"


@contextlib.contextmanager
def started() -> Iterator[tuple[str, Path]]:
    """Yield the address and the client's key of a cluster that ends with the block."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as home:
        _run(home, "start", "--host", "127.0.0.1", "--cpus", "32", "--port", port)
        try:
            yield f"127.0.0.1:{port}", Path(home) / "keys" / "client.key"
        finally:
            _run(home, "stop", "--port", port)


def _run(home: str, *words: str) -> None:
    env = {**os.environ, "REMOTELY_HOME": home}
    subprocess.run([REMOTELY, *words], env=env, stdout=subprocess.DEVNULL, check=True)
