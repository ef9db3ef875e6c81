"""The table of all targets, for a terminal and a page."""

from collections.abc import Sequence

from tools.bench.figures import Figures
from tools.bench.rows import Bar, Row, Term, judge
from tools.bench.units import digits, shown, shown_spread

HEAD = ["", "to reach", "ours", "ratio", "reached", "others"]
MISSING = "not run"


def bars(rows: Sequence[Row], figures: Figures, titles: dict[str, str]) -> list[list[str]]:
    """Return a line for each bar, and one for each row without.

    `titles` has the systems' titles in their order.
    """
    lines = []
    for row in rows:
        ours = figures.spread(row.of, row.figure)
        why = figures.why_not(row.of, row.figure)
        missing = f"{MISSING}: {why}" if why else MISSING
        first = [row.title, shown_spread(row.figure, ours) if ours else missing]
        last = _others(row, figures, titles)
        for bar in row.bars or (None,):
            reach, ratio, reached = _judged(row, bar, figures) if bar else ("", "", "")
            lines.append([first[0], reach, first[1], ratio, reached, last])
            first, last = ["", ""], ""
    return lines


def text(lines: list[list[str]]) -> str:
    """Return the lines in columns, for a terminal."""
    lines = [HEAD, *lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def said(row: Row, bar: Bar) -> str:
    """Return a bar in words: "<= 1.3 x bare pyzmq", ">= 40,000/s"."""
    sign = "<=" if bar.at_most else ">="
    if not bar.terms:
        return f"{sign} {shown(row.figure, bar.limit)}"
    parts = [
        f"{term.times:g} x {term.title}" if term.times != 1 else term.title for term in bar.terms
    ]
    if bar.limit == 1:
        return f"{sign} {' + '.join(parts)}"
    whole = f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]
    return f"{sign} {bar.limit:.2g} x {whole}"


def beside(row: Row) -> list[Term]:
    """Return the other figures that are shown with a row's own."""
    terms = [*(term for bar in row.bars for term in bar.terms if term.figure), *row.beside]
    return list({(term.system, term.figure): term for term in terms}.values())


def _judged(row: Row, bar: Bar, figures: Figures) -> tuple[str, str, str]:
    verdict = judge(row, bar, figures)
    if verdict is None:
        return said(row, bar), "", "-"
    ratio = ""
    if bar.terms:
        found = verdict.ratio
        ratio = f"{digits(found.median)} x"
        if found.rounds > 1:
            ratio += f" ({digits(found.low)}-{digits(found.high)})"
    return said(row, bar), ratio, "yes" if verdict.reached else "NO"


def _others(row: Row, figures: Figures, titles: dict[str, str]) -> str:
    found = [
        (titles[system], row.figure, figures.spread(system, row.figure))
        for system in titles
        if system != row.of
    ] + [
        (term.title, term.figure, figures.spread(term.system, term.figure))
        for term in beside(row)
        if term.figure != row.figure  # otherwise it is already there
    ]
    return "; ".join(
        f"{title} {shown(figure, spread.median)}" for title, figure, spread in found if spread
    )
