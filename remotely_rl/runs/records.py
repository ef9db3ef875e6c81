"""The records of a run, for those who watch it: the session tells them what happens.

Of several learners rank 0 keeps them for all (`RunRecords`); the records of the others (`Records`)
are empty.  So a session does the same at every rank.  Their parts:

    recorder.py     rows, checkpoints, the live table
    evaluating.py   evaluations beside training
    hooks.py        the user's own code
    phases.py       what a run waits for until its first row
    status.py       the lock of the folder, and how the run has ended
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from remotely_rl.acting.actor import Rollout
from remotely_rl.config import Common
from remotely_rl.environments.spaces import Spaces
from remotely_rl.runs.derived_seeds import seed_of_evaluation
from remotely_rl.runs.ending import Reason
from remotely_rl.runs.evaluating import Evaluating, Evaluations, MeasuredPolicy, Policy
from remotely_rl.runs.hooks import Hooks
from remotely_rl.runs.metrics import Row, Tally
from remotely_rl.runs.phases import Phases
from remotely_rl.runs.progress import RunProgress
from remotely_rl.runs.recorder import Recorder
from remotely_rl.runs.result import Result
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.status import TrainingLock
from remotely_rl.supervision import Crashes
from remotely_rl.supervision.logbook import Logbook


class Records:
    """The records of a learner other than rank 0: none.  `now` is in seconds of the run."""

    def __init__(self, config: Common) -> None:
        # This is an actor's process, whose output appears on the run's terminal.
        self.crashes = Crashes(print, config.max_crash_rate)

    @property
    def saved_steps(self) -> int:
        """The environment steps in the last checkpoint; 0 if there is none."""
        return 0

    def begin(self, opening: Sequence[str], gpu: str | None) -> None:
        """The session begins, with these lines."""

    def say(self, text: str) -> None:
        """Print a line for the user, which stays on the terminal."""

    def know_best(self, evaluated: float) -> None:
        """An earlier process of this run has measured a policy this good."""

    def sampled(self, rollouts: Sequence[Rollout]) -> None:
        """Rollouts have arrived, perhaps none; the learner has not used them yet."""

    def updated(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """The learner has finished an update."""

    def look(self) -> None:
        """Report the running evaluation, if it has ended."""

    def begin_due_evaluation(self, env_steps: int) -> None:
        """Start an evaluation of the current policy, if one is due."""

    def write_due_row(self, now: float) -> None:
        """Write a row, if due."""

    def write_due(self, now: float) -> None:
        """Write a row and a checkpoint, each if due."""

    def log_image(self, name: str, image: Any) -> None:
        """Write an image."""

    def log_histogram(self, name: str, numbers: Any) -> None:
        """Write a histogram."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of them."""
        return {}

    def lost(self) -> None:
        """The learner is lost."""

    def end_phases(self) -> None:
        """Nothing is waited for any more."""

    def end_evaluations(self, env_steps: int | None, is_cut_short: Callable[[], bool]) -> None:
        """Wait for the running evaluation and, with `env_steps`, for one that is due."""

    def finish(self, now: float, *, has_learner: bool) -> None:
        """Write the last row and checkpoint, and draw the curve."""

    def conclude(self, summary: str, result: Result) -> None:
        """Tell the user, and the hooks, how the run has ended."""

    def write_end(self, reason: Reason) -> None:
        """Write how the run has ended, for those who look at its folder."""

    def close(self) -> None:
        """Discard a running evaluation, and release the folder."""


class RunRecords(Records):
    """The records of rank 0."""

    def __init__(
        self,
        folder: RunFolder,
        title: str,
        config: Common,
        tally: Tally,
        hooks: Hooks,
        *,
        saved: dict[str, Any] | None,
        spaces: Spaces | None,
        content: Callable[[Path], dict[str, Any] | None],
        policy: Callable[[], Policy | None],
        progress: RunProgress | None = None,
        claim: TrainingLock | None = None,
    ) -> None:
        """`content(path)` returns what to write at this path, or None; `policy` the current one,
        if there is a learner.  Without `claim`, this claims the folder before it changes a file.
        """
        self._folder, self._config, self._tally, self._hooks = folder, config, tally, hooks
        self._claim = claim or TrainingLock(folder)
        self._recorder = Recorder(folder, title, config, tally, content, progress, self._on_row)
        say = self._recorder.say
        self.crashes = Crashes(say, config.max_crash_rate, keep=Logbook(folder.crashes))
        self._phases: Phases | None = Phases(say)  # until the first row
        self._updates_before = tally.counters.updates
        self._known = (saved or {}).get("evaluations", {})
        self._evaluating: Evaluating | None = None
        if config.evaluate_every:

            def seed_of(env_steps: int) -> int:
                return seed_of_evaluation(config.seed, env_steps)

            evaluations = Evaluations(config, say, seed_of, self._known, spaces)
            self._evaluating = Evaluating(evaluations, policy, self._measured, say)

    @property
    def saved_steps(self) -> int:
        return self._recorder.saved_steps

    def begin(self, opening: Sequence[str], gpu: str | None) -> None:
        for text in opening:
            self.say(text)
        self._claim.begin(gpu)
        self._hooks.start()
        self._enter("the actors start, make their environments, and play")

    def say(self, text: str) -> None:
        self._recorder.say(text)

    def know_best(self, evaluated: float) -> None:
        if self._evaluating is not None:
            self._evaluating.know_best(evaluated)

    def sampled(self, rollouts: Sequence[Rollout]) -> None:
        if rollouts and not self._has_learnt:
            self._enter("experience comes in; the first update is made")
        self._hooks.rollout(rollouts)

    def updated(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        if not self._has_learnt:
            every_s = f"{self._config.log_interval_s:g} s"
            self._enter(f"it learns; the first row comes with a game's end or {every_s}")
        self._recorder.count_update(metrics, staleness)
        self._hooks.update(metrics)

    def look(self) -> None:
        if self._evaluating is not None:
            self._evaluating.look()

    def begin_due_evaluation(self, env_steps: int) -> None:
        if self._evaluating is not None:
            self._evaluating.begin_if_due(env_steps)

    def write_due_row(self, now: float) -> None:
        self._recorder.write_due_row(now)

    def write_due(self, now: float) -> None:
        self._recorder.write_due(now)

    def log_image(self, name: str, image: Any) -> None:
        self._recorder.log_image(name, image)

    def log_histogram(self, name: str, numbers: Any) -> None:
        self._recorder.log_histogram(name, numbers)

    def state(self) -> dict[str, Any]:
        known = self._known if self._evaluating is None else self._evaluating.state()
        return {"evaluations": known} if known else {}

    def lost(self) -> None:
        if self._folder.checkpoint.exists():
            self.say(f"the last good checkpoint is kept: --resume {self._folder.path}")
        else:
            self.say("there is no checkpoint yet to resume from")

    def end_phases(self) -> None:
        if self._phases is not None:
            self._phases.end()
            self._phases = None

    def end_evaluations(self, env_steps: int | None, is_cut_short: Callable[[], bool]) -> None:
        if self._evaluating is not None:
            self._evaluating.end(env_steps, is_cut_short)

    def finish(self, now: float, *, has_learner: bool) -> None:
        self._recorder.finish(now, has_learner)

    def conclude(self, summary: str, result: Result) -> None:
        self._recorder.say_summary(summary)
        self._hooks.end(result)

    def write_end(self, reason: Reason) -> None:
        self._claim.end(*reason)

    def close(self) -> None:
        try:
            if self._evaluating is not None:
                self._evaluating.close()
        finally:
            self._claim.release()

    @property
    def _has_learnt(self) -> bool:
        """Whether there was an update since the start, or the resume."""
        return self._tally.counters.updates > self._updates_before

    def _enter(self, phase: str) -> None:
        if self._phases is not None:
            self._phases.enter(phase)

    def _on_row(self, row: Row) -> None:
        self.end_phases()
        self._hooks.row(row)

    def _measured(self, measured: MeasuredPolicy) -> None:
        self._recorder.evaluated(measured)
        self._hooks.evaluation(measured.evaluation)
