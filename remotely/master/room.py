"""What is free on one worker: CPUs, memory, GPUs or parts of them, resources of the user's.

Pure.  All but bytes is counted in thousandths.  What is held may be more than there is, where a new
master learns of it; then what is free is below zero.
"""

from dataclasses import dataclass, field

from remotely.protocol.resources import Resources, in_thousandths

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
