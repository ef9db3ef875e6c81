"""Whole: a third-party vector environment as the environments of a host.

ale-py's native games and a user's own vector environment are made and stepped as a whole.  This
class writes their rows into the arrays of a host, and begins single episodes through
options["reset_mask"].
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import CrashReport
from remotely_rl.supervision.infos import Info
from remotely_rl.supervision.rows import EnvRows
from remotely_rl.supervision.seeds import draw
from remotely_rl.supervision.whole import WatchedVectorEnv, envs_of, method_of

Outcomes = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]


class Whole:
    """See the module's docstring.  It has the methods of SupervisedVectorEnv that a host uses."""

    crashes: Sequence[CrashReport] = ()  # always: a crash of one environment ends the host

    def __init__(self, vector: VectorEnv[Any, Any, Any]):
        """Raise TrainingError for an autoreset mode other than NEXT_STEP."""
        mode = AutoresetMode(vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        if mode is not AutoresetMode.NEXT_STEP:
            raise TrainingError(
                f"the vector environment has autoreset mode {mode}: change it to"
                " AutoresetMode.NEXT_STEP, or sample with sampling=local"
            )
        self.vector = vector
        self.single_observation_space = vector.single_observation_space
        self.observation_spaces = [self.single_observation_space] * vector.num_envs
        self.single_action_space = vector.single_action_space
        self.metadata, self.render_mode = vector.metadata, vector.render_mode
        self._due = np.zeros(vector.num_envs, np.bool_)  # to be reset in the next step
        self.write_into(None)

    def write_into(
        self,
        observations: Sequence[Sequence[NDArray[Any]]] | None,
        rewards: NDArray[np.float64] | None = None,
        terminated: NDArray[np.bool_] | None = None,
        truncated: NDArray[np.bool_] | None = None,
    ) -> None:
        """Write the rows into these arrays: observations into the two lists in turn."""
        count, space = self.vector.num_envs, self.single_observation_space
        first, second = observations or (None, None)
        self.rows, self._other_rows = EnvRows(space, count, first), EnvRows(space, count, second)
        self.outcomes: Outcomes = (
            np.zeros(count) if rewards is None else rewards,
            np.zeros(count, np.bool_) if terminated is None else terminated,
            np.zeros(count, np.bool_) if truncated is None else truncated,
        )

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Take a step, or the resets that are due instead; the last item returned is the infos."""
        self.swap_rows()
        due, outcomes = self._due, self.outcomes
        obs: Any = None
        infos: Info = {}
        if not due.all():
            obs, *outcome, infos = self.vector.step(actions)
            for into, values in zip(outcomes, outcome, strict=True):
                if np.shape(values) != into.shape:
                    raise TrainingError(
                        f"the rewards, terminated and truncated of a step have the shapes"
                        f" {[np.shape(one) for one in outcome]}: the vector environment must return"
                        f" one of each for each of its {len(into)} environments"
                    )
                into[:] = values
        if due.any():
            # Without partial resets, the row is that of the new episode's first step.
            with contextlib.suppress(TypeError, ValueError, KeyError):
                obs, infos = self._reset(due)
            for into in outcomes:
                into[due] = 0
            due[:] = False
        trees.map_tree(_write, self.rows.value(False), obs)
        return (infos,)

    def reset(self, *, seed: Sequence[int | None], options: Info | None) -> tuple[Any, Info]:
        """Begin an episode in each environment, or in those of options["reset_mask"]."""
        mask = (options or {}).get("reset_mask")
        chosen = np.ones(len(self._due), np.bool_) if mask is None else mask
        given: Any = None
        seeds = [one for one, is_chosen in zip(seed, chosen, strict=True) if is_chosen]
        if None not in seeds:
            first = int(seeds[0])  # type: ignore[arg-type]
            follow = seeds == list(range(first, first + len(seeds)))
            given = first if follow else np.array(seeds)
        obs, infos = self.vector.reset(seed=given, options=options)
        trees.map_tree(_write, self.rows.value(False), obs)
        self._due &= ~chosen
        for into in self.outcomes[1:]:
            into[chosen] = False
        return obs, infos

    def _reset(self, due: NDArray[np.bool_]) -> tuple[Any, Info]:
        first: Any = draw() % (1 << 31)
        if due.all():
            return self.vector.reset(seed=first)
        return self.vector.reset(options={"reset_mask": due.copy()})

    def swap_rows(self) -> None:
        """Write into the other list of observations from now on."""
        self.rows, self._other_rows = self._other_rows, self.rows

    def end_episodes(self, which: Sequence[int]) -> None:
        """Make the next step reset these environments."""
        self._due[list(which)] = True

    @property
    def envs(self) -> Sequence[Any]:
        """The environments, or the vector environment for each if it does not show them."""
        return envs_of(self.vector)

    def call_at(self, which: Sequence[int], name: str) -> list[Any]:
        """Read an attribute of some environments."""
        values = method_of(self.vector, "get_attr")(name)
        return [values[i] for i in which]

    def set_attr_at(self, which: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of some environments."""
        of_all = list(method_of(self.vector, "get_attr")(name))
        for i, value in zip(which, values, strict=True):
            of_all[i] = value
        method_of(self.vector, "set_attr")(name, of_all)

    def pop_crashes(self) -> list[CrashReport]:
        """Return no crashes: a crash of one environment ends the host."""
        return []

    def watch(self, flight: Any, step_timeout_s: float) -> None:
        """Resume the watch over environments that were pickled in another process."""
        if isinstance(self.vector, WatchedVectorEnv):
            self.vector.watch(flight, step_timeout_s)

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()


def _write(into: NDArray[Any], array: Any) -> None:
    into[:] = array
