"""A timeline of the actors of a worker: what they served, when they began, when and how they ended.

It holds the memory to which each of them writes (transport/recording.py).
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from mmap import mmap

from remotely.protocol import control
from remotely.protocol.recording import MOST_CALLS, MOST_OF_WORKER
from remotely.reporting.endings import how_it_ended
from remotely.transport import activity, recording
from remotely.transport.recording import ServedCalls
from remotely.worker.reaper import Child

_NOTHING = ServedCalls(b"", [], 0)


@dataclass
class _Track:
    child: Child
    memory: mmap | None
    born: float = 0.0  # zero: before the recording
    ended: float = 0.0  # zero: it lives
    how: str = ""
    found: ServedCalls = _NOTHING

    def close(self) -> None:
        """Read its memory, and close that: it has a descriptor."""
        if self.memory is not None:
            self.found = recording.read(self.memory)
            self.memory.close()
            self.memory = None


class WorkerRecording:
    """One recording."""

    def __init__(self, asked: control.Record, host: str, children: Iterable[Child]) -> None:
        self.number = asked.number
        self._until = time.monotonic() + asked.seconds
        self._host = host
        self._tracks: dict[int, _Track] = {}  # by the identity of the child, whose life it is
        living = list(children)
        self._room = min(MOST_CALLS, MOST_OF_WORKER // max(1, len(living)))
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

    def results(self) -> list[control.Recorded]:
        """Return what was recorded of each actor."""
        return [self._result(track) for track in self._tracks.values()]

    def _follow(self, child: Child, born: float) -> None:
        memory = None
        if (left_s := self._until - time.monotonic()) > 0:
            try:
                fd, memory = recording.new(self._room)
            except OSError:  # no memory or descriptor is left: its birth and end are shown
                pass
            else:
                child.line.send(control.Record(number=self.number, seconds=left_s), [fd])
                os.close(fd)
        self._tracks[id(child)] = _Track(child, memory, born)

    def _result(self, track: _Track) -> control.Recorded:
        child, location = track.child, track.child.location
        track.close()
        found = track.found
        seen = activity.Seen() if track.ended else activity.look(child.page)
        return control.Recorded(
            number=self.number,
            host=self._host,
            machine=location.machine,
            pid=child.pid,
            name=location.name,
            class_name=location.class_name,
            actor=location.actor,
            born=track.born,
            ended=track.ended,
            how=track.how,
            served=found.calls,
            names=found.names,
            missing=found.missing,
            running=seen.method,
            running_s=seen.method_s,
            clock=time.monotonic(),
        )
