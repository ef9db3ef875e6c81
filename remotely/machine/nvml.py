"""What the NVIDIA driver says about the GPUs of this machine, by NVML, the library of nvidia-smi.

It comes with the driver, makes no CUDA context, and is loaded when somebody asks for the first
time.  Without it, or for a GPU of which it says nothing (a part of one, as of MIG), there are no
figures.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

LIBRARY = "libnvidia-ml.so.1"


class GpuUse(NamedTuple):
    percent: int  # of the last second or less in which any kernel ran
    memory_used: int  # bytes
    memory_total: int


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class GpuMeter:
    """`names` are those of CUDA_VISIBLE_DEVICES: a number, or the UUID of a GPU."""

    def __init__(self, names: Sequence[str], library: str = LIBRARY) -> None:
        self._names = names
        self._library = library
        self._nvml: ctypes.CDLL | None = None
        self._has_begun = False
        self._handles: list[ctypes.c_void_p | None] = []

    def use(self) -> list[GpuUse | None]:
        """Return the figures of each GPU; nothing without a driver."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        return [None if handle is None else self._use(handle) for handle in self._handles]

    def _begin(self) -> None:
        if not self._names:
            return
        try:
            nvml = ctypes.CDLL(self._library)
            if nvml.nvmlInit_v2() != 0:
                return
        except (OSError, AttributeError):  # there is no driver here, or a very old one
            return
        self._nvml = nvml
        self._handles = [self._handle(name) for name in self._names]

    def _handle(self, name: str) -> ctypes.c_void_p | None:
        assert self._nvml is not None
        handle = ctypes.c_void_p()
        if name.isdecimal():
            index = ctypes.c_uint(int(name))
            failed = self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        else:
            failed = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        return None if failed else handle

    def _use(self, handle: ctypes.c_void_p) -> GpuUse | None:
        assert self._nvml is not None
        busy, memory = _Utilization(), _Memory()
        failed = self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
        failed |= self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return None if failed else GpuUse(min(busy.gpu, 100), memory.used, memory.total)
