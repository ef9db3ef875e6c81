"""The output of an actor: a log file of limited size, and lines for its client's terminal.

An unfinished line (a prompt) is passed on PARTIAL_S after it began.  Of one that a carriage return
overwrites (a progress bar), only the last state is, once in PROGRESS_S.  The terminal gets at most
BYTES_A_SECOND of each actor, and a note at most once a minute of how much was left out; the file
gets everything.  The end of stderr is kept for the obituary.

Log records and printed lines share one token bucket.  A record of `remotely` itself reports how
many records were left out, LEFT_OUT_AFTER_S later and at the actor's end, so that the log file of
the script says where the rest is.
"""

import codecs
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from remotely.protocol import control
from remotely.protocol.control import Logged
from remotely.reporting import log_records
from remotely.reporting.throttled_log import TokenBucket
from remotely.reporting.tracebacks import folded

KEEP_BYTES = 10 << 20  # per file: FILE.log, and FILE.log.1 with what was before
BYTES_A_SECOND = 256 << 10
LAST_WORDS_BYTES = 4096
CRASH_BYTES = 32 << 10  # a crash report: stacks of all threads and of C, names of all modules
CRASH = b"Fatal Python error: "  # the line with the reason
READ_BYTES = 1 << 16
MAX_DRAIN_READS = 64
PARTIAL_S = 0.2
PROGRESS_S = 1.0
NOTE_EVERY_S = 60.0  # of how much was left out

Tell = Callable[[bool, str], None]
Later = Callable[[float, Callable[[], None]], object]


class Disk:
    """Whether output is saved on this machine.  A script is told once that it is not, by the first
    of its actors that finds out, until it is again."""

    def __init__(self) -> None:
        self._told: set[str] = set()  # scripts

    def fails(self, job: str) -> bool:
        """Note a failure; return whether this script has yet to be told."""
        is_new = job not in self._told
        self._told.add(job)
        return is_new

    def works(self) -> None:
        self._told.clear()


class Output:
    """The two output streams of one actor.

    `tell(is_error, text)` receives lines and parts of unfinished lines; `later(seconds, action)`
    schedules a call.  `stays`: whether the file outlives the script, which is `job`.
    """

    def __init__(
        self,
        file: Path,
        tell: Tell,
        later: Later,
        stays: bool = True,
        disk: Disk | None = None,
        job: str = "",
    ) -> None:
        self.file = file
        self._disk, self._job = disk or Disk(), job
        self.kept_in = f"; all of it is in {file}" if stays else ""  # ends a sentence of a note
        self._tail = b""  # of stderr
        self.tokens = TokenBucket(BYTES_A_SECOND, time.monotonic())
        self._tell = tell
        self._later = later
        self._rest = {False: b"", True: b""}
        self._will_flush = {False: False, True: False}  # the unfinished line
        self._unshown = 0  # bytes, since the last note
        self._noted_at = -NOTE_EVERY_S

    def read(self, fd: int, is_error: bool) -> bool:
        """Read some of what the pipe holds; return false at its end."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return True
        self._take(data, is_error)
        return bool(data)

    def drain(self, fd: int, is_error: bool) -> None:
        """Read what a dead process left in its pipe, without waiting for others that hold it."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_DRAIN_READS):
                if not (data := os.read(fd, READ_BYTES)):
                    break
                self._take(data, is_error)
        self._flush(is_error)

    def say(self, line: str) -> None:
        """Print a line that is not the actor's own."""
        self._take(f"{line}\n".encode(errors="replace"), is_error=False)

    def keep(self, data: bytes, is_error: bool) -> None:
        """Write output to the file, without passing it on."""
        self._write(data)
        if is_error:
            self._tail = (self._tail + data)[-CRASH_BYTES:]

    def last_words(self, by_signal: bool) -> str:
        """Return the end of stderr; after a crash, the part with the reason."""
        tail = folded(self._tail.decode(errors="replace")).encode(errors="replace")
        begin = max(0, len(tail) - LAST_WORDS_BYTES)
        if by_signal and (reason := tail.rfind(CRASH)) >= 0:
            begin = min(begin, max(0, reason - LAST_WORDS_BYTES // 4))
        return tail[begin : begin + LAST_WORDS_BYTES].decode(errors="replace")

    def _take(self, data: bytes, is_error: bool) -> None:
        self.keep(data, is_error)
        lines, newline, rest = (self._rest[is_error] + data).rpartition(b"\n")
        begin = rest.rfind(b"\r", 0, len(rest) - 1)  # some end each state with it
        rest = rest[max(0, begin) :]
        self._rest[is_error] = rest
        if newline:
            self._say(is_error, lines + newline)
        if not data or len(rest) > READ_BYTES:
            self._flush(is_error)
        elif rest and not self._will_flush[is_error]:
            self._will_flush[is_error] = True
            after_s = PROGRESS_S if b"\r" in rest else PARTIAL_S
            self._later(after_s, lambda: self._say_partial(is_error))

    def _say_partial(self, is_error: bool) -> None:
        self._will_flush[is_error] = False
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        decoder.decode(self._rest[is_error])
        cut, _ = decoder.getstate()  # an incomplete character waits for the rest
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
            self._tell(is_error, folded(data.decode(errors="replace")))
            return
        self._unshown += len(data)
        if now - self._noted_at >= NOTE_EVERY_S:
            is_first = self._unshown == len(data)  # more will follow, so give no number
            what = "some of it is" if is_first else f"{self._unshown:,} bytes are"
            self._tell(True, f"(it prints too fast: {what} left out here{self.kept_in})\n")
            self._unshown, self._noted_at = 0, now

    def _write(self, data: bytes) -> None:
        """Write to the file.  On an error such as a full disk, drop the data, and say so once."""
        try:
            with self.file.open("ab") as file:
                file.write(data)
                size = file.tell()
            if size > KEEP_BYTES:
                self.file.replace(second_file(self.file))
        except OSError as error:
            if self._disk.fails(self._job):
                self._tell(True, f"(its output is not saved: {self.file}: {error.strerror})\n")
        else:
            self._disk.works()


def second_file(file: Path) -> Path:
    """Return the file to which a full log file is renamed."""
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
            cut, _ = decoder.getstate()  # an incomplete character is left for the next piece
            return text, start + len(data) - len(cut)
    except OSError:
        return "", 0


LEFT_OUT_AFTER_S = 1.0


class LogRelay:
    """`pass_on` sends a record to the client; `later(seconds, action)` schedules a call."""

    def __init__(self, output: Output, pass_on: Callable[[Logged], None], later: Later) -> None:
        self._output = output
        self._pass_on = pass_on
        self._later = later
        self._left_out = 0
        self._first: Logged | None = None  # of those left out

    def take(self, logged: Logged) -> None:
        line = log_records.line(logged).encode(errors="replace")
        self._output.keep(line, is_error=True)
        if self._output.tokens.take(len(line), time.monotonic()):
            self._pass_on(logged)
            return
        if self._first is None:
            self._first = logged
            self._later(LEFT_OUT_AFTER_S, self._report_left_out)
        self._left_out += 1

    def end(self) -> None:
        """The actor has ended: report now what was left out, while the client still listens."""
        self._report_left_out()

    def _report_left_out(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        left_out, self._left_out = self._left_out, 0
        self._pass_on(
            msgspec.structs.replace(
                first,
                logger="remotely",
                level=logging.WARNING,
                level_name="WARNING",
                message=f"it logs too fast: {left_out:,} records were left out"
                f"{self._output.kept_in}",
                exc_text="",
                stack="",
                extra={},
            )
        )


SHOWN_ENDED, SHOWN_LINES = 5, 20  # if nobody names an actor
KEEP_ENDED = 256  # actors; each has up to 20 MiB


class LogFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self.disk = Disk()
        self._files: dict[str, tuple[str, Path]] = {}  # with the actor's name
        self._names: dict[str, str] = {}  # to the last actor of that name
        self._ended: OrderedDict[str, None] = OrderedDict()  # in the order of their ends

    def begin(self, request: control.Request) -> Path:
        """Return the file of an actor, which all its lives share."""
        self._ended.pop(request.actor, None)
        self._names[request.name] = request.actor
        file = self._folder / f"{request.name}-{request.actor[:8]}.log"
        self._files[request.actor] = request.name, file
        return file

    def end(self, actor: str) -> None:
        """Note that an actor has ended; remove the files of those that ended first."""
        if actor in self._files:
            self._ended[actor] = None
        while len(self._ended) > KEEP_ENDED:
            self._forget(self._ended.popitem(last=False)[0])

    def find(self, actor: str) -> tuple[str, Path | None]:
        """Return the id and the file of an actor, given its id or its name; None if unknown."""
        actor = self._names.get(actor, actor)
        _, file = self._files.get(actor, ("", None))
        return actor, file

    def last_ended(self) -> str:
        """Return the last lines of the actors that ended last, each after its name."""
        lines = []
        for actor in [*self._ended][-SHOWN_ENDED:]:
            name, file = self._files[actor]
            last = read_piece(file, -1)[0].splitlines()[-SHOWN_LINES:]
            lines += [f"[{name}] {each}\n" for each in last]
        return "".join(lines)

    def _forget(self, actor: str) -> None:
        name, file = self._files.pop(actor)
        if self._names.get(name) == actor:
            del self._names[name]
        for kept in (file, second_file(file)):
            kept.unlink(missing_ok=True)
