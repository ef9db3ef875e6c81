"""What has happened to the machines and actors of a cluster: the last events, newest last.

    kind          recorded when
    joined        a worker has registered for the first time with this master
    left          it has left, as by `remotely stop`
    lost          nothing was heard of it, or its process ended; it may return
    sick, well    starts fail there; one has succeeded (sickness.py)
    draining      it is about to leave (draining.py)
    undrained     it is to stay after all
    drained       it has left, as it was told to
    revoked       keys are no longer listed
    died          an actor has ended that nobody asked to end; the status lists the last of these
    moved         an actor has ended because its machine is being drained
    refused       a request for an actor has failed before a machine was told to start one; not one
                  for an actor that is spare when others wait for room, or that is there already:
                  nobody misses that

It is bounded, kept in memory alone, and begins with the master.  Times are those of the master's
monotonic clock: who shows an event computes the wall-clock time from its age.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from remotely.protocol.control import EndStatus, EventStatus, Obituary, Request
from remotely.reporting.cluster_status import count_of
from remotely.reporting.endings import how_it_ended

REMEMBERED = 1000
REMEMBERED_REFUSALS = 100
# Errors of those that come second, of which their scripts make use: the actor is there already, or
# another life of it.
OF_RACES = ("NameTaken", "ActorDied")
SHOWN_ENDS = 20  # in a status

Kind = Literal[
    "joined",
    "left",
    "lost",
    "sick",
    "well",
    "draining",
    "undrained",
    "drained",
    "revoked",
    "died",
    "moved",
    "refused",
]


class _Happened(NamedTuple):
    at: float
    event: EventStatus
    obituary: Obituary | None = None  # of an actor that died
    refusals: int = 0  # of requests of one class, for one reason
    reason: str = ""  # of these


def _number(happened: _Happened) -> int:
    return happened.event.number


class History:
    """The last events, numbered from 1."""

    def __init__(self) -> None:
        self._events: deque[_Happened] = deque(maxlen=REMEMBERED)
        self._refusals: deque[_Happened] = deque(maxlen=REMEMBERED_REFUSALS)
        self._numbers = itertools.count(1)
        self.last = 0  # the number of the newest
        self.ended = 0  # unexpected ends, whether they are remembered or not

    def add(self, now: float, kind: Kind, machine: str, text: str) -> None:
        """Record what happened to a machine, or to the cluster."""
        self._append(_Happened(now, EventStatus(kind=kind, machine=machine, text=text)))

    def add_end(self, now: float, request: Request, machine: str, obituary: Obituary) -> None:
        """Record the end of an actor that nobody asked to end, or that moves."""
        kind: Kind = "moved" if obituary.moved and obituary.restarting else "died"
        how = how_it_ended(obituary.exit, obituary.lost)
        why = f": {obituary.why}" if obituary.why else ""
        event = EventStatus(
            kind=kind,
            machine=machine,
            text=f"{request.name} {how}{why}{'; it is restarted' * obituary.restarting}",
            name=request.name,
            class_name=request.class_name,
        )
        kept = msgspec.structs.replace(obituary, flight_record=b"", begun={})
        self._append(_Happened(now, event, kept if kind == "died" else None))

    def add_refusal(self, now: float, request: Request, error: str, why: str) -> None:
        """Record that a request was refused.

        It takes the place of an earlier event of the same class and reason, and refusals are
        remembered apart, so that scripts that ask again and again displace nothing else.
        """
        if request.is_spare or error in OF_RACES:
            return
        reason, count = f"{error}: {why}", 1
        for before in self._refusals:
            if (before.event.class_name, before.reason) == (request.class_name, reason):
                count += before.refusals
                self._refusals.remove(before)
                break
        more = f" and {count_of(count - 1, 'more request')}" if count > 1 else ""
        event = EventStatus(
            kind="refused",
            machine="",
            text=f"{request.name}{more} refused: {reason}",
            name=request.name,
            class_name=request.class_name,
        )
        self._append(_Happened(now, event, refusals=count, reason=reason))

    def _append(self, happened: _Happened) -> None:
        self.last = next(self._numbers)
        self.ended += happened.obituary is not None
        event = msgspec.structs.replace(happened.event, number=self.last)
        kept = self._refusals if happened.refusals else self._events
        kept.append(happened._replace(event=event))

    def after(self, number: int, now: float) -> list[EventStatus]:
        """Return the events after the one with this number, oldest first.

        A number that is too high is from an earlier master: then all of them.
        """
        first = number if number <= self.last else 0
        return [
            msgspec.structs.replace(each.event, ago_s=max(0.0, now - each.at))
            for each in heapq.merge(self._events, self._refusals, key=_number)
            if each.event.number > first
        ]

    def ends(self, now: float) -> list[EndStatus]:
        """Return the last unexpected ends, newest first."""
        return [*itertools.islice(self._ends(now), SHOWN_ENDS)]

    def _ends(self, now: float) -> Iterator[EndStatus]:
        for at, event, obituary, *_ in reversed(self._events):
            if obituary is not None:
                yield EndStatus(
                    name=event.name,
                    class_name=event.class_name,
                    actor=obituary.actor,
                    life=obituary.life,
                    machine=event.machine,
                    ago_s=max(0.0, now - at),
                    lost=obituary.lost,
                    restarting=obituary.restarting,
                    exit=obituary.exit,
                    why=obituary.why,
                    stderr=obituary.stderr,
                )
