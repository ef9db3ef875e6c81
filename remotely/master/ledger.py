"""The ledger of what is free on each worker, and the choice of the worker for an actor.

The rule: of the workers with the actor's Python that have room, the one with the most free CPUs;
among equals, the first by id.  So actors spread, and the same events give the same placement.  An
actor that asks for a part of a GPU gets it of the device that has least left and enough, so that
whole ones stay free.

Workers with the same Python and as many free GPUs stand in one bucket, those with most free CPUs in
front.  A placement looks at each bucket with enough GPUs from its front, and passes by workers that
have too little memory, or too few of the user's resources: mostly one look a bucket, whatever the
number of workers and actors.  A structure that is sorted by memory too was refused: it would serve
clusters that run out of memory before CPUs, where passing a thousand workers takes 0.1 ms.  Of
memory, GPUs and the user's resources the free amounts alone are kept sorted, each by itself: enough
to say what the most is that a machine has free.

A request that names machines (`among`) looks at those alone, one by one.

All but bytes is counted in thousandths.  What is held may be more than there is, where a new master
learns of it; then what is free is below zero.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from remotely.protocol.resources import Resources, counted, format_bytes, in_thousandths, listed

WHOLE = 1000  # a GPU, in thousandths


@dataclass
class Room:
    """One worker: what it has in all, and what is free of that."""

    total: Resources
    python: str
    milli_cpus: int
    memory: int
    gpu_ids: set[int]  # wholly free
    # Of the others, unless it is zero: how much is, in thousandths; below zero if too much is held.
    shared: dict[int, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)  # in thousandths

    @classmethod
    def all_free(cls, total: Resources, python: str) -> "Room":
        return cls(
            total,
            python,
            in_thousandths(total.cpus),
            total.memory,
            set(range(int(total.gpus))),
            others={name: in_thousandths(amount) for name, amount in total.others},
        )

    @property
    def free(self) -> Resources:
        others = {name: count for name, count in self.others.items() if count}
        return Resources(
            self.milli_cpus / 1000,
            self.milli_gpus / 1000,
            self.memory,
            tuple((name, count / 1000) for name, count in sorted(others.items())),
        )

    @property
    def milli_gpus(self) -> int:
        return WHOLE * len(self.gpu_ids) + sum(self.shared.values())

    def amounts(self) -> list[tuple[str, int]]:
        """Return what is free of each but CPUs."""
        found = [("memory", self.memory)]
        if self.total.gpus:
            found.append(("gpus", self.milli_gpus))
        found += [(f"other {name}", count) for name, count in self.others.items()]
        return found

    @property
    def share(self) -> int:
        """The most that is free of a GPU that is in use."""
        return max(0, *self.shared.values()) if self.shared else 0

    def has_gpus(self, milli_gpus: int) -> bool:
        """Tell whether so many thousandths of GPUs can be had, all of whole ones or of one."""
        return enough_gpus(milli_gpus, len(self.gpu_ids), self.share)

    def has_others(self, asked: Resources) -> bool:
        return all(
            self.others.get(name, 0) >= in_thousandths(amount) for name, amount in asked.others
        )

    def choose_gpus(self, milli_gpus: int) -> tuple[int, ...]:
        """Return which to give to an actor for which there is room."""
        if milli_gpus >= WHOLE:
            return tuple(sorted(self.gpu_ids)[: milli_gpus // WHOLE])
        fitting = [(left, gpu) for gpu, left in self.shared.items() if left >= milli_gpus]
        return (min(fitting)[1] if fitting else min(self.gpu_ids),)

    def soonest_gpus(self, milli_gpus: int) -> tuple[int, ...]:
        """Return which to keep for an actor for which there is no room yet: those most free."""
        left = dict.fromkeys(self.gpu_ids, WHOLE) | self.shared
        ids = sorted(range(int(self.total.gpus)), key=lambda gpu: (-left.get(gpu, 0), gpu))
        return tuple(ids[: max(1, milli_gpus // WHOLE)])

    @property
    def lacks(self) -> tuple[int, ...]:
        """How much more of each is held than there is."""
        return (
            max(0, -self.milli_cpus),
            max(0, -self.memory),
            sum(max(0, -left) for left in self.shared.values()),
            sum(max(0, -left) for left in self.others.values()),
        )

    def take(self, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        self.milli_cpus -= in_thousandths(asked.cpus)
        self.memory -= asked.memory
        for gpu in gpu_ids:
            left = WHOLE if gpu in self.gpu_ids else self.shared.get(gpu, 0)
            self._set_gpu(gpu, left - min(WHOLE, in_thousandths(asked.gpus)))
        for name, amount in asked.others:
            self.others[name] = self.others.get(name, 0) - in_thousandths(amount)

    def give_back(self, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        self.milli_cpus += in_thousandths(asked.cpus)
        self.memory += asked.memory
        for gpu in gpu_ids:
            self._set_gpu(gpu, self.shared.get(gpu, 0) + min(WHOLE, in_thousandths(asked.gpus)))
        for name, amount in asked.others:
            self.others[name] = self.others.get(name, 0) + in_thousandths(amount)

    def _set_gpu(self, gpu: int, left: int) -> None:
        self.gpu_ids.discard(gpu)
        self.shared.pop(gpu, None)
        if left == WHOLE:
            self.gpu_ids.add(gpu)
        elif left:
            self.shared[gpu] = left

    def copies(self, asked: Resources, at_most: int) -> int:
        """Return how many actors that each ask for this there is room for."""
        milli_gpus = in_thousandths(asked.gpus)
        pairs = [
            (self.milli_cpus, in_thousandths(asked.cpus)),
            (self.memory, asked.memory),
            *((self.others.get(n, 0), in_thousandths(amount)) for n, amount in asked.others),
        ]
        if milli_gpus >= WHOLE:
            pairs.append((len(self.gpu_ids), milli_gpus // WHOLE))
        found = min([at_most, *(free // each for free, each in pairs if each)])
        if 0 < milli_gpus < WHOLE:
            a_gpu = WHOLE // milli_gpus
            parts = sum(max(0, left) // milli_gpus for left in self.shared.values())
            found = min(found, a_gpu * len(self.gpu_ids) + parts)
        return max(0, found)


def enough_gpus(milli_gpus: int, whole: int, share: int) -> bool:
    """Tell whether so much can be had of GPUs; `share` is the most that is free of one in use."""
    if milli_gpus < WHOLE:
        return whole > 0 or share >= milli_gpus
    return WHOLE * whole >= milli_gpus


class Placement(NamedTuple):
    """Where an actor goes, and which GPUs it has there.  It is taken off what is free."""

    worker: str
    gpu_ids: tuple[int, ...]


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
        self._workers: dict[str, Room] = {}
        # By Python, number of free GPUs and the most that is free of another: less free thousandths
        # of CPUs, and worker; sorted.
        self._buckets: dict[tuple[str, int, int], list[tuple[int, str]]] = {}
        # Of the same workers, all that is free of each but CPUs; sorted.
        self._amounts: dict[str, list[int]] = defaultdict(list)
        self._sizes: dict[str, _Sizes] = {}  # by Python
        self._milli_cpus = 0  # of all workers together
        self._kept: list[tuple[Placement, Resources]] = []  # taken, by `keep`

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
        entered = self._workers[worker] = Room.all_free(total, python)
        self._add_to_bucket(worker, entered)
        self._sizes.setdefault(python, _Sizes()).add(total)
        self._milli_cpus += in_thousandths(total.cpus)

    def remove_worker(self, worker: str) -> None:
        if (found := self._workers.pop(worker, None)) is None:
            return
        self._take_from_bucket(worker, found)
        self.away.discard(worker)
        self._kept = [(kept, asked) for kept, asked in self._kept if kept.worker != worker]
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
        return self._workers[worker].free

    def most_free(self, asked: Resources) -> Resources:
        """Return of each resource that is asked for, and of CPUs, the most that is free on one
        worker, if not on the same."""
        if not self._buckets:  # all are away
            return Resources()
        return Resources(
            max(-bucket[0][0] for bucket in self._buckets.values()) / 1000,
            self._most("gpus") / 1000 if asked.gpus else 0,
            self._most("memory") if asked.memory else 0,
            tuple((name, self._most(f"other {name}") / 1000) for name, _ in asked.others),
        )

    def _most(self, of: str) -> int:
        """Return the most that is free; of what only some workers have, the others have none."""
        amounts = self._amounts.get(of)
        has_all = amounts and len(amounts) == len(self._workers) - len(self.away)
        return (amounts[-1] if has_all else max(0, amounts[-1])) if amounts else 0

    def has_room(self, worker: str, asked: Resources, python: str) -> bool:
        """Tell whether `asked` could be placed on this worker now."""
        found = self._workers[worker]
        return (
            worker not in self.away
            and found.python == python
            and (not asked.cpus or found.milli_cpus >= in_thousandths(asked.cpus))
            and (not asked.memory or found.memory >= asked.memory)
            and (not asked.gpus or found.has_gpus(in_thousandths(asked.gpus)))
            and (not asked.others or found.has_others(asked))
        )

    def copies(
        self, asked: Resources, python: str, at_most: int, among: Collection[str] | None = None
    ) -> int:
        """Return how many actors that each ask for this could be placed now, up to `at_most`."""
        found = 0
        for name in self._candidates(python, among):
            if name not in self.away:
                found += self._workers[name].copies(asked, at_most - found)
                if found == at_most:
                    break
        return found

    def copies_in_all(
        self, asked: Resources, python: str, at_most: int, among: Collection[str] | None = None
    ) -> int:
        """Return how many could be placed if all of every worker were free, up to `at_most`."""
        found = 0
        for name in self._candidates(python, among):
            total = self._workers[name].total
            found += Room.all_free(total, python).copies(asked, at_most - found)
            if found == at_most:
                break
        return found

    def place(
        self, asked: Resources, python: str, among: Collection[str] | None = None
    ) -> Placement | None:
        """Choose a worker with this Python ("3.11") that has room, and take `asked` off it."""
        worker = self._choose(asked, python) if among is None else self._best(asked, python, among)
        if worker is None:
            return None
        found = self._workers[worker]
        gpu_ids = found.choose_gpus(in_thousandths(asked.gpus)) if asked.gpus else ()
        self.reserve(worker, asked, gpu_ids)
        return Placement(worker, gpu_ids)

    def why_never(
        self, asked: Resources, python: str, among: Collection[str] | None = None
    ) -> str | None:
        """Return why no worker is large enough, or none has this Python; None if one is."""
        if among is not None:
            sizes = [self._workers[name].total for name in self._candidates(python, among)]
        else:
            sizes = self._sizes[python].largest if python in self._sizes else []
        if any(asked.fits(total) for total in sizes):
            return None
        if among is not None:
            nobody = f"where it is to be, no worker runs Python {python}"
            return _why_too_small(asked, sizes) if sizes else nobody
        return self._why_never(asked, python, sizes)

    def _choose(self, asked: Resources, python: str) -> str | None:
        milli_cpus, memory = in_thousandths(asked.cpus), asked.memory
        milli_gpus = in_thousandths(asked.gpus)
        best: tuple[int, str] | None = None
        for (bucket_python, whole, share), bucket in self._buckets.items():
            if bucket_python != python:
                continue
            if milli_gpus and not enough_gpus(milli_gpus, whole, share):
                continue
            for entry in bucket:
                is_short = milli_cpus and -entry[0] < milli_cpus
                if is_short or (best is not None and best < entry):
                    break
                found = self._workers[entry[1]]
                has_memory = not memory or found.memory >= memory
                if has_memory and (not asked.others or found.has_others(asked)):
                    best = entry
                    break
        return best and best[1]

    def _best(self, asked: Resources, python: str, among: Collection[str]) -> str | None:
        """Choose by the same rule, of these workers."""
        fitting = [
            (-self._workers[name].milli_cpus, name)
            for name in self._candidates(python, among)
            if self.has_room(name, asked, python)
        ]
        return min(fitting)[1] if fitting else None

    def _candidates(self, python: str, among: Collection[str] | None) -> Iterable[str]:
        names = self._workers if among is None else among
        return (n for n in names if n in self._workers and self._workers[n].python == python)

    def reserve(self, worker: str, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        """Take what an actor holds: one that is placed, or that a new master is told of."""
        found = self._workers[worker]
        self._take_from_bucket(worker, found)
        found.take(asked, gpu_ids)
        self._add_to_bucket(worker, found)

    def release(self, worker: str, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        """Give back what an actor held.  Its worker may have gone before it."""
        if found := self._workers.get(worker):
            self._take_from_bucket(worker, found)
            found.give_back(asked, gpu_ids)
            self._add_to_bucket(worker, found)

    # --- room that is kept (kept_room.py) ---------------------------------------------------------

    def keep(
        self,
        asked: Resources,
        python: str,
        count: int,
        among: Collection[str] | None,
        best: Set[str],
        worst: Set[str],
    ) -> None:
        """Take room for `count` actors that each ask for this, free or not, where most is free.

        Takes nothing if there would be too little, were all free.  Workers of `best` come first,
        those of `worst` last.
        """
        fitting = {
            name: Room.all_free(self._workers[name].total, python).copies(asked, count)
            for name in self._candidates(python, among)
            if name not in self.away
        }
        if sum(fitting.values()) < count:
            return

        def rank(name: str) -> tuple[bool, bool, int, int, str]:
            room = self._workers[name]
            gpus = room.milli_gpus if asked.gpus else 0
            return name in worst, name not in best, -gpus, -room.milli_cpus, name

        ranks = [rank(name) for name, fits in fitting.items() if fits]
        heapify(ranks)
        for _ in range(count):
            *_, name = heappop(ranks)
            fitting[name] -= 1
            room = self._workers[name]
            gpu_ids = room.soonest_gpus(in_thousandths(asked.gpus)) if asked.gpus else ()
            self.reserve(name, asked, gpu_ids)
            self._kept.append((Placement(name, gpu_ids), asked))
            if fitting[name]:
                heappush(ranks, rank(name))

    def let_go(self) -> None:
        """Give back what is kept."""
        for kept, asked in self._kept:
            self.release(kept.worker, asked, kept.gpu_ids)
        self._kept.clear()

    @property
    def kept(self) -> list[tuple[Placement, Resources]]:
        """The room that is kept."""
        return self._kept.copy()

    @property
    def keepers(self) -> set[str]:
        """The workers on which it is kept."""
        return {kept.worker for kept, _ in self._kept}

    @property
    def lacks(self) -> tuple[int, ...]:
        """How much of each is still missing of the room that is kept."""
        return tuple(
            map(sum, zip(*(self._workers[name].lacks for name in self.keepers), strict=True))
        )

    # --- the buckets ------------------------------------------------------------------------------

    def _add_to_bucket(self, name: str, worker: Room) -> None:
        if name in self.away:
            return
        place = worker.python, len(worker.gpu_ids), worker.share
        insort(self._buckets.setdefault(place, []), (-worker.milli_cpus, name))
        for of, amount in worker.amounts():
            insort(self._amounts[of], amount)

    def _take_from_bucket(self, name: str, worker: Room) -> None:
        """Take a worker from its bucket, before what is free of it changes."""
        if name in self.away:
            return
        place = worker.python, len(worker.gpu_ids), worker.share
        bucket = self._buckets[place]
        del bucket[bisect_left(bucket, (-worker.milli_cpus, name))]
        if not bucket:
            del self._buckets[place]
        for of, amount in worker.amounts():
            amounts = self._amounts[of]
            del amounts[bisect_left(amounts, amount)]
            if not amounts:
                del self._amounts[of]

    def _why_never(self, asked: Resources, python: str, alike: list[Resources]) -> str:
        if not self._workers:
            return f"{asked} cannot be had: no machine has joined the cluster"
        if not alike:
            others = listed(sorted(self._sizes, key=_version))
            return (
                f"no worker runs Python {python}: they run {others}; code does not travel between "
                "versions, so start the script or a worker with the other's"
            )
        why = _why_too_small(asked, alike)
        bigger = sorted(
            (p for p, s in self._sizes.items() if any(asked.fits(total) for total in s.largest)),
            key=_version,
        )
        if bigger:
            why += f" (a worker with Python {listed(bigger)} has it, but this is Python {python})"
        return why


def _why_too_small(asked: Resources, alike: list[Resources]) -> str:
    """Return why none of these sizes of workers is large enough."""
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
                f"{max(r.gpus for r in alike):g}",
                any(asked.gpus <= r.gpus for r in alike),
            ),
            (
                format_bytes(asked.memory),
                format_bytes(max(r.memory for r in alike)),
                any(asked.memory <= r.memory for r in alike),
            ),
            *(
                (
                    f"{amount:g} {name}",
                    f"{max(r.amount_of(name) for r in alike):g}",
                    any(amount <= r.amount_of(name) for r in alike),
                )
                for name, amount in asked.others
            ),
        )
        if not enough
    ]
    if short:
        return f"it asks for {listed(short)}"
    largest = max(alike, key=lambda r: (r.cpus, r.gpus, r.memory))
    return f"it asks for {asked}, and no worker has all of it; the largest has {largest}"


def _version(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".") if part.isdecimal())
