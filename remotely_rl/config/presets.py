"""Presets: settings that learn an environment, with what was measured of them.

A preset is named for the environment that it was measured on, and fits every version of it.  A
Config takes one if its field `preset` asks for it; every field that is given wins.
"""

import dataclasses
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from remotely_rl import settings
from remotely_rl.environments import name_of
from remotely_rl.errors import TrainingError, nearest

AUTO, NONE, PAPER = "auto", "none", "paper"


class Measured(NamedTuple):
    """What the plain command came to: `remotely-rl train ALGORITHM --env ENV --seed SEED`."""

    returns: tuple[float, ...]  # of seeds 1, 2, ...: greedy, by the last checkpoint
    minutes: float  # of training, the median, on one core beside other programs
    commit: str

    def __str__(self) -> str:
        low, high, mean = min(self.returns), max(self.returns), statistics.fmean(self.returns)
        return f"{mean:,.4g}" + (f" ({low:,.4g} to {high:,.4g})" if len(self.returns) > 1 else "")


class Preset(NamedTuple):
    """A row of the table."""

    env: str
    algorithm: str
    settings: Mapping[str, Any]  # with `total_steps`: the run ends by itself
    measured: Measured

    @property
    def options(self) -> str:
        """The settings as they are written on the command line."""
        return " ".join(settings.option(name, value) for name, value in self.settings.items())

    def __str__(self) -> str:
        seeds = len(self.measured.returns)
        return (
            f"return {self.measured}, {seeds} seed{'s' if seeds > 1 else ''},"
            f" {self.settings['total_steps']:,} steps, {self.measured.minutes:g} minutes"
        )


ROWS: tuple[Preset, ...] = ()


def find(algorithm: str, env: str) -> Preset | None:
    """The preset of an algorithm for an environment's name, in whatever version; None: there is
    none."""
    rows = (row for row in ROWS if row.algorithm == algorithm)
    return next((row for row in rows if _unversioned(row.env) == _unversioned(env)), None)


def algorithms_for(env: str) -> list[str]:
    """The algorithms that have a preset for an environment."""
    return [row.algorithm for row in ROWS if _unversioned(row.env) == _unversioned(env)]


def named(algorithm: str, name: str) -> Preset:
    """The preset of an algorithm with that name.  Raises TrainingError for an unknown name."""
    if found := find(algorithm, name):
        return found
    if others := algorithms_for(name):
        raise TrainingError(f"{algorithm} has no preset {name!r}, but {_have(others)}")
    known = [AUTO, NONE, PAPER, *(row.env for row in ROWS if row.algorithm == algorithm)]
    hint = nearest(name, known) or f": there is {', '.join(known)}"
    raise TrainingError(f"{algorithm} has no preset {name!r}{hint}; see `remotely-rl presets`")


def begin(config: Any, given: Collection[str]) -> None:
    """Sets the fields of a new config that are not `given`, by their names, as its preset says.

    Of AUTO without a row, and of NONE, there is nothing to set.  Raises TrainingError for a name
    that is not there, and for a setting that the config's class does not have.
    """
    kind, name = type(config), config.preset
    if name == NONE or len(given) == len(dataclasses.fields(kind)):
        return  # the second is a copy of a config, or that of a run: its preset is in it already
    if name == PAPER:
        chosen = kind.form_of_paper(config.env)
    else:
        algorithm = algorithm_of(kind)
        found = find(algorithm, name_of(config.env)) if name == AUTO else named(algorithm, name)
        if found is None:
            return
        object.__setattr__(config, "preset", found.env)
        chosen = found.settings
    settings.check_names(kind, chosen)
    for field, value in chosen.items():
        if field not in given:
            object.__setattr__(config, field, value)


def remarks(config: Any) -> list[str]:
    """What a run says of its preset: which it is, and what is otherwise than there."""
    algorithm, name = algorithm_of(type(config)), config.preset
    if name == AUTO:
        env = name_of(config.env)
        others = algorithms_for(env)
        return [f"no preset of {algorithm} for {env}, but {_have(others)}"] if others else []
    if name in (NONE, PAPER) or (found := find(algorithm, name)) is None:
        return []
    now = {field: getattr(config, field) for field in found.settings}
    kept = {field for field, value in found.settings.items() if now[field] == value}
    said = " ".join(settings.option(field, now[field]) for field in now if field in kept)
    changed = " ".join(settings.option(field, now[field]) for field in now if field not in kept)
    return [f"preset {name}: {said}{f'; changed: {changed}' if changed else ''}"]


def algorithm_of(kind: type) -> str:
    """The algorithm whose file a Config class is in."""
    return kind.__module__.removeprefix("remotely_rl.algorithms.")


def _have(algorithms: Sequence[str]) -> str:
    return f"{' and '.join(algorithms)} {'has' if len(algorithms) == 1 else 'have'} one"


def _unversioned(env: str) -> str:
    """The name of an environment without its module and its version."""
    return re.sub(r"-v\d+$", "", env.rpartition(":")[2])
