"""CPUs, GPUs and memory: what a worker has and an actor asks for, and how both are written.

CPUs are counted in thousandths, since 0.1 added ten times and taken off ten times is not zero.
"""

import re

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
_MOST_BYTES = 1 << 62  # as many as a message carries
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
    raise ValueError(f'memory={memory!r} is no amount; write bytes as an int, or "512MB" or "2GiB"')


class Resources(msgspec.Struct, frozen=True):
    """What a worker has, or an actor asks for: CPUs (may be a fraction), whole GPUs, bytes."""

    cpus: Cores = 0.0
    gpus: Amount = 0
    memory: Amount = 0

    def fits(self, other: "Resources") -> bool:
        """Return whether this much can be taken from `other`."""
        return (
            in_thousandths(self.cpus) <= in_thousandths(other.cpus)
            and self.gpus <= other.gpus
            and self.memory <= other.memory
        )

    def __add__(self, other: "Resources") -> "Resources":
        cpus = (in_thousandths(self.cpus) + in_thousandths(other.cpus)) / 1000
        return Resources(cpus, self.gpus + other.gpus, self.memory + other.memory)

    def __sub__(self, other: "Resources") -> "Resources":
        cpus = (in_thousandths(self.cpus) - in_thousandths(other.cpus)) / 1000
        return Resources(cpus, self.gpus - other.gpus, self.memory - other.memory)

    def __str__(self) -> str:
        parts = [counted(self.cpus, "CPU")]
        if self.gpus:
            parts.append(counted(self.gpus, "GPU"))
        if self.memory:
            parts.append(format_bytes(self.memory))
        return listed(parts)


def in_thousandths(cpus: float) -> int:
    """Return CPUs as a whole number of thousandths, which add up without rounding."""
    return round(cpus * 1000)


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
