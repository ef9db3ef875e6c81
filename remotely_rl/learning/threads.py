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
as long with two threads, and as long as ever with one.  Whether bfloat16 should have other
settings, or one thread, is open.  `python -m tools.bench_rl.waiting` measures in the precision of
learners.

The number of threads does not follow the load of the machine: the last bits of sums depend on
it, and a run would not repeat.
"""

import os
import sys

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

# Whether it is too late to set the policy.
spins = "torch" in sys.modules and POLICY not in os.environ
if POLICY not in os.environ:
    os.environ[POLICY] = "passive"
    os.environ.setdefault(SPINS, LOOKS)


def cores() -> int:
    """The cores of this machine."""
    return os.cpu_count() or 1


def in_rounds(parameters: int) -> int:
    """All cores, because actors rest while the learner learns; one for a small network."""
    return cores() if parameters >= SHARED_FROM else 1


def beside(actors: int) -> int:
    """The cores that free-running actors leave, at least one."""
    return max(1, cores() - max(1, actors))
