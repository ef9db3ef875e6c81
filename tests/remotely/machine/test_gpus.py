"""Which GPUs are given away: of those that may be used, so many or those that were named."""

import os
from pathlib import Path

import pytest

import remotely
from remotely.machine import gpus
from remotely.machine.gpus import choose, parse, visible

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
def test_what_may_be_used_is_what_cuda_would_use(value: str, names: list[str]) -> None:
    assert visible({gpus.VARIABLE: value}) == names


def test_without_a_word_from_outside_the_device_files_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible({}, tmp_path) == choose(None, {}, tmp_path) == ["0", "1"]


@pytest.mark.parametrize(
    ("wanted", "told", "names"),
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
def test_gpus_are_chosen_by_number_or_by_name(
    wanted: gpus.Gpus | None, told: str | None, names: list[str], tmp_path: Path
) -> None:
    assert choose(wanted, {} if told is None else {gpus.VARIABLE: told}, tmp_path) == names


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
def test_gpus_that_cannot_be_given_are_refused(wanted: gpus.Gpus, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        choose(wanted, {gpus.VARIABLE: "2,3"})


def test_one_number_is_a_count_and_with_a_comma_it_is_a_name() -> None:
    assert (parse("2"), parse("2,"), parse("2,3")) == (2, ["2"], ["2", "3"])


@remotely.remote_class(gpus=1)
class Look:
    def gpu(self) -> str | None:
        return os.environ.get(gpus.VARIABLE)


def test_an_actor_is_given_what_its_worker_may_use(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpus.VARIABLE, "5,GPU-8932f937")
    remotely.connect(cpus=4)
    looks = remotely.group(Look, 2)
    assert sorted(looks.gpu()) == ["5", "GPU-8932f937"]


def test_a_script_chooses_which_gpus_its_cluster_gives_away(nothing_left: None) -> None:
    remotely.connect(cpus=4, gpus=[3])
    assert Look().gpu() == "3"
