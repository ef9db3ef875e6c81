"""The control messages: of clients and workers with the master, of a worker with its processes.

    records.py    records in several messages
    store.py      clients, workers and actors <-> the store of a machine
    client.py     client <-> master
    worker.py     worker <-> master; also a guest, which registers as a worker
    message.py    clients and workers <-> master; and the ways that messages go
    process.py    worker <-> zygote, actor

Every message is a struct, encoded as one version byte and msgpack.  `@sent` above it says who sends
it to whom: decoding fails for a message that may not go that way.  Pickle is not used, on purpose:
a pickle is code, and the master runs none.
"""

# A message is named where it is defined and where it is used, and nowhere between.
# ruff: noqa: F403

from functools import reduce
from operator import or_
from typing import Any

import msgspec

from remotely.errors import VersionMismatch, WireError
from remotely.protocol.control.client import *
from remotely.protocol.control.message import *
from remotely.protocol.control.message import WAYS
from remotely.protocol.control.process import *
from remotely.protocol.control.records import *
from remotely.protocol.control.store import *
from remotely.protocol.control.worker import *
from remotely.protocol.numbers import LONGEST_S as LONGEST_S
from remotely.protocol.numbers import MOST as MOST

VERSION = 14
MAX_MESSAGE = 1 << 18  # between the processes of one worker: more than a socket holds by default
# Modules worth importing before a fork; a client names those that it has loaded.
HEAVY = ("numpy", "torch", "gymnasium", "ale_py", "cv2")


class Decoder:
    """Decodes the messages that may go one way, or one struct; raises WireError for others."""

    def __init__(self, what: str | type[msgspec.Struct]) -> None:
        union: Any = reduce(or_, WAYS[what]) if isinstance(what, str) else what
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(union)

    def decode(self, data: bytes | memoryview) -> object:
        if not data:
            raise WireError("an empty message")
        if data[0] != VERSION:
            raise VersionMismatch(
                f"the peer uses version {data[0]} of remotely's protocol, this side "
                f"{VERSION}: install the same version of remotely on both"
            )
        try:
            return self._decoder.decode(memoryview(data)[1:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"not a message of this sender: {error}") from None


_encode = msgspec.msgpack.Encoder().encode
_VERSION_BYTE = bytes([VERSION])


def encode(message: msgspec.Struct) -> bytes:
    """Return the bytes of one message."""
    return _VERSION_BYTE + _encode(message)
