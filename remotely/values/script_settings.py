"""What a new actor is told of the process that makes it, so that the user's modules find there what
they would find here."""

import sys
from pathlib import Path

from remotely.protocol.control import Prepare
from remotely.reporting import log_records


def prepare(
    job: str, host: str, files: dict[str, str], concurrency: int, sources: bytes
) -> Prepare:
    """Return the message; `files` are shipped, `sources` the modules of the script."""
    return Prepare(
        job=job,
        host=host,
        path=[str(Path(entry).absolute()) for entry in sys.path],
        files=files,
        concurrency=concurrency,
        argv=[str(word).encode(errors="replace").decode() for word in sys.argv],
        log_levels=log_records.levels(),
        sources=sources,
    )
