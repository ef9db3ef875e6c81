"""Filters of the list of runs by its columns and settings: `state=killed learning_rate < 1e-3`.

A column goes by the name that its header shows, and a setting by its own, in any case.
"""

import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

from remotely_rl.dashboard.runs import COLUMNS
from remotely_rl.errors import nearest
from remotely_rl.runs import curve

SETTING = "setting:"  # before the name of a setting in a column's
UNITS = {"": 1, "s": 1, "min": 60, "h": 3_600, "d": 86_400}  # in which the list shows times
UNIT = "|".join(unit for unit in UNITS if unit)
NUMBER = re.compile(rf"(.+?)\s*({UNIT}|)")
ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


class Filter(NamedTuple):
    """A column, and what it must be."""

    column: str
    sign: str
    value: str

    def holds(self, cells: Mapping[str, Any]) -> bool:
        """Whether it holds for the cells of a run.  One that a run lacks equals nothing."""
        if self.column not in cells:
            return self.sign == "!="
        own = cells[self.column]
        is_numeric = isinstance(own, int | float) and not isinstance(own, bool)
        wanted = _number(self.value) if is_numeric else None
        if order := ORDERS.get(self.sign):
            return wanted is not None and order(own, wanted)
        if isinstance(own, frozenset):
            is_equal = self.value.lower() in own
        else:
            is_equal = (
                text_of(own).lower() == self.value.lower() if wanted is None else own == wanted
            )
        return is_equal is (self.sign == "=")


def cells(row: Mapping[str, Any], settings: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return what filters compare: settings, and columns as the list shows them at the time `now`.

    The last row is as old as it is shown to be, and a run has each of its tags.
    """
    tags, age = frozenset(row["tags"].lower().split()), now - row["updated"]
    return {
        **{SETTING + name: own for name, own in settings.items()},
        **row,
        "tags": tags,
        "updated": age,
    }


def split(search: str, settings: Iterable[str]) -> tuple[list[Filter], str]:
    """Return the conditions in a search, and its other words.

    Raises ValueError for a condition on what is neither a column nor one of the settings.
    """
    known = {name: SETTING + name for name in settings} | {
        heading: column for column, heading in COLUMNS.items()
    }
    columns = {name.lower(): column for name, column in known.items()}
    names = "|".join(re.escape(name) for name in sorted(columns, key=len, reverse=True))
    condition = re.compile(
        rf"(?<!\S)({names}|[^\s<>=!]+)\s*(<=|>=|!=|=|<|>)\s*(\S+?\s+(?:{UNIT})(?!\S)|\S+)",
        re.IGNORECASE,
    )
    conditions = []
    for name, sign, value in condition.findall(search):
        if name.lower() not in columns:
            raise ValueError(f"no column and no setting is called {name!r}{nearest(name, known)}")
        conditions.append(Filter(columns[name.lower()], sign, value))
    return conditions, condition.sub(" ", search)


def differing(
    settings: Mapping[str, Mapping[str, Any]], apart_from: Container[str] = curve.PER_RUN
) -> list[str]:
    """Return the names of the settings in which runs differ, apart from seed, limits and speed."""
    values: dict[str, set[str]] = {}
    for of_run in settings.values():
        for name, value in of_run.items():
            values.setdefault(name, set()).add(repr(value))
    return sorted(
        name
        for name, found in values.items()
        if name not in apart_from
        and (len(found) > 1 or any(name not in of_run for of_run in settings.values()))
    )


def text_of(value: Any) -> str:
    """Return a setting as a user writes it."""
    return "none" if value is None else str(value)


def _number(text: str) -> float | None:
    """Return a number as it is written or shown: `1e-3`, `400,000`, `5 min`; None if it is none."""
    match = NUMBER.fullmatch(text)
    try:
        return float(match[1].replace(",", "")) * UNITS[match[2]] if match else None
    except ValueError:
        return None
