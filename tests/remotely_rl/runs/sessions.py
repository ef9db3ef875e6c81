"""Sessions of runs without actors, and a learner with one parameter."""

from pathlib import Path
from typing import Any

from torch import nn

from remotely_rl import a2c
from remotely_rl.acting.actor import AS_MADE
from remotely_rl.config import Common
from remotely_rl.environments import Episode
from remotely_rl.runs import run_folder, training
from remotely_rl.runs.run_folder import RunFolder, create
from tests.remotely_rl import toys

CONFIG = a2c.Config(
    env="CartPole-v1", random_start=0, log_interval_s=5.0, checkpoint_interval_s=30.0
)
TRAINED = a2c.Config(
    env=toys.Guess,
    actors=1,
    envs_per_actor=4,
    rollout_steps=8,
    random_start=0,
    total_steps=100,
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
)


class Learner:
    """A TrainedLearner that learns nothing."""

    config: Any = None
    env_attributes = AS_MADE
    version = 0

    def __init__(self, width: int = 1):
        self.model = nn.Linear(width, 1)

    def change(self, **coefficients: Any) -> None: ...

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def session(
    tmp_path: Path,
    config: Common | None = None,
    clock: Clock | None = None,
    learner: Any = None,
) -> training.Session[Any]:
    config = config or CONFIG
    folder = create(tmp_path / "run", "toy", config)
    return training.Session("toy", config, folder, learner=learner, clock=clock or Clock())


def finished_run(tmp_path: Path) -> RunFolder:
    with session(tmp_path) as run:
        run.restore(Learner())
        run.tally.sampled(500, [Episode(9.0, 9)] * 30, {})
    return run.folder


def resumed(
    folder: RunFolder, clock: Clock | None = None, config: Common = CONFIG
) -> training.Session[Any]:
    saved = run_folder.load_checkpoint(folder.checkpoint)
    return training.Session("toy", config, folder, saved, clock=clock or Clock())
