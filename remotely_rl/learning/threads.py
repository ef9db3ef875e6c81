"""The number of a CPU learner's threads, and how they wait for each other.

Torch computes with OpenMP, whose threads synchronize after every parallel region.  By default a
thread that is done spins until the others are.  Beside another busy process that is slow: one of
the threads has no core at that moment, and does not get one soon, because its own spinning has used
up its share.  An update took three times as long beside a process that takes one of two cores.  The
scheduler prefers threads that have slept: with sleeping threads the update took 1.1 to 1.7 times
as long beside that process, but sleeping and waking cost a fifth to two fifths of an update on an
idle machine.  So threads spin for a moment and then sleep (`SPINS`): that costs a tenth on an idle
machine, and 1.8 to 2.2 times beside that process.  OpenMP reads these settings once, when torch is
loaded.

All this applies to float32.  In bfloat16, the threads of oneDNN's convolutions wait for each other
in generated machine code, which ignores these settings: beside that process an update took 2.5 to
7.1 times as long with two threads, and no longer with one ("Threads beside other work" in
docs/lab/results.md).

So in bfloat16 only, the number of threads follows the load of the machine (`LearnerThreads`).  The
last bits of sums depend on it: a run that has tried fewer threads does not repeat bit for bit, and
warns of it.  If no other process computes while the learner learns, the number never changes.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from remotely.machine import this_machine

# Parameters of a network below which a second thread costs more than it gains.
SHARED_FROM = 100_000

POLICY = "OMP_WAIT_POLICY"
# The number of spins of torch's OpenMP before it sleeps.  Other OpenMPs use only the policy.
SPINS, LOOKS = "GOMP_SPINCOUNT", "10000"
WARNING = (
    "torch was imported before remotely_rl, so its threads spin while they wait: beside another"
    " busy process the learner may be several times slower.  Import remotely_rl first, set"
    f" {POLICY}=passive, or, in bfloat16 above all, set learner_threads to 1"
)

WINDOW_S, TRIAL_S = 2.0, 0.5
CROWDED = 0.3  # wait for cores, summed over threads, as a fraction of the window
FASTER = 0.9  # time of an update relative to the previous count, at which a trial succeeds
# Between trials; after a failed one doubled, up to MOST_REST_S, or COSTS times its length if more.
REST_S, MOST_REST_S, COSTS = 10.0, 60.0, 30.0

# Whether torch was loaded before the policy could be set.
spins = "torch" in sys.modules and POLICY not in os.environ
if POLICY not in os.environ:
    os.environ[POLICY] = "passive"
    os.environ.setdefault(SPINS, LOOKS)


def cores() -> int:
    """Return the number of cores, limited by affinity, control group and OMP_NUM_THREADS."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": per level
    available = this_machine.cores()
    return min(available, int(first)) if first.isdecimal() and int(first) else available


def in_rounds(parameters: int) -> int:
    """Return the threads of a learner whose actors are idle meanwhile: all cores, or 1 if small."""
    return cores() if parameters >= SHARED_FROM else 1


def beside(actors: int) -> int:
    """Return the threads of a learner beside asynchronous actors: the other cores, at least 1."""
    return max(1, cores() - max(1, actors))


def waited_s() -> float:
    """Return how long this process's threads have been runnable without a core, in all.

    0 if the system does not report it.
    """
    waited_ns = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has just ended
            waited_ns += int(task.read_text().split()[1])
    return waited_ns / 1e9


class LearnerThreads:
    """The adaptive number of a learner's threads: fewer while others use its cores, if faster.

    It looks at windows of learning.  If threads waited for cores in one, it tries half as many
    threads briefly, and keeps that if updates are faster.  From then on it tries twice as many now
    and then, and keeps that if it is faster.  It reads no clock: the caller measures all times, and
    only of learning.
    """

    def __init__(self, most: int, say: Callable[[str, str], None]):
        """`say` gets a topic and a message: at the first trial, and when fewer threads are kept."""
        self.count = self._most = most
        self._say = say
        self._has_tried = False
        self._before: tuple[int, float] | None = None  # count and seconds per update before a trial
        self._rest_s = 0.0  # remaining time until the next trial
        self._resting_s = REST_S
        self._begin()

    def updated(self, seconds: float, waited_s: float) -> bool:
        """Count an update; return whether `count` changed.

        `waited_s` is the time that threads waited for cores, summed over threads.
        """
        self._rest_s -= seconds
        if self._is_new and seconds < TRIAL_S:  # the first update with a new count is slower
            self._begin()
            return False
        self._seconds += seconds
        self._waited_s += waited_s
        self._updates += 1
        if self._seconds < (WINDOW_S if self._before is None else TRIAL_S):
            return False
        count, each = self.count, self._seconds / self._updates
        is_crowded = self._waited_s > CROWDED * self._seconds
        if self._before is not None:
            before, took = self._before
            self._before = None
            is_better = each < FASTER * took
            longer_s = max(min(2 * self._resting_s, MOST_REST_S), COSTS * self._seconds)
            self._resting_s = REST_S if is_better else longer_s
            self._rest_s = 0.0 if is_better and count == self._most else self._resting_s
            self.count = count if is_better else before
            if is_better and count < before:
                self._say(
                    "fewer threads kept",
                    "other processes use the learner's cores: an update took"
                    f" {1000 * took:.0f} ms with {before} threads and takes {1000 * each:.0f} ms"
                    f" with {count}, which the learner uses for now",
                )
        elif self._rest_s <= 0 and is_crowded and count > 1:
            self.count, self._before = count // 2, (count, each)
            if not self._has_tried:
                self._has_tried = True
                self._say(
                    "fewer threads tried",
                    "the learner's threads wait for cores, so it tries fewer; the run will not"
                    " repeat bit for bit.  Set learner_threads to fix the number",
                )
        elif self._rest_s <= 0 and count < self._most:
            self.count, self._before = min(2 * count, self._most), (count, each)
        self._begin(is_new=self.count != count)
        return self._is_new

    def _begin(self, is_new: bool = False) -> None:
        self._is_new = is_new
        self._seconds, self._waited_s, self._updates = 0.0, 0.0, 0
