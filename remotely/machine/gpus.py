"""The resources that a worker offers, and its GPUs: all visible ones, a count, or a list of names.

If CUDA_VISIBLE_DEVICES is set, only the GPUs in it may be used: under Slurm the others belong to
other jobs.  The cluster numbers the GPUs of a worker from 0; an actor gets the CUDA names of its
GPUs: a number, GPU-... for a whole one, or MIG-... for a part.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

VARIABLE = "CUDA_VISIBLE_DEVICES"
Gpus = int | str | Sequence[int | str]  # how many; "2,3"; [2, 3]

_NAME = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


class OfferedResources(NamedTuple):
    """The resources that the worker of a machine offers; None means all of them."""

    cpus: float | None = None
    gpus: Gpus | None = None
    resources: Mapping[str, float] | None = None
    labels: Sequence[str] = ()
    memory: int | None = None  # bytes


def visible(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """Return the names of the NVIDIA GPUs that this process may use, without loading a driver."""
    if VARIABLE in environment:
        names = []
        for name in environment[VARIABLE].split(","):
            if not _NAME.fullmatch(name.strip()):  # CUDA ignores an invalid name and all after it
                break
            names.append(name.strip())
        return names
    count = sum(1 for d in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", d.name))
    return [str(number) for number in range(count)]


def parse(text: str) -> int | list[str]:
    """Return a count ("2") or names ("2,3", "2,", "GPU-5a1b").  Raises ValueError."""
    if text.isdecimal():
        return int(text)
    names = [name.strip() for name in text.rstrip(",").split(",")]
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise ValueError(
            f"{wrong[0]!r} is not a GPU: give a count (2), or names as in nvidia-smi -L (2,3 or "
            "GPU-..., MIG-...; a single number with a comma after it: 2,)"
        )
    return names


def choose(
    wanted: Gpus | None,
    environment: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
) -> list[str]:
    """Return the names of the GPUs to offer; `wanted` None means all.  Raises ValueError."""
    there = visible(environment, devices)
    if wanted is None:
        return there
    if isinstance(wanted, str):
        wanted = parse(wanted)
    elif isinstance(wanted, Sequence):
        wanted = parse(",".join(map(str, wanted)) + ",") if wanted else 0
    elif type(wanted) is not int or wanted < 0:  # True is an int too
        raise ValueError(f"gpus={wanted!r}: give a count, or a list of names such as [2, 3]")
    is_set = VARIABLE in environment  # else there may be GPUs that are not visible: trust `wanted`
    if isinstance(wanted, int):
        if is_set and wanted > len(there):
            raise ValueError(_not_visible(f"there are no {wanted} GPUs", environment))
        return there[:wanted] if is_set else [str(number) for number in range(wanted)]
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"a GPU is named twice: {','.join(wanted)}")
    if is_set and (hidden := [name for name in wanted if name not in there]):
        raise ValueError(_not_visible(f"GPU {hidden[0]} may not be used", environment))
    return wanted


def _not_visible(what: str, environment: Mapping[str, str]) -> str:
    return f"{what}: {VARIABLE} is {environment[VARIABLE]!r}"
