"""Hooks: your own code at the moments of a run.

    class StopEarly(Hook):
        def on_row(self, session, row):
            row["mine/hours"] = row["time/seconds"] / 3600      # another column
            if row["rollout/return_mean"] > 400:
                session.stop("it is good enough")

    ppo.train(config, hooks=[StopEarly()])

    moment         when                                            given
    on_start       the run begins, or is resumed                   the session
    on_rollout     experience has come in, before it is learnt     its rollouts
    on_update      the learner has taken the steps of an update    its metrics
    on_evaluation  an evaluation has ended (`evaluate_every`)      the Evaluation
    on_row         a row of metrics is about to be written         the row, to which it may add
    on_end         the run has ended, and its folder is whole      the result

All are called in the run's own thread, so a slow hook slows training.  A hook that raises ends the
run in good order: its state is saved, and the error names the hook.  Hooks are not saved: pass them
again to resume.  With several learners they are called in the first, whose session is the run's.
The workers of a3c and n_step_q and the agents of ga3c keep their rollouts to themselves: there is
no `on_rollout`.
"""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from remotely_rl.acting.actor import Rollout
from remotely_rl.acting.evaluation import Evaluation
from remotely_rl.errors import TrainingError
from remotely_rl.runs.metrics import Row

if TYPE_CHECKING:
    from remotely_rl.runs.session import Result, Session

# What `Session.change` may change: what each update reads anew.
COEFFICIENTS = frozenset(
    {
        "clip_range", "entropy_coef", "entropy_coef_end", "epochs", "gae_lambda", "gamma",
        "learning_rate", "learning_rate_end", "minibatches", "value_coef",
    }
)  # fmt: skip


class Hook:
    """Does nothing at any moment; override those that you need.

    The session has what there is to see and to do: `env_steps`, `seconds()`, `progress`, `learner`
    and its `model`, `tally.recent` (the last 100 episodes), `folder.path`; `stop(why)`,
    `change(entropy_coef=0.0)`, `set_env_attr(name, value)`, `say(text)`.
    """

    def on_start(self, session: "Session[Any]") -> None:
        """The run begins, or is resumed."""

    def on_rollout(self, session: "Session[Any]", rollouts: Sequence[Rollout]) -> None:
        """Experience has come in; the learner has not seen it yet."""

    def on_update(self, session: "Session[Any]", metrics: Mapping[str, float]) -> None:
        """The learner has taken the steps of an update."""

    def on_evaluation(self, session: "Session[Any]", evaluation: Evaluation) -> None:
        """An evaluation has ended: its `mean`, `std`, `metrics`, and the `env_steps` of training
        that its policy had."""

    def on_row(self, session: "Session[Any]", row: Row) -> None:
        """A row of metrics is about to be written; numbers that are added become columns."""

    def on_end(self, session: "Session[Any]", result: "Result") -> None:
        """The run has ended, and its folder is whole."""


class Hooks:
    """The hooks of a run, called in their order."""

    def __init__(self, session: "Session[Any]", hooks: Sequence[Hook]):
        self._session, self._hooks = session, list(hooks)

    def start(self) -> None:
        """Call all as the run begins."""
        self._call("on_start")

    def rollout(self, rollouts: Sequence[Rollout]) -> None:
        """Call all with experience, if there is any."""
        if rollouts:
            self._call("on_rollout", rollouts)

    def update(self, metrics: Mapping[str, float]) -> None:
        """Call all with the metrics of an update."""
        self._call("on_update", metrics)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Call all with an evaluation."""
        self._call("on_evaluation", evaluation)

    def row(self, row: Row) -> None:
        """Let all add to a row.  Raises TrainingError for what is no number."""
        self._call("on_row", row)
        for name, number in row.items():
            if not isinstance(number, Real):
                raise TrainingError(
                    f"a hook has put {name} = {number!r} into a row of metrics: columns are numbers"
                )

    def end(self, result: "Result") -> None:
        """Call all as the run has ended."""
        self._call("on_end", result)

    def _call(self, moment: str, *args: Any) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, moment)(self._session, *args)
            except Exception as error:
                raise TrainingError(
                    f"the hook {type(hook).__name__} raised in {moment}:"
                    f" {type(error).__name__}: {error}"
                ) from error


def checked(hooks: Sequence[Any]) -> list[Hook]:
    """Return hooks of a run.  Raises TrainingError for what is none."""
    for hook in hooks:
        if isinstance(hook, type) and issubclass(hook, Hook):
            raise TrainingError(f"hooks has the class {hook.__name__}: pass an instance of it")
        if not isinstance(hook, Hook):
            raise TrainingError(
                f"hooks has a {type(hook).__name__}, which is no remotely_rl.Hook: subclass that"
            )
    return list(hooks)


def made(named: Any, name: str) -> Hook:
    """Return the hook that `--hook FILE.py:NAME` names: an instance, or what makes one."""
    hook = named() if callable(named) else named
    if not isinstance(hook, Hook):
        raise TrainingError(
            f"--hook {name} is a {type(hook).__name__}, and no remotely_rl.Hook, nor its class"
        )
    return hook
