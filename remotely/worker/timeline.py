"""A timeline of the actors of a worker: what they served, when they began, when and how they ended.

It holds the memory to which each of them writes (transport/spans.py).
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from mmap import mmap

from remotely.protocol import control
from remotely.protocol.spans import MOST_OF_WORKER, MOST_SPANS
from remotely.reporting.endings import how_it_ended
from remotely.transport import activity, spans
from remotely.transport.spans import ServerSpans
from remotely.worker.reaper import Child

_NOTHING = ServerSpans(b"", [], 0)


@dataclass
class _Track:
    child: Child
    memory: mmap | None
    born: float = 0.0  # zero: before this timeline
    ended: float = 0.0  # zero: it lives
    how: str = ""
    found: ServerSpans = _NOTHING

    def close(self) -> None:
        """Read its memory, and close that: it has a descriptor."""
        if self.memory is not None:
            self.found = spans.read(self.memory)
            self.memory.close()
            self.memory = None


class WorkerTimeline:
    """One timeline, until `results` or `drop`."""

    def __init__(self, asked: control.RecordTimeline, host: str, children: Iterable[Child]) -> None:
        self.id = asked.timeline
        self._until = time.monotonic() + asked.seconds
        self._host = host
        self._tracks: dict[int, _Track] = {}  # by the identity of the child, whose life it is
        living = list(children)
        self._room = min(MOST_SPANS, MOST_OF_WORKER // max(1, len(living)))
        for child in living:
            self._follow(child, 0.0)

    def begin(self, child: Child) -> None:
        """An actor is born."""
        self._follow(child, time.monotonic())

    def end(self, child: Child, obituary: control.Obituary) -> None:
        """An actor has ended."""
        if track := self._tracks.get(id(child)):
            track.ended = time.monotonic()
            track.close()
            track.how = obituary.why or how_it_ended(obituary.exit, obituary.lost)

    def drop(self) -> None:
        """Release the memory, and have the living actors record no further calls."""
        for track in self._tracks.values():
            if track.memory is not None:
                track.close()
                track.child.line.send(control.RecordTimeline(timeline=self.id, seconds=0))

    def results(self) -> list[control.ProcessTimeline]:
        """Return what was recorded of each actor."""
        return [self._result(track) for track in self._tracks.values()]

    def _follow(self, child: Child, born: float) -> None:
        memory = None
        if (left_s := self._until - time.monotonic()) > 0:
            try:
                fd, memory = spans.new(self._room)
            except OSError:  # no memory or descriptor is left: its birth and end are shown
                pass
            else:
                child.line.send(control.RecordTimeline(timeline=self.id, seconds=left_s), [fd])
                os.close(fd)
        self._tracks[id(child)] = _Track(child, memory, born)

    def _result(self, track: _Track) -> control.ProcessTimeline:
        child, location = track.child, track.child.location
        track.close()
        found = track.found
        seen = activity.Seen() if track.ended else activity.look(child.page)
        return control.ProcessTimeline(
            timeline=self.id,
            host=self._host,
            machine=location.machine,
            pid=child.pid,
            name=location.name,
            class_name=location.class_name,
            actor=location.actor,
            born=track.born,
            ended=track.ended,
            how=track.how,
            served=found.spans,
            names=found.names,
            missing=found.missing,
            running=seen.method,
            running_s=seen.method_s,
            clock=time.monotonic(),
        )
