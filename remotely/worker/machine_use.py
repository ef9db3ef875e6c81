"""What the kernel says that this machine uses, whoever uses it: CPU, memory, disk; and the
driver of its GPUs.

Reservations say what actors may use.  The memory is that of the control group if its limit is
lower than what the machine has, without the part of the page cache that can be dropped.

The last hour is kept as a percentage for each minute: 60 bytes a figure, whatever happens.
"""

import shutil
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import psutil

from remotely.machine import this_machine
from remotely.machine.nvml import GpuMeter
from remotely.protocol.control import GpuFigures, MachineUse
from remotely.protocol.numbers import HISTORY_MINUTES
from remotely.worker.gauge import CPU_AT_MOST_S

MINUTE_S = 60.0


class MachineMeter:
    """`folder` is on the disk that is looked at.  `keep_minute` is to be called each minute."""

    def __init__(self, folder: Path, gpus: Sequence[str] = ()) -> None:
        self._folder = folder
        self._gpus = GpuMeter(gpus)
        self._current = _CpuMeter()
        self._minute = _CpuMeter()
        self._cpu_minutes: deque[int] = deque(maxlen=HISTORY_MINUTES)
        self._memory_minutes: deque[int] = deque(maxlen=HISTORY_MINUTES)

    def start_measuring(self) -> bool:
        """If the last CPU measurement is too old, start a new one; return whether it was."""
        is_due = time.monotonic() - self._current.began > CPU_AT_MOST_S
        if is_due:
            self._current = _CpuMeter()
        return is_due

    def keep_minute(self) -> None:
        used, there = this_machine.used_memory()
        self._cpu_minutes.append(round(self._minute.percent()))
        self._memory_minutes.append(round(100 * used / there))
        self._minute = _CpuMeter()

    def use(self) -> MachineUse:
        used, there = this_machine.used_memory()
        disk = shutil.disk_usage(self._folder)
        return MachineUse(
            cpu_percent=self._current.percent(),
            memory_used=used,
            memory_total=there,
            disk_used=disk.used,
            # Not all that the disk has: what it keeps for root, or for others, is not available.
            disk_total=disk.used + disk.free,
            gpus=[GpuFigures(*each) if each else GpuFigures() for each in self._gpus.use()],
            cpu_hour=bytes(self._cpu_minutes),
            memory_hour=bytes(self._memory_minutes),
        )


class _CpuMeter:
    """The share of all cores that has been busy since `began`."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._busy, self._all = _cpu_times()

    def percent(self) -> float:
        busy, there = _cpu_times()
        passed = there - self._all
        share = (busy - self._busy) / passed if passed > 0 else 0.0
        return 100 * min(1.0, max(0.0, share))  # counters of a virtual machine may go backwards


def _cpu_times() -> tuple[float, float]:
    """Return the busy and all seconds of all cores since boot.  Guests count as their host."""
    times = psutil.cpu_times()._asdict()
    there = sum(seconds for name, seconds in times.items() if not name.startswith("guest"))
    return there - times["idle"] - times.get("iowait", 0.0), there
