"""A session: when it stops, what it leaves, and how it goes on."""

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remotely_rl import checkpoint, metrics, training
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError
from remotely_rl.run_folder import RunFolder, create


@dataclasses.dataclass(frozen=True)
class Config:
    env: str = "CartPole-v1"
    steps: int = 0
    minutes: float = 0.0
    target: float | None = None
    interval_s: float = 5.0
    checkpoint_s: float = 30.0


class Learner:
    """One number to save."""

    def __init__(self, width: int = 1):
        self.model = nn.Linear(width, 1)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])


class Clock:
    """A clock that is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def session(
    tmp_path: Path, config: Config | None = None, clock: Clock | None = None
) -> training.Session:
    config = config or Config()
    folder = create(tmp_path / "run", "toy", config)
    return training.Session("toy", config, folder, clock=clock or Clock())


def finished_run(tmp_path: Path) -> RunFolder:
    with session(tmp_path) as run:
        run.restore(Learner())
        run.tally.sampled(500, [Episode(9.0, 9)] * 30, {})
    return run.folder


def test_a_session_stops_when_the_steps_are_done(tmp_path: Path) -> None:
    with session(tmp_path, Config(steps=100)) as run:
        run.tally.sampled(99, [], {})
        assert not run.over()
        run.tally.sampled(1, [], {})
        assert run.over()
    assert run.result.ended == "100 steps are done"


def test_a_session_stops_when_the_minutes_are_over(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, Config(minutes=2), clock) as run:
        clock.now += 119
        assert not run.over()
        clock.now += 1
        assert run.over()
    assert run.result.ended == "2 minutes are over"
    assert run.result.seconds == 120


def test_a_session_stops_at_its_target_but_not_for_a_lucky_few_games(tmp_path: Path) -> None:
    with session(tmp_path, Config(target=8.0)) as run:
        run.tally.sampled(1, [Episode(9.0, 9)] * 19, {})
        assert not run.over()
        run.tally.sampled(1, [Episode(9.0, 9)], {})
        assert run.over()


def test_rows_and_checkpoints_are_written_when_they_are_due(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        for _ in range(31):
            clock.now += 1
            run.tick()
        rows = metrics.read(run.folder.metrics)
        assert [row["seconds"] for row in rows] == [5, 10, 15, 20, 25, 30]
        assert run.folder.checkpoint.exists()


def test_ctrl_c_stops_at_the_next_turn_and_keeps_checkpoint_metrics_and_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with session(tmp_path) as run:
        run.restore(Learner())
        run.tally.sampled(10, [Episode(1.0, 5)], {})
        assert not run.over()
        signal.raise_signal(signal.SIGINT)
        assert run.over()
    assert signal.getsignal(signal.SIGINT) is before
    assert run.result.ended == "stopped by SIGINT"
    assert run.folder.checkpoint.exists()
    assert run.folder.curve.exists()
    assert str(run.folder.path) in capsys.readouterr().out.splitlines()[-1]


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    with session(tmp_path):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_loop_that_raises_keeps_its_checkpoint(tmp_path: Path) -> None:
    def loop(run: training.Session) -> None:
        with run:
            run.restore(Learner())
            raise TrainingError("actors die")

    run = session(tmp_path)
    with pytest.raises(TrainingError):
        loop(run)
    assert run.folder.checkpoint.exists()
    assert run.result.ended == "TrainingError: actors die"


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    clock = Clock()
    clock.now = 5000.0
    saved = checkpoint.load(folder.checkpoint)
    with training.Session("toy", Config(), folder, saved, clock=clock) as run:
        learner = Learner()
        run.restore(learner)
        assert run.tally.counters.env_steps == 500
        assert run.tally.return_mean() == 9.0
        assert run.times_resumed == 1
        assert learner.model.state_dict()["weight"] == saved["learner"]["model"]["weight"]
        clock.now += 7
        assert run.seconds() == saved["counters"]["seconds"] + 7
        run.tick()
    assert [row["env_steps"] for row in metrics.read(folder.metrics)][-2:] == [500, 500]


def test_random_numbers_go_on_from_where_the_checkpoint_was_made(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    want = torch.rand(3)
    with training.begin("toy", Config(), resume=folder.path) as run:
        run.restore(Learner())
        assert torch.equal(torch.rand(3), want)


def test_the_best_return_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path, clock=clock) as run:
        run.restore(Learner())
        for score, best in ((5.0, 5.0), (1.0, 5.0), (8.0, 8.0)):
            run.tally.sampled(1, [Episode(score, 1)] * 100, {})
            clock.now += 6
            run.tick()
            assert checkpoint.load(run.folder.best)["counters"]["best_return"] == best


def test_the_folder_keeps_what_was_asked_for(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    kept = json.loads((folder.path / "config.json").read_text())
    assert kept == {"algorithm": "toy", "config": dataclasses.asdict(Config())}


def test_runs_without_a_name_get_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (create(None, "impala", Config(env="ALE/Pong-v5")) for _ in range(2))
    assert one.path != other.path
    assert one.path.name.startswith("impala-Pong-v5-20")
    assert one.path.parent == Path("runs")


def test_a_run_folder_that_exists_is_not_written_into(tmp_path: Path) -> None:
    finished_run(tmp_path)
    with pytest.raises(TrainingError, match=r"exists already; go on with it by --resume"):
        session(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "algorithm", "env", "said"),
    [
        (lambda f: None, "ppo", "CartPole-v1", "is a run of toy; resume it with that, not ppo"),
        (lambda f: None, "toy", "Acrobot-v1", "is a run on CartPole-v1, not on Acrobot-v1"),
        (lambda f: f.checkpoint.unlink(), "toy", "CartPole-v1", "has no checkpoint"),
        (lambda f: f.checkpoint.write_bytes(b"?"), "toy", "CartPole-v1", "no checkpoint that can"),
        (lambda f: torch.save({}, f.checkpoint), "toy", "CartPole-v1", "not a checkpoint of this"),
        (lambda f: f.config.unlink(), "toy", "CartPole-v1", "is no run folder"),
        (lambda f: f.config.write_text("{"), "toy", "CartPole-v1", "cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_resumed_says_why(
    tmp_path: Path, spoil: Callable[[RunFolder], None], algorithm: str, env: str, said: str
) -> None:
    folder = finished_run(tmp_path)
    spoil(folder)
    with pytest.raises(TrainingError, match=said):
        training.begin(algorithm, Config(env=env), resume=folder.path)


def test_there_is_nothing_to_resume_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no run folder"):
        training.begin("toy", Config(), resume=tmp_path / "nowhere")


def test_a_checkpoint_of_another_model_is_told_by_its_first_difference(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    run = training.begin("toy", Config(), resume=folder.path)
    said = r"checkpoint of another model: it holds \[1, 1\] as 'weight', Linear has \[1, 2\]"
    with pytest.raises(TrainingError, match=said), run:
        run.restore(Learner(width=2))
    assert checkpoint.load(folder.checkpoint)["learner"]["model"]["weight"].shape == (1, 1)


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"n": 1})

    class Unsaveable:
        def __reduce__(self) -> Any:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        checkpoint.save(path, {"n": Unsaveable()})
    assert checkpoint.load(path)["n"] == 1
