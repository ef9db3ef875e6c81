"""Study: simulated training of an image classifier under a rule, for `remotely-rl simulate`.

It is deterministic: the same spec and the same settings give the same rows.
"""

import csv
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch

from remotely_rl import settings, sync
from remotely_rl.errors import SyncError
from remotely_rl.settings import COUNT, NOT_NEGATIVE
from remotely_rl.sync.simulation import problems
from remotely_rl.sync.simulation.dispatcher import (
    RandomOrder,
    SimulatedDispatcher,
    TimedOrder,
    Timing,
)
from remotely_rl.sync.simulation.problems import Classification, Pictures
from remotely_rl.sync.simulation.simulator import Row, Simulation


@dataclasses.dataclass(frozen=True)
class Study:
    """The settings of a simulation, except the rule."""

    clients: Annotated[int, "clients of the rule", COUNT] = 128
    batch: Annotated[int, "images in a gradient", COUNT] = 1
    iterations: Annotated[int, "total number of pushes", COUNT] = 10_000
    rate: Annotated[float, "learning rate, for rules whose spec has none", NOT_NEGATIVE] = 0.04
    accumulate: Annotated[int, "gradients that a client sums for a push", COUNT] = 1
    hidden: Annotated[int, "units of the one hidden layer", COUNT] = 200
    init: Annotated[str, "initial weights: torch's, or normal: N(0, 1)"] = "torch"
    every: Annotated[int, "pushes between two evaluations on the test set", COUNT] = 1000
    seed: Annotated[int, "seed of all random streams", NOT_NEGATIVE] = 1

    compute_s: Annotated[
        float,
        "seconds for a gradient, by a simulated clock; 0: no clock, in random order",
        NOT_NEGATIVE,
    ] = 0.0
    jitter: Annotated[float, "its relative standard deviation", NOT_NEGATIVE] = 0.1
    latency_s: Annotated[float, "seconds for a message, one way", NOT_NEGATIVE] = 0.0
    bandwidth: Annotated[
        float, "bytes per second of a client's link; 0: no limit", NOT_NEGATIVE
    ] = 0.0
    server_s: Annotated[float, "seconds of the server for a push", NOT_NEGATIVE] = 0.0
    stragglers: Annotated[int, "number of slow clients", NOT_NEGATIVE] = 0
    straggle: Annotated[float, "factor by which slow clients take longer", NOT_NEGATIVE] = 5.0

    def __post_init__(self) -> None:
        settings.check(self)
        if self.stragglers > self.clients:
            raise SyncError(f"stragglers must be at most {self.clients}, not {self.stragglers}")
        if self.stragglers and not self.compute_s:
            raise SyncError("stragglers need a clock: set compute_s too")

    def dispatcher(self, pushed: int) -> SimulatedDispatcher:
        """Return the dispatcher for pushes of `pushed` bytes."""
        if not self.compute_s:
            return RandomOrder(self.seed)
        clock = Timing(self.compute_s, self.jitter, self.latency_s, self.bandwidth, self.server_s)
        return TimedOrder(clock, pushed, self.seed, [self.straggle] * self.stragglers)


def run(
    spec: str, study: Study, pictures: Pictures, say: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Simulate a rule; call `say` with each row as it comes.

    Raises SyncError for an unknown rule or a setting out of range.
    """
    torch.set_num_threads(1)  # a batch is too small for two
    module = problems.mlp(pictures.x.shape[1], study.hidden, study.init, study.seed)
    work = Classification(pictures, module, study.batch, study.seed)
    rule = sync.make(spec, work.flat.vector, study.clients, sync.sgd(study.rate))
    dispatcher = study.dispatcher(rule.parameters.nbytes)
    simulation = Simulation(rule, work, dispatcher, study.accumulate)
    rows: list[Row] = []
    for _ in range(-(-study.iterations // study.every)):
        left = min(study.every, study.iterations - simulation.iteration)
        for row in simulation.run(left, work.evaluate, every=left)[bool(rows) :]:
            rows.append(row)
            say(row)
    return rows


def record(spec: str, row: Row) -> dict[str, Any]:
    """Return a row as a record of the CSV file."""
    plain = row._asdict()
    metrics = plain.pop("metrics")
    return {"rule": spec, **plain, **metrics}


def write(path: str | Path, results: Mapping[str, Sequence[Row]]) -> None:
    """Write the rows of several rules to a CSV file."""
    records = [record(spec, row) for spec, rows in results.items() for row in rows]
    try:
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)
    except OSError as error:
        raise SyncError(f"cannot write {path}: {error.strerror}") from None


def draw(path: str | Path, results: Mapping[str, Sequence[Row]], title: str) -> None:
    """Plot the test loss over pushes, megabytes and, with a clock, simulated seconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - takes a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    clocked = any(rows[-1].time_s for rows in results.values())
    axes: list[tuple[str, Callable[[Row], float]]] = [
        ("pushes", lambda row: row.iteration),
        ("MB sent", lambda row: row.bytes / 1e6),
    ]
    if clocked:
        axes.append(("simulated seconds", lambda row: row.time_s))
    figure = Figure(figsize=(5 * len(axes), 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(axes), squeeze=False)[0]
    for panel, (label, over) in zip(panels, axes, strict=True):
        for spec, rows in results.items():
            panel.plot(
                [over(row) for row in rows], [row.metrics["loss"] for row in rows], label=spec
            )
        panel.set_xlabel(label)
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test loss")
    panels[0].legend(fontsize=8)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise SyncError(f"cannot draw {path}: {error}") from None
