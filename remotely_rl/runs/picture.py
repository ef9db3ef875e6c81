"""Pictures of curves, by matplotlib: a PNG of a run (curve.py), or the SVGs of a report.

Not pyplot, which keeps global state and needs a display.  matplotlib is imported late: it takes a
second, and actors import this package.
"""

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
    from matplotlib.ticker import EngFormatter, MaxNLocator  # noqa: PLC0415

    with mpl.rc_context({"svg.fonttype": "none", "font.size": 8, "axes.edgecolor": "#e3e0da"}):
        figure, (axis,) = panels(1, width / DPI, height / DPI)
        axis.grid(color="#e3e0da", clip_on=False)
        for side in axis.spines.values():
            side.set_visible(False)
        axis.tick_params(length=0, labelcolor="#636a72")
        for one, nbins in ((axis.xaxis, 6), (axis.yaxis, 5)):
            one.set_major_locator(MaxNLocator(nbins))
            one.set_major_formatter(EngFormatter(sep=" "))
        for curve in curves:
            draw(axis, curve, marker=None, clip_on=False)
        axis.margins(0)
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
