"""Targets of figures, and how they are judged.

A row is one figure, of ours unless it says whose.  A bar compares it with a number, or with what
others took in the same round: a ratio is formed within each round, and the median of the rounds'
ratios is judged.  So a machine that is slow for a minute is slow for both sides.
"""

from typing import NamedTuple

from tools.bench.figures import Figures, Spread, spread

OURS = "ours"


class Term(NamedTuple):
    """So many times what `system` measured of `figure`; of the row's own if it names none."""

    system: str
    title: str
    figure: str = ""
    times: float = 1


class Bar(NamedTuple):
    """At most, or at least, `limit` times the sum of the terms; without terms, `limit` itself."""

    at_most: bool
    limit: float
    terms: tuple[Term, ...] = ()


class Row(NamedTuple):
    title: str
    figure: str
    bars: tuple[Bar, ...] = ()
    beside: tuple[Term, ...] = ()  # figures of another name that are shown beside it
    of: str = OURS  # the system whose figure it is


class Verdict(NamedTuple):
    ratio: Spread
    reached: bool


def at_most(limit: float, *terms: Term) -> Bar:
    return Bar(True, limit, terms)


def at_least(limit: float, *terms: Term) -> Bar:
    return Bar(False, limit, terms)


def judge(row: Row, bar: Bar, figures: Figures) -> Verdict | None:
    """Return the ratio to the bar's terms, and whether the bar is reached; None if not measured."""
    ratios = []
    for number, value in figures.of(row.of, row.figure).items():
        parts = [
            term.times
            * figures.of(term.system, term.figure or row.figure).get(number, float("nan"))
            for term in bar.terms
        ]
        ratio = value / sum(parts) if parts else value
        if ratio == ratio:  # not so where a round lacks one of them
            ratios.append(ratio)
    if not ratios:
        return None
    found = spread(ratios)
    reached = found.median <= bar.limit if bar.at_most else found.median >= bar.limit
    return Verdict(found, reached)
