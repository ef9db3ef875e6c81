"""Pictures of curves, by matplotlib: a PNG of a run (curve.py), or the SVGs of a report.

Not pyplot, which keeps global state and needs a display.  matplotlib is imported late: it takes a
second, and actors import this package.
"""

import colorsys
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED_POINTS = 30  # lines of at most this many points have markers
DPI = 100
COLOURS = ("#2b6f5e", "#b5632b", "#4a62a8", "#8d4a86", "#7a7320", "#3d7f9c", "#a3382a", "#5c5f63")

GOLDEN = 0.381966  # of a circle, between the hues of further colours, so that none repeats
MOST_DIGITS = 12  # of a tick
UNITS = ((1e9, " G"), (1e6, " M"), (1e3, " k"))  # of ticks, by the largest of them

Numbers = Sequence[float | None] | NDArray[np.float64]


class Curve(NamedTuple):
    """A line, and the band around it, if any.  A missing number is None or NaN."""

    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    colour: str = COLOURS[0]
    is_thin: bool = False  # one of several runs, beside their mean
    opacity: float = 1.0
    label: str | None = None


def colour_of(place: int) -> str:
    """Return the colour of a line: those of COLOURS first, then others."""
    if place < len(COLOURS):
        return COLOURS[place]
    light = 0.36 + 0.07 * (place % 3)
    parts = colorsys.hls_to_rgb(place * GOLDEN % 1, light, 0.5)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return labels of ticks, as short as they can be with no two alike; k, M and G are units."""
    biggest = max(map(abs, ticks), default=0.0)
    unit, sign = next(((unit, sign) for unit, sign in UNITS if biggest >= unit), (1.0, ""))
    # A zero that is computed is not 1.4e-17 of the others' size.
    scaled = [0.0 if abs(tick) < 1e-9 * biggest else tick / unit for tick in ticks]
    labels: list[str] = []
    for digits in range(3, MOST_DIGITS):
        labels = [f"{number:.{digits}g}{sign * bool(number)}" for number in scaled]
        if len(set(labels)) == len(labels):
            break
    return labels


def panels(count: int, width: float, height: float) -> "tuple[Figure, Sequence[Axes]]":
    """Return a figure of this size, in inches, with panels beside each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, count, sharey=True, squeeze=False)[0]


def draw(axis: "Axes", curve: Curve, **style: Any) -> None:
    """Draw a curve, with markers if it has few points: a single one would be invisible."""
    x, y = _numbers(curve.x), _numbers(curve.y)
    look: dict[str, Any] = {
        "marker": "o" if len(x) <= MARKED_POINTS else None,
        "ms": 3,
        "color": curve.colour,
        "label": curve.label,
        "alpha": curve.opacity,
    }
    if curve.is_thin:
        look |= {"alpha": 0.4, "lw": 0.8}
    axis.plot(x, y, **(look | style))
    if len(curve.low):
        edges = np.append(_numbers(curve.low), _numbers(curve.high)[::-1])
        there = np.isfinite(edges)
        outline = np.append(x, x[::-1])[there], edges[there]
        clip_on = style.get("clip_on", True)
        axis.fill(*outline, color=curve.colour, alpha=0.2, lw=0, clip_on=clip_on)


def svg(curves: Sequence[Curve], title: str, width: int = 560, height: int = 240) -> str:
    """Return an SVG of curves, for a page without scripts; an empty string if there is nothing.

    It refers to nothing, within the page or outside: no markers, tick marks or clipping.
    """
    curves = [one for one in curves if len(one.x) and len(one.y)]
    if not any(np.isfinite(_numbers(one.x) + _numbers(one.y)).any() for one in curves):
        return ""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    with mpl.rc_context({"svg.fonttype": "none", "font.size": 8, "axes.edgecolor": "#e3e0da"}):
        figure, (axis,) = panels(1, width / DPI, height / DPI)
        axis.grid(color="#e3e0da", clip_on=False)
        for side in axis.spines.values():
            side.set_visible(False)
        axis.tick_params(length=0, labelcolor="#636a72")
        for curve in curves:
            draw(axis, curve, marker=None, clip_on=False)
        axis.margins(0)
        for one, nbins in ((axis.xaxis, 6), (axis.yaxis, 5)):
            low, high = sorted(one.get_view_interval())
            ticks = MaxNLocator(nbins).tick_values(low, high)
            ticks = [tick for tick in ticks if low <= tick <= high]
            one.set_ticks(ticks, tick_labels(ticks))
        drawn = io.StringIO()
        no_facts = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=no_facts)
    markup = drawn.getvalue()
    name = html.escape(title)
    body = markup[markup.index("<svg") + len("<svg") :]
    head, body = body.split(">", 1)
    return f'<svg role="img" aria-label="{name}"{head}><title>{name}</title>{body}'


def _numbers(values: Numbers) -> NDArray[np.float64]:
    return np.array(values, np.float64)  # None becomes NaN
