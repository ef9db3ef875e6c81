"""Line charts as SVG, for a page without scripts: pure functions from numbers to markup."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

COLOURS = ("#2b6f5e", "#b5632b", "#4a62a8", "#8d4a86", "#7a7320", "#3d7f9c", "#a3382a", "#5c5f63")
LEFT, TOP, BOTTOM, RIGHT = 56, 8, 24, 10
Values = Sequence[float | None]


class ChartLine(NamedTuple):
    """A line, and the band around it, if any."""

    x: Values
    y: Values
    low: Values = ()
    high: Values = ()
    colour: str = COLOURS[0]
    is_thin: bool = False  # one of several runs, beside their mean


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about `about` round numbers in a range, in steps of 1, 2 or 5 times a power of 10."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(each * power for each in (1, 2, 5, 10) if span / (each * power) <= about)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]


def short(number: float) -> str:
    """Return a number as text for an axis: 20 k, 1.5 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def chart(lines: Sequence[ChartLine], title: str, width: int = 560, height: int = 240) -> str:
    """Return an SVG of lines; an empty string if there is nothing to draw."""
    places = [place for line in lines for place in _places(line.x, line.y)]
    if not places:
        return ""
    edges = [v for line in lines for v in (*line.low, *line.high) if v is not None]
    x_low, x_high = _range([x for x, _ in places])
    y_low, y_high = _range([*(y for _, y in places), *edges])
    across, down = width - LEFT - RIGHT, height - TOP - BOTTOM

    def at(x: float, y: float) -> str:
        right = LEFT + across * (x - x_low) / (x_high - x_low)
        return f"{right:.1f} {TOP + down * (y_high - y) / (y_high - y_low):.1f}"

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">',
        f"<title>{html.escape(title)}</title>",
    ]
    for y in ticks(y_low, y_high, 5):
        _, level = at(x_low, y).split()
        parts.append(f'<path class="grid" d="M{LEFT} {level}H{width - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level}" class="y">{short(y)}</text>')
    for x in ticks(x_low, x_high, 6):
        right, _ = at(x, y_low).split()
        parts.append(f'<text x="{right}" y="{height - 6}" class="x">{short(x)}</text>')
    for line in lines:
        if band := [*_places(line.x, line.high), *reversed(_places(line.x, line.low))]:
            outline = "L".join(at(x, y) for x, y in band)
            parts.append(f'<path d="M{outline}Z" fill="{line.colour}" opacity=".18"/>')
        drawn = "L".join(at(x, y) for x, y in _places(line.x, line.y))
        if drawn:
            style = 'stroke-width=".7" opacity=".5"' if line.is_thin else 'stroke-width="1.5"'
            parts.append(f'<path d="M{drawn}" fill="none" stroke="{line.colour}" {style}/>')
    return "".join([*parts, "</svg>"])


def _places(x: Values, y: Values) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(x, y, strict=False) if a is not None and b is not None]


def _range(numbers: Sequence[float]) -> tuple[float, float]:
    low, high = min(numbers), max(numbers)
    if low == high:
        margin = abs(low) / 10 or 1.0
        return low - margin, high + margin
    return low, high
