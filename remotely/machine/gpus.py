"""The resources that a worker offers, and its GPUs: all visible ones, a count, or a list of names.

If CUDA_VISIBLE_DEVICES is set, only the GPUs in it may be used: under Slurm the others belong to
other jobs.  The cluster numbers the GPUs of a worker from 0; an actor gets the CUDA names of its
GPUs: a number, GPU-... for a whole one, or MIG-... for a part.
"""

import contextlib
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
    return [str(number) for number in range(len(_minors(devices)))]


def identities(
    names: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
    driver: Path = Path("/proc/driver/nvidia/gpus"),
) -> list[str]:
    """Return an id of each of these GPUs, by which every process of this machine knows it.

    A container may number its GPUs from 0 whichever they are, so a number becomes the UUID that the
    driver has, or the number of the device file.  Slurm numbers those of each task from 0, and
    which they are cannot be seen without opening them: they are the task's own.
    """
    if VARIABLE in environment and "SLURM_STEP_ID" in environment:
        task = ".".join(environment.get(f"SLURM_{n}", "") for n in ("JOB_ID", "STEP_ID", "PROCID"))
        return [f"{name} of {task}" if name.isdecimal() else name for name in names]
    known = _uuids(driver) or [f"/dev/nvidia{number}" for number in _minors(devices)]
    return [
        known[int(name)] if name.isdecimal() and int(name) < len(known) else name for name in names
    ]


def _minors(devices: Path) -> list[int]:
    found = (re.fullmatch(r"nvidia(\d+)", device.name) for device in devices.glob("nvidia*"))
    return sorted(int(match[1]) for match in found if match)


def _uuids(driver: Path) -> list[str]:
    """Return the UUIDs of the GPUs in the order of their buses, which CUDA gives equal ones too."""
    found = []
    for file in sorted(driver.glob("*/information")):
        with contextlib.suppress(OSError):
            found += re.findall(r"^GPU UUID:\s+(GPU-[\w-]+)$", file.read_text(), re.MULTILINE)
    return found


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
