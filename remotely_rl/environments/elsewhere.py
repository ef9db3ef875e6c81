"""Environments in another interpreter than their actor's: a vendor's, or one with old packages.

Those of an actor step together in one more process, a host of a `VectorEnv`, which needs Gymnasium
and NumPy there, and no PyTorch.  So the network, its exploration and the images' preprocessing stay
in the actor, and every place that makes environments of a run makes them so: actors, evaluations,
hindsight, the check before a run, and `remotely-rl play`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium

from remotely import arguments
from remotely.errors import NotStartable
from remotely_rl.environments.additions import Wrapper
from remotely_rl.environments.names import name_of
from remotely_rl.errors import TrainingError, not_elsewhere
from remotely_rl.supervision import CrashReport, env_ranks, made, statistics
from remotely_rl.supervision.vector import is_registered, maker_of
from remotely_rl.supervision.watchdog import DEFAULT_S, Watch
from remotely_rl.vector.vector_env import VectorEnv


class Interpreter(NamedTuple):
    """The Python of environments, as in `remotely.options`; by default, that of their actor."""

    python: str | None = None
    packages: tuple[str, ...] = ()

    @property
    def is_another(self) -> bool:
        return self != ACTORS_OWN


ACTORS_OWN = Interpreter()


class Elsewhere(VectorEnv):
    """The environments of one actor, in one process of their own, which is replaced if it dies."""

    def __init__(
        self,
        source: str | Callable[..., Any],
        interpreter: Interpreter,
        kwargs: Mapping[str, Any],
        wrappers: Sequence[Wrapper],
        count: int,
        watch: Watch | None,
        first: int,
    ):
        """Make the environments, numbered from `first` on; an id may be known there alone.

        Raises what making one raises, and TrainingError if the interpreter cannot be had.
        """
        make = _maker_of(source)
        self._crashes: list[CrashReport] = []
        # They run there.
        is_made = functools.partial(made.checked, name_of(source))
        wrappers = [is_made, *wrappers, statistics.checked]
        try:
            super().__init__(
                [
                    functools.partial(make, **env_ranks.arguments(make, kwargs, rank))
                    for rank in range(first, first + count)
                ],
                envs_per_actor=count,
                cpus_per_actor=0.0,  # one of the two waits while the other computes
                python=interpreter.python,
                packages=interpreter.packages,
                wrappers=wrappers,
                copy=False,
                step_timeout_s=DEFAULT_S if watch is None else watch.step_timeout_s,
                max_crash_rate=1.0,  # the run counts them
                episode_seeds=True,
                say=_nothing,
                on_crash=self._crashes.append,
            )
        except NotStartable as error:
            raise not_elsewhere(*interpreter, error) from None

    def pop_crashes(self) -> list[CrashReport]:
        """Return the crashes since the last call."""
        crashes = self._crashes[:]
        del self._crashes[: len(crashes)]  # a thread may have added another
        return crashes


def checked_packages(given: Any) -> tuple[str, ...]:
    """Return packages as a tuple.  Raises TrainingError for what `remotely.options` refuses."""
    try:
        return arguments.packages("env_packages", given)
    except (TypeError, ValueError) as error:
        raise TrainingError(str(error)) from None


def check(
    source: object, interpreter: Interpreter, steps_as_one: bool, waits: bool, frame_stack: int
) -> None:
    """Raise TrainingError for environments that cannot be in another interpreter."""
    name = name_of(source)
    if steps_as_one:
        why = f"{name} steps as one in its actor, and no other Python can have it: leave it out"
    elif waits:
        why = f"the environments of {name} cannot wait there for the pause: set resets=at_once"
    elif frame_stack > 1:
        why = (
            "frame_stack cannot reach environments of another Python: stack the frames in"
            f" {name}, or use lstm, a memory in their place"
        )
    else:
        return
    raise not_elsewhere(*interpreter, why)


def _maker_of(source: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(source, str):
        return source
    if is_registered(source):  # perhaps by the script alone
        return maker_of(source)
    return functools.partial(gymnasium.make, source)


def _nothing(text: str) -> None: ...
