"""Starting and resuming runs."""

import copy
import dataclasses
import inspect
import json
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remotely.calling.engine import CallEngine
from remotely_rl import Hook, a2c, c51, impala, networks, ppo
from remotely_rl.acting.actor import Actor
from remotely_rl.acting.crew import Number
from remotely_rl.acting.samplers import Samplers
from remotely_rl.config import Common
from remotely_rl.errors import TrainingError
from remotely_rl.runs import metrics, run_folder, sampling, training
from remotely_rl.runs.run_folder import RunFolder, create
from tests.remotely_rl import toys
from tests.remotely_rl.runs.sessions import (
    CONFIG,
    TRAINED,
    Clock,
    Learner,
    finished_run,
    resumed,
)

pytestmark = pytest.mark.usefixtures("local", "no_curve")


class Narrow(networks.MLP):
    """A network with 8 units, where the default has 64."""

    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__(shape, outputs)
        self.policy_body = nn.Sequential(nn.Linear(shape[0], 8))
        self.policy = nn.Linear(8, outputs)


def test_a_resumed_run_continues_where_it_stopped(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    clock = Clock()
    clock.now = 5000.0
    saved = run_folder.load_checkpoint(folder.checkpoint)
    with resumed(folder, clock) as run:
        learner = Learner()
        run.restore(learner)
        assert run.tally.counters.env_steps == 500
        assert run.tally.return_mean() == 9.0
        assert run.times_resumed == 1
        assert learner.model.state_dict()["weight"] == saved["learner"]["model"]["weight"]
        clock.now += 7
        assert run.seconds() == saved["counters"]["seconds"] + 7
        run.tick()
    assert [row["time/env_steps"] for row in metrics.read(folder.metrics)][-2:] == [500, 500]


def test_random_numbers_continue_from_the_checkpoint(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    torch.set_rng_state(run_folder.load_checkpoint(folder.checkpoint)["random"])
    want = torch.rand(3)
    with resumed(folder) as run:
        run.restore(Learner())
        assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize("change", [{"rollout_steps": 4}, {"envs_per_actor": 8}], ids=str)
def test_a_resumed_run_takes_new_limits_and_numbers_of_actors(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    first = a2c.train(TRAINED, run=tmp_path / "run")
    config = dataclasses.replace(TRAINED, total_steps=200, **change)
    result = a2c.train(config, resume=tmp_path / "run")
    steps, updates = result.env_steps - first.env_steps, result.updates - first.updates
    # Every other row of Guess resets.
    assert steps == updates * config.rollout_steps * config.envs_per_actor / 2


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Return the content and the modification time of each file in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_finished_run_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    first = a2c.train(TRAINED, run=run)
    before = contents(run)
    capsys.readouterr()
    result = a2c.train(dataclasses.replace(TRAINED, gamma=0.5), resume=run)
    assert result == first._replace(new_steps=None)
    assert capsys.readouterr().out == (
        f"the run is over: 100 steps are done; it is in {run}\n"
        f"it goes on with: remotely-rl train a2c --resume {run} --total-steps 200\n"
    )
    assert contents(run) == before


class FailsAtTheEnd(Hook):
    def on_end(self, session: Any, result: Any) -> None:
        raise ValueError


def test_a_run_that_is_over_says_that_it_is_short_of_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, config = tmp_path / "run", dataclasses.replace(TRAINED, target=1e9)
    a2c.train(config, run=run)
    capsys.readouterr()
    a2c.train(config, resume=run)
    said = "the run is over: 100 steps are done, short of the mean return of 1e+09;"
    assert capsys.readouterr().out.startswith(said)


def test_a_run_that_has_failed_at_its_limit_has_failed_when_it_is_resumed_there_too(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with pytest.raises(TrainingError, match="FailsAtTheEnd"):
        a2c.train(TRAINED, run=run, hooks=[FailsAtTheEnd()])
    said = "100 steps are done, and it has failed: TrainingError: the hook FailsAtTheEnd raised"
    with pytest.raises(TrainingError, match=f"(?s){said}.* --total-steps 200$"):
        a2c.train(TRAINED, resume=run)
    assert a2c.train(dataclasses.replace(TRAINED, total_steps=200), resume=run).env_steps >= 200


def test_a_run_whose_target_is_reached_is_over_for_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, config = tmp_path / "run", dataclasses.replace(TRAINED, target=-1e9)
    a2c.train(config, run=run)
    capsys.readouterr()
    a2c.train(config, resume=run)
    said = f"the run is over: the mean return of -1e+09 is reached; it is in {run}\n"
    assert capsys.readouterr().out == said


def test_settings_given_on_resume_are_kept_at_the_next_resume(tmp_path: Path) -> None:
    run, config = tmp_path / "run", dataclasses.replace(TRAINED, env="CartPole-v1")
    a2c.train(config, run=run)
    a2c.train(dataclasses.replace(config, total_steps=200, gamma=0.9), resume=run)
    assert training.config_of(a2c.Config, "a2c", run).gamma == 0.9
    assert a2c.train(resume=run).ended == "200 steps are done"
    assert [path.name for path in run.glob("*.tmp")] == []


def test_an_adapted_learning_rate_restarts_only_if_one_is_given_on_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = {field: getattr(TRAINED, field) for field in ("rollout_steps", "actors", "total_steps")}
    config = ppo.Config(env="CartPole-v1", target_kl=1000.0, **given)  # never adapted
    ppo.train(config, run=run)
    for override, want in (({}, 1.5e-3), ({"learning_rate": 1e-3}, 1e-3)):
        config = training.config_of(ppo.Config, "ppo", run, override)
        with training.begin("ppo", ppo.Config, config, resume=run) as session:
            sampling.rounds(session)
            assert session.learner.learning_rate.value == pytest.approx(want)


def test_a_learning_rate_given_on_resume_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    given = {field: getattr(TRAINED, field) for field in ("rollout_steps", "actors", "total_steps")}
    ppo.train(ppo.Config(env="CartPole-v1", **given), run=run)
    assert "learning rate: 0.001, steered by target_kl=0.01" in capsys.readouterr().out
    override = {"learning_rate": 3e-5, "total_steps": 400}
    ppo.train(training.config_of(ppo.Config, "ppo", run, override), resume=run)
    assert "learning rate: 3e-05\n" in capsys.readouterr().out
    assert metrics.read(RunFolder(run).metrics)[-1]["train/learning_rate"] == 3e-5


@pytest.mark.parametrize(("actors", "cpus"), [(0, 1), (2, None)])
def test_with_actors_0_each_actor_reserves_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actors: int, cpus: int | None
) -> None:
    """Otherwise the script's own cluster would have room for any number."""
    asked: list[float | None] = []
    place = CallEngine.place

    def write_down(engine: CallEngine, cls: type, *rest: Any) -> Any:
        if issubclass(cls, Actor):
            asked.append(rest[-1].cpus)
        return place(engine, cls, *rest)

    class Enough(Exception):
        pass

    def make_one(samplers: object, make: Callable[[Number], Any], *_: Any, **__: Any) -> None:
        make(Number(0, 0))
        raise Enough

    monkeypatch.setattr(CallEngine, "place", write_down)
    monkeypatch.setattr(Samplers, "__init__", make_one)
    config = impala.Config(
        env=toys.Guess, actors=actors, envs_per_actor=4, batch_trajectories=1, random_start=0
    )
    session = training.begin("impala", impala.Config, config, run=tmp_path / "run")
    with pytest.raises(Enough), session:
        sampling.stream(session)
    assert asked == [cpus]


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ({}, {}, ""),
        ({"actors": 2}, {}, "there were 2 actors, and there are 1 now: new games begin"),
        ({"env": toys.Unsaveable}, {"env": toys.Unsaveable}, "the environments could not be saved"),
        ({}, {"envs_per_actor": 8}, "the environments are not those that were saved"),
        (
            {},
            {"wrappers": ("gymnasium.wrappers:Autoreset",)},
            "the environments have other settings: new games begin",
        ),
        (
            {"env": toys.Counting, "env_kwargs": {"length": 5}},
            {"env": toys.Counting, "env_kwargs": {"length": 6}},
            "the environments have other settings: new games begin",
        ),
    ],
    ids=str,
)
def test_a_resume_says_why_new_games_begin(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: dict[str, Any],
    then: dict[str, Any],
    said: str,
) -> None:
    a2c.train(dataclasses.replace(TRAINED, **first), run=tmp_path / "run")
    capsys.readouterr()
    a2c.train(dataclasses.replace(TRAINED, total_steps=200, **then), resume=tmp_path / "run")
    output = capsys.readouterr().out
    assert said in output
    assert ("new games begin" in output) == bool(said)


class StopsAtOnce(Hook):
    def on_start(self, session: Any) -> None:
        session.stop("not now")


def test_a_resumed_run_that_is_over_before_its_actors_are_there_says_nothing_of_games(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(TRAINED, actors=2)
    a2c.train(config, run=tmp_path / "run")
    saved = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    capsys.readouterr()
    more = dataclasses.replace(config, total_steps=200)
    assert a2c.train(more, resume=tmp_path / "run", hooks=[StopsAtOnce()]).ended == "not now"
    assert "new games begin" not in capsys.readouterr().out
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == saved


def test_another_environment_gets_no_arguments_of_the_run(tmp_path: Path) -> None:
    trained = dataclasses.replace(TRAINED, env=toys.Counting, env_kwargs={"length": 5})
    a2c.train(trained, run=tmp_path / "run")
    same, other = (
        training.config_of(a2c.Config, "a2c", tmp_path / "run", {"env": env})
        for env in (toys.Counting, "CartPole-v1")
    )
    assert (same.env_kwargs, other.env_kwargs) == ({"length": 5}, {})


@pytest.mark.parametrize(
    ("spoil", "algorithm", "env", "said"),
    [
        (lambda f: None, "ppo", "CartPole-v1", "is a run of toy; resume it with toy, not ppo"),
        (lambda f: None, "toy", "Acrobot-v1", "is a run on CartPole-v1, not on Acrobot-v1"),
        (lambda f: f.checkpoint.unlink(), "toy", "CartPole-v1", "has no checkpoint"),
        (lambda f: f.checkpoint.write_bytes(b"?"), "toy", "CartPole-v1", "cannot be read as a"),
        (lambda f: torch.save({}, f.checkpoint), "toy", "CartPole-v1", "is not a checkpoint of"),
        (lambda f: f.config.unlink(), "toy", "CartPole-v1", "is not a run folder"),
        (lambda f: f.config.write_text("{"), "toy", "CartPole-v1", "cannot be read"),
        (lambda f: f.config.write_text("{}"), "toy", "CartPole-v1", "does not name the algorithm"),
    ],
)
def test_a_run_that_cannot_be_resumed_says_why(
    tmp_path: Path, spoil: Callable[[RunFolder], None], algorithm: str, env: str, said: str
) -> None:
    folder = finished_run(tmp_path)
    spoil(folder)
    with pytest.raises(TrainingError, match=said):
        training.begin(
            algorithm, a2c.Config, dataclasses.replace(CONFIG, env=env), resume=folder.path
        )


def test_a_partial_is_resumed_with_its_arguments(tmp_path: Path) -> None:
    env, run = partial(toys.Counting, 5), tmp_path / "run"
    config = dataclasses.replace(TRAINED, env=env, probe_steps=2)
    a2c.train(config, run=run)
    other = dataclasses.replace(config, env=partial(toys.Counting, 6))
    with pytest.raises(TrainingError, match=r"a run on Counting\(5\), not on Counting\(6\)"):
        a2c.train(other, resume=run)

    result = a2c.train(dataclasses.replace(config, total_steps=200), resume=run)
    assert result.env_steps >= 200


def test_an_unknown_option_of_a_run_suggests_the_nearest(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    kept = json.loads(folder.config.read_text())
    kept["config"]["gama"] = kept["config"].pop("gamma")
    folder.config.write_text(json.dumps(kept))
    with pytest.raises(TrainingError, match="toy has no option 'gama', did you mean 'gamma'"):
        training.begin("toy", a2c.Config, None, resume=folder.path)


def test_a_run_with_a_setting_that_is_gone_resumes_if_the_setting_had_no_effect(
    tmp_path: Path,
) -> None:
    folder = finished_run(tmp_path)

    def resumed(**gone: Any) -> a2c.Config:
        kept = json.loads(folder.config.read_text())
        kept["config"] |= gone
        folder.config.write_text(json.dumps(kept))
        return training.config_of(a2c.Config, "toy", folder.path)

    assert resumed(reset_interval=0, adjust_s=0.0, most_agents=7) == resumed()
    with pytest.raises(TrainingError, match=r"trained with reset_interval=5, and dqn .* --initial"):
        resumed(reset_interval=5)
    to_act = training.config_of(a2c.Config, "toy", folder.path, to_act=True)
    assert to_act.gamma == CONFIG.gamma


def test_resuming_a_missing_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no run folder"):
        training.begin("toy", a2c.Config, CONFIG, resume=tmp_path / "nowhere")


def test_run_and_resume_exclude_each_other(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    with pytest.raises(TrainingError, match="use --resume without --run"):
        training.begin("toy", a2c.Config, CONFIG, run=tmp_path / "other", resume=folder.path)


def test_a_checkpoint_of_another_model_is_rejected_and_the_run_is_kept(tmp_path: Path) -> None:
    run, config = tmp_path / "run", dataclasses.replace(TRAINED, env="CartPole-v1")
    a2c.train(config, run=run)
    before = (run / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match="checkpoint of another model: it holds nothing as"):
        a2c.train(dataclasses.replace(config, lstm=4, total_steps=200), resume=run)
    said = r"another model: it holds \[64, 4\] as 'policy_body.0.weight', .* has \[8, 4\]"
    with pytest.raises(TrainingError, match=said):
        a2c.train(dataclasses.replace(config, total_steps=200), Narrow, resume=run)
    given = training.config_of(a2c.Config, "a2c", run, {"hidden": "8", "total_steps": 200})
    with pytest.raises(
        TrainingError, match=r"^leave out --hidden 8: .* of another model: it holds"
    ):
        a2c.train(given, resume=run)
    assert (run / "checkpoint.pt").read_bytes() == before
    assert training.config_of(a2c.Config, "a2c", run) == config


class Watches(Hook):
    """Records the model and the units of values at the start of a run."""

    def on_start(self, session: Any) -> None:
        self.scale = session.learner.state()["scale"]
        self.model = copy.deepcopy(session.learner.model.state_dict())


def test_a_run_can_start_with_the_model_of_another_and_its_units_of_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a2c.train(TRAINED, run=tmp_path / "first")
    saved = run_folder.load_checkpoint(tmp_path / "first" / "checkpoint.pt")["learner"]
    watches = Watches()
    config = dataclasses.replace(TRAINED, seed=7)
    a2c.train(config, run=tmp_path / "next", initial=tmp_path / "first", hooks=[watches])
    assert watches.model.keys() == saved["model"].keys()
    assert all(torch.equal(part, saved["model"][name]) for name, part in watches.model.items())
    assert watches.scale == saved["scale"]
    assert f"\nbegins with the model of {tmp_path / 'first'}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ({"lstm": 4}, {}, "^first/checkpoint.pt is a checkpoint of another model"),
        ({"env": "Acrobot-v1"}, {}, "^are the observations and actions of Acrobot-v1 those of .*h"),
        ({}, {"initial": "nowhere"}, "there is no run folder nowhere"),
        ({}, {"resume": "first"}, "use --resume without --initial"),
    ],
)
def test_an_unsuitable_initial_run_is_rejected(
    change: dict[str, Any],
    more: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    a2c.train(dataclasses.replace(TRAINED, total_steps=32), run="first")
    config = dataclasses.replace(TRAINED, **change)
    with pytest.raises(TrainingError, match=said):
        a2c.train(config, **{"initial": "first", **more})


def test_a_run_is_not_resumed_with_another_seed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    a2c.train(dataclasses.replace(TRAINED, seed=5, total_steps=32), run=run)
    with pytest.raises(TrainingError, match="goes on with the random numbers of seed 5: resume"):
        a2c.train(TRAINED, resume=run)


@pytest.mark.parametrize(
    ("train", "repeats"),
    [
        (ppo.train, "A seed repeats the run, bit for bit, on one machine, even with `overlap`."),
        (impala.train, "A seed does not repeat a run, because the order of trajectories"),
        (c51.train, "Without `overlap`, a seed repeats the run, bit for bit, on one machine."),
    ],
)
def test_train_is_documented_and_can_be_pickled(train: training.Train[Any], repeats: str) -> None:
    assert train.__doc__ is not None
    assert train.__doc__.startswith("Train until a limit of the config is reached, or Ctrl-C.")
    assert repeats in train.__doc__
    assert not re.search(r"(?m)^ +", train.__doc__)
    parameters = list(inspect.signature(train).parameters)
    assert parameters == ["config", "model", "run", "resume", "initial", "hooks"]
    assert pickle.loads(pickle.dumps(train)).__doc__ == train.__doc__


def test_default_run_folders_are_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (create(None, "impala", Common(env="ALE/Pong-v5")) for _ in range(2))
    assert one.path != other.path
    assert one.path.name.startswith("impala-Pong-v5-20")
    assert one.path.parent == Path("runs")


def test_input_statistics_start_from_random_play() -> None:
    config = a2c.Config(env=toys.Counting)
    learner = training.make_learner(config)
    assert learner.model.state_dict()["normalizer.count"].item() > 0

    class Plain(networks.MLP):
        def __init__(self, observation_shape: tuple[int, ...], outputs: int):
            super().__init__(observation_shape, outputs)
            self.normalizer = torch.nn.Identity()

    plain = training.make_learner(config, Plain)
    assert not any("count" in name for name in plain.model.state_dict())


@pytest.mark.parametrize(("source", "is_there"), [("", True), ("raise OSError", False)])
def test_the_late_import_runs_in_a_thread_and_ignores_errors(
    source: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(training, "LATE_IMPORT", "imported_late")
    training.import_late().join()
    assert (sys.modules.pop("imported_late", None) is not None) == is_there
