"""Wrappers that keep running statistics, which no run can use.

Each environment would have statistics of its own, and those that an evaluation, `play` or `load`
makes would begin without any: a policy trained at -209 was measured at -1,377.  So the statistics
that a policy needs are the network's (`networks/normalizer.py`): all environments share them, and
checkpoints have them.
"""

from collections.abc import Iterator
from typing import Any

from remotely_rl.errors import TrainingError

# The attribute in which wrappers of Gymnasium, and those written after them, keep statistics; and
# what does the same in a run.
STATISTICS = {
    "obs_rms": "the network normalizes observations, by statistics that all environments and"
    " evaluations share (normalize_observations)",
    "return_rms": "the learner learns values in units of their deviation, and returns stay those of"
    " the environment",
}


def check_keeps_no_statistics(env: Any) -> None:
    """Raise TrainingError if an environment, or one of its wrappers, keeps running statistics.

    Those that are fixed, with `update_running_mean` False, are the same in every environment.
    """
    for layer in layers_of(env):
        for attribute, instead in STATISTICS.items():
            if attribute in _attributes(layer) and getattr(layer, "update_running_mean", True):
                raise TrainingError(
                    f"the wrapper {type(layer).__name__} keeps running statistics in"
                    f" {attribute}, which other actors, evaluations and later commands do not"
                    f" have: leave it out; {instead}"
                )


def checked(env: Any) -> Any:
    """Return the environment.  Raises as `check_keeps_no_statistics`; a wrapper for any Python."""
    check_keeps_no_statistics(env)
    return env


def layers_of(env: Any) -> Iterator[Any]:
    """Yield the wrappers of an environment, outermost first, and the environment itself.

    Those of a vector environment that shows its `envs` are included.
    """
    while env is not None:
        yield env
        attributes = _attributes(env)
        envs = attributes.get("envs")
        for one in envs if isinstance(envs, list | tuple) else ():
            yield from layers_of(one)
        env = attributes.get("env")


def _attributes(layer: Any) -> dict[str, Any]:
    return getattr(layer, "__dict__", {})
