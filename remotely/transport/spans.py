"""The spans that one process records for a timeline: of calls that it serves, and that it makes.

An actor writes the calls that it serves to memory that its worker has made for that and reads when
the time is over: so what it has done is there if it was killed, or holds the GIL.

    bytes      content
    0-7        the number of calls that found no room
    8-15       the number of names
    16-4111    64 names of methods
    4112-      the spans (protocol/spans.py)

While nothing is recorded, nothing of this is on the path of a call: an actor's four ways to answer
are replaced by others (actor/server_spans.py), and the numbers of a channel's calls by those of
`ClientSpans`.
"""

import itertools
import mmap
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from remotely.machine import memory_file
from remotely.protocol.numbers import MOST
from remotely.protocol.spans import CLIENT_SPAN, LEAST_SPANS, MOST_SPANS, NAMES, SERVER_SPAN
from remotely.transport.activity import NAME_BYTES, OTHERS, TRAFFIC

_FIRST = 16 + NAME_BYTES * NAMES
_BLOCK = 64 * SERVER_SPAN.size
_COUNTS = struct.Struct("@QQ")
_WRITTEN = struct.Struct(
    "=" + SERVER_SPAN.format[1:].removesuffix("QQ") + "16s"
)  # both counters at once
Answer = Callable[[bytes, Any], Any]


def size_of(calls: int) -> int:
    """Return the bytes of memory for this many calls."""
    return _FIRST + SERVER_SPAN.size * max(LEAST_SPANS, min(MOST_SPANS, calls))


def new(calls: int) -> tuple[int, mmap.mmap]:
    """Create memory for this many calls; return its descriptor and the memory."""
    size = size_of(calls)
    fd = memory_file.create("remotely-timeline", size)
    return fd, mmap.mmap(fd, size)


class ServerSpans(NamedTuple):
    """What an actor has written; `missing` calls found no room."""

    spans: bytes
    names: list[str]
    missing: int


def read(memory: mmap.mmap) -> ServerSpans:
    """Return what was written.  The memory may hold any bytes: its writer may be compromised."""
    missing, named = _COUNTS.unpack_from(memory)
    end = _FIRST
    while (block := memory[end : end + _BLOCK]) and any(block):  # else it touches all pages
        end += len(block)
    used = len(memory[_FIRST:end].rstrip(b"\0"))
    end = _FIRST + SERVER_SPAN.size * min(-(-used // SERVER_SPAN.size), MOST_SPANS)
    names = []
    for number in range(min(named, NAMES)):
        at = 16 + NAME_BYTES * number
        names.append(memory[at : at + NAME_BYTES].rstrip(b"\0").decode(errors="replace"))
    return ServerSpans(memory[_FIRST:end], names, min(missing, MOST))


class ServerSpanWriter:
    """Writes the calls that an actor serves.  Any thread may call `note`.

    `page` is its activity page.  To be quick, its two functions share what they use as variables.
    """

    def __init__(self, memory: mmap.mmap, page: mmap.mmap) -> None:
        self._memory = memory
        self._named, missing = (memoryview(memory)[at : at + 8].cast("Q") for at in (8, 0))
        self._names: dict[str, int] = {}
        names, name_of = self._names, self._name
        pack, now = _WRITTEN.pack_into, time.monotonic
        next_place = itertools.count(
            _FIRST, SERVER_SPAN.size
        ).__next__  # safe for threads, unlike +=
        last_place = len(memory) - SERVER_SPAN.size
        begin, end = TRAFFIC.start, TRAFFIC.stop

        def note(route: bytes, call_id: int, method: str, began: float) -> None:
            at = next_place()
            if at <= last_place:
                try:
                    name = names[method]
                except KeyError:
                    name = name_of(method)
                pack(memory, at, route, name, call_id, began, now(), page[begin:end])
            else:
                missing[0] += 1

        def around(answer: Answer, unnamed: Mapping[Any, str]) -> Answer:
            def answer_and_note(route: bytes, message: Any) -> Any:
                began = now()
                try:
                    return answer(route, message)
                finally:
                    at = next_place()
                    if at <= last_place:
                        method = unnamed.get(message.kind) or message.name
                        try:
                            name = names[method]
                        except KeyError:
                            name = name_of(method)
                        call_id = message.call_id
                        pack(memory, at, route, name, call_id, began, now(), page[begin:end])
                    else:
                        missing[0] += 1

            return answer_and_note

        self.note = note  # a call that ends now
        self.around = around  # what answers a message, and notes it; `unnamed` have these names

    def _name(self, method: str) -> int:
        number = len(self._names)
        if number >= NAMES - 1 and method != OTHERS:
            return self._name(OTHERS) if OTHERS not in self._names else self._names[OTHERS]
        at = 16 + NAME_BYTES * number
        data = method.encode(errors="replace")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        self._memory[at : at + NAME_BYTES] = data
        self._names[method] = number
        self._named[0] = number + 1
        return number


class ClientSpans:
    """When the calls of a channel were sent, and when their replies arrived.

    The channel takes the numbers of its calls from `timed_ids` instead of its own `ids`, which
    notes the time with each, without a line of Python; and tells the replies that it has received.
    """

    def __init__(self, ids: Iterator[int]) -> None:
        self.ids = ids
        self._first = next(ids) + 1
        self._sent: list[float] = []
        self._answers: list[tuple[float, list[int]]] = []
        self.missing = 0
        times = map(self._sent.append, iter(time.monotonic, None))
        self.timed_ids: Iterator[int] = map(itemgetter(0), zip(ids, times, strict=False))

    @property
    def is_full(self) -> bool:
        return len(self._sent) >= MOST_SPANS

    def note_answers(self, calls: list[int]) -> None:
        """Note that the replies to these calls have arrived, if they are recorded."""
        end = self._first + len(self._sent)
        if any(call < end for call in calls):  # else it is full: they would pile up unread
            self._answers.append((time.monotonic(), calls))

    def end(self) -> None:
        """Note how many calls were made since it was full."""
        self.missing = next(self.ids) - self._first - len(self._sent)

    def packed(self) -> bytes:
        """Return the calls."""
        answered = {call: at for at, calls in self._answers for call in calls}
        return b"".join(
            CLIENT_SPAN.pack(call, sent, answered.get(call, 0.0))
            for call, sent in enumerate(self._sent, self._first)
        )
