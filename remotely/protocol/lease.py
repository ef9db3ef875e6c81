"""Leases: the right to be thought alive until a moment.  And all times that the cluster keeps.

Three signals, with three meanings.

    libzmq's heartbeat   the peer's process is there and can be reached.  libzmq's own thread
                         answers it, so it says nothing of the peer's Python, and a client that
                         holds the GIL for a minute does not lose its actors
    a beat               the peer's Python runs
    a lease              what those two renew.  When it ends, the peer is lost, which is less than
                         died: nobody saw its process end

A worker keeps its own count of its lease, and it is the shorter one: what its master might place
elsewhere must have ended before (fence.py).

This file looks at no clock: `now` is handed in, and is time.monotonic() everywhere, since the
wall's clock jumps.  A worker's own count alone goes on in suspend (fence.py): the master's does not
wait for it, while a master that was suspended owes those who could not reach it the time.
"""

from typing import NamedTuple


class Time(NamedTuple):
    name: str
    seconds: float
    reason: str


# The table in docs/reliability.md is made from this.
TIMES = (
    Time("BEAT_EVERY_S", 2.0, "four beats may be lost before a lease ends"),
    Time("LEASE_S", 15.0, "longer than a machine's stutter, shorter than a user's patience"),
    Time("FENCE_S", 10.0, "two thirds of a lease: a worker cut off for so long ends its actors"),
    Time(
        "TICK_EVERY_S",
        2.0,
        "how late an ended lease may be seen; to 1,000 workers it costs 2 % of a core",
    ),
    Time("HEARTBEAT_IVL_S", 2.0, "libzmq's own; its thread answers, whatever Python does"),
    Time("HEARTBEAT_TIMEOUT_S", 4.5, "two lost beats are weather; a pulled cable is seen in 6.5 s"),
    Time("HANDSHAKE_S", 5.0, "half-open peers are cut; a busy machine needs 0.1 s for CURVE"),
    Time("CONNECT_S", 5.0, "the kernel alone would try for two minutes"),
    Time(
        "DRAIN_S",
        5.0,
        "what a closed actor has for its calls and its `close`, and again to let go and exit; and "
        "then its last replies, to arrive",
    ),
    Time("OWNER_GRACE_S", 1.0, "for the calls of an owner that has ended: nobody waits for them"),
    Time("TERM_S", 3.0, "from SIGTERM to SIGKILL, for handlers that write something out"),
    Time("LEAVE_S", 5.0, "for the workers to end their actors and go, when a cluster is stopped"),
    Time("RESTARTS_WITHIN_S", 600.0, "max_restarts are counted in it: who dies at once gives up"),
    Time(
        "EXPECTED_S", 300.0, "a lost machine is waited for by who needs it: a reboot takes minutes"
    ),
    Time("PLACE_S", 60.0, "how long a request waits for room: others finish, machines join"),
    Time("OVERTAKEN_S", 5.0, "how long a request may be overtaken before room is kept for it"),
    Time("KEPT_S", 10.0, "how long room is kept while nothing ends that is in the way"),
)
_SECONDS = {time.name: time.seconds for time in TIMES}

BEAT_EVERY_S = _SECONDS["BEAT_EVERY_S"]
LEASE_S = _SECONDS["LEASE_S"]
FENCE_S = _SECONDS["FENCE_S"]
TICK_EVERY_S = _SECONDS["TICK_EVERY_S"]
HEARTBEAT_IVL_S = _SECONDS["HEARTBEAT_IVL_S"]
HEARTBEAT_TIMEOUT_S = _SECONDS["HEARTBEAT_TIMEOUT_S"]
HANDSHAKE_S = _SECONDS["HANDSHAKE_S"]
CONNECT_S = _SECONDS["CONNECT_S"]
DRAIN_S = _SECONDS["DRAIN_S"]
OWNER_GRACE_S = _SECONDS["OWNER_GRACE_S"]
TERM_S = _SECONDS["TERM_S"]
LEAVE_S = _SECONDS["LEAVE_S"]
RESTARTS_WITHIN_S = _SECONDS["RESTARTS_WITHIN_S"]
EXPECTED_S = _SECONDS["EXPECTED_S"]
PLACE_S = _SECONDS["PLACE_S"]
OVERTAKEN_S = _SECONDS["OVERTAKEN_S"]
KEPT_S = _SECONDS["KEPT_S"]


class Leases:
    """Who is thought alive, and until when.

    Every lease is as long as every other, so the order of renewal is the order of ending: a dict
    that is kept in that order is all the queue it takes.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._deadlines: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, holder: object) -> bool:
        return holder in self._deadlines

    def renew(self, holder: str, now: float) -> None:
        """Begin or prolong a lease.  `now` never goes back."""
        self._deadlines.pop(holder, None)
        self._deadlines[holder] = now + self.lease_s

    def silent_s(self, holder: str, now: float) -> float:
        """Return for how long a lease has not been renewed; one that has ended, all its time."""
        return now - self._deadlines.get(holder, now) + self.lease_s

    def end(self, holder: str) -> None:
        """End a lease before its time.  One that is not there is no error."""
        self._deadlines.pop(holder, None)

    def extend(self, seconds: float) -> None:
        """Let all of them end so much later: who judges them was away, and could hear nobody."""
        self._deadlines = {who: deadline + seconds for who, deadline in self._deadlines.items()}

    def expired(self, now: float) -> list[str]:
        """Remove and return whose lease has ended, the first to end first."""
        ended = []
        for holder, deadline in self._deadlines.items():
            if deadline > now:
                break
            ended.append(holder)
        for holder in ended:
            del self._deadlines[holder]
        return ended
