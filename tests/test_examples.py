"""The examples and the README's classes, on a cluster and without one."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remotely_rl.errors import OF_EXTRA
from tests.clusters import processes, wait_until

ROOT = Path(__file__).resolve().parent.parent


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("REMOTELY_")}


def run(script: Path, local: bool) -> str:
    environment = clean_environment() | ({"REMOTELY_LOCAL": "1"} if local else {})
    done = subprocess.run(
        [sys.executable, script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_in(folder: Path, *arguments: str | Path) -> str:
    """Run Python with arguments in a folder; return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_main(example: str, folder: Path, arguments: str = "0.1") -> str:
    """Call an example's `main`, by default for a tenth of a minute; return its output."""
    path = str(ROOT / "examples" / f"{example}.py")
    return run_in(folder, "-c", f"import runpy; runpy.run_path({path!r})['main']({arguments})")


@pytest.fixture(params=[False, True], ids=["embedded", "local"])
def local(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_the_greeter_greets(local: bool) -> None:
    *greetings, pids = run(ROOT / "examples" / "hello.py", local).splitlines()
    assert greetings == ["Hello, world!", "Hello, again!", "Goodbye, world!"]
    script, greeter = re.findall(r"\d+", pids)
    assert (script == greeter) == local


def test_parallel_pi_estimates_pi(local: bool) -> None:
    last = run(ROOT / "examples" / "parallel_pi.py", local).splitlines()[-1]
    # Seeded; the standard error of four million darts is 0.0008.
    assert float(last.split()[-1]) == pytest.approx(3.14159, abs=0.003)


def test_a_learner_is_fed_by_futures(local: bool) -> None:
    said = run(ROOT / "examples" / "learner_fed_by_futures.py", local)
    assert said.splitlines() == [
        "mean squared error: 56.3 2.6 1.1 1.0 1.0",
        "weights: 1.0 -2.0 3.0 -4.0 5.0",
    ]


def test_the_executor_example_runs_functions(local: bool) -> None:
    said = run(ROOT / "examples" / "executor.py", local)
    assert "1000000000041 is divisible by 3" in said
    assert "there are 9592 primes below 100000" in said
    assert said.endswith("123618 binary digits\n")


def test_a_grid_search_finds_the_best(local: bool) -> None:
    pytest.importorskip("sklearn")
    said = run(ROOT / "examples" / "grid_search.py", local)
    assert said == "27 fits\nbest: {'C': 10.0, 'gamma': 0.0001}, right in 90.3%\n"


def test_simulators_dial_in_to_a_learner() -> None:
    said = run(ROOT / "examples" / "dial_in.py", local=False)
    assert said == "2 simulators have dialled in\nthe target is about 84\n"


def test_the_readmes_remote_classes_run_on_two_cores(local: bool, tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = [block for block in blocks if "remotely_rl" not in block]
    pinned = "import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"
    script = tmp_path / "readme.py"
    script.write_text(pinned + "\n".join(shown), encoding="utf-8")
    assert run(script, local).startswith("11\n16 16\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("example", "says"),
    [("cooperation", "mean return "), ("self_play_connect_four", "against minimax: ")],
)
def test_the_multi_agent_examples_learn(example: str, says: str, tmp_path: Path) -> None:
    assert run_main(example, tmp_path).splitlines()[-1].startswith(says)


SCRIPTS = sorted(
    str(path.relative_to(ROOT / "examples").with_suffix(""))
    for path in (ROOT / "examples").rglob("*.py")
    if path.stem != "loggers"  # hooks
)


@pytest.mark.parametrize("example", SCRIPTS)
def test_every_example_ends_quietly_with_status_130_at_ctrl_c(example: str) -> None:
    text = (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")
    _, _, block = text.partition('__main__":\n')
    interrupted = r"    except KeyboardInterrupt:.*\n        raise SystemExit\(130\) from None\n"
    assert re.fullmatch(r"    try:\n(        .*\n)+" + interrupted, block)


# Of the base and the extra `rl`: the README has them installed.
INSTALLED = {"remotely", "remotely_rl", "numpy", *OF_EXTRA, *sys.stdlib_module_names}


def packages_of(example: str) -> set[str]:
    """Return the packages that an example imports, but for those that are INSTALLED."""
    tree = ast.parse((ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8"))
    names = [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    names += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - INSTALLED


@pytest.mark.parametrize(
    ("example", "package"),
    [(example, package) for example in SCRIPTS for package in sorted(packages_of(example))],
)
def test_an_example_without_its_package_says_in_a_line_what_to_install(
    example: str, package: str
) -> None:
    path = str(ROOT / "examples" / f"{example}.py")
    code = f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_path({path!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert package in line
    assert "pip install" in line


@pytest.mark.parametrize("example", SCRIPTS)
def test_an_example_that_trains_in_a_loop_ends_with_the_run_that_is_interrupted(
    example: str,
) -> None:
    """`train` returns at Ctrl-C; the loop would begin the next run."""
    text = (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")
    for loop in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For)):
        body = ast.unparse(loop)
        assert ".train(" not in body or "is_interrupted" in body


def test_an_interrupted_example_prints_at_most_a_count_of_its_calls_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    running = subprocess.Popen(
        [sys.executable, "-u", ROOT / "examples" / "parallel_pi.py"],
        env={**clean_environment(), "REMOTELY_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert "darts" in running.stdout.readline()
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, said = running.communicate(timeout=40)
    assert running.returncode == 128 + signal.SIGINT
    lines = said.splitlines()  # none, if the signal came between two rounds
    assert all("the script ends, and" in line and "(Thrower-" in line for line in lines)
    assert len(lines) <= 1
    wait_until(lambda: not processes(str(tmp_path)), "nothing of it is left")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "recipe",
    sorted(
        p.stem for game in ("pong", "pendulum") for p in (ROOT / "examples").glob(f"*_{game}.py")
    ),
)
def test_every_algorithm_example_trains_and_saves_its_model(recipe: str, tmp_path: Path) -> None:
    model = f"{recipe.rsplit('_', 1)[-1]}.pt"
    assert f"The model is in {model}." in run_main(recipe, tmp_path)
    assert (tmp_path / model).stat().st_size > 50_000


@pytest.mark.parametrize(
    ("example", "arguments", "says"),
    [
        ("crashing_simulator", "0.4, 1_000, 300", "the loop survived "),
        ("vector_env_ppo", "2_000", "steps "),
    ],
)
def test_the_fault_tolerance_examples_run(
    example: str, arguments: str, says: str, tmp_path: Path
) -> None:
    assert says in run_main(example, tmp_path, arguments).splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("study", "steps", "lines"),
    [("second_learner", 5_200, 3), ("norms", 4_000, 10), ("saturation", 3_000, 4)],
)
def test_the_studies_print_their_tables(study: str, steps: int, lines: int, tmp_path: Path) -> None:
    said = run_main(f"studies/{study}", tmp_path, str(steps)).splitlines()[-lines:]
    assert len({line.count(" | ") for line in said}) == 1
    assert "nan" not in "".join(said)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_study_of_batch_sizes_ends_its_runs_at_the_goal(tmp_path: Path) -> None:
    said = run_main("studies/batch_sizes", tmp_path, "20_000, seeds=1").splitlines()
    assert said[-4].startswith("rows of a batch | ")
    assert [line.split(" | ")[0] for line in said[-3:]] == ["512", "2,048", "8,192"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("own_model", "sampled "),
        ("own_environment", "lstm=32: mean return 0.9"),
        ("own_vector_environment", "is reached"),
        ("dict_and_mask", "is reached"),
        ("evaluation_hook", "the policy of the best evaluation is in"),
    ],
)
def test_the_examples_of_users_models_environments_and_curricula_learn(
    example: str, says: str, tmp_path: Path
) -> None:
    said = run_in(tmp_path, ROOT / "examples" / f"{example}.py")
    assert says in said.splitlines()[-1]


def test_an_inference_server_batches_its_actions() -> None:
    said = run(ROOT / "examples" / "serve_agent.py", local=False).splitlines()
    scores = [int(word) for word in said[-2].split()[1:]]
    actions, passes = (int(word) for word in re.findall(r"\d+", said[-1]))
    assert len(scores) == 4
    assert sum(scores) == actions > passes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_has_a_run_per_trial_and_continues(tmp_path: Path) -> None:
    for trials, total in ((2, 2), (1, 3)):
        said = run_main("optuna_sweep", tmp_path, f"{trials}, 4_000")
        assert f"best of {total} trials: sweep/trial-" in said
    runs = {path.name for path in (tmp_path / "sweep").iterdir()}
    assert runs == {"trial-0", "trial-1", "trial-2"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_grid_in_the_sweeps_page_trains_a_run_per_setting(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    said = run_in(tmp_path, "-c", block.replace("20_000", "4_000"))
    assert len(re.findall(r"(?m)^\{'learning_rate'.*runs/ppo-CartPole-v1-", said)) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 4
