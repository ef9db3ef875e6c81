"""A session: when it stops, what it leaves, and how it goes on."""

import dataclasses
import errno
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl import a2c, n_step_q, networks, ppo
from remotely_rl.acting.actor import Rollout
from remotely_rl.agents import load
from remotely_rl.config import Common
from remotely_rl.environments import Environments, Episode
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.runs import checkpoint, earlier_names, making, metrics, training
from remotely_rl.runs.run_folder import RunFolder, create
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = Common(env="CartPole-v1", log_interval_s=5.0, checkpoint_interval_s=30.0)
TRAINED = a2c.Config(
    env=toys.Guess, actors=1, envs_per_actor=4, rollout_steps=8, random_start=0, total_steps=100,
    learner_threads=1, log_interval_s=1e6, checkpoint_interval_s=1e6,
)  # fmt: skip


class Learner:
    """One number to save."""

    def __init__(self, width: int = 1):
        self.model = nn.Linear(width, 1)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])


class Narrow(networks.MLP):
    """Eight units where the model that fits has 64."""

    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__(shape, outputs)
        self.policy_body = nn.Sequential(nn.Linear(shape[0], 8))
        self.policy = nn.Linear(8, outputs)


class Clock:
    """A clock that is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def session(
    tmp_path: Path, config: Common | None = None, clock: Clock | None = None
) -> training.Session[Any]:
    config = config or CONFIG
    folder = create(tmp_path / "run", "toy", config)
    return training.Session("toy", config, folder, clock=clock or Clock())


def finished_run(tmp_path: Path) -> RunFolder:
    with session(tmp_path) as run:
        run.restore(Learner())
        run.tally.sampled(500, [Episode(9.0, 9)] * 30, {})
    return run.folder


def resumed(folder: RunFolder, clock: Clock | None = None) -> training.Session[Any]:
    saved = checkpoint.load(folder.checkpoint)
    return training.Session("toy", CONFIG, folder, saved, clock=clock or Clock())


# --- when it stops --------------------------------------------------------------------------------


def test_a_session_stops_when_the_steps_are_done(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", total_steps=100)) as run:
        run.tally.sampled(99, [], {})
        assert not run.over()
        run.tally.sampled(1, [], {})
        assert run.over()
    assert run.result.ended == "100 steps are done"


def test_a_session_stops_when_the_minutes_are_over(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, Common(env="CartPole-v1", minutes=2), clock) as run:
        clock.now += 119
        assert not run.over()
        clock.now += 1
        assert run.over()
    assert run.result.ended == "2 minutes are over"
    assert run.result.seconds == 120


def test_a_session_stops_at_its_target_but_not_for_a_lucky_few_games(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", target=8.0)) as run:
        run.tally.sampled(1, [Episode(9.0, 9)] * 29, {})
        assert not run.over()
        run.tally.sampled(1, [Episode(9.0, 9)], {})
        assert run.over()
    assert run.result.ended == "the mean return of 8 is reached"


def test_what_ended_a_session_first_is_what_it_says(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", total_steps=100)) as run:
        run.tally.sampled(100, [], {})
        assert run.over()
        signal.raise_signal(signal.SIGINT)
        assert run.over()
    assert run.result.ended == "100 steps are done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_ctrl_c_stops_at_the_next_turn_and_keeps_checkpoint_metrics_and_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with session(tmp_path) as run:
        run.restore(Learner())
        run.tally.sampled(10, [Episode(1.0, 5)], {})
        assert not run.over()
        signal.raise_signal(number)
        assert run.over()
    assert signal.getsignal(number) is before
    assert run.result.ended == f"stopped by {number.name}"
    assert run.folder.checkpoint.exists()
    assert run.folder.curve.exists()
    assert str(run.folder.path) in capsys.readouterr().out.splitlines()[-1]


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    with session(tmp_path):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# --- what it leaves -------------------------------------------------------------------------------


def test_rows_and_checkpoints_are_written_when_they_are_due(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        for _ in range(29):
            clock.now += 1
            run.tick()
        assert not run.folder.checkpoint.exists()
        clock.now += 1
        run.tick()
        rows = metrics.read(run.folder.metrics)
        assert [row["time/seconds"] for row in rows] == [5, 10, 15, 20, 25, 30]
        assert run.folder.checkpoint.exists()


def loop_that_raises(run: training.Session[Any], error: Exception) -> None:
    with run:
        run.restore(Learner())
        raise error


def test_a_loop_that_raises_keeps_its_checkpoint(tmp_path: Path) -> None:
    run = session(tmp_path)
    with pytest.raises(TrainingError):
        loop_that_raises(run, TrainingError("actors die"))
    assert run.folder.checkpoint.exists()
    assert run.result.ended == "TrainingError: actors die"


def test_a_learner_that_is_lost_leaves_the_last_good_checkpoint_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished_run(tmp_path)
    before = folder.checkpoint.read_bytes()
    run = resumed(folder)
    with pytest.raises(LearnerLost):
        loop_that_raises(run, LearnerLost("update 7 diverged"))
    assert folder.checkpoint.read_bytes() == before
    assert run.result.ended == "LearnerLost: update 7 diverged"
    said = capsys.readouterr().out.splitlines()
    assert f"the last good checkpoint is kept: --resume {folder.path}" in said


def test_an_error_of_the_gpu_loses_the_learner_too(tmp_path: Path) -> None:
    run = session(tmp_path)
    error = torch.AcceleratorError("CUDA error: unspecified launch failure\nmore of it")
    with pytest.raises(LearnerLost, match=r"the GPU is lost: CUDA error: unspecified launch failu"):
        loop_that_raises(run, error)
    assert not run.folder.checkpoint.exists()


def test_a_learner_that_is_lost_before_the_first_checkpoint_promises_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = session(tmp_path)
    with pytest.raises(LearnerLost):
        loop_that_raises(run, LearnerLost("update 1 diverged"))
    assert not run.folder.checkpoint.exists()
    said = capsys.readouterr().out
    assert "it came before the first checkpoint: there is none to resume from" in said
    assert "--resume" not in said


@pytest.mark.usefixtures("local")
def test_rewards_that_are_no_numbers_end_a_run_that_can_be_resumed_with_others(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    a2c.train(TRAINED, run=run)
    before = (run / "checkpoint.pt").read_bytes()

    def sick() -> toys.Guess:
        return toys.Poisoned()

    sick.__qualname__ = toys.Guess.__qualname__
    with pytest.raises(LearnerLost, match="look for NaN in rewards"):
        a2c.train(
            dataclasses.replace(TRAINED, env=sick, envs_per_actor=5, total_steps=200), resume=run
        )
    assert (run / "checkpoint.pt").read_bytes() == before
    result = a2c.train(dataclasses.replace(TRAINED, total_steps=200), resume=run)
    assert result.env_steps >= 200


def test_a_disk_that_is_full_is_told_of_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save, clock = checkpoint.save, Clock()

    def full(path: Path, content: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        monkeypatch.setattr(checkpoint, "save", full)
        for _ in range(4):  # rows are written meanwhile: they are small
            clock.now += 31
            run.tick()
        said = capsys.readouterr().out.splitlines()
        sentence = f"cannot write to {run.folder.path}: No space left on device; going on"
        assert said.count(sentence) == 1
        assert not run.folder.checkpoint.exists()

        monkeypatch.setattr(checkpoint, "save", save)
        clock.now += 31
        run.tick()
        said = capsys.readouterr().out.splitlines()
        assert said.count(f"{run.folder.path} can be written to again") == 1
        assert run.folder.checkpoint.exists()
    assert len(metrics.read(run.folder.metrics)) == 6


def test_a_file_that_there_is_no_room_for_is_an_oserror_and_leaves_the_one_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"n": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint.save(path, {"n": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.load(path)["n"] == 1
    checkpoint.save(path, {"n": 2})
    assert checkpoint.load(path)["n"] == 2


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"n": 1})

    class Unsaveable:
        def __reduce__(self) -> Any:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        checkpoint.save(path, {"n": Unsaveable()})
    assert checkpoint.load(path)["n"] == 1


@pytest.mark.parametrize(("number", "age"), [(1, "an earlier"), (1000, "a later")])
def test_a_checkpoint_of_another_version_is_refused_with_both_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, age: str
) -> None:
    ours = checkpoint.FORMAT
    monkeypatch.setattr(checkpoint, "FORMAT", number)
    checkpoint.save(tmp_path / "checkpoint.pt", {})
    monkeypatch.undo()
    said = f"written by {age} version of remotely_rl: it has format {number}, .* format {ours}"
    with pytest.raises(TrainingError, match=said):
        checkpoint.load(tmp_path / "checkpoint.pt")


@pytest.mark.usefixtures("local")
def test_what_a_checkpoint_holds_is_that_of_its_format(tmp_path: Path) -> None:
    # If this fails, raise checkpoint.FORMAT and change what is here: older runs are refused then.
    a2c.train(TRAINED, run=tmp_path / "run")
    content = checkpoint.load(tmp_path / "run" / "checkpoint.pt")
    assert checkpoint.FORMAT == 3
    assert content.keys() == {
        "format", "algorithm", "env", "learner", "counters", "recent", "random", "actors",
        "times_resumed",
    }  # fmt: skip
    assert content["learner"].keys() == {
        "version", "rate", "rate_given", "scale", "model", "optimizer", "random", "cuda_random",
    }  # fmt: skip


def test_the_half_of_a_checkpoint_that_a_killed_run_left_does_not_hurt(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    half = folder.checkpoint.with_suffix(".pt.tmp")
    whole = folder.checkpoint.read_bytes()
    half.write_bytes(whole[: len(whole) // 2])  # kill -9 came in the middle of the next
    with resumed(folder) as run:
        run.restore(Learner())
        assert run.env_steps == 500
    assert not half.exists()  # the next save has taken its place
    assert checkpoint.load(folder.checkpoint)["times_resumed"] == 1


def test_the_best_return_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        for score, best in ((5.0, 5.0), (1.0, 5.0), (8.0, 8.0)):
            run.tally.sampled(1, [Episode(score, 1)] * 100, {})
            clock.now += 6
            run.tick()
            assert checkpoint.load(run.folder.best)["counters"]["best_return"] == best


def test_a_run_that_crashed_goes_on_without_losing_its_best_agent(tmp_path: Path) -> None:
    clock = Clock()
    folder = finished_run(tmp_path)  # its mean is 9
    with resumed(folder, clock) as run:
        run.restore(Learner())
        run.tally.sampled(1, [Episode(20.0, 1)] * 30, {})
        clock.now += 6
        run.tick()
        best = folder.best.read_bytes()
        before = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(before)  # kill -9 came before the next checkpoint
    with resumed(folder, clock) as run:
        run.restore(Learner())
        run.tally.sampled(1, [Episode(15.0, 1)] * 30, {})
        clock.now += 6
        run.tick()
    assert folder.best.read_bytes() == best
    assert run.result.best_return == 20.0


def test_the_folder_keeps_what_was_asked_for(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    kept = json.loads((folder.path / "config.json").read_text())
    assert kept == {"algorithm": "toy", "config": dataclasses.asdict(CONFIG)}


def test_runs_without_a_name_get_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (create(None, "impala", Common(env="ALE/Pong-v5")) for _ in range(2))
    assert one.path != other.path
    assert one.path.name.startswith("impala-Pong-v5-20")
    assert one.path.parent == Path("runs")


def test_a_run_folder_that_exists_is_not_written_into(tmp_path: Path) -> None:
    finished_run(tmp_path)
    with pytest.raises(TrainingError, match=r"exists already; go on with it by --resume"):
        session(tmp_path)


# --- what it counts -------------------------------------------------------------------------------


class Stream:
    """Gives what it was given."""

    def __init__(self, rollouts: list[Rollout | None]):
        self.rollouts = rollouts

    def take(self, timeout_s: float) -> Rollout | None:
        return self.rollouts.pop(0)


def rollout(seed: int, **changes: Any) -> Rollout:
    return toys.actor(TRAINED, toys.network(), seed, **changes).sample()


def test_a_batch_is_gathered_of_what_holds_experience_and_nothing_is_lost(tmp_path: Path) -> None:
    one, two = rollout(1), rollout(2)
    empty = rollout(3)
    nothing = dataclasses.replace(empty.trajectory, valid=np.zeros_like(empty.trajectory.valid))
    empty = Rollout(nothing, [Episode(1.0, 1)], {})
    stream: Any = Stream([one, None, empty, two])
    with session(tmp_path) as run:
        gathered = [run.gather(stream, 2) for _ in range(4)]
        assert gathered[:3] == [None] * 3
        assert gathered[3] is not None
        both = [one.trajectory.obs, two.trajectory.obs]
        assert (gathered[3].obs == np.concatenate(both, axis=1)).all()
        assert run.env_steps == one.steps + two.steps
        games = len(one.episodes) + len(two.episodes) + 1
        assert run.tally.counters.episodes == games


def test_no_two_actors_ever_share_a_stream_of_random_numbers(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    seeds = set()
    for _ in range(2):
        with resumed(folder) as run:
            run.restore(Learner())
            seeds |= {run.stream_of(number) for number in range(100)}
    assert len(seeds) == 200
    with resumed(folder) as run:
        assert run.times_resumed == 3


# --- how it goes on -------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    clock = Clock()
    clock.now = 5000.0
    saved = checkpoint.load(folder.checkpoint)
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


def test_random_numbers_go_on_from_where_the_checkpoint_was_made(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    torch.set_rng_state(checkpoint.load(folder.checkpoint)["random"])
    want = torch.rand(3)
    with resumed(folder) as run:
        run.restore(Learner())
        assert torch.equal(torch.rand(3), want)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("change", [{"rollout_steps": 4}, {"envs_per_actor": 8}], ids=str)
def test_a_resumed_run_is_as_long_and_as_wide_as_it_is_told_by_then(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    first = a2c.train(TRAINED, run=tmp_path / "run")
    config = dataclasses.replace(TRAINED, total_steps=200, **change)
    result = a2c.train(config, resume=tmp_path / "run")
    steps, updates = result.env_steps - first.env_steps, result.updates - first.updates
    # Every other row of Guess resets.
    assert steps == updates * config.rollout_steps * config.envs_per_actor / 2


@pytest.mark.usefixtures("local")
def test_a_run_without_a_config_is_resumed_by_its_own(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINED, env="CartPole-v1", gamma=0.5)
    a2c.train(config, run=tmp_path / "run")
    session = training.begin("a2c", a2c.Config, None, resume=tmp_path / "run")
    with session:
        assert session.learner.config == config


@pytest.mark.usefixtures("local")
def test_a_run_of_an_earlier_version_is_resumed_by_the_names_of_today(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINED, env="CartPole-v1", gae_lambda=0.5)
    a2c.train(config, run=tmp_path / "run")
    file = RunFolder(tmp_path / "run").config
    text = file.read_text()
    for name, today in earlier_names.FIELDS.items():
        text = text.replace(f'"{today}"', f'"{name}"')
    assert '"trace_decay": 0.5' in text
    file.write_text(text)
    written = RunFolder(tmp_path / "run").checkpoint
    content = checkpoint.load(written)
    model = content["learner"]["model"]
    content["learner"]["model"] = {
        name.replace("normalizer", "normaliser"): tensor for name, tensor in model.items()
    }
    assert content["learner"]["model"].keys() != model.keys()
    checkpoint.save(written, content)
    assert load.load(tmp_path / "run").model.state_dict().keys() == model.keys()
    with training.begin("a2c", a2c.Config, None, resume=tmp_path / "run") as session:
        assert session.learner.config == config


@pytest.mark.usefixtures("local")
def test_what_a_run_is_resumed_with_holds_at_the_next_resume_too(tmp_path: Path) -> None:
    run, config = tmp_path / "run", dataclasses.replace(TRAINED, env="CartPole-v1")
    a2c.train(config, run=run)
    a2c.train(dataclasses.replace(config, total_steps=200, gamma=0.9), resume=run)
    assert training.config_of(a2c.Config, "a2c", run).gamma == 0.9
    result = a2c.train(resume=run)
    assert result.ended == "200 steps are done"
    assert [path.name for path in run.glob("*.tmp")] == []


def test_fields_that_an_algorithm_never_used_are_left_out_of_the_config_of_an_earlier_run(
    tmp_path: Path,
) -> None:
    folder = create(tmp_path / "run", "n_step_q", n_step_q.Config(env="CartPole-v1", gamma=0.5))
    content = json.loads(folder.config.read_text())
    content["config"] |= {"entropy": 0.0, "entropy_coef_end": 0.0, "device": "auto"}
    folder.config.write_text(json.dumps(content))
    config = training.config_of(n_step_q.Config, "n_step_q", folder.path)
    assert config == n_step_q.Config(env="CartPole-v1", gamma=0.5)


@pytest.mark.usefixtures("local")
def test_a_steered_rate_begins_anew_only_where_one_is_given_to_resume_with(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = {field: getattr(TRAINED, field) for field in ("rollout_steps", "actors", "total_steps")}
    config = ppo.Config(env="CartPole-v1", target_kl=1000.0, **given)  # nothing moves so far
    ppo.train(config, run=run)
    for override, want in (({}, 1.5e-3), ({"learning_rate": 1e-3}, 1e-3)):
        config = training.config_of(ppo.Config, "ppo", run, override)
        with training.begin("ppo", ppo.Config, config, resume=run) as session:
            session.rounds()
            assert session.learner.learning_rate.value == pytest.approx(want)


@pytest.mark.usefixtures("local")
def test_a_run_that_cannot_be_resumed_as_told_keeps_its_config(tmp_path: Path) -> None:
    run, config = tmp_path / "run", dataclasses.replace(TRAINED, env="CartPole-v1")
    a2c.train(config, run=run)
    with pytest.raises(TrainingError, match="checkpoint of another model"):
        a2c.train(dataclasses.replace(config, lstm=4), resume=run)
    assert training.config_of(a2c.Config, "a2c", run) == config


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ({}, {}, ""),
        ({"actors": 2}, {}, "there were 2 actors, and there are 1 now: new games begin"),
        ({"env": toys.Unsaveable}, {"env": toys.Unsaveable}, "the environments could not be saved"),
        ({}, {"envs_per_actor": 8}, "the environments are not those that were saved"),
    ],
    ids=str,
)
def test_why_new_games_begin_after_a_resume_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: dict[str, Any],
    then: dict[str, Any],
    said: str,
) -> None:
    a2c.train(dataclasses.replace(TRAINED, **first), run=tmp_path / "run")
    capsys.readouterr()
    a2c.train(dataclasses.replace(TRAINED, total_steps=200, **then), resume=tmp_path / "run")
    told = capsys.readouterr().out
    assert said in told
    assert ("new games begin" in told) == bool(said)


@pytest.mark.parametrize(
    ("spoil", "algorithm", "env", "said"),
    [
        (lambda f: None, "ppo", "CartPole-v1", "is a run of toy; resume it with that, not ppo"),
        (lambda f: None, "toy", "Acrobot-v1", "is a run on CartPole-v1, not on Acrobot-v1"),
        (lambda f: f.checkpoint.unlink(), "toy", "CartPole-v1", "has no checkpoint"),
        (lambda f: f.checkpoint.write_bytes(b"?"), "toy", "CartPole-v1", "no checkpoint that can"),
        (lambda f: torch.save({}, f.checkpoint), "toy", "CartPole-v1", "is no checkpoint of"),
        (lambda f: f.config.unlink(), "toy", "CartPole-v1", "is no run folder"),
        (lambda f: f.config.write_text("{"), "toy", "CartPole-v1", "cannot be read"),
        (lambda f: f.config.write_text("{}"), "toy", "CartPole-v1", "says neither algorithm nor"),
    ],
)  # fmt: skip
def test_what_cannot_be_resumed_says_why(
    tmp_path: Path, spoil: Callable[[RunFolder], None], algorithm: str, env: str, said: str
) -> None:
    folder = finished_run(tmp_path)
    spoil(folder)
    with pytest.raises(TrainingError, match=said):
        training.begin(algorithm, Common, Common(env=env), resume=folder.path)


def test_an_option_of_another_version_is_answered_with_the_nearest_of_this(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    kept = json.loads(folder.config.read_text())
    kept["config"]["gama"] = kept["config"].pop("gamma")
    folder.config.write_text(json.dumps(kept))
    with pytest.raises(TrainingError, match="toy has no option 'gama', did you mean 'gamma'"):
        training.begin("toy", Common, None, resume=folder.path)


def test_there_is_nothing_to_resume_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no run folder"):
        training.begin("toy", Common, CONFIG, resume=tmp_path / "nowhere")


def test_a_run_is_either_new_or_resumed(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    with pytest.raises(TrainingError, match="give --resume alone, without --run"):
        training.begin("toy", Common, CONFIG, run=tmp_path / "other", resume=folder.path)


@pytest.mark.usefixtures("local")
def test_a_checkpoint_of_another_model_is_told_by_its_first_difference(tmp_path: Path) -> None:
    run = tmp_path / "run"
    a2c.train(TRAINED, run=run)
    before = (run / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match="checkpoint of another model: it holds nothing as"):
        a2c.train(dataclasses.replace(TRAINED, lstm=4), resume=run)
    said = r"another model: it holds \[64, 2\] as 'policy_body.0.weight', .* has \[8, 2\]"
    with pytest.raises(TrainingError, match=said):
        a2c.train(dataclasses.replace(TRAINED, total_steps=200), Narrow, resume=run)
    assert (run / "checkpoint.pt").read_bytes() == before


def test_statistics_begin_with_random_play_where_there_is_something_to_normalise() -> None:
    config = a2c.Config(env=toys.Counting)
    learner = making.make_learner(config)
    assert learner.model.state_dict()["normalizer.count"].item() > 0

    class Plain(networks.MLP):
        def __init__(self, observation_shape: tuple[int, ...], outputs: int):
            super().__init__(observation_shape, outputs)
            self.normalizer = torch.nn.Identity()  # type: ignore[assignment]

    def play_randomly(self: object, steps: int, seed: int) -> None:
        raise AssertionError("nobody asked for it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environments, "play_randomly", play_randomly)
        making.make_learner(config, Plain)
