"""A user's algorithm in a file: training, resuming, loading and its checks."""

import dataclasses
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import remotely_rl
from remotely_rl import TrainingError, algorithms
from remotely_rl.agents import evaluation
from remotely_rl.algorithms import sac
from remotely_rl.cli import main
from remotely_rl.runs import run_folder
from remotely_rl.runs.training import Train

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = ["--actors", "1", "--envs-per-actor", "2", "--rollout-steps", "32", "--total-steps", "128"]


@pytest.fixture(autouse=True)
def modules_of_files() -> Iterator[None]:
    before, path = set(sys.modules), sys.path[:]
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "examples" / "reinforce.py", tmp_path / "own_reinforce.py"))


def invoke(*command: str) -> Result:
    return CliRunner().invoke(main, command)


def written(folder: Path, text: str) -> str:
    (folder / "own_algorithm.py").write_text(
        f"import dataclasses\nimport remotely_rl as rl\n{text}"
    )
    return f"{folder / 'own_algorithm.py'}:train"


@pytest.fixture
def run(file: Path, tmp_path: Path, local: None, no_curve: None) -> Path:
    """Return a run of the algorithm in `file`."""
    train = algorithms.train_of(f"{file}:train")
    config = train.Config(actors=1, envs_per_actor=2, rollout_steps=32, total_steps=64)
    return train(config, run=tmp_path / "run").run


# --- from its file --------------------------------------------------------------------------------


@pytest.mark.usefixtures("local", "no_curve")
def test_a_users_algorithm_is_trained_resumed_evaluated_and_played_from_its_file(
    file: Path, tmp_path: Path
) -> None:
    word, run = f"{file}:train", str(tmp_path / "run")
    done = invoke("train", word, *TINY, "--gamma", "0.9", "--run", run)
    assert done.exit_code == 0, done.output
    assert "reinforce on CartPole-v1" in done.output
    done = invoke("train", word, "--resume", run, "--total-steps", "192")
    assert "192 steps are done" in done.output
    for command in (["evaluate", run, "--episodes", "2"], ["play", run]):
        done = invoke(*command)
        assert done.exit_code == 0, done.output
    agent = remotely_rl.load(run)
    assert agent.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert (agent.config.gamma, agent.config.total_steps) == (0.9, 192)


def test_its_help_has_the_fields_of_its_config_and_its_docstring(file: Path) -> None:
    text = " ".join(invoke("train", f"{file}:train", "--help").output.split())
    assert "your own algorithm, in one file" in text
    assert "--value-coef FLOAT Value loss coefficient. [0.5]" in text
    assert "[CartPole-v1]" in text
    assert "preset" not in text


def test_the_example_takes_a_users_environment(file: Path) -> None:
    config = algorithms.train_of(f"{file}:train").Config(env=print)
    assert config.env is print


def test_the_page_shows_the_example_which_has_fewer_than_sixty_lines() -> None:
    page = (ROOT / "docs" / "own_algorithm.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "reinforce.py").read_text(encoding="utf-8")
    block = page.split("```python\n")[1].split("```")[0]
    assert block in example
    assert len(example.splitlines()) < 60


@pytest.mark.usefixtures("own_cluster", "no_curve")
def test_sac_can_be_written_in_a_users_file(tmp_path: Path) -> None:
    text = Path(sac.__file__).read_text(encoding="utf-8")
    (tmp_path / "own_sac.py").write_text(text.replace('Train("sac"', 'Train("own_sac"'))
    train = algorithms.train_of(f"{tmp_path / 'own_sac.py'}:train")
    assert train.Config is not sac.Config

    config = train.Config(
        total_steps=96, learn_from=32, batch_size=16, replay_ratio=4.0, hidden="8,8"
    )
    result = train(config, run=tmp_path / "run")  # the class of its actors is in the file

    assert result.updates > 0
    assert evaluation.evaluate(result.run, 1, steps=200).mean_length == 200


@pytest.mark.learning
def test_reinforce_learns_cart_pole(file: Path, tmp_path: Path, own_cluster: None) -> None:
    train = algorithms.train_of(f"{file}:train")
    result = train(train.Config(minutes=2, target=475), run=tmp_path / "run")
    assert result.best_return >= 475, result.ended


# --- where the file is ----------------------------------------------------------------------------


def test_a_run_whose_file_has_moved_says_so_and_takes_another(
    run: Path, file: Path, tmp_path: Path
) -> None:
    moved = file.rename(tmp_path / "own_moved.py")
    with pytest.raises(TrainingError, match=r"trained by reinforce, which is train in .*") as e:
        remotely_rl.load(run)
    assert f"{file}, but that file does not exist: pass it with algorithm= or --a" in str(e.value)

    train = algorithms.train_of(f"{moved}:train")
    assert remotely_rl.load(run, algorithm=train).config.env == "CartPole-v1"
    done = invoke("evaluate", str(run), "--algorithm", f"{moved}:train", "--steps", "600")
    assert done.exit_code == 0, done.output


def test_a_file_with_another_algorithm_is_rejected(run: Path, file: Path) -> None:
    del sys.modules["own_reinforce"]
    file.write_text("train = 3")
    with pytest.raises(TrainingError, match=r"trained by reinforce, .* but .* is of type int, not"):
        remotely_rl.load(run)


def test_code_in_the_folder_of_a_run_is_not_executed(run: Path) -> None:
    (run / "own_evil.py").write_text("raise SystemExit('executed')")
    content = json.loads((run / "config.json").read_text())
    content["source"] = str(run / "own_evil.py:train")
    (run / "config.json").write_text(json.dumps(content))
    with pytest.raises(TrainingError, match="code in the folder of a run is not executed"):
        remotely_rl.load(run)


def test_an_algorithm_without_a_file_must_be_passed_to_load_its_run(run: Path) -> None:
    train = algorithms.of_run(run)
    content = json.loads((run / "config.json").read_text())
    del content["source"]  # as in a notebook
    (run / "config.json").write_text(json.dumps(content))
    with pytest.raises(
        TrainingError, match="which is not in remotely_rl or in a known file: pass it"
    ):
        remotely_rl.load(run)
    assert remotely_rl.load(run, algorithm=train).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_an_algorithm_knows_its_file_in_another_process(file: Path) -> None:
    train = algorithms.train_of(f"{file}:train")
    assert train.source == f"{file}:train"
    again: Train[Any] = pickle.loads(pickle.dumps(train))
    assert (again.source, again.algorithm, again.Config) == (
        train.source,
        "reinforce",
        train.Config,
    )
    assert sac.train.source is None


def test_a_file_is_executed_once(file: Path) -> None:
    assert algorithms.train_of(f"{file}:train") is algorithms.train_of(f"{file}:train")


def test_a_file_that_raised_is_executed_again(tmp_path: Path) -> None:
    word = written(tmp_path, "1 / 0")
    with pytest.raises(TrainingError, match=r"own_algorithm\.py, line \d+: ZeroDivisionError"):
        algorithms.train_of(word)
    assert "own_algorithm" not in sys.modules


# --- its checks -----------------------------------------------------------------------------------

LOOP = "def loop(session): ...\n"
CONFIG = "@dataclasses.dataclass(frozen=True)\nclass Config(rl.Common): ...\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train = 3", "is of type int, not an algorithm.  Write train = remotely_rl.Train("),
        ("def train(config): ...", "is the function train, not an algorithm"),
        (f"{LOOP}{CONFIG}train = rl.Train", "is the class Train, not an algorithm"),
        ("trian = 3", "has nothing called 'train', did you mean 'trian'?"),
        (
            f"{LOOP}class Config(rl.Common): ...\ntrain = rl.Train('own', Config, loop)",
            "the Config of own, Config, is not a dataclass, so it has no fields: write",
        ),
        (
            f"{LOOP}class Config: ...\ntrain = rl.Train('own', Config, loop)",
            "the Config of own, Config, must be a dataclass that inherits from remotely_rl.Common",
        ),
        (
            f"{LOOP}train = rl.Train('own', {{}}, loop)",
            "the Config of own, {}, must be a dataclass that inherits from remotely_rl.Common",
        ),
        (
            f"{LOOP}{CONFIG}train = rl.Train('ppo', Config, loop)",
            "is called 'ppo', which is an algorithm of remotely_rl: choose another name",
        ),
    ],
)
def test_an_incomplete_algorithm_is_rejected_with_what_it_lacks(
    text: str, said: str, tmp_path: Path
) -> None:
    done = invoke("train", written(tmp_path, text), "--run", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    done = invoke("train", str(tmp_path / "nowhere.py:train"))
    assert done.exit_code == 2
    assert f"Error: there is no file {tmp_path / 'nowhere.py'}" in done.output


@pytest.mark.usefixtures("local", "no_curve")
def test_a_config_needs_only_the_fields_that_its_algorithm_reads(tmp_path: Path) -> None:
    def loop(session: Any) -> None:
        assert session.learner.learning_rate.value == 0.1
        session.learner.learning_rate.anneal(0.5)
        assert session.learner.learning_rate.value == 0.1

    @dataclasses.dataclass(frozen=True)
    class Config(remotely_rl.Common):
        env: str = "CartPole-v1"
        learning_rate: remotely_rl.fields.LearningRate = 0.1

    result = Train("own", Config, loop)(run=tmp_path / "run")
    assert run_folder.read(result.run).algorithm == "own"


def test_library_presets_do_not_apply_to_a_users_algorithm_of_the_same_name() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config(remotely_rl.Common):
        learning_rate: remotely_rl.fields.LearningRate = 0.1

    Config.__module__ = "ppo"
    config = Config(env="CartPole-v1", preset="auto")
    assert (config.total_steps, config.learning_rate) == (0, 0.1)
    assert not [said for said in config.remarks() if "preset" in said]
    with pytest.raises(
        TrainingError, match=r"Config has no preset 'CartPole-v1', but ppo and pqn have one"
    ):
        Config(env="CartPole-v1", preset="CartPole-v1")


# --- imports of the file --------------------------------------------------------------------------


@pytest.mark.parametrize("name", remotely_rl.__all__)
def test_all_public_names_exist(name: str) -> None:
    assert getattr(remotely_rl, name) is not None
