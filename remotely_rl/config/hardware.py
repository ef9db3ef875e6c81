"""The fit of a run to its hardware: over how many actors its environments are spread.

What a run learns depends on how many environments it has, on the rows of a round and on its
schedule; not on how many processes step the environments, but for the last bits and for random
numbers.  So the number of actors is the machine's to choose (`actors="auto"`), and the number of
environments is not:

    where actions are computed    actors
    in the actors (CPU)           one per core: they sample while the learner waits
    beside the learner (GPU)      the same; an even number, for alternating sampling

All have the same number of environments, so the number of actors divides that of the environments.
An actor has at least LEAST environments if there are as many: below that, the overhead of a step
costs more than a further core gains.

Algorithms whose number of actors changes what they learn have a number of their own: the staleness
of asynchronous actors (IMPALA, APPO) and of workers with gradients of their own (A3C, n-step Q)
grows with it.  `overlap` has no `auto` for that reason: it makes experience one update old.
"""

from typing import NamedTuple

LEAST = 4
ALTERNATES_FROM = 4  # actors, each on a core of its own, half of which step at a time


class Hardware(NamedTuple):
    """The part that one learner of a run may use."""

    cores: int
    has_gpu: bool = False

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"{cores} and a GPU" if self.has_gpu else cores


def spread(environments: int, hardware: Hardware, is_alternating: bool = False) -> int:
    """Return the number of actors among which these environments are divided.

    It is even if sampling `is_alternating`, and if it is going to be.
    """
    most = max(1, min(hardware.cores, environments // LEAST))
    counts = [count for count in range(1, max(2, most) + 1) if environments % count == 0]
    fitting = [count for count in counts if count <= most]
    if is_alternating:
        fitting = [count for count in fitting if count % 2 == 0] or counts
    elif hardware.has_gpu:
        fitting = [count for count in fitting if alternates(count, hardware)] or fitting
    return fitting[-1]


def alternates(actors: int, hardware: Hardware) -> bool:
    """Return whether alternating sampling has actors enough, and cores for them."""
    return actors % 2 == 0 and ALTERNATES_FROM <= actors <= hardware.cores
