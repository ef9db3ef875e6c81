"""How many threads a learner on the CPU computes with, and how they wait for each other.

The threads of OpenMP, which torch computes with, meet after every piece of work that they share.
Who comes first spins, by default, in the hope that the others are a moment behind.  Beside another
busy process they are not: one of them has no core just then, and cannot get one soon, for its
own spinning has used up its share: an update took three times as long beside a process that
takes one of two cores.  A thread that has slept is let in ahead of those that are busy, and beside
that process took 1.1 to 1.7 times as long; but to sleep and be woken at each meeting costs a fifth
to two fifths of an update on a machine that is free.  So threads here spin for a moment and then
sleep (`SPINS`), which costs a tenth, and 1.8 to 2.2 times beside that process.
`python -m tools.bench_rl.waiting` has the figures.  OpenMP reads this once, when torch is loaded.

The number of threads does not follow the load of the machine: sums depend on it in their last bits,
and a run would not repeat.
"""

import os
import sys

# Parameters of a network; below, a second thread costs more than it brings.
SHARED_FROM = 100_000

POLICY = "OMP_WAIT_POLICY"
# How often torch's own OpenMP looks before it sleeps.  Others heed the policy alone.
SPINS, LOOKS = "GOMP_SPINCOUNT", "10000"
WARNING = (
    "torch was imported before remotely_rl, so that its threads spin while they wait: beside"
    " another busy process the learner may be several times as slow.  Import remotely_rl first, or"
    f" set {POLICY}=passive"
)

# Whether it is too late to ask.
spins = "torch" in sys.modules and POLICY not in os.environ
if POLICY not in os.environ:
    os.environ[POLICY] = "passive"
    os.environ.setdefault(SPINS, LOOKS)


def cores() -> int:
    """The cores of this machine."""
    return os.cpu_count() or 1


def in_rounds(parameters: int) -> int:
    """All cores, for the actors rest while the learner learns; one if its network is small."""
    return cores() if parameters >= SHARED_FROM else 1


def beside(actors: int) -> int:
    """The cores that actors which run free leave, at least one."""
    return max(1, cores() - max(1, actors))
