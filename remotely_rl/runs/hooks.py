"""Hooks: your own code, called at certain moments of a run.

    class StopEarly(Hook):
        def on_row(self, session, row):
            row["mine/hours"] = row["time/seconds"] / 3600      # another column
            if row["rollout/return_mean"] > 400:
                session.stop("the return is good enough")

    ppo.train(config, hooks=[StopEarly()])

    moment         when                                            given
    on_start       the run starts, or is resumed                   the session
    on_rollout     rollouts have arrived, and are not used yet     the rollouts
    on_update      the learner has finished an update              its metrics
    on_evaluation  an evaluation has ended (`evaluate_every`)      the Evaluation
    on_row         a row of metrics is about to be written         the row, to which it may add
    on_end         the run has ended, and its folder is complete   the result

Hooks run in the run's own thread, so a slow hook slows training.  A hook that raises ends the run
gracefully: its state is saved, and the error names the hook and the line.  A method `on_...` that
is not in the table is refused.  Hooks are not saved: pass them again to resume.  With several
learners they are called in rank 0, whose session is the run's.  The workers of a3c and n_step_q
and the agents of ga3c do not send rollouts: there is no `on_rollout`.
"""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from remotely_rl.acting.actor import Rollout
from remotely_rl.acting.evaluation import Evaluation
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.runs.metrics import Row
from remotely_rl.user_code import located

if TYPE_CHECKING:
    from remotely_rl.runs.result import Result
    from remotely_rl.runs.session import Session

# Fields that `Session.change` may change, because each update reads them.
COEFFICIENTS = frozenset(
    {
        "clip_range",
        "entropy_coef",
        "entropy_coef_end",
        "epochs",
        "gae_lambda",
        "gamma",
        "learning_rate",
        "learning_rate_end",
        "minibatches",
        "value_coef",
    }
)


class Hook:
    """A hook that does nothing; override the methods that you need.

    Read from the session `env_steps`, `seconds()`, `progress`, `learner` and its `model`,
    `tally.recent` (the last 100 episodes), `folder.path`; call `stop(why)`,
    `change(entropy_coef=0.0)`, `set_env_attr(name, value)`, `log_image(name, image)`,
    `log_histogram(name, numbers)`, `say(text)`.
    """

    def on_start(self, session: "Session[Any]") -> None:
        """The run starts, or is resumed."""

    def on_rollout(self, session: "Session[Any]", rollouts: Sequence[Rollout]) -> None:
        """Rollouts have arrived; the learner has not used them yet."""

    def on_update(self, session: "Session[Any]", metrics: Mapping[str, float]) -> None:
        """The learner has finished an update."""

    def on_evaluation(self, session: "Session[Any]", evaluation: Evaluation) -> None:
        """An evaluation has ended: its `mean`, `std`, `metrics`, and the `env_steps` of training
        that its policy had."""

    def on_row(self, session: "Session[Any]", row: Row) -> None:
        """A row of metrics is about to be written; numbers that you add become columns."""

    def on_end(self, session: "Session[Any]", result: "Result") -> None:
        """The run has ended, and its folder is complete."""


MOMENTS = tuple(name for name in vars(Hook) if name.startswith("on_"))


class Hooks:
    """The hooks of a run, called in order."""

    def __init__(self, session: "Session[Any]", hooks: Sequence[Hook]):
        self._session, self._hooks = session, list(hooks)

    def start(self) -> None:
        self._call("on_start")

    def rollout(self, rollouts: Sequence[Rollout]) -> None:
        """Call `on_rollout`, if there are any rollouts."""
        if rollouts:
            self._call("on_rollout", rollouts)

    def update(self, metrics: Mapping[str, float]) -> None:
        self._call("on_update", metrics)

    def evaluation(self, evaluation: Evaluation) -> None:
        self._call("on_evaluation", evaluation)

    def row(self, row: Row) -> None:
        """Let the hooks add to a row.  Raises TrainingError if a value is not a number."""
        self._call("on_row", row)
        for name, number in row.items():
            if not isinstance(number, Real):
                raise TrainingError(
                    f"a hook has put {name} = {number!r} into a row of metrics: columns are numbers"
                )

    def end(self, result: "Result") -> None:
        self._call("on_end", result)

    def _call(self, moment: str, *args: Any) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, moment)(self._session, *args)
            except Exception as error:
                raise TrainingError(
                    f"the hook {type(hook).__name__} raised in {moment}: {located(error)}"
                ) from error


def checked(hooks: Sequence[Any]) -> list[Hook]:
    """Return these hooks.

    Raises TrainingError for anything that is not a Hook, and for a method `on_...` that no run
    calls: it is probably misspelt.
    """
    for hook in hooks:
        if isinstance(hook, type) and issubclass(hook, Hook):
            raise TrainingError(f"hooks has the class {hook.__name__}: pass an instance of it")
        if not isinstance(hook, Hook):
            raise TrainingError(
                f"hooks has a {type(hook).__name__}, not a remotely_rl.Hook: subclass that"
            )
        for name in _methods(type(hook)):
            if name.startswith("on_") and name not in MOMENTS:
                hint = nearest(name, MOMENTS) or f"; a run calls {', '.join(MOMENTS)}"
                raise TrainingError(
                    f"the hook {type(hook).__name__} has {name}, which no run calls{hint}"
                )
    return list(hooks)


def _methods(kind: type[Hook]) -> list[str]:
    """Return the methods of a hook, without those of classes that are not hooks."""
    hooks = [each for each in kind.__mro__ if issubclass(each, Hook)]
    return [name for each in hooks for name, value in vars(each).items() if callable(value)]


def make(named: Any, name: str) -> Hook:
    """Return the hook of `--hook FILE.py:NAME`, an instance or a callable that makes one.

    Raises TrainingError if it is not a hook, or if making it raises.
    """
    try:
        hook = named() if callable(named) else named
    except Exception as error:
        raise TrainingError(
            f"--hook {name}, called without arguments, raised {located(error)}; it may also be an"
            " instance"
        ) from error
    if not isinstance(hook, Hook):
        raise TrainingError(
            f"--hook {name} is a {type(hook).__name__}, not a remotely_rl.Hook or its class"
        )
    return hook
