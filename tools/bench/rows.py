"""Rows of figures, and their targets.

A row is one figure, by default of `ours`.  A bar is its target: a number, or a sum of figures of
others in the same round.  Each round has a ratio, and the median of the ratios is compared, so a
slow minute of the machine affects both sides.
"""

from typing import NamedTuple

from tools.bench.figures import Figures, Spread, spread

OURS = "ours"


class Term(NamedTuple):
    """A multiple of a system's figure, by default the row's."""

    system: str
    title: str
    figure: str = ""
    times: float = 1


class Bar(NamedTuple):
    """At most, or at least, `limit` times the sum of the terms; without terms, `limit`."""

    at_most: bool
    limit: float
    terms: tuple[Term, ...] = ()


class Row(NamedTuple):
    title: str
    figure: str
    bars: tuple[Bar, ...] = ()
    beside: tuple[Term, ...] = ()  # other figures that are shown too
    of: str = OURS  # the system


class Verdict(NamedTuple):
    ratio: Spread
    reached: bool


def at_most(limit: float, *terms: Term) -> Bar:
    return Bar(True, limit, terms)


def at_least(limit: float, *terms: Term) -> Bar:
    return Bar(False, limit, terms)


def judge(row: Row, bar: Bar, figures: Figures) -> Verdict | None:
    """Return the ratio to the bar's terms, and whether it is reached; None if not measured."""
    ratios = []
    for number, value in figures.of(row.of, row.figure).items():
        parts = [
            term.times
            * figures.of(term.system, term.figure or row.figure).get(number, float("nan"))
            for term in bar.terms
        ]
        ratio = value / sum(parts) if parts else value
        if ratio == ratio:  # it is NaN if a term was not measured in this round
            ratios.append(ratio)
    if not ratios:
        return None
    found = spread(ratios)
    reached = found.median <= bar.limit if bar.at_most else found.median >= bar.limit
    return Verdict(found, reached)
