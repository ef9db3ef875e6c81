"""The GPUs that a worker offers: all that are visible, a number of them, or those named."""

import os
from pathlib import Path

import pytest

import remotely
from remotely.machine import gpus
from remotely.machine.gpus import choose, visible

PARTS = "MIG-GPU-5a1b/1/0,MIG-77c0d2aa-55e7"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("2,3", ["2", "3"]),
        (" 2 , 3 ", ["2", "3"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),  # as CUDA reads it
        ("NoDevFiles", []),  # Slurm's word for none
        ("GPU-8932f937-d72c-4106,1", ["GPU-8932f937-d72c-4106", "1"]),
        (PARTS, PARTS.split(",")),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_use(value: str, names: list[str]) -> None:
    assert visible({gpus.VARIABLE: value}) == names


def test_without_the_variable_the_device_files_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible({}, tmp_path) == choose(None, {}, tmp_path) == ["0", "1"]


@pytest.mark.parametrize(
    ("wanted", "variable", "names"),
    [
        (None, "2,3", ["2", "3"]),
        (1, "2,3", ["2"]),
        (0, "2,3", []),
        ("1", "2,3", ["2"]),
        ("3,", "2,3", ["3"]),
        ("3,2", "2,3", ["3", "2"]),
        ([3], "2,3", ["3"]),
        ([], "2,3", []),
        (["MIG-a"], "MIG-a,MIG-b", ["MIG-a"]),
        ("MIG-b", "MIG-a,MIG-b", ["MIG-b"]),
        (2, None, ["0", "1"]),
        ([2, 3], None, ["2", "3"]),
    ],
)
def test_gpus_are_chosen_by_count_or_by_name(
    wanted: gpus.Gpus | None, variable: str | None, names: list[str], tmp_path: Path
) -> None:
    assert choose(wanted, {} if variable is None else {gpus.VARIABLE: variable}, tmp_path) == names


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (3, "no 3 GPUs: CUDA_VISIBLE_DEVICES is '2,3'"),
        ([0], "GPU 0 may not be used: CUDA_VISIBLE_DEVICES is '2,3'"),
        ("2,2", "named twice: 2,2"),
        ("many", "'many' is not a GPU: give a count"),
        (-1, "gpus=-1"),
        (1.5, "gpus=1.5"),
        (True, "gpus=True"),
    ],
)
def test_unavailable_and_malformed_gpus_are_refused(wanted: gpus.Gpus, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        choose(wanted, {gpus.VARIABLE: "2,3"})


@remotely.remote_class(gpus=1)
class GpuUser:
    def gpu(self) -> str | None:
        return os.environ.get(gpus.VARIABLE)


def test_actors_get_the_visible_gpus(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VARIABLE, "5,GPU-8932f937")
    remotely.connect(cpus=4)
    assert sorted(remotely.group(GpuUser, 2).gpu()) == ["5", "GPU-8932f937"]


def test_a_script_chooses_the_gpus_of_its_own_cluster(nothing_left: None) -> None:
    remotely.connect(cpus=4, gpus=[3])
    assert GpuUser().gpu() == "3"


def test_a_gpu_has_one_id_whatever_a_container_or_a_user_calls_it(tmp_path: Path) -> None:
    driver, devices = tmp_path / "driver", tmp_path / "dev"
    devices.mkdir()
    for number in (2, 10):
        (devices / f"nvidia{number}").touch()

    def of(*names: str, **env: str) -> list[str]:
        return list(gpus.identities(names, env, devices, driver))

    assert of("0", "1") == ["/dev/nvidia2", "/dev/nvidia10"]  # a container that was given two
    for bus, uuid in (("0000:07:00.0", "GPU-a-1"), ("0000:47:00.0", "GPU-b-2")):
        (driver / bus).mkdir(parents=True)
        (driver / bus / "information").write_text(f"Model: X\nGPU UUID: \t {uuid}\nDevice: 0\n")
    assert of("1", "GPU-a-1", "MIG-1", "7") == ["GPU-b-2", "GPU-a-1", "MIG-1", "7"]


def test_gpus_that_slurm_has_numbered_for_a_task_are_its_own(tmp_path: Path) -> None:
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", gpus.VARIABLE: "0"}
    one, other = (
        gpus.identities(["0"], {**task, "SLURM_PROCID": number}, tmp_path, tmp_path)
        for number in "01"
    )
    assert one != other
