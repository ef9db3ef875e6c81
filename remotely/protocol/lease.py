"""Leases: how long a peer counts as alive; and all time constants of the cluster.

Three signals have three meanings.

    libzmq's heartbeat   the peer's process is there and reachable.  libzmq's own thread answers it,
                         so it says nothing about the peer's Python: a client that holds the GIL for
                         a minute does not lose its actors
    a beat               the peer's Python runs
    a lease              is renewed by the other two.  When it expires, the peer is lost; that is
                         not the same as dead, because nobody has seen its process end

A worker also keeps its own copy of its lease, which is shorter: its actors must have ended before
the master may place them elsewhere (fence.py).

This file reads no clock.  `now` is an argument, and is time.monotonic() everywhere, because the
wall clock jumps.  Only a worker's own copy counts the time in suspend (fence.py), because the
master may go on without it; a master that was suspended extends the leases by that time.
"""

from typing import NamedTuple


class Time(NamedTuple):
    name: str
    seconds: float
    reason: str


# The table in docs/reliability.md is made from this.
TIMES = (
    Time("BEAT_EVERY_S", 2.0, "four beats may be lost before a lease expires"),
    Time("LEASE_S", 15.0, "longer than a machine's hiccup, shorter than a user's patience"),
    Time("FENCE_S", 10.0, "two thirds of a lease: a worker cut off for this long ends its actors"),
    Time(
        "TICK_EVERY_S",
        2.0,
        "how late an expired lease may be noticed; for 1,000 workers it costs 2 % of a core",
    ),
    Time("HEARTBEAT_IVL_S", 2.0, "libzmq's own; its thread answers whatever Python does"),
    Time("HEARTBEAT_TIMEOUT_S", 4.5, "tolerates two lost beats; notices a pulled cable in 6.5 s"),
    Time("HANDSHAKE_S", 5.0, "cuts half-open peers; CURVE takes 0.1 s on a busy machine"),
    Time("CONNECT_S", 5.0, "the kernel alone would try for two minutes"),
    Time(
        "DRAIN_S",
        5.0,
        "for the calls and the `close` of an actor that is closed; again for its exit; and again "
        "for its last replies to arrive",
    ),
    Time("OWNER_GRACE_S", 1.0, "for the calls of an owner that has ended: nobody waits for them"),
    Time("TERM_S", 3.0, "from SIGTERM to SIGKILL, for handlers that save something"),
    Time(
        "LEAVE_GRACE_S",
        20.0,
        "how long a machine is drained after SIGTERM; Slurm and Kubernetes kill it after 30 s",
    ),
    Time(
        "QUIET_S",
        1.0,
        "how long an actor that moves must be idle: what was sent to it has arrived by then",
    ),
    Time("LEAVE_S", 5.0, "for the workers to end their actors when a cluster is stopped"),
    Time("RESTARTS_WITHIN_S", 600.0, "the window of max_restarts: an actor that keeps dying ends"),
    Time("EXPECTED_S", 300.0, "requests wait this long for a lost machine: a reboot takes minutes"),
    Time("PLACE_S", 60.0, "how long a request waits for room: others finish, machines join"),
    Time(
        "STUCK_S",
        60.0,
        "how long a machine may start actors without one outcome; an actor has started before its "
        "constructor runs, and that may take as long as it likes",
    ),
    Time("BENCH_S", 1.0, "how long a machine gets no actor after a start that failed; doubles"),
    Time("BENCH_MOST_S", 30.0, "the longest such pause: it is back within a minute of recovery"),
    Time("OVERTAKEN_S", 5.0, "how long a request may be overtaken before room is reserved for it"),
    Time("RESERVED_S", 10.0, "how long a reservation lasts if no actor in its way ends"),
    Time("START_AGAIN_S", 1.0, "before a worker starts a zygote or a store after one that failed"),
    Time("ACCEPT_AGAIN_S", 0.1, "before a listener that has run out of descriptors accepts again"),
    Time("ACTOR_TIDY_S", 2.0, "how often a busy actor looks for consumers that are gone"),
    Time("STALL_S", 5.0, "how long a transfer of a large value may not move"),
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
LEAVE_GRACE_S = _SECONDS["LEAVE_GRACE_S"]
QUIET_S = _SECONDS["QUIET_S"]
LEAVE_S = _SECONDS["LEAVE_S"]
RESTARTS_WITHIN_S = _SECONDS["RESTARTS_WITHIN_S"]
EXPECTED_S = _SECONDS["EXPECTED_S"]
PLACE_S = _SECONDS["PLACE_S"]
STUCK_S = _SECONDS["STUCK_S"]
BENCH_S = _SECONDS["BENCH_S"]
BENCH_MOST_S = _SECONDS["BENCH_MOST_S"]
OVERTAKEN_S = _SECONDS["OVERTAKEN_S"]
RESERVED_S = _SECONDS["RESERVED_S"]
START_AGAIN_S = _SECONDS["START_AGAIN_S"]
ACCEPT_AGAIN_S = _SECONDS["ACCEPT_AGAIN_S"]
ACTOR_TIDY_S = _SECONDS["ACTOR_TIDY_S"]
STALL_S = _SECONDS["STALL_S"]


class Leases:
    """The leases of all peers.

    All leases have the same length, so they expire in the order of renewal: a dict in that order
    serves as the queue.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._deadlines: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, holder: object) -> bool:
        return holder in self._deadlines

    def renew(self, holder: str, now: float) -> None:
        """Start or renew a lease.  `now` must never decrease."""
        self._deadlines.pop(holder, None)
        self._deadlines[holder] = now + self.lease_s

    def silent_s(self, holder: str, now: float) -> float:
        """Return the seconds since a lease was renewed; of an expired lease, its length."""
        return now - self._deadlines.get(holder, now) + self.lease_s

    def unheard(self, seconds: float, now: float) -> set[str]:
        """Return the holders that were last heard so many seconds ago or more."""
        found = set()
        for holder, deadline in self._deadlines.items():
            if deadline - self.lease_s + seconds > now:
                break
            found.add(holder)
        return found

    def end(self, holder: str) -> None:
        """End a lease early, if there is one."""
        self._deadlines.pop(holder, None)

    def extend(self, seconds: float) -> None:
        """Extend all leases: their keeper was suspended, and could receive no renewals."""
        self._deadlines = {who: deadline + seconds for who, deadline in self._deadlines.items()}

    def expired(self, now: float) -> list[str]:
        """Remove and return the holders whose lease has expired, in the order of expiry."""
        ended = []
        for holder, deadline in self._deadlines.items():
            if deadline > now:
                break
            ended.append(holder)
        for holder in ended:
            del self._deadlines[holder]
        return ended
