"""The result of a training run."""

from pathlib import Path
from typing import NamedTuple

from remotely_rl.runs import notebook, progress
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.process import STOPPED_BY
from remotely_rl.runs.run_folder import RunFolder


class Result(NamedTuple):
    """The result of a run.  All counts are since its beginning, before any resume.

    `return_mean` is over the last 100 episodes; `best_return` is the best mean over 30 episodes
    at the time of a row.
    """

    run: Path
    ended: str
    seconds: float
    env_steps: int
    updates: int
    episodes: int
    return_mean: float
    best_return: float
    # Steps since the run was started or resumed; None if it had already reached its limit.
    new_steps: int | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM has stopped it: a script that trains once more stops too."""
        return self.ended.startswith(STOPPED_BY)

    @classmethod
    def of(cls, run: Path, ended: str, tally: Tally, new_steps: int | None = None) -> "Result":
        """Return the result of a run with this tally."""
        counters = tally.counters
        return cls(
            run=run,
            ended=ended,
            seconds=counters.seconds,
            env_steps=counters.env_steps,
            updates=counters.updates,
            episodes=counters.episodes,
            return_mean=tally.return_mean(),
            best_return=counters.best_return,
            new_steps=new_steps,
        )

    def _repr_html_(self) -> str:
        """Return a table and the learning curve, for notebooks."""
        facts = {
            "run": self.run,
            "ended": self.ended,
            "time": progress.clock(self.seconds),
            "steps": f"{self.env_steps:,}",
            "episodes": f"{self.episodes:,}",
            "mean return of the last 100": progress.number(self.return_mean),
        }
        return notebook.as_html(facts, RunFolder(self.run).curve)
