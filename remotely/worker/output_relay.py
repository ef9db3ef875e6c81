"""The way of all actors' output to the master: in batches, which keep nothing else waiting.

Output shares the worker's one connection with beats and reports, in order, and a master that is
busy reads them late.  So at most one batch is on its way: the next leaves when the master has
answered the last (`OutputHeard`), and PAUSE_S after it.  That is a credit of one batch, which needs
neither a second connection nor priorities.

    1  the first line   leaves at the end of the loop's turn
    2  on its way       what comes meanwhile waits, at most MOST_WAITING characters for each script
    3  answered         what waits leaves as one batch, once the pause is over
    3' not answered     nothing leaves: the master is busy or away.  A registration begins at 1

What does not fit is dropped, and counted in its place; the file of the actor has it.  Output for a
script that the master does not know is dropped for UNSHOWN_S: nobody shows it.  What an actor has
written before it died leaves ahead of the report of that, so that a script shows it before it ends.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from remotely.protocol import control

PAUSE_S = 0.1
UNSHOWN_S = 5.0
MOST_WAITING = 1 << 20  # more than one actor may write in a second (output.py)
PIECE_SIZE = 16 << 10  # of one text: a script that falls behind drops whole ones
RECORD_SIZE = 200  # of a log record, beside its texts


@dataclass(slots=True)
class _Piece:
    """What one actor wrote to one stream, or what was dropped there."""

    printed: control.Printed
    texts: list[str] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class _Dropped:
    note: control.Printed  # its text ends the sentence
    lines: int = 0


@dataclass(slots=True)
class _ForScript:
    """The output that waits for one script."""

    items: list[_Piece | control.Logged] = field(default_factory=list)
    size: int = 0
    dropped: dict[str, _Dropped] = field(default_factory=dict)  # by actor
    last: dict[str, _Piece] = field(default_factory=dict)  # by actor, if a piece came last


class OutputRelay:
    """`send` sends a message to the master; `later(seconds, action)` schedules a call."""

    def __init__(
        self,
        send: Callable[[msgspec.Struct], object],
        later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._later = later
        self._clock = clock
        self._waiting: dict[str, _ForScript] = {}  # by job
        self._unshown_until: dict[str, float] = {}  # by job
        self._is_on_its_way = False
        self._is_due = False
        self._sent_at = -PAUSE_S

    def add_text(self, printed: control.Printed, kept_in: str) -> None:
        """Pass on what an actor has printed; `kept_in` ends the note of what is dropped."""
        actor, size = printed.actor, len(printed.text)
        if (waiting := self._room_for(printed.job)) is None:
            return
        if waiting.size + size > MOST_WAITING:
            self._drop(waiting, printed, kept_in, printed.text.count("\n") or 1)
            return
        waiting.size += size
        piece = waiting.last.get(actor)
        is_other = piece is None or piece.printed.error != printed.error
        if piece is None or is_other or piece.size > PIECE_SIZE:
            piece = waiting.last[actor] = _Piece(printed)
            waiting.items.append(piece)
        piece.size += size
        piece.texts.append(printed.text)
        self._serve_soon()

    def add_record(self, logged: control.Logged, kept_in: str) -> None:
        """Pass on a log record of an actor."""
        size = RECORD_SIZE + len(logged.message) + len(logged.exc_text) + len(logged.stack)
        if (waiting := self._room_for(logged.job)) is None:
            return
        if waiting.size + size > MOST_WAITING:
            note = control.Printed(
                actor=logged.actor, name=logged.name, job=logged.job, error=True, text=""
            )
            self._drop(waiting, note, kept_in, 1)
            return
        waiting.size += size
        waiting.items.append(logged)
        waiting.last.pop(logged.actor, None)
        self._serve_soon()

    def flush(self, actor: str, job: str) -> None:
        """Send what waits of an actor now: the report of its death follows."""
        if (waiting := self._waiting.get(job)) is None:
            return
        theirs = [item for item in waiting.items if _actor_of(item) == actor]
        waiting.items = [item for item in waiting.items if _actor_of(item) != actor]
        waiting.last.pop(actor, None)
        if items := [*map(_finished, theirs), *self._notes(waiting, actor)]:
            self._send(control.OutputBatch(items=items))

    def handle_reply(self, heard: control.OutputHeard) -> None:
        """The master has handled the last batch."""
        until = self._clock() + UNSHOWN_S
        self._unshown_until |= dict.fromkeys(heard.unshown, until)
        self._is_on_its_way = False
        self._serve_soon()

    def begin_again(self) -> None:
        """The connection is new: the answer to the last batch may be lost."""
        self._is_on_its_way = False
        self._serve_soon()

    def _room_for(self, job: str) -> _ForScript | None:
        """Return what waits for a script; None if nobody shows its output."""
        if (until := self._unshown_until.get(job)) is not None:
            if self._clock() < until:
                return None
            del self._unshown_until[job]
        return self._waiting.setdefault(job, _ForScript())

    def _drop(
        self, waiting: _ForScript, printed: control.Printed, kept_in: str, lines: int
    ) -> None:
        if (dropped := waiting.dropped.get(printed.actor)) is None:
            note = msgspec.structs.replace(printed, error=True, text=kept_in)
            dropped = waiting.dropped[printed.actor] = _Dropped(note)
        dropped.lines += lines

    def _notes(self, waiting: _ForScript, actor: str) -> list[control.Printed]:
        if (dropped := waiting.dropped.pop(actor, None)) is None:
            return []
        text = f"({dropped.lines:,} lines dropped here{dropped.note.text})\n"
        return [msgspec.structs.replace(dropped.note, text=text)]

    def _serve_soon(self) -> None:
        if self._waiting and not self._is_on_its_way and not self._is_due:
            self._is_due = True
            self._later(max(0.0, self._sent_at + PAUSE_S - self._clock()), self._serve)

    def _serve(self) -> None:
        self._is_due = False
        if self._is_on_its_way or not self._waiting:
            return
        all_waiting, self._waiting = self._waiting, {}
        items: list[control.Printed | control.Logged] = []
        for waiting in all_waiting.values():
            items += map(_finished, waiting.items)
            for actor in list(waiting.dropped):
                items += self._notes(waiting, actor)
        if items:
            self._sent_at, self._is_on_its_way = self._clock(), True
            self._send(control.OutputBatch(items=items))


def _actor_of(item: _Piece | control.Logged) -> str:
    return item.printed.actor if isinstance(item, _Piece) else item.actor


def _finished(item: _Piece | control.Logged) -> control.Printed | control.Logged:
    if isinstance(item, _Piece):
        return msgspec.structs.replace(item.printed, text="".join(item.texts))
    return item
