"""Tests of studies, on generated pictures in the format of MNIST."""

import csv
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from remotely_rl.cli import main
from remotely_rl.errors import SyncError, TrainingError
from remotely_rl.sync.simulation import problems, study
from remotely_rl.sync.simulation.study import Study

SMALL = Study(clients=4, batch=4, iterations=60, every=30, hidden=8, rate=0.1)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
    return head + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write pictures of 4x4 in ten classes, each with a row of its own brightness."""
    random = np.random.default_rng(0)
    path = tmp_path / "pictures"
    path.mkdir()
    for (images, labels), count in zip(problems.FILES.values(), (200, 100), strict=True):
        y = random.integers(0, 10, count).astype(np.uint8)
        x = random.integers(0, 40, (count, 4, 4)).astype(np.uint8)
        x[np.arange(count), y % 4] += (20 * y[:, None]).astype(np.uint8)
        (path / f"{images}.gz").write_bytes(gzip.compress(idx(x)))
        (path / labels).write_bytes(idx(y))
    return path


def test_files_are_read_with_and_without_gzip(folder: Path) -> None:
    pictures = problems.load(folder)

    assert pictures.x.shape == (200, 16)
    assert pictures.x_test.shape == (100, 16)
    assert 0 <= float(pictures.x.min()) < float(pictures.x.max()) <= 1
    assert set(pictures.y.tolist()) == set(range(10))


def test_the_seed_determines_the_rows_of_a_study(folder: Path) -> None:
    pictures = problems.load(folder)
    rows = study.run("fasgd", SMALL, pictures)

    assert rows == study.run("fasgd", SMALL, pictures)
    assert rows != study.run("fasgd", Study(**{**vars(SMALL), "seed": 2}), pictures)
    assert [row.iteration for row in rows] == [0, 30, 60]


def test_a_study_learns(folder: Path) -> None:
    longer = Study(**{**vars(SMALL), "iterations": 1500})
    rows = study.run("asynchronous", longer, problems.load(folder))

    assert rows[-1].metrics["loss"] < 0.7 * rows[0].metrics["loss"]
    assert rows[-1].metrics["accuracy"] > 0.4


def test_normal_initial_weights_are_those_of_the_papers_code() -> None:
    module = problems.mlp(784, 200, "normal", seed=1)
    first = next(module.parameters())

    assert float(first.detach().std()) == pytest.approx(1, abs=0.01)
    assert not bool(dict(module.named_parameters())["0.bias"].any())
    again = next(problems.mlp(784, 200, "normal", seed=1).parameters())
    assert torch.equal(first, again)


def test_every_picture_is_used_once_before_any_is_repeated(folder: Path) -> None:
    pictures = problems.load(folder)
    of_all, of_some = (
        problems.Classification(pictures, problems.mlp(16, 4, "torch", 1), batch, seed=1)
        for batch in (200, 20)
    )
    parameters = of_all.flat.vector.clone()
    gradients = [of_some(0, parameters).clone() for _ in range(10)]

    torch.testing.assert_close(sum(gradients) / 10, of_all(0, parameters))


def test_stragglers_are_slow_by_the_clock(folder: Path) -> None:
    pictures = problems.load(folder)
    even = Study(**{**vars(SMALL), "compute_s": 1.0, "jitter": 0.0})
    slow = Study(**{**vars(even), "stragglers": 1, "straggle": 5.0})

    def seconds(spec: str, asked: Study) -> float:
        return study.run(spec, asked, pictures)[-1].time_s

    assert seconds("asynchronous", even) == pytest.approx(15)
    assert seconds("synchronous", even) == pytest.approx(15)
    assert seconds("synchronous", slow) == pytest.approx(75)
    assert seconds("asynchronous", slow) == pytest.approx(60 / 3.2, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stragglers": 5}, "stragglers must be at most 4, not 5"),
        ({"stragglers": 1}, "set compute_s too"),
        ({"clients": 0}, "clients must be at least 1"),
    ],
)
def test_bad_settings_of_a_study_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Study(**{**vars(SMALL), **changes})


def test_errors_name_missing_and_damaged_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="there is no folder"):
        problems.load(tmp_path / "nowhere")
    labels = problems.FILES["test"][1]
    (folder / labels).unlink()
    with pytest.raises(SyncError, match=f"there is no file {labels}"):
        problems.load(folder)
    (folder / f"{labels}.gz").write_bytes(b"no gzip")
    with pytest.raises(SyncError, match="is damaged"):
        problems.load(folder)
    (folder / f"{labels}.gz").write_bytes(gzip.compress(idx(np.zeros(7, np.uint8))))
    with pytest.raises(SyncError, match="has 7 labels for 1600 pixels"):
        problems.load(folder)


def test_the_command_prints_writes_and_plots(folder: Path, tmp_path: Path) -> None:
    out, png = tmp_path / "rows.csv", tmp_path / "loss.png"
    result = CliRunner().invoke(
        main,
        [
            "simulate",
            "fasgd:rate=0.01",
            "semi_async:n=2",
            "--data",
            str(folder),
            "--clients",
            "4",
            "--iterations",
            "20",
            "--every",
            "10",
            "--hidden",
            "8",
            "--compute-s",
            "0.01",
            "--out",
            str(out),
            "--png",
            str(png),
        ],
    )

    assert result.exit_code == 0, result.output
    assert "fasgd:rate=0.01" in result.output
    assert "20 pushes" in result.output
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["rule"], row["iteration"]) for row in rows] == [
        (rule, at) for rule in ("fasgd:rate=0.01", "semi_async:n=2") for at in ("0", "10", "20")
    ]
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fasg"], "no rule is called 'fasg', did you mean 'fasgd'"),
        (["fasgd:rate=fast"], "rate must be of type float, not 'fast'"),
        (["fasgd", "--clients", "0"], "clients must be at least 1"),
        (["fasgd", "--out", "/nowhere/rows.csv"], "cannot write /nowhere/rows.csv"),
        (["fasgd", "--png", "/nowhere/loss.png"], "cannot draw /nowhere/loss.png"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_on_the_command_line_are_reported(
    words: list[str], message: str, folder: Path
) -> None:
    common = ["--data", str(folder), "--iterations", "1", "--hidden", "2"]
    if "--clients" not in words:
        common += ["--clients", "2"]
    result = CliRunner().invoke(main, ["simulate", *words, *common])

    assert result.exit_code == 2
    assert message in result.output


def test_the_command_rules_lists_rules_and_settings() -> None:
    output = CliRunner().invoke(main, ["rules"]).output

    assert "semi_async\n    Semi-asynchronous: n gradients that are not too old make" in output
    assert "counted" in output
    assert "gate_fetch" in output
