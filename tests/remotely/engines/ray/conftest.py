"""Scripts that start a Ray of their own.

A process can use only one Ray at a time, and the tests share one.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.clusters import processes, wait_until


class Run(Protocol):
    def __call__(self, script: str, **settings: str) -> Any: ...


@pytest.fixture
def own_ray() -> Iterator[Run]:
    """Run a script and return the JSON that it prints; assert that its Ray leaves no process."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"RAY_TMPDIR": folder, "RAY_worker_niceness": "0"}

        def run(script: str, **settings: str) -> Any:
            done = subprocess.run(
                [sys.executable, Path(__file__).with_name(script)],
                env={**os.environ, **own, **settings},
                capture_output=True,
                text=True,
                timeout=110,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.splitlines()[-1])

        yield run
        wait_until(lambda: not processes(folder), "the end of the script's Ray")
