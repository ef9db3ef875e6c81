"""Client requests that several peers have to answer: for an actor's log, and for the status.

The log of an actor that has ended is on the machine where it ran, which the master does not record.
So the master asks all workers, and replies "unknown" when the last of them has ruled it out or is
gone.  It asks a worker that reconnects again, because the request or its reply may have been lost.

Status is collected on demand.  On a status request the master queries every worker and client, and
replies when all have answered or at the first tick after STATUS_WAIT_S: a process that is stopped,
or busy in C, must not hide the others.  Requests that arrive meanwhile get the same reply, so
frequent requests add no load to the cluster.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from remotely.protocol import control
from remotely.protocol.index import Index

STATUS_WAIT_S = 1.0
SPANS_WAIT_S = 5.0  # after the end of a timeline, for what a process sends
_UNKNOWN = control.LogPiece(ticket=0, text="", offset=0, known=False, ended=True)


@dataclass(slots=True)
class LogQuery:
    session: str
    ticket: int
    request: control.ReadLog  # as sent to the workers
    pending: set[str]  # workers that have not answered


class LogQueries:
    """Forwards each request to workers, and one reply back."""

    def __init__(self, send: Callable[[str, msgspec.Struct], None]) -> None:
        self._send = send
        self.queries: dict[int, LogQuery] = {}
        self._numbers = itertools.count(1)
        self._pending: Index[str, int] = Index()  # by worker

    def query(self, session: str, request: control.ReadLog, workers: set[str]) -> None:
        number = next(self._numbers)
        forwarded = msgspec.structs.replace(request, ticket=number)
        self.queries[number] = LogQuery(session, request.ticket, forwarded, workers)
        for worker in workers:
            self._pending.add(worker, number)
            self._send(worker, forwarded)
        if not workers:
            self._reply(number, _UNKNOWN)

    def resend(self, worker: str) -> None:
        """Repeat the pending requests to a worker that has reconnected."""
        for number in self._pending.of(worker):
            self._send(worker, self.queries[number].request)

    def handle_reply(self, worker: str, piece: control.LogPiece) -> None:
        """Handle the reply of a worker."""
        if piece.ticket in self.queries and worker in self.queries[piece.ticket].pending:
            if piece.known:
                self._reply(piece.ticket, piece)
            else:
                self._rule_out(worker, piece.ticket)

    def remove_worker(self, worker: str) -> None:
        for number in self._pending.of(worker):
            self._rule_out(worker, number)

    def _rule_out(self, worker: str, number: int) -> None:
        """Rule out a worker; reply "unknown" if it was the last."""
        query = self.queries[number]
        query.pending.discard(worker)
        self._pending.discard(worker, number)
        if not query.pending:
            self._reply(number, _UNKNOWN)

    def _reply(self, number: int, piece: control.LogPiece) -> None:
        query = self.queries.pop(number)
        for worker in query.pending:
            self._pending.discard(worker, number)
        self._send(query.session, msgspec.structs.replace(piece, ticket=query.ticket))


@dataclass(slots=True)
class _Peer:
    host: str
    asked: float
    offset_s: float = 0.0
    error_s: float = control.LONGEST_S  # no reply yet


class Timelines:
    """Has all peers record a timeline, and passes on what they send.  One is recorded at a time.

    The clocks of machines differ.  A peer replies at once with its own, so the master's is known to
    be between two times, and the offset within half of what lies between them.  Of the peers of a
    machine, the one that replied fastest counts.

    A timeline ends with its asker: its peers are told to record none instead.  Its id has the time
    at which it began, so a restarted master takes nothing for its own that is of one before.
    """

    def __init__(self, host: str, send: Callable[[str, msgspec.Struct], None]) -> None:
        self._host = host
        self._send = send
        self._id = ""  # of the one that is recorded; "" if none is
        self._asker = "", 0  # session and ticket
        self._peers: dict[str, _Peer] = {}  # all of them
        self._pending: set[str] = set()  # those that have not sent all
        self._deadline = 0.0

    def begin(
        self, session: str, ticket: int, seconds: float, hosts: Mapping[str, str], now: float
    ) -> None:
        """Begin one, of these peers, which are on these hosts; refuse it while one goes on."""
        if self._id and self._asker == (session, ticket):
            return  # asked again, as its connection broke meanwhile
        if self._id:
            left_s = max(0.0, self._deadline - SPANS_WAIT_S - now)
            why = f"another timeline is being recorded, for {left_s:.0f} s more"
            self._send(session, control.TimelineEnd(timeline="", ticket=ticket, why=why))
            return
        self._id = f"{session} {ticket} {now:.6f}"
        self._asker = session, ticket
        self._deadline = now + seconds + SPANS_WAIT_S
        self._peers = {peer: _Peer(host, now) for peer, host in hosts.items()}
        self._pending = set(hosts)
        for peer in hosts:
            self._send(peer, control.RecordTimeline(timeline=self._id, seconds=seconds))

    def hear_clock(self, peer: str, heard: control.TimelineClock, now: float) -> None:
        """Note the clock of a peer's machine."""
        if heard.timeline == self._id and (known := self._peers.get(peer)) is not None:
            known.offset_s = (known.asked + now) / 2 - heard.clock
            known.error_s = (now - known.asked) / 2

    def pass_on(self, peer: str, found: control.ProcessTimeline) -> None:
        """Pass on what a peer has recorded, with what is known of its clock."""
        if found.timeline != self._id or peer not in self._pending:
            return
        host = self._peers[peer].host
        best = min(
            (each for each in self._peers.values() if each.host == host),
            key=lambda each: each.error_s,
        )
        is_here = host == self._host  # its clock is the master's
        session, ticket = self._asker
        passed = msgspec.structs.replace(
            found,
            ticket=ticket,
            offset_s=0.0 if is_here else best.offset_s,
            error_s=0.0 if is_here else best.error_s,
        )
        self._send(session, passed)

    def end(self, peer: str, timeline: str) -> None:
        """A peer has sent all."""
        if timeline == self._id:
            self._stop_waiting(peer)

    def remove_peer(self, peer: str) -> None:
        """A peer has ended."""
        if self._id and peer == self._asker[0]:
            self._id = ""
            for each in self._pending - {peer}:
                self._send(each, control.RecordTimeline(timeline="", seconds=0))
            self._pending.clear()
        self._stop_waiting(peer)

    def _stop_waiting(self, peer: str) -> None:
        self._pending.discard(peer)
        if self._id and not self._pending:
            self._finish()

    def expire(self, now: float) -> None:
        if self._id and now >= self._deadline:
            self._finish()

    def _finish(self) -> None:
        session, ticket = self._asker
        self._send(session, control.TimelineEnd(timeline=self._id, ticket=ticket))
        self._id = ""
        self._pending.clear()


class StatusQueries:
    """Queries the peers for their figures.  `due` returns the requests to reply to."""

    def __init__(self, send: Callable[[str, msgspec.Struct], None]) -> None:
        self._send = send
        self._requests: list[tuple[str, int]] = []  # sessions and tickets
        self._pending: set[str] = set()  # peers
        self._deadline = 0.0

    def query(self, session: str, ticket: int, peers: Iterable[str], now: float) -> None:
        self._requests.append((session, ticket))
        if len(self._requests) == 1:
            self._deadline = now + STATUS_WAIT_S
            self._pending = set(peers)
            for peer in self._pending:
                self._send(peer, control.AskFigures())

    def remove_peer(self, peer: str) -> None:
        """Stop waiting for a peer: it has answered, has ended, or is unreachable."""
        self._pending.discard(peer)

    def due(self, now: float) -> list[tuple[str, int]]:
        """Remove and return the requests, if all peers have answered or the deadline has passed."""
        if self._pending and now < self._deadline:
            return []
        self._pending.clear()
        due, self._requests = self._requests, []
        return due
