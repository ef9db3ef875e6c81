"""Run folders, and checkpoints."""

import json
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from remotely_rl import a2c, sac
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder, training
from tests.remotely_rl.runs.sessions import TRAINED


def test_a_durable_write_to_a_full_disk_raises_oserror_and_keeps_the_old_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "checkpoint.pt"
    run_folder.save_checkpoint(path, {"n": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            run_folder.save_checkpoint(path, {"n": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run_folder.load_checkpoint(path)["n"] == 1
    run_folder.save_checkpoint(path, {"n": 2})
    assert run_folder.load_checkpoint(path)["n"] == 2


def test_runs_started_in_the_same_second_have_separate_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "default_name", lambda algorithm, env: "run")
    with ThreadPoolExecutor(8) as several:
        made = several.map(lambda n: run_folder.create(None, "a2c", a2c.Config(seed=n)), range(8))
    seeds = [run_folder.read(folder.path).config["seed"] for folder in made]
    assert seeds == list(range(8))


@pytest.mark.parametrize(
    ("count", "names"), [(2, "seed-1, seed-2$"), (12, r"seed-1, seed-2, .*, seed-5, \.\.\.$")]
)
def test_reading_a_folder_of_runs_names_them(tmp_path: Path, count: int, names: str) -> None:
    for seed in range(1, count + 1):
        run_folder.create(tmp_path / f"seed-{seed}", "a2c", a2c.Config(seed=seed))
    with pytest.raises(TrainingError, match=f"holds several runs: name one of {names}"):
        run_folder.read(tmp_path)


@pytest.mark.parametrize(("number", "age"), [(1, "an earlier"), (1000, "a later")])
def test_a_checkpoint_of_another_format_is_rejected_with_both_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, age: str
) -> None:
    ours = run_folder.FORMAT
    monkeypatch.setattr(run_folder, "FORMAT", number)
    run_folder.save_checkpoint(tmp_path / "checkpoint.pt", {})
    monkeypatch.undo()
    said = f"written by {age} version of remotely_rl: it has format {number}, .* format {ours}"
    with pytest.raises(TrainingError, match=said):
        run_folder.load_checkpoint(tmp_path / "checkpoint.pt")


@pytest.mark.usefixtures("local", "no_curve")
def test_the_content_of_a_checkpoint_matches_its_format(tmp_path: Path) -> None:
    # If this fails, increment run_folder.FORMAT and update this test: older runs are rejected then.
    a2c.train(TRAINED, run=tmp_path / "run")
    content = run_folder.load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert run_folder.FORMAT == 3
    assert content.keys() == {
        "format",
        "algorithm",
        "env",
        "outputs",
        "learner",
        "counters",
        "recent",
        "random",
        "actors",
        "times_resumed",
    }
    assert content["learner"].keys() == {
        "version",
        "rate",
        "rate_given",
        "scale",
        "model",
        "optimizer",
        "random",
        "cuda_random",
    }


def test_fields_of_an_earlier_version_are_renamed(tmp_path: Path) -> None:
    kept = {"algorithm": "sac", "config": {"env": "Pendulum-v1", "hidden_units": 32, "tau": 0.1}}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    config = training.config_of(sac.Config, "sac", tmp_path)
    assert (config.hidden, config.tau, config.activation) == ("32,32", 0.1, "relu")
