"""The messages between a client and an actor, and nothing else.

One message is one ZeroMQ multipart.  Its first frame holds all of a small call, because every frame
costs an encryption and part of a system call; large buffers follow in frames of their own.

    bytes   of frame 0
    1       VERSION
    1       Kind
    2       length of the name, big-endian
    4       length of the loan, big-endian
    8       call id, big-endian; a reply repeats the id of its call
    n       the name: of a method, of an attribute, the hash of a file or of sources; that of a
            method may be followed by SEPARATOR and the context of its caller's trace
    m       the loan, opaque here: where the value is, if it is in shared memory or in a store
    rest    the payload, opaque here (a pickle, except for PREPARE, FILE, SOURCES, READS and DEBUG)

Two rules hold for this file.

1. It never unpickles, opens a socket or reads a clock.
2. `decode` takes any bytes.  It returns a Message or raises WireError.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from remotely.errors import TooLarge, WireError
from remotely.protocol.resources import format_bytes

VERSION = 4
MAX_FRAMES = 4096  # buffers of one value; a dict of 4,000 arrays is already odd
MAX_FRAME_BYTES = 4 << 30  # libzmq disconnects a peer that sends a larger one; see sockets.py
MAX_MESSAGE_BYTES = 16 << 30
MAX_NAME_BYTES = 65_535
SEPARATOR = "\0"
LEAST_TRACED_NAME = 64  # bytes of a name with a context: it is padded

_HEAD = struct.Struct(">BBHIQ")


class Kind(IntEnum):
    INIT = 1
    CALL = 2
    GET = 3
    SET = 4
    END = 5
    PREPARE = 6
    FILE = 7
    NEXT = 8
    CLOSE = 9
    READS = 10
    CALLS = 12
    SOURCES = 13
    DEBUG = 14
    WHOLE = 15
    RESULT = 16
    RAISED = 17
    RESULTS = 18


LAST = b"\1"  # the payload of WHOLE if this is the last use of the result


class Shape(NamedTuple):
    sender: str
    named: bool
    min_buffers: int
    max_buffers: int
    means: str


# All messages between a client and an actor, and which of them may send each.
SHAPES = {
    Kind.INIT: Shape("client", False, 0, MAX_FRAMES, "create the object: class and arguments"),
    Kind.CALL: Shape("client", True, 0, MAX_FRAMES, "run a method: arguments"),
    Kind.GET: Shape("client", True, 0, 0, "read an attribute"),
    Kind.SET: Shape("client", True, 0, MAX_FRAMES, "write an attribute: value"),
    Kind.END: Shape("client", False, 0, 0, "end gracefully, after all earlier calls"),
    Kind.PREPARE: Shape("client", False, 0, 0, "the actor's script, and the files that it needs"),
    Kind.FILE: Shape("client", True, 1, 1, "one missing file, named by its hash"),
    Kind.NEXT: Shape("client", True, 0, 0, "the next item of a stream, by its name"),
    Kind.CLOSE: Shape("client", True, 0, 0, "close the generator of a stream"),
    Kind.READS: Shape("client", False, 0, 0, "what I can read: your store, or from your arena"),
    Kind.CALLS: Shape("client", False, 0, 0, "several CALLs without buffers"),
    Kind.SOURCES: Shape("client", True, 1, 1, "modules that the script has loaded, by their hash"),
    Kind.DEBUG: Shape("client", True, 0, 0, "a request of a debugger's terminal, by its name"),
    Kind.WHOLE: Shape("client", True, 0, 0, "send a result from the store, by its name"),
    Kind.RESULT: Shape("actor", False, 0, MAX_FRAMES, "the value of a call"),
    Kind.RAISED: Shape("actor", False, 1, 1, "the error, if it pickles; and its traceback as text"),
    Kind.RESULTS: Shape("actor", False, 0, 0, "several RESULTs without buffers"),
}


class Message(NamedTuple):
    kind: Kind
    call_id: int
    name: str
    payload: bytes | memoryview
    buffers: Sequence[bytes | memoryview]
    loan: bytes = b""
    context: str = ""  # of the caller's trace


class TracedName(str):
    """The name of a method, which takes the context of a trace with it to another process."""

    context: str

    @classmethod
    def of(cls, name: str, context: str) -> "TracedName":
        made = cls(name)
        made.context = context
        return made

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Return what `decode` takes apart again, perhaps with spaces behind the context."""
        text = f"{self!s}{SEPARATOR}{self.context}"
        return text.ljust(LEAST_TRACED_NAME).encode(encoding, errors)


def encode(
    kind: Kind,
    call_id: int,
    name: str = "",
    payload: Sequence[bytes | memoryview] = (),
    buffers: Sequence[bytes | memoryview] = (),
    loan: bytes = b"",
) -> list[bytes | memoryview]:
    """Return the frames of one message.  The payload is the concatenation of its pieces.

    Raises WireError for a name that is too long or too many buffers, TooLarge for too many bytes.
    """
    name_bytes = name.encode()
    if len(name_bytes) > MAX_NAME_BYTES or len(buffers) > MAX_FRAMES:
        raise WireError(f"a name of {len(name_bytes)} bytes or {len(buffers)} buffers is too much")
    head = _HEAD.pack(VERSION, kind, len(name_bytes), len(loan), call_id)
    frames: list[bytes | memoryview] = [b"".join((head, name_bytes, loan, *payload)), *buffers]
    _check_size(frames)
    return frames


def _check_size(frames: Sequence[bytes | memoryview]) -> None:
    total = 0
    for frame in frames:
        size = len(frame)
        total += size
        if size > MAX_FRAME_BYTES or total > MAX_MESSAGE_BYTES:
            raise TooLarge(
                f"a value of {format_bytes(total)} or more: one array may have "
                f"{format_bytes(MAX_FRAME_BYTES)}, a whole call {format_bytes(MAX_MESSAGE_BYTES)}; "
                "send it in parts"
            )


def decode(frames: Sequence[bytes | memoryview], sender: str) -> Message:
    """Decode the frames of a message from `sender` ("client" or "actor"), or raise WireError."""
    if not frames or len(frames[0]) < _HEAD.size:
        raise WireError("a message without a head")
    first = memoryview(frames[0])
    version, code, name_length, loan_length, call_id = _HEAD.unpack_from(first)
    if version != VERSION:
        raise WireError(f"the peer uses version {version} of the protocol, this side {VERSION}")
    shape = _SHAPES_BY_CODE.get(code)
    if shape is None:
        raise WireError(f"no message of kind {code}")
    kind, rule = shape
    plain = not name_length and not loan_length and len(frames) == 1
    if plain and code == _RESULT and sender == "actor":  # fast path: most replies
        return Message(kind, call_id, "", first[_HEAD.size :], frames[1:])
    loan_at = _HEAD.size + name_length
    payload_at = loan_at + loan_length
    if (
        rule.sender != sender
        or bool(name_length) != rule.named
        or payload_at > len(first)
        or not (_allows_loan if loan_length else _allows_buffers)(rule, len(frames) - 1)
    ):
        raise WireError(f"a malformed {kind.name} from the {sender}")
    try:
        name = str(first[_HEAD.size : loan_at], "utf-8")
    except UnicodeDecodeError:
        raise WireError(f"a {kind.name} whose name is not text") from None
    loan = bytes(first[loan_at:payload_at]) if loan_length else b""
    if name_length >= LEAST_TRACED_NAME:
        name, _, context = name.partition(SEPARATOR)
        return Message(kind, call_id, name, first[payload_at:], frames[1:], loan, context)
    return Message(kind, call_id, name, first[payload_at:], frames[1:], loan)


def is_debug(frames: Sequence[bytes | memoryview]) -> bool:
    """Return whether a message may be a DEBUG, without decoding it."""
    return len(frames) == 1 and len(frames[0]) >= _HEAD.size and frames[0][1] == Kind.DEBUG


def call_id_of(frame: bytes | memoryview) -> int:
    """Return the call id in the first frame of a message."""
    return int(_HEAD.unpack_from(frame)[4])


def batch(kind: Kind, messages: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the frames of CALLS or RESULTS that carry these messages of one frame each."""
    if len(messages) == 1:
        return [messages[0]]
    pieces: list[bytes | memoryview] = []
    for message in messages:
        pieces += (_LENGTH.pack(len(message)), message)
    return encode(kind, 0, payload=pieces)


def unbatch(message: Message) -> list[Message]:
    """Return the messages in CALLS or RESULTS, or the message itself.  Raises WireError."""
    if message.kind not in _CARRIED:
        return [message]
    carried = _CARRIED[message.kind]
    sender = SHAPES[carried].sender
    found = []
    payload = memoryview(message.payload)
    end = 0
    while end < len(payload):
        begin = end + _LENGTH.size
        if begin > len(payload):
            raise WireError(f"{message.kind.name} that end within a length")
        end = begin + _LENGTH.unpack_from(payload, end)[0]
        if end > len(payload):
            raise WireError(f"{message.kind.name} that end within one of them")
        one = decode((payload[begin:end],), sender)
        if one.kind is not carried or one.loan:
            raise WireError(f"{message.kind.name} with a {one.kind.name} among them")
        found.append(one)
    return found


def _allows_buffers(rule: Shape, buffers: int) -> bool:
    return rule.min_buffers <= buffers <= rule.max_buffers


def _allows_loan(rule: Shape, buffers: int) -> bool:
    return rule.max_buffers > 0 and buffers == 0


_LENGTH = struct.Struct(">I")
_RESULT = int(Kind.RESULT)
_CARRIED = {Kind.CALLS: Kind.CALL, Kind.RESULTS: Kind.RESULT}
_SHAPES_BY_CODE = {int(kind): (kind, rule) for kind, rule in SHAPES.items()}
