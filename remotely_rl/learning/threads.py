"""How many threads a learner on the CPU uses, and how they wait for each other.

Torch computes with OpenMP, whose threads synchronize after every parallel region.  By default a
thread that is done spins until the others are.  Beside another busy process that is slow: one of
the threads has no core just then, and gets none soon, because its own spinning has used up its
share.  An update took three times as long beside a process that takes one of two cores.  The
scheduler prefers threads that have slept: with sleeping threads the update took 1.1 to 1.7 times
as long beside that process, but sleeping and waking cost a fifth to two fifths of an update on a
free machine.  So threads here spin for a moment and then sleep (`SPINS`): that costs a tenth on a
free machine, and 1.8 to 2.2 times beside that process.  OpenMP reads these settings once, when
torch is loaded.

All that is of float32.  In bfloat16 the threads of oneDNN's convolutions wait for each other in
its own machine code, which heeds no setting: beside that process an update took 2.5 to 7.1 times
as long with two threads, and as long as ever with one.  `python -m tools.bench_rl.waiting`
measures in the precision of learners.

So there, and only there, the number of threads follows the load of the machine (`Threads`).  The
last bits of sums depend on it: a run that has tried fewer does not repeat bit for bit, and says so.
On a machine where nobody else computes while the learner learns it is never changed.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from remotely.machine import this_machine

# Parameters of a network; below, a second thread costs more than it gains.
SHARED_FROM = 100_000

POLICY = "OMP_WAIT_POLICY"
# How often torch's own OpenMP spins before it sleeps.  Others use the policy alone.
SPINS, LOOKS = "GOMP_SPINCOUNT", "10000"
WARNING = (
    "torch was imported before remotely_rl, so its threads spin while they wait: beside another"
    " busy process the learner may be several times slower.  Import remotely_rl first, set"
    f" {POLICY}=passive, or, in bfloat16 above all, set learner_threads to 1"
)

WINDOW_S, TRIAL_S = 2.0, 0.5
CROWDED = 0.3  # of a window that threads waited for a core, added up over threads
FASTER = 0.9  # of the time of an update with the threads of before
# Between trials; doubled after one that was no good, and so much longer than it took.
REST_S, MOST_REST_S, COSTS = 10.0, 60.0, 30.0

# Whether it is too late to set the policy.
spins = "torch" in sys.modules and POLICY not in os.environ
if POLICY not in os.environ:
    os.environ[POLICY] = "passive"
    os.environ.setdefault(SPINS, LOOKS)


def cores() -> int:
    """The cores that a learner may use: by affinity, control group and OMP_NUM_THREADS."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": by nesting
    there = this_machine.cores()
    return min(there, int(first)) if first.isdecimal() and int(first) else there


def in_rounds(parameters: int) -> int:
    """All cores, because actors rest while the learner learns; one for a small network."""
    return cores() if parameters >= SHARED_FROM else 1


def beside(actors: int) -> int:
    """The cores that free-running actors leave, at least one."""
    return max(1, cores() - max(1, actors))


def waited_s() -> float:
    """Seconds for which the threads of this process were ready to run and had no core, in all.

    0 where the system does not say.
    """
    waited_ns = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            waited_ns += int(task.read_text().split()[1])
    return waited_ns / 1e9


class Threads:
    """How many threads a learner goes on with: fewer while others take its cores, if it gains.

    It looks at windows of learning.  If threads waited for a core in one, half as many are tried
    for a moment, and kept if updates take less time.  From then on twice as many are tried now and
    then, and kept if that is faster.  There is no clock in here: all times are of learning, as the
    caller measured them.
    """

    def __init__(self, most: int, say: Callable[[str, str], None]):
        """`say` is told a topic and a sentence: that fewer are tried, at first, and are kept."""
        self.count = self._most = most
        self._say = say
        self._has_tried = False
        self._before: tuple[int, float] | None = None  # the count before a trial; seconds an update
        self._rest_s = 0.0  # until something else may be tried
        self._resting_s = REST_S
        self._begin()

    def updated(self, seconds: float, waited_s: float) -> bool:
        """Count an update in, in which threads waited for a core; return whether `count` changed.

        `waited_s` is added up over threads.
        """
        self._rest_s -= seconds
        if self._is_new and seconds < TRIAL_S:  # the first with another count prepares its kernels
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
                    "other processes take cores from the learner: an update took"
                    f" {1000 * took:.0f} ms with {before} threads, and takes {1000 * each:.0f} with"
                    f" {count}, which it uses while that lasts",
                )
        elif self._rest_s <= 0 and is_crowded and count > 1:
            self.count, self._before = count // 2, (count, each)
            if not self._has_tried:
                self._has_tried = True
                self._say(
                    "fewer threads tried",
                    "the learner's threads wait for cores, so it tries fewer; the run will not"
                    " repeat bit for bit.  learner_threads fixes their number",
                )
        elif self._rest_s <= 0 and count < self._most:
            self.count, self._before = min(2 * count, self._most), (count, each)
        self._begin(is_new=self.count != count)
        return self._is_new

    def _begin(self, is_new: bool = False) -> None:
        self._is_new = is_new
        self._seconds, self._waited_s, self._updates = 0.0, 0.0, 0
