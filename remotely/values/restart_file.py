"""The file from which a detached actor is restarted, since its client may be gone.

A detached actor that may be restarted writes the messages that created it, PREPARE and INIT as they
arrived, into its worker's folder.  If its process dies, its worker starts another, which reads them
before it takes calls (actor/servant.py).  The worker never reads the file, because unpickling runs
code, and a worker runs none of the user's.  Other users cannot read the file.  It is removed with
the actor or the worker.

The file has the number of messages; for each message the number of its frames; for each frame its
length and its bytes.  It is mapped privately, so that a large array among the arguments is read on
access, and is writable as if it had arrived in a message.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from remotely.errors import RemotelyError

_NUMBER = struct.Struct("<Q")

Frames = Sequence[bytes | memoryview]


def write(folder: Path, actor: str, messages: Sequence[Frames]) -> None:
    """Write the messages that created this actor, atomically."""
    file = _file(folder, actor)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = file.with_suffix(".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as writer:
        for part in _parts(messages):
            writer.write(part)
    temporary.replace(file)


def read(folder: Path, actor: str) -> list[list[bytes | memoryview]]:
    """Return the messages that created this actor.  Raises RemotelyError if there is no file."""
    try:
        with _file(folder, actor).open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise RemotelyError(
            "the actor cannot be restarted: its previous life left no file to restart from "
            f"({error.strerror})"
        ) from None
    at = 0

    def number() -> int:
        nonlocal at
        (found,) = _NUMBER.unpack_from(content, at)
        at += _NUMBER.size
        return int(found)

    messages = []
    for _ in range(number()):
        frames: list[bytes | memoryview] = []
        for _ in range(number()):
            size = number()
            frames.append(content[at : at + size])
            at += size
        messages.append(frames)
    return messages


def discard(folder: Path, actor: str) -> None:
    """Remove the file: the actor is not restarted on this worker."""
    _file(folder, actor).unlink(missing_ok=True)


def _file(folder: Path, actor: str) -> Path:
    return folder / "restart" / actor


def _parts(messages: Sequence[Frames]) -> Iterable[bytes | memoryview]:
    yield _NUMBER.pack(len(messages))
    for frames in messages:
        yield _NUMBER.pack(len(frames))
        for frame in frames:
            yield _NUMBER.pack(memoryview(frame).nbytes)
            yield frame
