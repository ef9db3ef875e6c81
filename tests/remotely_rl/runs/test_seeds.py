"""Runs of several seeds: how many at a time, resumed, stopped, and summarized."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import remotely
from remotely_rl import TrainingError, a2c, cluster, ppo
from remotely_rl.cli import main
from remotely_rl.learning import threads
from remotely_rl.runs import curve, run_folder, seeds
from remotely_rl.runs.seeds import Outcome, Processes
from remotely_rl.supervision.failures import Failure

TINY = [
    "ppo",
    "--env=CartPole-v1",
    "--actors=1",
    "--envs-per-actor=2",
    "--batch-rows=32",
    "--no-normalize-advantage",
    "--device=cpu",
]


def invoke(*command: str) -> Result:
    return CliRunner().invoke(main, command)


@pytest.mark.parametrize(
    ("text", "named"),
    [("1-5", [1, 2, 3, 4, 5]), ("1,2,7", [1, 2, 7]), ("7", [7]), ("9, 1-3", [9, 1, 2, 3])],
)
def test_seeds_are_lists_or_ranges(text: str, named: list[int]) -> None:
    assert seeds.numbers(text) == named


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--seeds needs numbers such as 1-5 or 1,2,7, not ''"),
        ("5-1", "not '5-1'"),
        ("one", "not 'one'"),
        ("1-3,2", "--seeds 1-3,2 names a seed twice"),
    ],
)
def test_invalid_seeds_are_rejected(text: str, said: str) -> None:
    with pytest.raises(TrainingError) as refused:
        seeds.numbers(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("cores", "actors", "asked", "count"),
    [
        (2, 2, None, 1),
        (2, 1, None, 1),
        (16, 2, None, 5),
        (64, 2, None, 9),
        (2, 2, 4, 4),
        (2, 2, 99, 9),
    ],
)
def test_as_many_runs_train_at_a_time_as_fit_the_cores_by_default(
    cores: int, actors: int, asked: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    monkeypatch.delenv("REMOTELY_ADDRESS", raising=False)
    config = ppo.Config(actors=actors, device="cpu")
    found, why = seeds.at_once(config, 9, asked)
    assert found == count
    assert (f"there are {cores} cores" in why) == (asked is None)


@pytest.mark.parametrize(("free", "count"), [([5.0, 4.5], 4), ([1.0], 1), ([99.0], 8)])
def test_on_a_cluster_the_limit_is_its_cores_for_actors_and_ours_for_learners(
    free: list[float], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = [SimpleNamespace(free_cpus=cpus) for cpus in free]
    asked: list[str | None] = []
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(cluster, "connect", lambda actors, address: asked.append(address))
    monkeypatch.setattr(remotely, "status", lambda: SimpleNamespace(machines=machines))
    found, why = seeds.at_once(ppo.Config(actors=2, device="cpu"), 9, address="host:8010")
    assert (found, asked) == (count, ["host:8010"])
    assert f"the cluster has {int(sum(free))} cores free for 2 actors each" in why


def test_the_table_has_a_line_per_run_and_the_mean_of_finished_ones() -> None:
    first = Outcome(1, "100 steps are done", True, False, 10.0, 12.0, 100, 61.0)
    second = first._replace(seed=2, return_mean=20.0)
    third = Outcome(3, "failed, with status 1", False, True)
    _, one, _, three, mean = seeds.table([first, second, third])
    assert one.split(maxsplit=5) == ["1", "10.00", "12.00", "100", "0:01:01", "100 steps are done"]
    assert three.split(maxsplit=5) == ["3", "-", "-", "0", "0:00:00", "failed, with status 1"]
    # The deviation is 7.07, of a mean of two 5, and Student's t 12.71.
    assert mean == "mean return 15.00 ± 63.55 (95 %) of 2 runs"


def test_a_resumed_run_keeps_its_own_model_and_settings(tmp_path: Path) -> None:
    words = ["train", "ppo", "--initial=other", "--preset=paper", "--gamma=0.9"]
    assert seeds.command(words, 3, tmp_path / "new") == [
        *words,
        "--seed=3",
        f"--run={tmp_path / 'new'}",
    ]
    assert seeds.command(words, 3, tmp_path) == [
        "train",
        "ppo",
        "--gamma=0.9",
        "--seed=3",
        f"--resume={tmp_path}",
    ]


# --- processes ------------------------------------------------------------------------------------

EXIT = "import sys; print('begun', flush=True); sys.exit(int(sys.argv[1]))"
# Short sleeps, because a signal just before a sleep does not end it.
SLEEP = """
import time
print("begun", flush=True)
while True:
    time.sleep(0.05)
"""


def test_each_command_is_a_process_whose_output_is_prefixed_with_its_seed() -> None:
    said: list[str] = []
    ended = Processes(2, said.append, EXIT).run({4: ["0"], 5: ["3"]})
    assert ended == {4: 0, 5: 3}
    assert sorted(said) == ["seed 4: begun", "seed 5: begun"]


def test_no_other_process_starts_after_one_was_wrong() -> None:
    several = Processes(1, print, EXIT)
    ended = several.run({1: ["0"], 2: ["2"], 3: ["0"]}, lambda seed: Failure.WRONG)
    assert ended == {1: 0, 2: 2}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_forwarded_to_all_and_no_other_process_starts(number: signal.Signals) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if said == ["seed 1: begun", "seed 2: begun"] or said == ["seed 2: begun", "seed 1: begun"]:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    several = Processes(2, say, SLEEP)
    ended = several.run({1: [], 2: [], 3: []})
    assert set(ended) == {1, 2}
    assert set(ended.values()) <= {-number, 1}  # KeyboardInterrupt
    assert several.is_stopped
    assert signal.getsignal(number) == before


OWN = """
import ctypes
from remotely_rl.runs import status
number = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
print(number.value, status.command())
"""


def test_a_run_ends_with_its_parent_and_its_command_can_be_typed(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = ["train", f"{tmp_path}/own.py:algorithm", "--help", "--seed=4"]
    said: list[str] = []
    Processes(2, said.append).run({4: words})
    typed = shlex.join([sys.executable, "-P", "-m", "remotely_rl", *words])
    assert said[0] == f"seed 4: {int(signal.SIGTERM)} {typed}"


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, local: None, no_curve: None) -> list[list[str]]:
    """Run commands in this process, one after another; return those that ran."""
    ran: list[list[str]] = []

    def run(its: Any, commands: seeds.Commands, failure_of: Any) -> dict[int, int]:
        codes = {}
        for seed, words in commands.items():
            ran.append([*words])
            codes[seed] = invoke(*words).exit_code
            if codes[seed] and failure_of(seed) is Failure.WRONG:
                break
        return codes

    monkeypatch.setattr(Processes, "run", run)
    monkeypatch.setattr(curve, "compare", lambda runs, png: png.touch())
    return ran


def test_each_seed_has_its_own_run_and_finished_runs_are_kept(
    here: list[list[str]], tmp_path: Path
) -> None:
    run = tmp_path / "runs"
    words = ["train", *TINY, "--total-steps", "64", "--run", str(run)]
    done = invoke(*words, "--seeds", "1")
    assert done.exit_code == 0, done.output
    (command,) = here
    assert command[:2] == ["train", "ppo"]
    assert command[-2:] == ["--seed=1", f"--run={run / 'seed-1'}"]
    assert set(command[2:-2]) == {*TINY[1:], "--total-steps=64"}

    done = invoke(*words, "--seeds", "1,2")
    assert [command[-1] for command in here[1:]] == [f"--run={run / 'seed-2'}"]
    assert "seed 1 is over already" in done.output
    assert {path.name for path in run.iterdir()} == {"seed-1", "seed-2", "curve.png"}
    assert [run_folder.read(run / f"seed-{seed}").config["seed"] for seed in (1, 2)] == [1, 2]
    assert done.output.count("64 steps are done") == 2
    assert "(95 %) of 2 runs" in done.output


def test_a_run_that_fails_at_its_limit_has_failed_and_is_over(
    here: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(
        "from remotely_rl import Hook\n\n\n"
        "class Fails(Hook):\n    def on_end(self, session, result):\n        raise ValueError\n"
    )
    words = ["train", *TINY, "--total-steps", "64", "--run", str(tmp_path / "runs"), "--seeds", "1"]
    for number in range(2):
        done = invoke(*words, "--hook", f"{tmp_path}/hooks.py:Fails")
        assert done.exit_code == 1
        assert ("seed 1 is over already" in done.output) == bool(number)
        assert "64 steps are done, and it has failed" in done.output


def test_a_run_that_a_hook_has_ended_is_over_for_the_next_command_too(
    here: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(
        "from remotely_rl import Hook\n\n\n"
        "class Stops(Hook):\n"
        "    def on_update(self, session, metrics):\n        session.stop('enough')\n"
    )
    words = [
        "train",
        *TINY,
        "--total-steps",
        "640",
        "--run",
        str(tmp_path / "runs"),
        "--seeds",
        "1",
    ]
    for number in range(2):
        done = invoke(*words, "--hook", f"{tmp_path}/hooks.py:Stops")
        assert done.exit_code == 0
        assert ("seed 1 is over already" in done.output) == bool(number)
        assert "a hook has ended it" in done.output
    assert len(here) == 1


def test_the_default_folder_is_in_runs(
    here: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("train", *TINY, "--seeds=7", "--total-steps=64").exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "seed-7" / "checkpoint.pt").exists()


def test_no_run_starts_after_one_has_failed_before_its_folder_was_made(
    here: list[list[str]], tmp_path: Path
) -> None:
    words = [*TINY, "--seeds", "1-3", "--total-steps=64", "--run", str(tmp_path / "runs")]
    done = invoke("train", *words, "--model", "nowhere.py:Model")
    assert done.exit_code == 1
    assert len(here) == 1
    assert "failed, with status 2" in done.output
    assert done.output.count("not begun") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "1-2", "--preset", "none"], "each run of --seeds needs an end: --total-steps"),
        (["--seeds", "x", "--minutes", "1"], "--seeds needs numbers such as 1-5 or 1,2,7, not 'x'"),
        (["--seeds", "1", "--seed", "2"], "--seeds gives each run its seed: leave out --seed"),
        (["--seeds", "1", "--resume", "r"], "--seeds resumes the runs in its --run DIR: leave out"),
        (["--at-once", "2"], "--at-once limits the runs of --seeds: give --seeds too"),
        (["--seeds", "1", "--at-once", "0"], "0 is not in the range x>=1"),
        (["--seeds", "1", "--minutes", "-1"], "minutes must be at least 0"),
    ],
)
def test_invalid_options_are_rejected_before_any_folder_is_made(
    words: list[str], said: str, tmp_path: Path, here: list[list[str]]
) -> None:
    words = ["--preset", "none", *words]
    done = invoke("train", "ppo", *words, "--run", str(tmp_path / "runs"))
    assert done.exit_code == 2
    assert here == []
    assert said in done.output
    assert not (tmp_path / "runs").exists()


def kept(run: Path, **settings: Any) -> None:
    run.mkdir(parents=True, exist_ok=True)
    run_folder.create(run, "ppo", ppo.Config(env="CartPole-v1", **settings))


def test_a_run_with_other_settings_is_not_resumed(tmp_path: Path) -> None:
    run = tmp_path / "seed-1"
    kept(run, gamma=0.9, minutes=1, seed=1)
    (run / "checkpoint.pt").touch()
    seeds.check_continues(run, "ppo", ppo.Config(env="CartPole-v1", gamma=0.9, minutes=5))
    with pytest.raises(TrainingError, match=r"seed-1 was trained with gamma=0.9, not 0.99: "):
        seeds.check_continues(run, "ppo", ppo.Config(env="CartPole-v1"))
    content = json.loads((run / "config.json").read_text())
    del content["config"]["epochs"]  # as if by a version without the field
    (run / "config.json").write_text(json.dumps(content))
    with pytest.raises(TrainingError, match="was trained with epochs=3, not 4: "):
        seeds.check_continues(run, "ppo", ppo.Config(env="CartPole-v1", gamma=0.9, epochs=4))
    with pytest.raises(
        TrainingError, match="with env=CartPole-v1, not Acrobot-v1: give the same --env"
    ):
        seeds.check_continues(run, "ppo", ppo.Config(env="Acrobot-v1", gamma=0.9))
    with pytest.raises(TrainingError, match="give the same --env-arg NAME=VALUE"):
        seeds.check_continues(
            run,
            "ppo",
            ppo.Config(env="CartPole-v1", gamma=0.9, env_kwargs={"sutton_barto_reward": True}),
        )


def test_another_algorithm_is_reported_before_other_settings(tmp_path: Path) -> None:
    kept(tmp_path / "seed-1", gamma=0.9)
    with pytest.raises(TrainingError, match="seed-1 is a run of ppo; resume it with ppo, not a2c"):
        seeds.check_continues(tmp_path / "seed-1", "a2c", a2c.Config(env="CartPole-v1"))


def test_a_run_without_a_checkpoint_and_a_folder_that_is_a_run_are_rejected(tmp_path: Path) -> None:
    kept(tmp_path / "seed-1")
    with pytest.raises(TrainingError, match="seed-1 exists already and has no checkpoint"):
        seeds.check_continues(tmp_path / "seed-1", "ppo", ppo.Config(env="CartPole-v1"))
    with pytest.raises(TrainingError, match="seed-1 is a run itself: --seeds needs another"):
        seeds.check_continues(tmp_path / "seed-1" / "seed-1", "ppo", ppo.Config(env="CartPole-v1"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_ends_all_runs_gracefully_and_the_same_command_resumes_them(tmp_path: Path) -> None:
    run = tmp_path / "runs"
    words = [*TINY, "--seeds=1-2", "--at-once=2", "--log-interval-s=1", f"--run={run}"]
    command = [sys.executable, "-m", "remotely_rl.cli", "train", *words]
    training = subprocess.Popen(
        [*command, "--minutes=50"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert training.stdout is not None
    said: list[str] = []
    while {line[:7] for line in said if "games)" in line} != {"seed 1:", "seed 2:"}:
        said.append(training.stdout.readline())
        assert said[-1], "ended too early: " + "".join(said)
    os.killpg(training.pid, signal.SIGINT)  # as a terminal does
    rest, _ = training.communicate(timeout=120)
    assert training.returncode == 0, rest
    assert rest.count("stopped by SIGINT") == 2
    assert rest.count("not over") == 2
    assert rest.splitlines()[-1] == f"the same command with --run {run} continues"
    steps = run_folder.load_checkpoint(run / "seed-1" / "checkpoint.pt")["counters"]["env_steps"]

    done = subprocess.run(
        [*command, f"--total-steps={steps + 64}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 2 runs" in done.stdout
