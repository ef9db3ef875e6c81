"""The command line: its options, messages and runs."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from click.testing import CliRunner, Result

import remotely
from remotely_rl import algorithms, cluster, impala
from remotely_rl.cli import REPEATED, main
from remotely_rl.config import GROUPS, presets
from remotely_rl.runs import metrics, result
from remotely_rl.runs.training import Train
from tests.remotely_rl import toys

TINY = ["--env", "CartPole-v1", "--actors", "1", "--envs-per-actor", "2", "--rollout-steps", "5"]


def invoke(*command: str) -> Result:
    path = sys.path[:]
    try:
        return CliRunner().invoke(main, command)
    finally:
        sys.path[:] = path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[impala.Config, Any]]:
    """Record the config and the model instead of training."""
    asked: list[tuple[impala.Config, Any]] = []

    def keep(
        its: Train[Any],
        config: impala.Config,
        model: Any,
        run: str | None,
        resume: str | None,
        initial: str | None,
        hooks: Any,
    ) -> result.Result:
        asked.append((config, model))
        return result.Result(Path(), "all is done", 1.0, 100, 1, 1, 0.0, 0.0)

    monkeypatch.setattr(Train, "__call__", keep)
    return asked


def test_the_version_is_that_of_remotely() -> None:
    assert invoke("--version").output == f"remotely-rl {remotely.__version__}\n"


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        ("train ppo --no-such-option", 1),
        ("train ppo --help", 0),
        ("train mine.py:train", 1),
        ("train ppo --address=127.0.0.1:8010 --no-such-option", 0),
        ("train pppo", 0),
        ("train", 0),
        ("rules", 0),
    ],
)
def test_only_train_starts_a_cluster_while_it_imports(
    words: str, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[None] = []
    monkeypatch.setattr(cluster, "begin", lambda: begins.append(None))
    monkeypatch.setattr(sys, "argv", ["remotely-rl", *words.split()])
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(SystemExit):
        main()
    assert len(begins) == begun
    invoke(*words.split())  # a program that calls it is not asked to confirm
    assert len(begins) == begun


@pytest.mark.parametrize("option", [["--env-python", "/nowhere"], ["--env-python=/nowhere"]])
def test_an_interpreter_that_is_not_here_is_said_before_anything_starts(option: list[str]) -> None:
    script = (
        "import sys; from remotely_rl import cli, cluster; cluster.begin = lambda: sys.exit(3)\n"
        "try: cli.main()\n"
        "except SystemExit as end: sys.exit(3 if 'torch' in sys.modules else end.code)"
    )
    command = [sys.executable, "-c", script, "train", "ppo", "--env", "CartPole-v1", *option]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "there is no interpreter '/nowhere'" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_every_field_is_an_option_with_its_prose_in_the_order_of_groups(
    name: str,
) -> None:
    text = invoke("train", name, "--help").output
    words = " ".join(text.split())
    kind = algorithms.named(name).Config
    for field in dataclasses.fields(kind):
        one, _ = REPEATED.get(field.name, (f"--{field.name.replace('_', '-')}", ""))
        assert f"{one} " in words.replace("/", " ")
    assert algorithms.ALGORITHMS[name].description.split(";")[0] in words
    assert "`remotely-rl presets` lists." in words
    assert "An INTEGER may be written as 1e6 too." in words
    assert "Discount of a reward one step later, from 0 to 1. [0." in words
    for option in ("--model FILE.py:NAME", "--run DIR", "--resume RUN", "--address ADDRESS"):
        assert option in words
    assert ("--lstm" in words) == (name in toys.WITH_LSTM)

    sections = dict(re.findall(r"(?ms)^([A-Z][a-z ]+):\n(.*?)(?=^[A-Z]|\Z)", text))
    groups = [group for group in GROUPS if group != "Replay" or hasattr(kind, "replay_rows")]
    assert list(sections) == [*groups, "Help"]
    listed = {group: re.findall(r"(?m)^  --([a-z-]+)", text) for group, text in sections.items()}
    assert listed["Start here"] == [
        "env",
        "preset",
        "actors",
        "minutes",
        "total-steps",
        "learning-rate",
        "seed",
    ]
    assert "gamma" in listed["Learning"]
    assert "resume" in listed["Run"]
    names = [option for options in listed.values() for option in options]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["plot", "--help"]], ids=str)
def test_help_does_not_wait_for_torch(words: list[str]) -> None:
    script = (
        "import sys; from remotely_rl.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script, *words]).returncode == 0


def test_every_algorithm_is_listed_with_a_line() -> None:
    text = " ".join(invoke("train", "--help").output.split())
    for name, algorithm in algorithms.ALGORITHMS.items():
        assert f"{name} {algorithm.summary}" in text
    assert "FILE.py:NAME Your own algorithm." in text


def test_options_become_fields_and_the_others_keep_their_defaults(
    trained: list[tuple[impala.Config, Any]],
) -> None:
    done = invoke(
        "train",
        "impala",
        "--env",
        "CartPole-v1",
        "--gamma",
        "0.9",
        "--target",
        "400",
        "--no-normalize-advantage",
        "--actors",
        "3",
        "--max-staleness",
        "0",
        "--total-steps",
        "1e6",
    )
    assert done.exit_code == 0, done.output
    want = impala.Config(
        env="CartPole-v1",
        preset="auto",
        gamma=0.9,
        target=400.0,
        normalize_advantage=False,
        actors=3,
        max_staleness=0,
        total_steps=1_000_000,
    )
    assert trained == [(want, None)]


def test_a_resumed_run_keeps_its_config_except_given_options(
    trained: list[tuple[impala.Config, Any]], tmp_path: Path
) -> None:
    config = {"env": "CartPole-v1", "gamma": 0.9, "minutes": 1}
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": "impala", "config": config}))
    done = invoke("train", "impala", "--resume", str(tmp_path), "--minutes", "5")
    assert done.exit_code == 0, done.output
    assert trained == [(impala.Config(env="CartPole-v1", gamma=0.9, minutes=5.0), None)]


OWN = """
from remotely_rl import networks

class Mine(networks.MLP):
    pass
"""


def test_a_users_model_is_loaded_from_its_file(
    trained: list[tuple[impala.Config, Any]], tmp_path: Path
) -> None:
    (tmp_path / "my_own_model.py").write_text(OWN)
    done = invoke("train", "impala", "--model", f"{tmp_path / 'my_own_model.py'}:Mine")
    assert done.exit_code == 0, done.output
    ((_, model),) = trained
    assert (model.__name__, model.__module__) == ("Mine", "my_own_model")


OWN_ENVIRONMENT = """
import gymnasium
from my_own_names import GAME

class Mine(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make(GAME))

    def reset(self, *, seed=None, options=None):
        import my_own_names_of_late
        return super().reset(seed=seed, options=options)

gymnasium.register("Mine-v0", Mine)
"""


@pytest.fixture
def own_environment(tmp_path: Path) -> Iterator[Path]:
    """Write an environment whose file imports modules beside it, one of them only in actors."""
    (tmp_path / "my_own_environment.py").write_text(OWN_ENVIRONMENT)
    (tmp_path / "my_own_names.py").write_text("GAME = 'CartPole-v1'")
    (tmp_path / "my_own_names_of_late.py").write_text("")
    yield tmp_path / "my_own_environment.py"
    gymnasium.registry.pop("Mine-v0", None)
    for name in [name for name in sys.modules if name.startswith("my_own_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("here")
def test_a_users_environment_is_loaded_from_its_file_to_train_and_to_resume(
    tmp_path: Path, own_environment: Path
) -> None:
    env, run = f"{own_environment}:Mine", str(tmp_path / "run")
    done = invoke("train", "ppo", *TINY, "--env", env, "--total-steps", "20", "--run", run)
    assert done.exit_code == 0, done.output
    done = invoke("train", "ppo", "--resume", run, "--total-steps", "40")
    assert done.exit_code == 0, done.output
    assert "schedules end at --total-steps 40, counted from the run's start" in done.output
    done = invoke("train", "ppo", "--resume", run, "--env", env, "--total-steps", "60")
    assert done.exit_code == 0, done.output
    assert "60 steps are done" in done.output


@pytest.mark.usefixtures("local", "no_curve")
def test_an_id_of_a_module_in_the_working_directory_is_found(
    tmp_path: Path, own_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = ("--total-steps", "20", "--probe-steps", "5", "--run", str(tmp_path / "run"))
    done = invoke("train", "ppo", *TINY, "--env", "my_own_environment:Mine-v0", *steps)
    assert done.exit_code == 0, done.output
    assert "my_own_environment" in sys.modules  # so that remote actors receive it


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a3c", ["--sync", "asgd"], "no rule is called 'asgd', did you mean 'sasgd'?"),
        ("n_step_q", ["--sync", "semi_async:m=2"], "there is no setting 'm'"),
        ("a3c", ["--optimizer", "adm"], "must be rmsprop, adam, sgd, not 'adm', did you mean"),
    ],
)
def test_a_wrong_rule_or_optimizer_leaves_no_folder(
    name: str, options: list[str], said: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = invoke("train", name, *TINY, *options, "--run", str(run))
    assert done.exit_code == 2
    assert said in done.output
    assert not run.exists()


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("{file}:Yours", "my_model.py has nothing called 'Yours'"),
        ("{file}", "--model needs a name in the file too: {file}:NAME"),
        ("{file}:", "--model needs a name in the file too: {file}:NAME"),
        ("nowhere.py", "there is no file nowhere.py"),
        ("nowhere.py:Mine", "there is no file nowhere.py"),
        ("Mine", "--model needs FILE.py:NAME, not 'Mine'"),
        ("{folder}:Mine", "--model needs FILE.py:NAME, not"),
        ("{folder}/notes.txt:Mine", "notes.txt is not a Python file"),
    ],
)
def test_a_missing_model_is_rejected_with_a_hint(tmp_path: Path, word: str, said: str) -> None:
    (tmp_path / "my_model.py").write_text(OWN)
    (tmp_path / "notes.txt").write_text("buy milk")
    where = {"file": tmp_path / "my_model.py", "folder": tmp_path}
    done = invoke("train", "impala", "--model", word.format(**where))
    assert done.exit_code == 2
    assert said.format(**where) in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "impalla"], "no algorithm is called 'impalla', did you mean 'impala'?"),
        (["train", "qmix"], "no algorithm is called 'qmix'; there is a2c, ppo, impala, appo, ga"),
        (
            ["train", "--resume", "run"],
            "options come after the algorithm: remotely-rl train ppo --r",
        ),
        (["train", "impala", "--gama", "1"], "--gamma"),
        (["train", "impala", "--actors", "many"], "'many' is not a whole number, such as"),
        (["train", "ppo", "--gamma", "2"], "gamma must be from 0 to 1, not 2.0"),
        (["train", "impala", "--rho-bar", "0.5"], "rho_bar (0.5) must be at least c_bar (1.0)"),
        (
            ["train", "ppo", "--n-steps", "5"],
            "No such option '--n-steps': here that is --rollout-steps",
        ),
        (
            ["train", "ppo", "--env-kwargs", "{}"],
            "No such option '--env-kwargs': here that is --env-arg",
        ),
        (
            ["train", "impala", "--learners", "2"],
            "Error: impala has one learner: its actors are as",
        ),
        (["train", "impala", "--env", "grid.py"], "Error: there is no file grid.py"),
        (["train", "impala", "--env", "pong"], "did you mean 'ALE/Pong-v5'?"),
        (["train", "impala", *TINY, "--run", "."], "exists already"),
        (["train", "impala", "--preset", "papers"], "impala has no preset 'papers', did you mean"),
        (["train", "impala", "--resume", "nowhere"], "there is no run folder nowhere"),
        (["train", "impala", "--address", "127.0.0.1:1"], "127.0.0.1:1"),
        (["train", "impala", "--address", "ray://x:1"], "Error: 'ray://x:1': Ray Client"),
        (["train", "impala", "--address", "nowhere:x"], "Error: 'nowhere:x' is not an address"),
    ],
)
def test_an_error_of_the_user_is_one_sentence_and_status_2(command: list[str], said: str) -> None:
    remotely.shutdown()
    done = invoke(*command)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output
    assert not remotely.is_connected()  # the error needs no cluster


@pytest.mark.parametrize(
    "words",
    [
        ["broken.py:X"],
        *(["ppo", option, "broken.py:X"] for option in ("--env", "--model", "--hook")),
        ["ppo", "--wrapper", "broken.py:X"],
        ["ppo", "--wrapper", "broken:X"],
    ],
)
def test_an_error_while_a_users_file_is_imported_is_one_sentence_and_status_2(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("\nimport troch\n")
    done = invoke("train", *words)
    assert done.exit_code == 2
    *_, said = done.output.splitlines()
    assert said.startswith("Error: ")
    assert said.endswith("broken.py, line 2: ModuleNotFoundError: No module named 'troch'")
    assert "Traceback" not in done.output


def test_an_invalid_remotely_address_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remotely.shutdown()
    monkeypatch.setenv("REMOTELY_ADDRESS", "ray://x:1")

    done = invoke("train", "impala", *TINY, "--run", str(tmp_path / "run"))

    assert done.exit_code == 2
    assert "Error: 'ray://x:1': Ray Client" in done.output


@pytest.mark.usefixtures("local")
def test_a_run_without_a_step_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = invoke("train", "ppo", *TINY, "--minutes", "0.000001", "--run", str(tmp_path / "run"))
    assert done.exit_code == 1
    assert "Error: the run ended before its first step: 1e-06 minutes are over." in done.output

    ended = result.Result(tmp_path, "1 minute is over", 1.0, 100, 1, 1, 0.0, 0.0, new_steps=0)
    monkeypatch.setattr(Train, "__call__", lambda *_, **__: ended)
    done = invoke("train", "ppo", "--resume", str(tmp_path / "run"))
    assert done.exit_code == 1
    assert "Error: the run ended before its next step: 1 minute is over. If its" in done.output

    ended = result.Result(tmp_path, "stopped by SIGINT", 1.0, 100, 1, 1, 0.0, 0.0, new_steps=0)
    done = invoke("train", "ppo", "--resume", str(tmp_path / "run"))
    assert done.exit_code == 1
    assert done.output.endswith("before its next step: stopped by SIGINT\n")


@pytest.mark.usefixtures("local")
def test_a_run_writes_all_of_its_files_and_can_be_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = invoke("train", "ppo", *TINY, "--run", str(run), "--total-steps", "60")
    assert done.exit_code == 0, done.output
    assert f"60 steps are done; the run is in {run}" in done.output
    left = {path.name for path in run.iterdir()}
    assert left >= {"config.json", "metrics.csv", "checkpoint.pt", "curve.png", "tensorboard"}

    again = invoke("train", "ppo", "--resume", str(run))
    assert (again.exit_code, again.output[:16]) == (0, "the run is over:"), again.output
    first = metrics.read(run / "metrics.csv")[-1]
    done = invoke("train", "ppo", "--resume", str(run), "--total-steps", "180")
    assert done.exit_code == 0, done.output
    assert f"\ncontinues at {first['time/env_steps']:,.0f} steps\n" in done.output
    rows = metrics.read(run / "metrics.csv")
    assert first in rows
    for counted in ("time/seconds", "time/env_steps", "rollout/episodes", "time/updates"):
        assert rows[-1][counted] > first[counted] > 0


@pytest.mark.usefixtures("nothing_left")
def test_ctrl_c_ends_a_run_gracefully(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--env", "CartPole-v1", "--log-interval-s", "0.2", "--run", str(run)]
    command = [sys.executable, "-m", "remotely_rl.cli", "train", "impala", *options]
    training = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert training.stdout is not None
    said: list[str] = []
    while not re.search(r"[1-9]\d* games\)", "".join(said)):  # a line of progress
        said.append(training.stdout.readline())
        assert said[-1], "ended too early: " + "".join(said)
    os.killpg(training.pid, signal.SIGINT)  # as a terminal: learner and actors
    rest, _ = training.communicate(timeout=60)
    assert training.returncode == 0, rest
    ended = f"stopped by SIGINT; the run is in {run}; --resume {run} continues it"
    assert rest.splitlines()[-1] == ended
    assert "Traceback" not in rest
    assert {"checkpoint.pt", "curve.png"} <= {path.name for path in run.iterdir()}


def test_presets_are_listed_with_their_figures_and_options() -> None:
    text = invoke("presets").output
    for row in presets.ROWS:
        command = f"remotely-rl train {row.algorithm} --env {row.env}"
        assert f"{command}\n    {row}\n    {row.options}\n" in text


def test_rules_are_listed_with_their_settings() -> None:
    listed = invoke("rules").output
    for shown in ("\nfasgd\n", "\n    rate  ", "--optimizer (optimizer=)", "\n    gate_push "):
        assert shown in listed


def test_the_command_is_run_by_its_package_too() -> None:
    command = [sys.executable, "-m", "remotely_rl", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("remotely-rl ")
