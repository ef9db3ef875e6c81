"""The ledger of free resources on each worker, and the choice of the worker for an actor.

The rule: of the workers with the actor's Python that have room,

    for an actor that holds CPUs    the one with the most free CPUs; of equals, that with the fewest
                                    actors
    for one that holds none         the one with the fewest actors for its CPUs; of equals, that
                                    with the most free CPUs

and of equals in both, the first by id.  So actors spread, whatever they ask for, and the same
events give the same placement.  An actor that packs gets the last worker by the same rule, so that
others stay empty.  An actor that needs a fraction of a GPU gets it from the device
with the least capacity left that suffices, so that whole GPUs stay free.

Workers with the same Python and the same number of free GPUs are in one bucket, which is sorted by
either rule.  A placement searches each bucket with enough GPUs from its front, or from the fullest
that has enough CPUs back to its front if the actor packs.  It skips workers that have too little
memory, too few custom resources or not the labels: mostly one look per bucket,
whatever the number of workers and actors.  Refused: a structure that is sorted by memory too.  It
would help clusters that run out of memory before CPUs, but skipping a thousand workers takes only
0.1 ms.  Free memory, GPUs and custom resources are kept in one sorted list each, only to report the
most that is free on one machine.

A worker may be closed, for any of the reasons in `WhyClosed`: then it is in no bucket.  One that is
on trial (sickness.py) is closed again by the first placement.

Workers of one machine draw from one record of what they share: its memory, and each GPU that more
than one of them offers (`Shares`).  So what one has given away is free at none of the others; their
CPUs and custom resources are as many as each was told to offer.

A request that is limited to some workers (`among`) searches these linearly.

All but bytes is counted in thousandths.  Actors may hold more than a worker has, if a restarted
master adopts them; then what is free is negative.
"""

import contextlib
import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from remotely.arguments import did_you_mean
from remotely.protocol.index import Index
from remotely.protocol.resources import (
    Resources,
    Shares,
    counted,
    format_bytes,
    in_thousandths,
    listed,
)

WHOLE = 1000  # a GPU, in thousandths
ALONE = Shares()
SHOWN_LABELS = 20  # in an error


class WhyClosed(Enum):
    """Why nothing is placed on a worker now."""

    AWAY = auto()  # it is unreachable, or lost and expected back
    SICK = auto()  # actors cannot be started there
    DRAINING = auto()  # its worker is about to leave


# A label is a resource of which a worker has zero, and of which others have none at all.
_LABEL = "label "


@lru_cache(maxsize=10_000)  # many actors ask for the same, and a request is retried many times
def needs_of(asked: Resources) -> tuple[tuple[str, int], ...]:
    """Return the amount of each requested resource except GPUs; of a label, zero."""
    needs = [("cpus", in_thousandths(asked.cpus)), ("memory", asked.memory)]
    needs += [(name, in_thousandths(amount)) for name, amount in asked.others]
    labels = ((_LABEL + label, 0) for label in asked.labels)
    return (*labels, *((name, amount) for name, amount in needs if amount))


Rank = tuple[float, float, str]  # the last is the worker


@dataclass
class Capacity:
    """The total and the free resources of one worker."""

    total: Resources
    python: str
    free: dict[str, int]  # of each resource except GPUs
    gpu_ids: set[int]  # GPUs that are entirely free
    # What is free of the other GPUs, in thousandths, unless zero; negative if overcommitted.
    shared: dict[int, int] = field(default_factory=dict)
    actors: int = 0  # how many hold some of it, be it nothing
    shares: Shares = ALONE
    own_memory: int = 0  # what its own actors hold, in bytes
    own_gpus: Counter[int] = field(default_factory=Counter)  # likewise, in thousandths, by GPU

    @classmethod
    def all_free(cls, total: Resources, python: str, shares: Shares = ALONE) -> "Capacity":
        free = {"cpus": 0, "memory": 0, **dict(needs_of(total))}
        return cls(total, python, free, set(range(int(total.gpus))), shares=shares)

    def emptied(self) -> "Capacity":
        """Return this worker as if nothing were held there."""
        return Capacity.all_free(self.total, self.python, self.shares)

    def ranks(self, name: str) -> tuple[Rank, Rank]:
        """Return its ranks for actors that hold CPUs, and for those that hold none; the lowest is
        chosen."""
        free, actors = -self.free["cpus"], self.actors
        return (free, actors, name), (actors / (self.total.cpus or 0.001), free, name)

    def as_resources(self) -> Resources:
        free = self.free.copy()
        cpus, memory = free.pop("cpus"), free.pop("memory")
        others = tuple((name, count / 1000) for name, count in sorted(free.items()) if count)
        return Resources(cpus / 1000, self.milli_gpus / 1000, memory, others)

    @property
    def milli_gpus(self) -> int:
        return WHOLE * len(self.gpu_ids) + sum(self.shared.values())

    @property
    def share(self) -> int:
        """The most that is free of one GPU in use."""
        return max(0, *self.shared.values()) if self.shared else 0

    def amounts(self) -> list[tuple[str, int]]:
        """Return what is free of each resource except CPUs."""
        found = [
            (name, count)
            for name, count in self.free.items()
            if name != "cpus" and not name.startswith(_LABEL)
        ]
        return [*found, ("gpus", self.milli_gpus)] if self.total.gpus else found

    def has(self, needs: Iterable[tuple[str, int]]) -> bool:
        """Return whether these amounts are free."""
        return all(self.free.get(name, -1) >= amount for name, amount in needs)

    def choose_gpus(self, milli_gpus: int) -> tuple[int, ...]:
        """Choose the GPUs for an actor for which there is room."""
        if milli_gpus >= WHOLE:
            return tuple(sorted(self.gpu_ids)[: milli_gpus // WHOLE])
        fitting = [(left, gpu) for gpu, left in self.shared.items() if left >= milli_gpus]
        return (min(fitting)[1] if fitting else min(self.gpu_ids),)

    @property
    def left_of_gpus(self) -> dict[int, int]:
        """What is free of each GPU, in thousandths, unless zero."""
        return dict.fromkeys(self.gpu_ids, WHOLE) | self.shared

    def soonest_gpus(self, milli_gpus: int, planned: "Capacity") -> tuple[int, ...]:
        """Choose the GPUs to reserve for an actor for which there is no room yet: the most free, of
        those that are not reserved in `planned`."""
        left, needed = self.left_of_gpus, min(WHOLE, milli_gpus)
        ids = [gpu for gpu, unplanned in planned.left_of_gpus.items() if unplanned >= needed]
        ids.sort(key=lambda gpu: (-left.get(gpu, 0), gpu))
        return tuple(ids[: max(1, milli_gpus // WHOLE)])

    @property
    def shortfall(self) -> tuple[int, ...]:
        """How much is overcommitted: of CPUs, memory, GPUs, and all others together."""
        short = {name: max(0, -count) for name, count in self.free.items()}
        cpus, memory = short.pop("cpus"), short.pop("memory")
        gpus = sum(max(0, -left) for left in self.shared.values())
        return cpus, memory, gpus, sum(short.values())

    def take(self, asked: Resources, gpu_ids: tuple[int, ...], sign: int = 1) -> None:
        """Subtract this from what is free; add it if `sign` is -1."""
        for name, amount in needs_of(asked):
            self.free[name] = self.free.get(name, 0) - sign * amount
        self.own_memory += sign * asked.memory
        part = sign * min(WHOLE, in_thousandths(asked.gpus))
        for gpu in gpu_ids:
            self.own_gpus[gpu] += part
        self.take_gpus(gpu_ids, part)

    def take_gpus(self, gpu_ids: Iterable[int], part: int) -> None:
        """Subtract thousandths from GPUs: of its own actors, or of another worker's."""
        for gpu in gpu_ids:
            left = WHOLE if gpu in self.gpu_ids else self.shared.pop(gpu, 0)
            self.gpu_ids.discard(gpu)
            if left - part >= WHOLE:
                self.gpu_ids.add(gpu)
            elif left != part:
                self.shared[gpu] = left - part

    def copies(self, asked: Resources, at_most: int) -> int:
        """Return how many actors with this request fit."""
        needs = needs_of(asked)
        if not self.has((name, 0) for name, each in needs if not each):
            return 0
        found = min([at_most, *(self.free.get(n, 0) // each for n, each in needs if each)])
        if milli_gpus := in_thousandths(asked.gpus):
            parts = sum(max(0, left) // milli_gpus for left in self.shared.values())
            whole = len(self.gpu_ids)
            in_whole = whole * (WHOLE // milli_gpus) or whole // max(1, milli_gpus // WHOLE)
            found = min(found, in_whole + parts)
        return max(0, found)


def enough_gpus(milli_gpus: int, whole: int, share: int) -> bool:
    """Return whether GPUs suffice; `share` is the most that is free of one GPU in use."""
    if milli_gpus < WHOLE:
        return whole > 0 or share >= milli_gpus
    return WHOLE * whole >= milli_gpus


class Placement(NamedTuple):
    """An allocation: the worker of an actor, and its GPUs there."""

    worker: str
    gpu_ids: tuple[int, ...]


class _Sizes:
    """The sizes of the workers with one Python; `largest` has those that fit in no other."""

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


# A bucket: its workers by rank, for actors that hold CPUs, and for those that hold none.
_Bucket = tuple[list[Rank], list[Rank]]


class Ledger:
    """The total and the free resources of all workers."""

    def __init__(self) -> None:
        self._closed: dict[str, set[WhyClosed]] = {}  # by worker
        self._on_trial: set[str] = set()
        self._workers: dict[str, Capacity] = {}
        # By Python, number of entirely free GPUs, and the most that is free of one in use.
        self._buckets: dict[tuple[str, int, int], _Bucket] = {}
        # The second list of each is kept once an actor has asked for no CPUs: few clusters need it.
        self._ranks_actors = False
        # By resource, the free amounts of the same workers, sorted.
        self._amounts: dict[str, list[int]] = defaultdict(list)
        self._sizes: dict[str, _Sizes] = {}  # by Python
        self._milli_cpus = 0  # of all workers together
        self._reserved: list[tuple[Placement, Resources]] = []
        self._by_pool: Index[str, str] = Index()  # workers, by the pool of their memory
        self._by_gpu: Index[str, tuple[str, int]] = Index()  # workers and their number of it, by id
        self._shares: set[str] = set()  # workers that share something with another

    @property
    def pythons(self) -> list[str]:
        """The Python versions of the workers, sorted; a guest has none."""
        return sorted(filter(None, self._sizes))

    @property
    def cpus(self) -> float:
        """The CPUs of all workers together, free or not."""
        return self._milli_cpus / 1000

    def add_worker(
        self, worker: str, total: Resources, python: str, shares: Shares = ALONE
    ) -> None:
        """Add a worker whose resources are all free, or reset one that is known."""
        self.remove_worker(worker)
        entered = self._workers[worker] = Capacity.all_free(total, python, shares)
        if shares.pool:
            self._by_pool.add(shares.pool, worker)
        for number, gpu in enumerate(shares.gpus):
            self._by_gpu.add(gpu, (worker, number))
        if beside := self._beside(worker, shares):
            self._shares |= {worker, *beside}
        for number, gpu in enumerate(shares.gpus):
            for other, theirs in self._elsewhere(worker, gpu):
                entered.take_gpus([number], self._workers[other].own_gpus[theirs])
        with self._sharing(self._beside(worker, shares)):
            self._level(shares.pool)
        self._add_to_bucket(worker, entered)
        self._sizes.setdefault(python, _Sizes()).add(total)
        self._milli_cpus += in_thousandths(total.cpus)

    def remove_worker(self, worker: str) -> None:
        if (found := self._workers.pop(worker, None)) is None:
            return
        self._take_from_bucket(worker, found)
        with self._sharing(self._beside(worker, found.shares)):
            for number, gpu in enumerate(found.shares.gpus):
                for other, theirs in self._elsewhere(worker, gpu):
                    self._workers[other].take_gpus([theirs], -found.own_gpus[number])
                self._by_gpu.discard(gpu, (worker, number))
            self._by_pool.discard(found.shares.pool, worker)
            self._level(found.shares.pool)
        self._shares.discard(worker)
        self._closed.pop(worker, None)
        self._on_trial.discard(worker)
        self._reserved = [each for each in self._reserved if each[0].worker != worker]
        self._sizes[found.python].remove(found.total)
        if not self._sizes[found.python]:
            del self._sizes[found.python]
        self._milli_cpus -= in_thousandths(found.total.cpus)

    def is_open(self, worker: str) -> bool:
        """Return whether actors may be placed on a worker now."""
        return worker not in self._closed

    @property
    def away(self) -> set[str]:
        """The workers that are unreachable, or lost and expected back."""
        return {worker for worker in self._closed if self.is_away(worker)}

    def is_away(self, worker: str) -> bool:
        return WhyClosed.AWAY in self._closed.get(worker, ())

    def close(self, worker: str, why: WhyClosed) -> None:
        """Stop placing actors on a worker; requests that need its size wait for it."""
        if worker not in self._workers:
            return
        if self.is_open(worker):
            self._take_from_bucket(worker, self._workers[worker])
        self._closed.setdefault(worker, set()).add(why)

    def reopen(self, worker: str, why: WhyClosed) -> None:
        """Handle the end of a reason to place nothing on a worker."""
        if (reasons := self._closed.get(worker, set())) == {why}:
            del self._closed[worker]
            self._add_to_bucket(worker, self._workers[worker])
        reasons.discard(why)

    def try_again(self, worker: str) -> None:
        """Place one actor on a sick worker, and no more until its start has an outcome."""
        self.reopen(worker, WhyClosed.SICK)
        self._on_trial.add(worker)

    def heal(self, worker: str) -> None:
        """Place actors on a worker that was sick."""
        self.reopen(worker, WhyClosed.SICK)
        self._on_trial.discard(worker)

    def free(self, worker: str) -> Resources:
        """Return what is free; negative where more is allocated than there is."""
        return self._workers[worker].as_resources()

    def actors(self, worker: str) -> int:
        """Return how many actors a worker has."""
        return self._workers[worker].actors

    def most_free(self, asked: Resources) -> Resources:
        """Return the most that is free on one worker of each requested resource and of CPUs, each
        perhaps on another worker: of those with the requested labels."""
        if asked.labels:
            return self._most_free_with_labels(asked)
        if not self._buckets:  # all workers are away
            return Resources()
        return Resources(
            max(-by_cpus[0][0] for by_cpus, _ in self._buckets.values()) / 1000,
            self._most("gpus") / 1000 if asked.gpus else 0,
            self._most("memory") if asked.memory else 0,
            tuple((name, self._most(name) / 1000) for name, _ in asked.others),
        )

    def _most_free_with_labels(self, asked: Resources) -> Resources:
        """The same by a search."""
        labels = Resources(labels=asked.labels)
        free = [
            self.free(name)
            for name, worker in self._workers.items()
            if self.is_open(name) and labels.fits(worker.total)
        ]
        return Resources(
            max((each.cpus for each in free), default=0),
            max((each.gpus for each in free), default=0) if asked.gpus else 0,
            max((each.memory for each in free), default=0) if asked.memory else 0,
            tuple(
                (name, max((each.amount_of(name) for each in free), default=0))
                for name, _ in asked.others
            ),
        )

    def _most(self, of: str) -> int:
        """Return the most that is free of a resource; a worker without it counts as zero."""
        amounts = self._amounts.get(of)
        has_all = amounts and len(amounts) == len(self._workers) - len(self._closed)
        return (amounts[-1] if has_all else max(0, amounts[-1])) if amounts else 0

    def has_room(self, worker: str, asked: Resources, python: str) -> bool:
        """Return whether `asked` could be placed on this worker now."""
        room = self._workers[worker]
        return (
            self.is_open(worker)
            and room.python == python
            and room.has(needs_of(asked))
            and (
                not asked.gpus
                or enough_gpus(in_thousandths(asked.gpus), len(room.gpu_ids), room.share)
            )
        )

    def copies(
        self, asked: Resources, python: str, at_most: int, among: Collection[str] | None = None
    ) -> int:
        """Return how many actors with this request fit now, up to `at_most`."""
        names = [name for name in self._candidates(python, among) if self.is_open(name)]
        there = {name: self._workers[name] for name in names if name not in self._on_trial}
        found = self._copies(there, asked, at_most, self._workers)
        tried = (self._workers[name] for name in names if name in self._on_trial)
        return min(at_most, found + sum(room.copies(asked, 1) for room in tried))

    def copies_in_all(
        self, asked: Resources, python: str, at_most: int, among: Collection[str] | None = None
    ) -> int:
        """Return how many would fit if everything were free, up to `at_most`."""
        there = self._all_free(self._candidates(python, among))
        return self._copies(there, asked, at_most, there)

    def _all_free(self, names: Iterable[str]) -> dict[str, Capacity]:
        """Return these workers as if nothing were held there."""
        return {name: self._workers[name].emptied() for name in names}

    def _copies(
        self,
        there: dict[str, Capacity],
        asked: Resources,
        at_most: int,
        holders: dict[str, Capacity],
    ) -> int:
        """Return how many fit on these workers, of which some may share what is asked for with each
        other, or with other `holders`."""
        found, seen = 0, set[str]()
        for name, room in there.items():
            if found >= at_most:
                break
            if name not in self._shares:
                found += room.copies(asked, at_most - found)
            elif name not in seen:
                group = {name, *self._beside(name, room.shares)} & there.keys()
                seen |= group
                rooms = [there[each] for each in group]
                pools = {
                    pool: _left_in(
                        holders[each] for each in self._by_pool.of(pool) if each in holders
                    )
                    for pool in {room.shares.pool for room in rooms if room.shares.pool}
                }
                found += _copies_together(rooms, asked, at_most - found, pools)
        return min(found, at_most)

    def place(
        self,
        asked: Resources,
        python: str,
        among: Collection[str] | None = None,
        packs: bool = False,
    ) -> Placement | None:
        """Choose a worker with this Python ("3.11") that has room, and allocate `asked` on it.

        The emptiest, or with `packs` the fullest.
        """
        # First where it decides whether a machine is well, which else would stay unused.
        trials = self._on_trial if among is None else self._on_trial.intersection(among)
        worker = self._best(asked, python, trials, packs) if trials else None
        if worker is None:
            worker = (
                self._choose(asked, python, packs)
                if among is None
                else self._best(asked, python, among, packs)
            )
        if worker is None:
            return None
        found = self._workers[worker]
        gpu_ids = found.choose_gpus(in_thousandths(asked.gpus)) if asked.gpus else ()
        self.allocate(worker, asked, gpu_ids)
        if worker in self._on_trial:
            self._on_trial.discard(worker)
            self.close(worker, WhyClosed.SICK)
        return Placement(worker, gpu_ids)

    def could_place(
        self, asked: Resources, python: str, among: Collection[str] | None, but: Set[str]
    ) -> bool:
        """Return whether another worker than these is large enough."""
        return any(
            asked.fits(self._workers[name].total)
            for name in self._candidates(python, among)
            if name not in but
        )

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
            no_python = f"no worker at the requested place runs Python {python}"
            return _why_too_small(asked, sizes) if sizes else no_python
        return self._why_never(asked, python, sizes)

    def _choose(self, asked: Resources, python: str, packs: bool) -> str | None:
        milli_cpus, milli_gpus = in_thousandths(asked.cpus), in_thousandths(asked.gpus)
        needs, rule = needs_of(asked), 0 if milli_cpus else 1
        if rule and not self._ranks_actors:
            self._rank_actors()
        best: Rank | None = None
        for (bucket_python, whole, share), bucket in self._buckets.items():
            if bucket_python != python:
                continue
            if milli_gpus and not enough_gpus(milli_gpus, whole, share):
                continue
            for entry in _in_order(bucket[rule], milli_cpus, packs):
                if best is not None and (entry < best if packs else best < entry):
                    break
                if self._workers[entry[2]].has(needs):
                    best = entry
                    break
        return best and best[2]

    def _rank_actors(self) -> None:
        """Sort the workers of each bucket by their actors too, from now on."""
        self._ranks_actors = True
        for by_cpus, by_actors in self._buckets.values():
            by_actors += sorted(self._workers[name].ranks(name)[1] for _, _, name in by_cpus)

    def _best(
        self, asked: Resources, python: str, among: Collection[str], packs: bool
    ) -> str | None:
        """Choose by the same rule from these workers."""
        rule = 0 if asked.cpus else 1
        fitting = [
            self._workers[name].ranks(name)[rule]
            for name in self._candidates(python, among)
            if self.has_room(name, asked, python)
        ]
        return (max if packs else min)(fitting)[2] if fitting else None

    def _candidates(self, python: str, among: Collection[str] | None) -> Iterable[str]:
        names = self._workers if among is None else among
        return (n for n in names if n in self._workers and self._workers[n].python == python)

    def allocate(
        self, worker: str, asked: Resources, gpu_ids: tuple[int, ...], actors: int = 1
    ) -> None:
        """Allocate what an actor holds, even if it is not free: the actor may be adopted.

        `actors`: zero for what is reserved, or lent by an actor that is counted already.
        """
        self._change(worker, asked, gpu_ids, actors, sign=1)

    def release(
        self, worker: str, asked: Resources, gpu_ids: tuple[int, ...], actors: int = 1
    ) -> None:
        """Release what an actor held.  Its worker may be gone already."""
        if worker in self._workers:
            self._change(worker, asked, gpu_ids, actors, sign=-1)

    def _change(
        self, worker: str, asked: Resources, gpu_ids: tuple[int, ...], actors: int, sign: int
    ) -> None:
        found = self._workers[worker]
        has_amounts = bool(asked.memory or asked.gpus or asked.others)
        self._take_from_bucket(worker, found, has_amounts)
        found.take(asked, gpu_ids, sign)
        found.actors += sign * actors
        if worker in self._shares and (asked.memory or gpu_ids):
            self._share(worker, gpu_ids, sign * min(WHOLE, in_thousandths(asked.gpus)))
        self._add_to_bucket(worker, found, has_amounts)

    # --- what workers of one machine share ------------------------------------------------------

    def _share(self, worker: str, gpu_ids: tuple[int, ...], part: int) -> None:
        """Have the others of the machine give away what an actor of this worker has taken."""
        shares = self._workers[worker].shares
        with self._sharing(self._beside(worker, shares)):
            for gpu in gpu_ids if shares.gpus else ():
                for other, number in self._elsewhere(worker, shares.gpus[gpu]):
                    self._workers[other].take_gpus([number], part)
            self._level(shares.pool)

    def _level(self, pool: str) -> None:
        """Set what is free of the memory of each worker: of its own, and of what all have left."""
        rooms = [self._workers[name] for name in self._by_pool.of(pool)]
        left = _left_in(rooms)
        for room in rooms:
            room.free["memory"] = min(room.total.memory - room.own_memory, left)

    def _beside(self, worker: str, shares: Shares) -> set[str]:
        """Return the workers that share something with this one."""
        found = {name for gpu in shares.gpus for name, _ in self._by_gpu.of(gpu)}
        return {*found, *self._by_pool.of(shares.pool)} - {worker}

    def _elsewhere(self, worker: str, gpu: str) -> list[tuple[str, int]]:
        """Return the other workers that offer a GPU, and its number on each."""
        return [each for each in self._by_gpu.of(gpu) if each[0] != worker]

    @contextlib.contextmanager
    def _sharing(self, names: Iterable[str]) -> Iterator[None]:
        """Change what is free on these workers: they are in no bucket meanwhile."""
        found = [(name, self._workers[name]) for name in names if name in self._workers]
        for name, room in found:
            self._take_from_bucket(name, room)
        yield
        for name, room in found:
            self._add_to_bucket(name, room)

    # --- reservations (reservation.py) ------------------------------------------------------------

    def reserve(
        self,
        asked: Resources,
        python: str,
        count: int,
        among: Collection[str] | None,
        best: Set[str],
        worst: Set[str],
    ) -> None:
        """Reserve room for `count` actors with this request, free or not, where most is free.

        Reserves nothing if there would be too little even if all were free.  Workers in `best` come
        first, those in `worst` last.
        """
        there = self._all_free(n for n in self._candidates(python, among) if self.is_open(n))
        if self._copies(there, asked, count, there) < count:
            return

        def rank(name: str) -> tuple[bool, bool, int, int, str]:
            room = self._workers[name]
            gpus = room.milli_gpus if asked.gpus else 0
            return name in worst, name not in best, -gpus, -room.free["cpus"], name

        ranks = [rank(name) for name, room in there.items() if room.copies(asked, 1)]
        heapify(ranks)
        plan = Ledger()  # what would be free if nothing were held but what is reserved
        while ranks and len(self._reserved) < count:
            *_, name = heappop(ranks)
            plan._copy({name, *self._beside(name, there[name].shares)} & there.keys(), there)
            if not plan.has_room(name, asked, python):
                continue
            milli_gpus, planned = in_thousandths(asked.gpus), plan._workers[name]
            gpu_ids = self._workers[name].soonest_gpus(milli_gpus, planned) if milli_gpus else ()
            plan.allocate(name, asked, gpu_ids)
            self.allocate(name, asked, gpu_ids, actors=0)
            self._reserved.append((Placement(name, gpu_ids), asked))
            heappush(ranks, rank(name))
        if len(self._reserved) < count:
            self.release_reservation()

    def _copy(self, names: Iterable[str], there: dict[str, Capacity]) -> None:
        """Add those of these workers that are not known yet."""
        for name in names:
            if name not in self._workers:
                room = there[name]
                self.add_worker(name, room.total, room.python, room.shares)

    def release_reservation(self) -> None:
        """Release all reserved room."""
        for placement, asked in self._reserved:
            self.release(placement.worker, asked, placement.gpu_ids, actors=0)
        self._reserved.clear()

    @property
    def reserved(self) -> list[tuple[Placement, Resources]]:
        """The reserved room."""
        return self._reserved.copy()

    @property
    def reserved_on(self) -> set[str]:
        """The workers on which room is reserved."""
        return {placement.worker for placement, _ in self._reserved}

    @property
    def shortfall(self) -> tuple[int, ...]:
        """How much of each resource the reserved room still lacks."""
        return tuple(
            map(
                sum,
                zip(*(self._workers[w].shortfall for w in self.reserved_on), strict=True),
            )
        )

    # --- the buckets ------------------------------------------------------------------------------

    def _add_to_bucket(self, name: str, worker: Capacity, has_amounts: bool = True) -> None:
        """Add a worker to its bucket; `has_amounts`: more may have changed than its CPUs."""
        if name in self._closed:
            return
        place = worker.python, len(worker.gpu_ids), worker.share
        if (bucket := self._buckets.get(place)) is None:
            bucket = self._buckets[place] = ([], [])
        (by_cpus, by_actors), (rank, other) = bucket, worker.ranks(name)
        insort(by_cpus, rank)
        if self._ranks_actors:
            insort(by_actors, other)
        if not has_amounts:
            return
        for of, amount in worker.amounts():
            insort(self._amounts[of], amount)

    def _take_from_bucket(self, name: str, worker: Capacity, has_amounts: bool = True) -> None:
        """Remove a worker from its bucket, before its free resources change."""
        if name in self._closed:
            return
        place = worker.python, len(worker.gpu_ids), worker.share
        (by_cpus, by_actors), (rank, other) = self._buckets[place], worker.ranks(name)
        del by_cpus[bisect_left(by_cpus, rank)]
        if self._ranks_actors:
            del by_actors[bisect_left(by_actors, other)]
        if not by_cpus:
            del self._buckets[place]
        if not has_amounts:
            return
        for of, amount in worker.amounts():
            amounts = self._amounts[of]
            del amounts[bisect_left(amounts, amount)]
            if not amounts:
                del self._amounts[of]

    def _why_never(self, asked: Resources, python: str, alike: list[Resources]) -> str:
        if not self.pythons:
            return f"{asked} cannot be had: no machine has joined the cluster"
        if not alike:
            others = listed(sorted(self.pythons, key=_version))
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


def _in_order(ranks: list[Rank], milli_cpus: int, packs: bool) -> Iterator[Rank]:
    """Yield the workers of a bucket with so many CPUs free, the emptiest first, or the fullest."""
    end = bisect_right(ranks, (-milli_cpus, math.inf, "")) if milli_cpus else len(ranks)
    return map(ranks.__getitem__, reversed(range(end))) if packs else islice(ranks, end)


def _left_in(rooms: Iterable[Capacity]) -> int:
    """Return what is left of the memory from which all these workers draw."""
    rooms = list(rooms)
    whole = max((room.shares.memory for room in rooms), default=0)
    return whole - sum(room.own_memory for room in rooms)


def _copies_together(
    rooms: list[Capacity], asked: Resources, at_most: int, pools: dict[str, int]
) -> int:
    """Return how many fit on workers of one machine: no more than their memory and GPUs allow.

    `pools`: what is left of the memory of each.
    """
    found = min(at_most, sum(room.copies(asked, at_most) for room in rooms))
    if asked.memory:
        alone = sum(room.copies(asked, at_most) for room in rooms if not room.shares.pool)
        left = pools.values()
        found = min(found, alone + sum(max(0, each) // asked.memory for each in left))
    if asked.gpus:
        gpus, numbers = Capacity.all_free(Resources(), ""), dict[object, int]()
        for room in rooms:  # a GPU of all of them has one number
            ids = room.shares.gpus or [object() for _ in range(int(room.total.gpus))]
            here = [numbers.setdefault(gpu, len(numbers)) for gpu in ids]
            gpus.gpu_ids |= {here[gpu] for gpu in room.gpu_ids}
            gpus.shared |= {here[gpu]: left for gpu, left in room.shared.items()}
        found = min(found, gpus.copies(Resources(gpus=asked.gpus), at_most))
    return max(0, found)


def _why_too_small(asked: Resources, alike: list[Resources]) -> str:
    """Return why no worker of these sizes is large enough."""
    kinds = [
        (counted(asked.cpus, "CPU"), Resources(asked.cpus), f"{max(r.cpus for r in alike):g}"),
        (counted(asked.gpus, "GPU"), Resources(0, asked.gpus), f"{max(r.gpus for r in alike):g}"),
        (
            format_bytes(asked.memory),
            Resources(memory=asked.memory),
            format_bytes(max(r.memory for r in alike)),
        ),
    ]
    for name, amount in asked.others:
        most = max(r.amount_of(name) for r in alike)
        kinds.append((f"{amount:g} {name}", Resources(others=((name, amount),)), f"{most:g}"))
    known = {label for total in alike for label in total.labels}
    if missing := [label for label in asked.labels if label not in known]:
        return _why_no_label(missing, sorted(known))
    short = [
        f"{needed} where the largest worker has {most}"
        for needed, part, most in kinds
        if not any(part.fits(total) for total in alike)
    ]
    if short:
        return f"it asks for {listed(short)}"
    largest = max(alike, key=lambda r: (r.cpus, r.gpus, r.memory))
    return f"it asks for {asked}, and no worker has all of it; the largest has {largest}"


def _why_no_label(missing: list[str], known: list[str]) -> str:
    """Return that no machine has these labels, and the nearest of those that one has."""
    named = listed([repr(label) for label in missing])
    text = f"no machine has the label{'s' * (len(missing) > 1)} {named}"
    hint = did_you_mean(missing[0], known)
    if not hint and known:
        hint = f"there {'is' if len(known) == 1 else 'are'} {listed(known[:SHOWN_LABELS])}"
    return f"{text}; {hint or 'a machine gets one when it joins: remotely join --label'}"


def _version(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".") if part.isdecimal())
