"""Which worker an actor goes to.

The rule: of the workers with the actor's Python that have room, the one with the most free CPUs;
among equals, the first by id.  So actors spread, and the same events give the same placement.

    Placement    here, with these GPUs; it is taken off what is free
    Wait         some worker is big enough, but not free enough now
    Never        no worker is big enough, or none has this Python; the reason is a sentence

A placement looks at every worker: that is 0.3 ms for 1,000 of them, and the number of actors does
not matter.  A sorted structure was refused: it would have to be sorted by three resources.

CPUs are counted in thousandths, since 0.1 added ten times and taken off ten times is not zero.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "kib": 1 << 10,
    "m": 1000**2,
    "mb": 1000**2,
    "mib": 1 << 20,
    "g": 1000**3,
    "gb": 1000**3,
    "gib": 1 << 30,
    "t": 1000**4,
    "tb": 1000**4,
    "tib": 1 << 40,
}
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_memory(memory: int | str) -> int:
    """Return bytes, given 512, "512MB" (decimal) or "2GiB" (binary); else raise ValueError."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0:
        return memory
    if isinstance(memory, str):
        match = _MEMORY.fullmatch(memory)
        if match and (unit := _UNITS.get(match[2].lower())):
            return round(float(match[1]) * unit)
    raise ValueError(f'memory={memory!r} is no amount; write bytes as an int, or "512MB" or "2GiB"')


class Resources(msgspec.Struct, frozen=True):
    """What a worker has, or an actor asks for: CPUs (may be a fraction), whole GPUs, bytes."""

    cpus: float = 0.0
    gpus: int = 0
    memory: int = 0

    def fits(self, other: "Resources") -> bool:
        """Return whether this much can be taken from `other`."""
        return (
            _milli(self.cpus) <= _milli(other.cpus)
            and self.gpus <= other.gpus
            and self.memory <= other.memory
        )

    def __add__(self, other: "Resources") -> "Resources":
        cpus = (_milli(self.cpus) + _milli(other.cpus)) / 1000
        return Resources(cpus, self.gpus + other.gpus, self.memory + other.memory)

    def __sub__(self, other: "Resources") -> "Resources":
        cpus = (_milli(self.cpus) - _milli(other.cpus)) / 1000
        return Resources(cpus, self.gpus - other.gpus, self.memory - other.memory)

    def __str__(self) -> str:
        parts = [_counted(self.cpus, "CPU")]
        if self.gpus:
            parts.append(_counted(self.gpus, "GPU"))
        if self.memory:
            parts.append(_memory_text(self.memory))
        return _listed(parts)


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
    gpu_ids: set[int] = field(default_factory=set)


class Ledger:
    """What each worker has, and what is free of it."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}

    def add_worker(self, worker: str, total: Resources, python: str) -> None:
        """Enter a worker, all free.  One that is known already starts anew."""
        gpu_ids = set(range(total.gpus))
        self._workers[worker] = _Worker(total, python, _milli(total.cpus), total.memory, gpu_ids)

    def remove_worker(self, worker: str) -> None:
        self._workers.pop(worker, None)

    def free(self, worker: str) -> Resources:
        """Return what is free; below zero where `reserve` took more than there is."""
        found = self._workers[worker]
        return Resources(found.milli_cpus / 1000, len(found.gpu_ids), found.memory)

    def place(self, asked: Resources, python: str) -> Placement | Wait | Never:
        """Choose a worker with this Python ("3.11") and take `asked` off it."""
        milli_cpus, gpus, memory = _milli(asked.cpus), asked.gpus, asked.memory
        best, best_cpus = "", -1
        for name, worker in self._workers.items():
            if (
                worker.milli_cpus >= milli_cpus
                and worker.memory >= memory
                and len(worker.gpu_ids) >= gpus
                and worker.python == python
                and (
                    worker.milli_cpus > best_cpus
                    or (worker.milli_cpus == best_cpus and name < best)
                )
            ):
                best, best_cpus = name, worker.milli_cpus
        if best:
            gpu_ids = tuple(sorted(self._workers[best].gpu_ids)[:gpus])
            self._take(self._workers[best], asked, gpu_ids)
            return Placement(best, gpu_ids)
        alike = [w.total for w in self._workers.values() if w.python == python]
        if any(asked.fits(total) for total in alike):
            return Wait()
        return Never(self._why_never(asked, python, alike))

    def reserve(self, worker: str, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        """Take what an actor holds already, as its worker reports it to a new master."""
        self._take(self._workers[worker], asked, gpu_ids)

    def release(self, worker: str, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        """Give back what an actor held.  Its worker may have gone before it."""
        if found := self._workers.get(worker):
            found.milli_cpus += _milli(asked.cpus)
            found.memory += asked.memory
            found.gpu_ids |= set(gpu_ids)

    @staticmethod
    def _take(worker: _Worker, asked: Resources, gpu_ids: tuple[int, ...]) -> None:
        worker.milli_cpus -= _milli(asked.cpus)
        worker.memory -= asked.memory
        worker.gpu_ids -= set(gpu_ids)

    def _why_never(self, asked: Resources, python: str, alike: list[Resources]) -> str:
        if not self._workers:
            return f"{asked} cannot be had: no machine has joined the cluster"
        if not alike:
            others = _listed(sorted({w.python for w in self._workers.values()}, key=_version))
            return (
                f"no worker runs Python {python}: they run {others}; code does not travel between "
                "versions, so start the script or a worker with the other's"
            )
        short = [
            f"{needed} where the largest worker has {has}"
            for needed, has, enough in (
                (
                    _counted(asked.cpus, "CPU"),
                    f"{max(r.cpus for r in alike):g}",
                    any(_milli(asked.cpus) <= _milli(r.cpus) for r in alike),
                ),
                (
                    _counted(asked.gpus, "GPU"),
                    str(max(r.gpus for r in alike)),
                    any(asked.gpus <= r.gpus for r in alike),
                ),
                (
                    _memory_text(asked.memory),
                    _memory_text(max(r.memory for r in alike)),
                    any(asked.memory <= r.memory for r in alike),
                ),
            )
            if not enough
        ]
        if short:
            why = f"it asks for {_listed(short)}"
        else:
            largest = max(alike, key=lambda r: (r.cpus, r.gpus, r.memory))
            why = f"it asks for {asked}, and no worker has all of it; the largest has {largest}"
        bigger = sorted(
            {w.python for w in self._workers.values() if asked.fits(w.total)}, key=_version
        )
        if bigger:
            why += f" (a worker with Python {_listed(bigger)} has it, but this is Python {python})"
        return why


def _milli(cpus: float) -> int:
    return round(cpus * 1000)


def _counted(count: float, noun: str) -> str:
    return f"{count:g} {noun}" + ("" if count == 1 else "s")


def _memory_text(size: int) -> str:
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} bytes"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _version(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".") if part.isdigit())
