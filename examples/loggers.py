"""Hooks that log a run's metrics to Weights & Biases, MLflow or Trackio, ten lines each.

    pip install trackio
    remotely-rl train ppo --env CartPole-v1 --minutes 1 --hook examples/loggers.py:Trackio

Copy the one that you use.  A metric without a value is NaN, and is not logged.
"""

import dataclasses
import importlib
import math
from typing import Any

from remotely_rl import Hook, TrainingError


class WandB(Hook):
    def on_start(self, session: Any) -> None:
        self.wandb = package("wandb")
        config = dataclasses.asdict(session.learner.config)
        self.wandb.init(project="remotely_rl", name=session.folder.path.name, config=config)

    def on_row(self, session: Any, row: dict[str, float]) -> None:
        self.wandb.log(numbers(row), step=session.env_steps)

    def on_end(self, session: Any, result: Any) -> None:
        self.wandb.finish()


class MLflow(Hook):
    def on_start(self, session: Any) -> None:
        self.mlflow = package("mlflow")
        self.mlflow.start_run(run_name=session.folder.path.name)
        self.mlflow.log_params(dataclasses.asdict(session.learner.config))

    def on_row(self, session: Any, row: dict[str, float]) -> None:
        self.mlflow.log_metrics(numbers(row), step=session.env_steps)

    def on_end(self, session: Any, result: Any) -> None:
        self.mlflow.end_run()


class Trackio(Hook):
    def on_start(self, session: Any) -> None:
        self.trackio = package("trackio")
        config = dataclasses.asdict(session.learner.config)
        self.trackio.init(project="remotely_rl", name=session.folder.path.name, config=config)

    def on_row(self, session: Any, row: dict[str, float]) -> None:
        self.trackio.log(numbers(row))

    def on_end(self, session: Any, result: Any) -> None:
        self.trackio.finish()


def numbers(row: dict[str, float]) -> dict[str, float]:
    """Return a row without its NaN values."""
    return {name: number for name, number in row.items() if not math.isnan(number)}


def package(name: str) -> Any:
    """Import a package that is not one of remotely's own."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TrainingError(f"{error}: pip install {name}") from error
