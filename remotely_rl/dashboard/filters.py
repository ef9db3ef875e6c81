"""Filters of the list of runs by their settings: `gamma=0.98 learning_rate<1e-3`."""

import operator
import re
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from remotely_rl.runs import curve

CONDITION = re.compile(r"(\w+)(<=|>=|!=|=|<|>)(.+)")
ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


class Filter(NamedTuple):
    """A setting, and what it must be."""

    name: str
    sign: str
    value: str

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Whether it holds for the settings of a run.  One that a run lacks equals nothing."""
        if self.name not in settings:
            return self.sign == "!="
        own = settings[self.name]
        is_numeric = isinstance(own, int | float) and not isinstance(own, bool)
        wanted = _number(self.value) if is_numeric else None
        if order := ORDERS.get(self.sign):
            return wanted is not None and order(own, wanted)
        is_equal = text_of(own).lower() == self.value.lower() if wanted is None else own == wanted
        return is_equal is (self.sign == "=")


def split(search: str) -> tuple[list[Filter], str]:
    """Return the conditions among the words of a search, and the other words."""
    conditions, others = [], []
    for word in search.split():
        if match := CONDITION.fullmatch(word):
            conditions.append(Filter(*match.groups()))
        else:
            others.append(word)
    return conditions, " ".join(others)


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
    try:
        return float(text)
    except ValueError:
        return None
