"""The picture of a run: mean return over time, and over steps."""

import math
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from remotely_rl import metrics


def draw(metrics_csv: Path, png: Path, title: str) -> bool:
    """Draws curve.png from metrics.csv.  Returns whether any game was finished to draw."""
    rows = [row for row in metrics.read(metrics_csv) if not math.isnan(row["return_mean"])]
    if not rows:
        return False
    # No pyplot: it would keep global state and ask for a display.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, label, x in (
        (axes[0], "minutes", [row["seconds"] / 60 for row in rows]),
        (axes[1], "million steps", [row["env_steps"] / 1e6 for row in rows]),
    ):
        axis.plot(x, [row["return_interval"] for row in rows], color="tab:blue", alpha=0.25)
        axis.plot(x, [row["return_mean"] for row in rows], color="tab:blue")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"return, mean of last {metrics.RETURN_WINDOW} (pale: of an interval)")
    figure.suptitle(title)
    figure.savefig(png, dpi=120)
    return True
