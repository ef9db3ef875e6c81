"""WatchedVectorEnv: supervision of a third-party vector environment as a whole.

The environments of ale-py's native games, or of a user's own class, cannot be observed or recreated
one by one.  A hang ends the process, a death leaves a flight record, and NaN and infinity are
errors that name the environment and the step.
"""

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from remotely_rl import trees
from remotely_rl.supervision.flight import FlightRecord
from remotely_rl.supervision.rows import NAME, NotFinite, leaves_of
from remotely_rl.supervision.watchdog import Watchdog

if TYPE_CHECKING:
    Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    Wrapper = VectorWrapper  # generic from Gymnasium 1.4 on


def method_of(vector: VectorEnv[Any, Any, Any], name: str) -> Callable[..., Any]:
    """Return a method of the outermost layer that has it: VectorWrapper passes few of them on.

    Raises AttributeError if none has it.
    """
    layer: Any = vector
    while isinstance(layer, VectorWrapper) and not hasattr(layer, name):
        layer = layer.env
    method: Callable[..., Any] = getattr(layer, name)
    return method


def envs_of(vector: VectorEnv[Any, Any, Any]) -> Sequence[Any]:
    """Return the environments of a vector environment, or itself for each if it shows none."""
    inner: Any = vector.unwrapped
    envs: Sequence[Any] = getattr(inner, "envs", [inner] * vector.num_envs)
    return envs


class WatchedVectorEnv(Wrapper):
    """See the module's docstring."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        step_timeout_s: float = 0.0,
        flight: Any = None,
        check_finite: bool = True,
    ):
        super().__init__(env)
        self._record = FlightRecord(0, None, flight)
        self._watchdog = Watchdog(self._record, step_timeout_s) if step_timeout_s else None
        self._check_finite = check_finite
        try:
            leaves = list(leaves_of(env.single_observation_space))
        except TypeError:  # a custom space, which only its own wrapper understands
            leaves = []
        self._has_floats = any(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves)
        self._step = 0

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step.  Raises NotFinite for NaN or infinity."""
        self._step += 1
        self._record.begin(threading.get_ident())
        row = self.env.step(actions)
        self._record.end()
        if self._check_finite:
            reward = np.asarray(row[1], np.float64)
            if not math.isfinite(np.vdot(reward, reward)):
                self._check(reward, "the reward")
            if self._has_floats:
                self._check_observations(row[0])
        return row

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of options["reset_mask"]."""
        self._record.begin(threading.get_ident())
        row = self.env.reset(seed=seed, options=options)
        self._record.end()
        if self._check_finite and self._has_floats:
            self._check_observations(row[0])
        return row

    def watch(self, flight: Any, step_timeout_s: float) -> None:
        """Move the flight record to other memory, and watch the steps."""
        self._record = self._record.move_to(flight)
        if step_timeout_s and self._watchdog is None:
            self._watchdog = Watchdog(self._record, step_timeout_s)

    def close(self, **kwargs: Any) -> None:
        """Close the environments."""
        if self._watchdog is not None:
            self._watchdog.close()
        self.env.close(**kwargs)

    def _check_observations(self, obs: Any) -> None:
        for path, part in trees.items(obs):
            if isinstance(part, np.ndarray) and np.issubdtype(part.dtype, np.floating):
                flat = part.reshape(-1)
                if not math.isfinite(np.vdot(flat, flat)):
                    self._check(part, NAME + trees.named(path))

    def _check(self, values: Any, name: str) -> None:
        """Raise NotFinite if a number is NaN or infinite; a sum of squares may just overflow."""
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            raise NotFinite(
                f"environment {bad[0][0]}: {name} is {values[tuple(bad[0])]}"
                f" in step {self._step:,} of the process"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_record": bytes(self._record.memory), "_watchdog": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        record = FlightRecord.read(bytearray(state["_record"]))
        assert record is not None
        self._record = record
