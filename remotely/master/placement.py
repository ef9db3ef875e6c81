"""Which worker an actor goes to.

The rule: of the workers with the actor's Python that have room, the one with the most free CPUs;
among equals, the first by id.  So actors spread, and the same events give the same placement.

    Placement    here, with these GPUs; it is taken off what is free
    Wait         some worker is big enough, but not free enough now, or away
    Never        no worker is big enough, or none has this Python; the reason is a sentence

Workers with the same Python and as many free GPUs stand on one bucket, those with most free CPUs in
front.  A placement looks at each bucket with enough GPUs from its front, and passes by workers that
have too little memory: mostly one look a bucket, whatever the number of workers and actors.  A
structure that is sorted by memory too was refused: it would serve clusters that run out of memory
before CPUs, where passing a thousand workers takes 0.1 ms.
"""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from remotely.protocol.resources import Resources, counted, format_bytes, in_thousandths, listed


class Placement(NamedTuple):
    worker: str
    gpu_ids: tuple[int, ...]


class Wait(NamedTuple):
    """There is no room now, but there may be."""


class Never(NamedTuple):
    reason: str


@dataclass
class _Worker:
    total: Resources
    python: str
    milli_cpus: int
    memory: int
    gpu_ids: set[int]


class _Sizes:
    """How large the workers with one Python are, and which of these sizes fit on no other."""

    def __init__(self) -> None:
        self.largest: list[Resources] = []
        self._counts: Counter[Resources] = Counter()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, total: Resources) -> None:
        self._counts[total] += 1
        self._compare(total)

    def remove(self, total: Resources) -> None:
        self._counts[total] -= 1
        if self._counts[total]:
            return
        del self._counts[total]
        if total in self.largest:
            self.largest = []
            for size in self._counts:
                self._compare(size)

    def _compare(self, total: Resources) -> None:
        if not any(total.fits(other) for other in self.largest):
            self.largest = [other for other in self.largest if not other.fits(total)] + [total]


class Ledger:
    """What each worker has, and what is free of it."""

    def __init__(self) -> None:
        self.away: set[str] = set()  # workers on which nothing is placed now
        self._workers: dict[str, _Worker] = {}
        # By Python and number of free GPUs: less free thousandths of CPUs, and worker; sorted.
        self._buckets: dict[tuple[str, int], list[tuple[int, str]]] = {}
        self._memories: list[int] = []  # what is free of it on each worker; sorted
        self._sizes: dict[str, _Sizes] = {}  # by Python
        self._milli_cpus = 0  # of all workers together

    @property
    def pythons(self) -> list[str]:
        """Those of the workers, sorted."""
        return sorted(self._sizes)

    @property
    def cpus(self) -> float:
        """Those of all workers together, free or not."""
        return self._milli_cpus / 1000

    def add_worker(self, worker: str, total: Resources, python: str) -> None:
        """Enter a worker, all free.  One that is known already starts anew."""
        self.remove_worker(worker)
        gpu_ids = set(range(total.gpus))
        entered = _Worker(total, python, in_thousandths(total.cpus), total.memory, gpu_ids)
        self._workers[worker] = entered
        self._add_to_bucket(worker, entered)
        self._sizes.setdefault(python, _Sizes()).add(total)
        self._milli_cpus += in_thousandths(total.cpus)

    def remove_worker(self, worker: str) -> None:
        if (found := self._workers.pop(worker, None)) is None:
            return
        self._take_from_bucket(worker, found)
        self.away.discard(worker)
        self._sizes[found.python].remove(found.total)
        if not self._sizes[found.python]:
            del self._sizes[found.python]
        self._milli_cpus -= in_thousandths(found.total.cpus)

    def suspend(self, worker: str) -> None:
        """Place nothing on a worker that is away; who needs what it has is to wait."""
        if worker in self._workers and worker not in self.away:
            self._take_from_bucket(worker, self._workers[worker])
            self.away.add(worker)

    def resume(self, worker: str) -> None:
        """It is back."""
        if worker in self.away:
            self.away.discard(worker)
            self._add_to_bucket(worker, self._workers[worker])

    def free(self, worker: str) -> Resources:
        """Return what is free; below zero where `reserve` took more than there is."""
        found = self._workers[worker]
        return Resources(found.milli_cpus / 1000, len(found.gpu_ids), found.memory)

    def most_free(self) -> Resources:
        """Return of each resource the most that is free on one worker, if not on the same."""
        if not self._buckets:  # all are away
            return Resources()
        milli_cpus = max(-bucket[0][0] for bucket in self._buckets.values())
        return Resources(milli_cpus / 1000, max(g for _, g in self._buckets), self._memories[-1])

    def has_room(self, worker: str, asked: Resources, python: str) -> bool:
        """Tell whether `asked` could be placed on this worker now."""
        found = self._workers[worker]
        return (
            worker not in self.away
            and found.python == python
            and found.milli_cpus >= in_thousandths(asked.cpus)
            and found.memory >= asked.memory
            and len(found.gpu_ids) >= asked.gpus
        )

    def place(self, asked: Resources, python: str) -> Placement | Wait | Never:
        """Choose a worker with this Python ("3.11") and take `asked` off it."""
        milli_cpus, gpus, memory = in_thousandths(asked.cpus), asked.gpus, asked.memory
        best: tuple[int, str] | None = None
        for (bucket_python, free_gpus), bucket in self._buckets.items():
            if bucket_python != python or free_gpus < gpus:
                continue
            for entry in bucket:
                if -entry[0] < milli_cpus or (best is not None and best < entry):
                    break
                if self._workers[entry[1]].memory >= memory:
                    best = entry
                    break
        if best is not None:
            worker = best[1]
            gpu_ids = tuple(sorted(self._workers[worker].gpu_ids)[:gpus])
            self.reserve(worker, asked, gpu_ids)
            return Placement(worker, gpu_ids)
        largest = self._sizes[python].largest if python in self._sizes else []
        if any(asked.fits(total) for total in largest):
            return Wait()
        return Never(self._why_never(asked, python, largest))

    def reserve(self, worker: str, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        """Take what an actor holds: one that is placed, or that a new master is told of."""
        found = self._workers[worker]
        self._take_from_bucket(worker, found)
        found.milli_cpus -= in_thousandths(asked.cpus)
        found.memory -= asked.memory
        found.gpu_ids -= set(gpu_ids)
        self._add_to_bucket(worker, found)

    def release(self, worker: str, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        """Give back what an actor held.  Its worker may have gone before it."""
        if found := self._workers.get(worker):
            self._take_from_bucket(worker, found)
            found.milli_cpus += in_thousandths(asked.cpus)
            found.memory += asked.memory
            found.gpu_ids |= set(gpu_ids)
            self._add_to_bucket(worker, found)

    def _add_to_bucket(self, name: str, worker: _Worker) -> None:
        if name in self.away:
            return
        bucket = self._buckets.setdefault((worker.python, len(worker.gpu_ids)), [])
        insort(bucket, (-worker.milli_cpus, name))
        insort(self._memories, worker.memory)

    def _take_from_bucket(self, name: str, worker: _Worker) -> None:
        """Take a worker from its bucket, before what is free of it changes."""
        if name in self.away:
            return
        place = worker.python, len(worker.gpu_ids)
        bucket = self._buckets[place]
        del bucket[bisect_left(bucket, (-worker.milli_cpus, name))]
        if not bucket:
            del self._buckets[place]
        del self._memories[bisect_left(self._memories, worker.memory)]

    def _why_never(self, asked: Resources, python: str, alike: list[Resources]) -> str:
        if not self._workers:
            return f"{asked} cannot be had: no machine has joined the cluster"
        if not alike:
            others = listed(sorted(self._sizes, key=_version))
            return (
                f"no worker runs Python {python}: they run {others}; code does not travel between "
                "versions, so start the script or a worker with the other's"
            )
        short = [
            f"{needed} where the largest worker has {has}"
            for needed, has, enough in (
                (
                    counted(asked.cpus, "CPU"),
                    f"{max(r.cpus for r in alike):g}",
                    any(in_thousandths(asked.cpus) <= in_thousandths(r.cpus) for r in alike),
                ),
                (
                    counted(asked.gpus, "GPU"),
                    str(max(r.gpus for r in alike)),
                    any(asked.gpus <= r.gpus for r in alike),
                ),
                (
                    format_bytes(asked.memory),
                    format_bytes(max(r.memory for r in alike)),
                    any(asked.memory <= r.memory for r in alike),
                ),
            )
            if not enough
        ]
        if short:
            why = f"it asks for {listed(short)}"
        else:
            largest = max(alike, key=lambda r: (r.cpus, r.gpus, r.memory))
            why = f"it asks for {asked}, and no worker has all of it; the largest has {largest}"
        bigger = sorted(
            (p for p, s in self._sizes.items() if any(asked.fits(total) for total in s.largest)),
            key=_version,
        )
        if bigger:
            why += f" (a worker with Python {listed(bigger)} has it, but this is Python {python})"
        return why


def _version(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".") if part.isdecimal())
