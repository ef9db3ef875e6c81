"""A report about runs: one HTML page to share, with curves, figures and settings, without scripts.

Dask's performance report is the model.  The page contains only data of the run folders and fetches
nothing.  A Content-Security-Policy in its head forbids scripts, whatever a name or a setting holds.
"""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import remotely
from remotely_rl.dashboard import groups, series
from remotely_rl.dashboard.groups import Asked
from remotely_rl.dashboard.runs import NoRun, Runs
from remotely_rl.errors import TrainingError
from remotely_rl.runs import aggregate, picture, run_folder, status
from remotely_rl.runs.picture import Curve
from remotely_rl.runs.run_folder import RunConfig

CHARTS = {  # of each run
    "time/steps_per_second": "steps per second",
    "train/policy_loss": "policy loss",
    "train/value_loss": "value loss",
    "train/entropy": "entropy",
    "train/approx_kl": "KL",
    "train/q_mean": "mean Q",
    "train/td_error": "TD error",
    "train/staleness_mean": "staleness",
}
AXES = {series.STEPS: "steps", series.SECONDS: "seconds"}
POINTS = 300
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;color:#22262b;background:#fbfaf8;max-width:1180px;
margin:2rem auto;padding:0 1.2rem;font-variant-numeric:tabular-nums}
h1{font-size:21px}h2{font-size:16px;margin:2.2rem 0 .3rem;border-top:1px solid #e3e0da;
padding-top:.8rem;overflow-wrap:anywhere}
.soft,th{color:#636a72;font-weight:500}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.22rem .9rem .22rem 0;
white-space:nowrap;border-bottom:1px solid #ece9e3}.n{text-align:right}
.grid-of{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(260px,100%),1fr));
gap:.8rem 1.4rem}
.two{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(420px,100%),1fr));
gap:1rem 1.6rem}
figure{margin:0;min-width:0}figcaption{font-size:13px}
svg{width:100%;height:auto;display:block;overflow:visible}
svg text{font-size:11px;fill:#636a72}.y{text-anchor:end;dominant-baseline:middle}
.x{text-anchor:middle}.grid{stroke:#e3e0da;fill:none}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1.2rem}dt{color:#636a72}
dd,code,p{margin:.2rem 0;overflow-wrap:anywhere}dd{margin:0}
ul{list-style:none;padding:0}summary{cursor:pointer}
table{margin:.8rem 0}
@media print{details{display:none}}
"""


class ChosenRuns:
    """Runs of any folders, each with a unique name."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._runs: dict[str, tuple[Runs, str]] = {}
        for path in (run for given in paths for run in run_folder.runs_of(given)):
            root = path.resolve()
            run_folder.read(path)  # raises if it is not a run
            name, number = root.name, 2
            while name in self._runs and self._runs[name][0].root != root:
                name, number = f"{root.name} ({number})", number + 1
            self._runs[name] = Runs(root), root.name

    def names(self) -> list[str]:
        return list(self._runs)

    def config(self, name: str) -> RunConfig:
        runs, own = self._runs[name]
        return runs.config(own)

    def open(self, name: str, file: str) -> BinaryIO:
        runs, own = self._runs[name]
        return runs.open(own, file)

    def row(self, name: str) -> dict[str, Any]:
        runs, own = self._runs[name]
        return runs.row(own)


def write(paths: Sequence[Path], out: Path) -> None:
    """Write the report of these runs.

    Raises TrainingError if a path is not a run, or if `out` cannot be written.
    """
    page = html_of(ChosenRuns(paths), datetime.now().astimezone())
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"{out} cannot be written: {error.strerror}") from None


def html_of(runs: ChosenRuns, now: datetime) -> str:
    """Return the page."""
    names = runs.names()
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}: training report</title><style>{STYLE}</style></head><body>",
            f"<h1>{_text(title)}: training report</h1>",
            f'<p class="soft">{now:%Y-%m-%d %H:%M %Z}, remotely {remotely.__version__}</p>',
            _compared(runs),
            _aggregates(runs),
            _table(runs),
            *(_run(runs, name) for name in names),
            "</body></html>\n",
        ]
    )


def _compared(runs: ChosenRuns) -> str:
    """Return the charts of all runs' returns, over steps and over time."""
    figures, keys = [], ""
    for over, unit in AXES.items():
        found = groups.compared(runs, runs.names(), Asked(over, points=POINTS))
        lines = []
        for place, group in enumerate(found["groups"]):
            colour = picture.colour_of(place)
            if band := group["band"]:
                lines.append(Curve(band["x"], band["mean"], band["low"], band["high"], colour))
            lines += [
                Curve(each["x"], each["y"], colour=colour, is_thin=bool(band))
                for each in group["lines"]
            ]
        if drawn := picture.svg(lines, f"return over {unit}"):
            figures.append(f"<figure><figcaption>return over {unit}</figcaption>{drawn}</figure>")
        keys = "".join(_key(place, group) for place, group in enumerate(found["groups"]))
    if not figures:
        return "<p>No episode has ended in these runs.</p>"
    return f'<div class="two">{"".join(figures)}</div><ul>{keys}</ul>'


def _key(place: int, group: dict[str, Any]) -> str:
    colour = picture.colour_of(place)
    count = len(group["lines"])
    note = f", {count} runs: each, and their mean and range where all have data"
    note = note if count > 1 else ""
    return (
        f'<li><svg viewBox="0 0 18 4" style="width:18px;display:inline-block">'
        f'<rect width="18" height="3" fill="{colour}"/></svg> {_text(group["label"])}'
        f'<span class="soft">{note}</span></li>'
    )


def _aggregates(runs: ChosenRuns) -> str:
    """Return the table of interquartile means, if there are several runs."""
    found = groups.compared(runs, runs.names(), Asked(points=POINTS))
    last = [
        aggregate.RunsOfMethod(
            each["method"], each["env"], [line["y"][-1] for line in each["lines"]]
        )
        for each in found["groups"]
    ]
    if sum(len(group.returns) for group in last) < 2:
        return ""
    rows = aggregate.summarize(last)
    lines = [
        [_text(row.method), _text(row.where), str(row.runs), f"{row.mean:,.4g}", row.spread]
        for row in rows
    ]
    heads = ("method", "environment", "runs", "interquartile mean of the last returns", "interval")
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    note = ""
    if any(len(row.envs) > 1 for row in rows):
        note = (
            '<p class="soft">Scaled: 0 is the lowest, and 1 the highest, of the last returns of all'
            " these runs in an environment.</p>"
        )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{body}</table></div>{note}'


def _table(runs: ChosenRuns) -> str:
    heads = (
        "run",
        "algorithm",
        "environment",
        "seed",
        "steps",
        "minutes",
        "steps/s",
        "episodes",
        "return",
        "max",
    )
    lines = []
    for name in runs.names():
        row = runs.row(name)
        words = [name, row["algorithm"], row["env"]]
        minutes = row["seconds"] / 60 if row["seconds"] is not None else None
        numbers = [
            row["seed"],
            row["steps"],
            minutes,
            row["steps_per_s"],
            row["episodes"],
            row["return_mean"],
            row["return_max"],
        ]
        cells = [f"<td>{_text(word)}</td>" for word in words]
        cells += [f'<td class="n">{_number(number)}</td>' for number in numbers]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(
        f'<th scope="col"{" class=n" if place > 2 else ""}>{each}</th>'
        for place, each in enumerate(heads)
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{"".join(lines)}</table></div>'
    )


def _run(runs: ChosenRuns, name: str) -> str:
    """Return the section of one run: small curves, and its settings."""
    try:
        with runs.open(name, "metrics.csv") as file:
            piece = series.read(file, [series.STEPS, *CHARTS], POINTS)
    except NoRun:
        piece = None
    figures = []
    for column, title in CHARTS.items() if piece else ():
        assert piece is not None
        values = piece.series.get(column, [])
        line = Curve(piece.series.get(series.STEPS, ()), values)
        if drawn := picture.svg([line], f"{title} of {name} over steps", 300, 150):
            figures.append(f"<figure><figcaption>{title}</figcaption>{drawn}</figure>")
    config, row = runs.config(name), runs.row(name)
    ended = ": ".join(filter(None, (row["state"], row["why"])))
    go_on = f"<p>It goes on with <code>{_text(row['go_on'])}</code></p>" if row["go_on"] else ""
    if row["start_anew"]:
        go_on = f"<p>{status.NO_CHECKPOINT} <code>{_text(row['start_anew'])}</code></p>"
    return (
        f'<h2>{_text(name)}</h2><p class="soft">{_text(ended)}</p>{go_on}'
        f'<div class="grid-of">{"".join(figures)}</div>'
        f"{_facts('Settings', config.config)}{_facts('Started with', status.facts(config))}"
    )


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    """Return a list of facts, closed; nothing if there is none."""
    if not facts:
        return ""
    items = "".join(
        f"<dt>{_text(key)}</dt><dd>{_text(json.dumps(value))}</dd>" for key, value in facts.items()
    )
    return f"<details><summary>{title}</summary><dl>{items}</dl></details>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _number(value: object) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
