"""Resources of workers and actors: CPUs, GPUs, memory, custom ones and labels; parsing, formatting.

All except bytes are counted in thousandths: 0.1 added and subtracted ten times is not zero.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from remotely.protocol.numbers import Amount, Cores

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
_MOST_BYTES = 1 << 62  # as in a message
_BUILT_IN = frozenset(("cpus", "gpus", "memory"))
_OTHER = re.compile(r"[A-Za-z][\w.-]{0,49}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z][\w.-]{0,49}(=[\w.-]{1,50})?", re.ASCII)
_MOST_OF_OTHERS = 10**12  # as in a message
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_memory(memory: int | str) -> int:
    """Return bytes, given 512, "512MB" (decimal) or "2GiB" (binary); else raise ValueError."""
    if isinstance(memory, int) and not isinstance(memory, bool) and 0 <= memory <= _MOST_BYTES:
        return memory
    if isinstance(memory, str):
        match = _MEMORY.fullmatch(memory)
        if match and (unit := _UNITS.get(match[2].lower())):
            found = float(match[1]) * unit
            if found <= _MOST_BYTES:
                return round(found)
    raise ValueError(
        f'memory={memory!r} is not an amount; write bytes as an int, or "512MB" or "2GiB"'
    )


class Resources(msgspec.Struct, frozen=True):
    """The resources of a worker, or those that an actor requests.

    cpus     may be a fraction
    gpus     whole ones; an actor may request a part of one instead (0.5)
    memory   bytes
    others   custom resources by name: sorted, without zeros
    labels   what is true of a worker, as "ssd" or "zone=a"; of a request: what must be.  Sorted.
             Nothing of them is used up, so sums and differences have none
    """

    cpus: Cores = 0.0
    gpus: Cores = 0
    memory: Amount = 0
    others: tuple[tuple[str, Cores], ...] = ()
    labels: tuple[str, ...] = ()

    def fits(self, other: "Resources") -> bool:
        """Return whether this much can be taken from `other`, whose GPUs are whole."""
        return (
            in_thousandths(self.cpus) <= in_thousandths(other.cpus)
            and in_thousandths(self.gpus) <= in_thousandths(other.gpus)
            and self.memory <= other.memory
            and all(
                in_thousandths(amount) <= in_thousandths(other.amount_of(name))
                for name, amount in self.others
            )
            and set(self.labels) <= set(other.labels)
        )

    def amount_of(self, name: str) -> float:
        """Return the amount of a custom resource."""
        return next((amount for other, amount in self.others if other == name), 0.0)

    def clamped(self) -> "Resources":
        """Return these resources with negative amounts set to zero."""
        others = tuple((name, max(0.0, amount)) for name, amount in self.others)
        return Resources(max(0.0, self.cpus), max(0.0, self.gpus), max(0, self.memory), others)

    def __add__(self, other: "Resources") -> "Resources":
        return self._combined(other, 1)

    def __sub__(self, other: "Resources") -> "Resources":
        return self._combined(other, -1)

    def _combined(self, other: "Resources", sign: int) -> "Resources":
        return Resources(
            (in_thousandths(self.cpus) + sign * in_thousandths(other.cpus)) / 1000,
            (in_thousandths(self.gpus) + sign * in_thousandths(other.gpus)) / 1000,
            self.memory + sign * other.memory,
            self._combined_others(other, sign) if self.others or other.others else (),
        )

    def _combined_others(self, other: "Resources", sign: int) -> tuple[tuple[str, float], ...]:
        milli = Counter({name: in_thousandths(amount) for name, amount in self.others})
        for name, amount in other.others:
            milli[name] += sign * in_thousandths(amount)
        return tuple((name, count / 1000) for name, count in sorted(milli.items()) if count)

    def __str__(self) -> str:
        parts = [counted(self.cpus, "CPU")]
        if self.gpus:
            parts.append(counted(self.gpus, "GPU"))
        if self.memory:
            parts.append(format_bytes(self.memory))
        parts += [f"{amount:g} {name}" for name, amount in self.others]
        parts += [f"label {label}" for label in self.labels]
        return listed(parts)


class Shares(msgspec.Struct, frozen=True):
    """What a worker offers together with others of its machine, which all draw from it.

    pool     of its memory: that of the machine, or of a control group with a limit; "": its own
    memory   the bytes of that pool
    gpus     an id of each of its GPUs, alike wherever it is offered; without ids they are its own
    """

    pool: str = ""
    memory: Amount = 0
    gpus: tuple[str, ...] = ()


def parse_others(resources: Mapping[Any, Any]) -> tuple[tuple[str, float], ...]:
    """Return custom resources as `Resources.others`.  Raises ValueError for an invalid one."""
    for name, amount in resources.items():
        if not isinstance(name, str) or not _OTHER.fullmatch(name) or name in _BUILT_IN:
            raise ValueError(
                f"resources has the invalid name {name!r}: write letters, digits and . - _, at "
                f"most 50, beginning with a letter; {listed(sorted(_BUILT_IN))} are built in"
            )
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not is_number or not 0 <= amount <= _MOST_OF_OTHERS:
            raise ValueError(f"resources[{name!r}]={amount!r} must be a number, at least 0")
    milli = {name: in_thousandths(amount) for name, amount in resources.items()}
    return tuple((name, count / 1000) for name, count in sorted(milli.items()) if count)


def parse_labels(labels: Iterable[Any]) -> tuple[str, ...]:
    """Return labels as `Resources.labels`.  Raises ValueError for an invalid one."""
    found = [labels] if isinstance(labels, str) else list(labels)
    for label in found:
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            raise ValueError(
                f"{label!r} is not a label: write a name, as 'ssd', or a name and a value, as "
                "'zone=a': letters, digits and . - _, at most 50 each, beginning with a letter"
            )
    return tuple(sorted(set(found)))


def in_thousandths(amount: float) -> int:
    """Return an amount as a whole number of thousandths, which add up without rounding."""
    return round(amount * 1000)


def counted(count: float, noun: str) -> str:
    """Return "1 GPU" or "2 GPUs"."""
    return f"{count:g} {noun}" + ("" if count == 1 else "s")


def format_bytes(size: int) -> str:
    """Return a number of bytes in the largest binary unit that fits, as "1.5 GiB"."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} bytes"


def listed(parts: list[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
