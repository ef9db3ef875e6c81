"""The figures of GPUs, from a library with the interface of NVML."""

import shutil
import subprocess
from pathlib import Path

import pytest

from remotely.machine.nvml import GpuMeter, GpuUse
from remotely.worker.machine_use import MachineMeter

LIBRARY = r"""
#include <string.h>
static int devices[2];
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 1) return 2;
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &devices[1];
    return strcmp(uuid, "GPU-1");
}
int nvmlDeviceGetUtilizationRates(void *device, struct { unsigned gpu, memory; } *rates) {
    rates->gpu = device == &devices[0] ? 40 : 70;
    rates->memory = 99;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct { unsigned long long total, free, used; } *m) {
    m->total = 80ull << 30;
    m->used = device == &devices[0] ? 5ull << 30 : 6ull << 30;
    m->free = m->total - m->used;
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(LIBRARY)
    made = folder / "libnvidia-ml.so.1"
    words = [compiler, "-shared", "-fPIC", "-w", "-o", str(made), str(folder / "nvml.c")]
    subprocess.run(words, check=True)
    return str(made)


def test_each_gpu_is_found_by_its_number_or_uuid(library: str) -> None:
    zero, one = GpuUse(40, 5 << 30, 80 << 30), GpuUse(70, 6 << 30, 80 << 30)
    assert GpuMeter(["0", "GPU-1"], library).use() == [zero, one]
    assert GpuMeter(["1"], library).use() == [one]
    assert GpuMeter(["MIG-7", "5", "0"], library).use() == [None, None, zero]


def test_without_a_driver_or_gpus_there_are_no_figures(library: str, tmp_path: Path) -> None:
    assert GpuMeter(["0"], str(tmp_path / "none.so")).use() == []
    assert GpuMeter([], library).use() == []


def test_a_machine_reports_its_gpus(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remotely.machine.nvml.GpuMeter.__init__.__defaults__", (library,))
    use = MachineMeter(Path("/"), ["0", "MIG-7"]).use()
    assert [(gpu.percent, gpu.memory_total) for gpu in use.gpus] == [(40, 80 << 30), (0, 0)]
