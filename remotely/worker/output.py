"""What one actor prints: into a file that does not grow for ever, and in lines to its client.

A line that has not ended (a prompt, a progress bar) is passed on PARTIAL_S after it began.  The
terminal gets at most BYTES_A_SECOND of each actor, and is told how much it did not get at most once
a minute; the file gets everything.  The last of what went to stderr is kept for the obituary.
"""

import codecs
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from remotely.reporting.throttled_log import TokenBucket

KEEP_BYTES = 10 << 20  # of the file, then once more in FILE.1
BYTES_A_SECOND = 256 << 10
LAST_WORDS_BYTES = 4096
CRASH_BYTES = 32 << 10  # of a crash: stacks of all threads and of C code, names of all modules
CRASH = b"Fatal Python error: "  # with its reason
READ_BYTES = 1 << 16
MAX_DRAIN_READS = 64
PARTIAL_S = 0.2
NOTE_EVERY_S = 60.0  # that some of it is not shown

Tell = Callable[[bool, str], None]
Later = Callable[[float, Callable[[], None]], object]


class Output:
    """The two streams of one actor.

    `tell(is_error, text)` gets lines, and what there is of one that does not end; `later(seconds,
    action)` has that looked at.  `stays`: whether the file is there when the script has ended.
    """

    def __init__(self, file: Path, tell: Tell, later: Later, stays: bool = True) -> None:
        self.file = file
        self.kept_in = f"; all of it is in {file}" if stays else ""  # the end of a sentence
        self._tail = b""  # of what went to stderr
        self.tokens = TokenBucket(BYTES_A_SECOND, time.monotonic())
        self._tell = tell
        self._later = later
        self._rest = {False: b"", True: b""}
        self._looks = {False: False, True: False}  # at what has not ended yet
        self._unshown = 0  # bytes, since the last note
        self._noted_at = -NOTE_EVERY_S
        self._unkept = False

    def read(self, fd: int, is_error: bool) -> bool:
        """Take some of what the pipe holds now; false at its end."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return True
        self._take(data, is_error)
        return bool(data)

    def drain(self, fd: int, is_error: bool) -> None:
        """Take all that a dead process left in its pipe, but wait for nobody who still holds it."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_DRAIN_READS):
                if not (data := os.read(fd, READ_BYTES)):
                    break
                self._take(data, is_error)
        self._flush(is_error)

    def keep(self, data: bytes, is_error: bool) -> None:
        """Write it into the file, and do not pass it on."""
        self._write(data)
        if is_error:
            self._tail = (self._tail + data)[-CRASH_BYTES:]

    def last_words(self, by_signal: bool) -> str:
        """Return the last of what went to stderr; of a crash, its reason and what is beside it."""
        begin = max(0, len(self._tail) - LAST_WORDS_BYTES)
        if by_signal and (reason := self._tail.rfind(CRASH)) >= 0:
            begin = min(begin, max(0, reason - LAST_WORDS_BYTES // 4))
        return self._tail[begin : begin + LAST_WORDS_BYTES].decode(errors="replace")

    def _take(self, data: bytes, is_error: bool) -> None:
        self.keep(data, is_error)
        lines, newline, rest = (self._rest[is_error] + data).rpartition(b"\n")
        self._rest[is_error] = rest
        if newline:
            self._say(is_error, lines + newline)
        if not data or len(rest) > READ_BYTES:
            self._flush(is_error)
        elif rest and not self._looks[is_error]:
            self._looks[is_error] = True
            self._later(PARTIAL_S, lambda: self._say_partial(is_error))

    def _say_partial(self, is_error: bool) -> None:
        self._looks[is_error] = False
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        decoder.decode(self._rest[is_error])
        cut, _ = decoder.getstate()  # the first half of a letter waits for the other
        whole = self._rest[is_error].removesuffix(cut)
        if whole:
            self._rest[is_error] = cut
            self._say(is_error, whole)

    def _flush(self, is_error: bool) -> None:
        if rest := self._rest[is_error]:
            self._rest[is_error] = b""
            self._say(is_error, rest)

    def _say(self, is_error: bool, data: bytes) -> None:
        now = time.monotonic()
        if self.tokens.take(len(data), now):
            self._tell(is_error, data.decode(errors="replace"))
            return
        self._unshown += len(data)
        if now - self._noted_at >= NOTE_EVERY_S:
            is_first = self._unshown == len(data)  # of how much is to come
            what = "some of it is" if is_first else f"{self._unshown:,} bytes are"
            self._tell(True, f"(it prints too fast: {what} left out here{self.kept_in})\n")
            self._unshown, self._noted_at = 0, now

    def _write(self, data: bytes) -> None:
        """A full disk costs the file's lines, not the actor; it is told of once."""
        try:
            with self.file.open("ab") as file:
                file.write(data)
                size = file.tell()
            if size > KEEP_BYTES:
                self.file.replace(second_file(self.file))
        except OSError as error:
            if not self._unkept:
                self._unkept = True
                self._tell(True, f"(what it prints is not kept: {self.file}: {error.strerror})\n")
        else:
            self._unkept = False


def second_file(file: Path) -> Path:
    """Return where the first half of a long log is kept."""
    return file.with_suffix(".log.1")


def read_piece(file: Path, offset: int) -> tuple[str, int]:
    """Return the text of `file` from `offset` (-1: its last 16 KiB) and where it ends."""
    try:
        with file.open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            start = max(0, size - 16_384) if offset < 0 or offset > size else offset
            handle.seek(start)
            data = handle.read(READ_BYTES)
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            text = decoder.decode(data)
            cut, _ = decoder.getstate()  # the first half of a letter, left for the next piece
            return text, start + len(data) - len(cut)
    except OSError:
        return "", 0
