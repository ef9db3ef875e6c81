"""The generated tables in docs/.

They come from the code that they describe (errors.md from the docstrings of the errors).  Those of
reliability.md are also from the figures that `python -m tests.chaos --json docs/chaos.jsonl` adds
to that file, those of training.md from the presets and docs/published.jsonl.  The index of
decisions/ is from the headings of its files.

python tools/tables.py           # rewrite them
python tools/tables.py --check   # exit 1 if they differ from the code
"""

import ast
import json
import re
import sys
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path

import remotely
import remotely_rl.errors
from remotely import other_names as names
from remotely.client.carrier import ClusterCarrier
from remotely.engine import PROMISED, Options
from remotely.engines.in_process import InProcess
from remotely.engines.ray import PROMISES as ON_RAY
from remotely.master import actors
from remotely.ops.launchers import LAUNCHERS
from remotely.protocol.lease import TIMES
from remotely_rl import other_names
from remotely_rl.config import presets
from remotely_rl.runs import hooks
from remotely_rl.vector import states

# In a trial's text: the outcomes of single calls, and that none is wrong.
_COUNTS = re.compile(r" \(\d[\d,]* value.*?\)|, 0 anomalies$")

DOCS = Path(__file__).parent.parent / "docs"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pivoted(cells: Mapping[tuple[str, str], str]) -> str:
    """Return a table of cells by (line, column)."""
    columns = list(dict.fromkeys(column for _, column in cells))
    lines = [
        [line, *(cells.get((line, column), "") for column in columns)]
        for line in dict.fromkeys(line for line, _ in cells)
    ]
    return table(["", *columns], lines)


def packages(root: str) -> typing.Callable[[], str]:
    """Return a function for the layers of a package, highest first, with their docstrings."""

    def rows() -> str:
        with (DOCS.parent / "pyproject.toml").open("rb") as file:
            contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
        (layers,) = (one["layers"] for one in contracts if one.get("containers") == [root])
        return table(
            ["layer", "package", "contents"],
            [
                [str(number), f"`{root}/{path.name}{'/' * path.is_dir()}`", _first_sentence(path)]
                for number, layer in enumerate(layers, 1)
                for path in (_path_of(root, name) for name in layer.split(" | "))
            ],
        )

    return rows


def _path_of(root: str, name: str) -> Path:
    folder = DOCS.parent / root / name
    return folder if folder.is_dir() else folder.with_suffix(".py")


def _first_sentence(path: Path) -> str:
    file = path / "__init__.py" if path.is_dir() else path
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).split(".  ")[0]
    return re.split(r"(?<=\.) ", sentence)[0].rstrip(".:").replace("|", "\\|")


def promises() -> str:
    """Return which engine keeps each promise that not every engine keeps."""
    engines = {
        "`remotely start`": ClusterCarrier.promises,
        "Ray": ON_RAY,
        "`REMOTELY_LOCAL=1`": InProcess.promises,
    }
    return table(
        ["promise", *engines],
        [
            [means, *("yes" if getattr(kept, name) else "no" for kept in engines.values())]
            for name, means in PROMISED.items()
        ],
    )


def times() -> str:
    rows = [[f"`{time.name}`", f"{time.seconds:g} s", time.reason] for time in TIMES]
    return table(["name", "", "reason"], rows)


def options() -> str:
    lines = re.findall(r"^    (\w+) +(.+)$", Options.__doc__ or "", re.MULTILINE)
    defaults = dict(zip(Options.__struct_fields__, Options.__struct_defaults__, strict=True))
    rows = [[f"`{name}`", f"`{_shown(defaults[name])}`", means] for name, means in lines]
    return table(["option", "default", "means"], rows)


def _shown(default: object) -> str:
    return "{}" if type(default).__name__ == "Factory" else repr(default)


def launchers() -> str:
    rows = [
        [
            one.name,
            f"`{one.rank}`",
            f"`{one.size}`" if one.size else "`--wait-for`",
            ", ".join(f"`{name}`" for name in one.job),
        ]
        for one in LAUNCHERS
    ]
    return table(["launcher", "rank", "ranks", "job"], rows)


def other_libraries() -> str:
    rows = [[f"`{field}`", *cells] for field, cells in other_names.TABLE.items()]
    return table(["`remotely_rl`", *other_names.LIBRARIES], rows)


def rows_of(library: str) -> typing.Callable[[], str]:
    """Return a function for the equivalents of a library's names."""

    def rows() -> str:
        cells = [
            [
                *(cell if "`" in cell else f"`{cell}`" for cell in (row.theirs, row.ours)),
                row.differs,
            ]
            for row in names.TABLES[library]
        ]
        return table([library, "`remotely`", "what differs"], cells)

    return rows


def lives() -> str:
    """Return the consequences of each event in the life of an actor."""
    rows = []
    for event, moves, steps in actors.RULES:
        afters = {after: [b.value for b in moves if moves[b] is after] for after in moves.values()}
        states = [f"{', '.join(befores)} → {after.value}" for after, befores in afters.items()]
        said = ", ".join(step.__name__.replace("_", " ") for step in steps)
        rows.append([event.value, "; ".join(states), said])
    return table(["event", "state", "instructions"], rows)


def seats() -> str:
    rows = [
        [
            before,
            event.value,
            rule.next,
            "the death" if rule.reports_death else "",
            "running episodes" if rule.loses_episodes else "",
        ]
        for (before, event), rule in states.TABLE.items()
    ]
    return table(["state", "event", "next", "reported", "lost"], rows)


def figures() -> str:
    """Return the number of each trial, its result if it was run once, and the broken promises."""
    with (DOCS / "chaos.jsonl").open() as file:
        lines = [json.loads(line) for line in file]
    trials = {
        line["trial"]: [one for one in lines if one["trial"] == line["trial"]] for line in lines
    }
    rows = [
        [
            trial,
            f"{sum(one['n'] for one in runs):,}",
            _COUNTS.sub("", runs[0]["told"]) if len(runs) == 1 else "",
        ]
        for trial, runs in trials.items()
    ]
    broken = sum(len(line["wrong"]) for line in lines)
    hours = sum(line["seconds"] for line in lines) / 3600
    broken_text = f"Promises broken in {len(trials)} trials and {hours:.1f} hours: {broken}."
    return f"{broken_text}\n\n{table(['what', 'n', 'seen'], rows)}"


def decisions() -> str:
    rows = []
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        number, title = re.findall(r"^# (\d{4})\. (.+)$", path.read_text(), re.MULTILINE)[0]
        date, status = re.findall(r"^(?:Date|Status): (.+)$", path.read_text(), re.MULTILINE)
        rows.append([f"[{number}]({path.name})", title, date, status])
    return table(["", "decision", "date", "status"], rows)


def presets_beside_published() -> str:
    """Return the results of the presets, with published ones."""
    with (DOCS / "published.jsonl").open() as file:
        tasks = [json.loads(line) for line in file]
    rows = []
    for task in tasks:
        if (row := presets.find(task["algorithm"], task["env"])) is None:
            ours = [task["why_not"], "", "", ""]
        else:
            returns = row.measured.returns
            reached = sum(one >= task["reach"] for one in returns)
            ours = [
                str(row.measured),
                f"{reached} of {len(returns)}",
                f"{row.settings['total_steps']:,}",
                f"{row.measured.minutes:g}",
            ]
        rows.append([task["env"], f"`{task['algorithm']}`", task["published"], *ours])
    head = ["environment", "algorithm", "published", "ours: greedy", "seeds", "steps", "minutes"]
    return table(head, rows)


def errors() -> str:
    """Return each public error: its meaning, whose fault it is, and what to do."""
    public = [getattr(remotely, name) for name in remotely.__all__]
    rows = [
        [*_head_of(error), *_advice_of(error)]
        for error in [*public, *vars(remotely_rl.errors).values()]
        if isinstance(error, type) and issubclass(error, Exception)
    ]
    return table(["error", "means", "whose fault", "what to do"], rows)


def _head_of(error: type[Exception]) -> list[str]:
    """Return an error's name with its built-in base classes, and its meaning."""
    others = ("builtins", "_pickle")
    also = [base.__name__ for base in error.__bases__ if base.__module__ in others]
    kind = "".join(f", a `{name}`" for name in also if name != "Exception")
    means = _paragraphs(error)[0].replace("`still_running`:", "`still_running` is")
    return [f"`{error.__name__}`{kind}", means]


def _advice_of(error: type[Exception]) -> list[str]:
    """Return whose fault an error is and what to do, from a paragraph of its docstring."""
    (found,) = [
        match
        for paragraph in _paragraphs(error)
        if (match := re.fullmatch(r"Whose fault: (.+)\. What to do: (.+)\.", paragraph))
    ]
    return [*found.groups()]


def _paragraphs(error: type[Exception]) -> list[str]:
    return [" ".join(one.split()) for one in (error.__doc__ or "").split("\n\n")]


def suites() -> str:
    """Return the tests of other projects that fail by design, with reasons."""
    with (DOCS.parent / "tests" / "outside" / "differences.toml").open("rb") as file:
        listed = tomllib.load(file)
    rows = [
        [f"`{suite}`", entry["reason"], ", ".join(f"`{_test_name(t)}`" for t in entry["tests"])]
        for suite, entries in listed.items()
        for entry in entries
    ]
    return table(["tests of", "what differs", "tests"], rows)


def _test_name(test: str) -> str:
    return test.partition(".")[2] or test


def coefficients() -> str:
    return ", ".join(f"`{name}`" for name in sorted(hooks.COEFFICIENTS)) + "."


PAGES = {
    "design.md": {
        "remotely": packages("remotely"),
        "remotely_rl": packages("remotely_rl"),
        "lives": lives,
        "seats": seats,
    },
    "guide.md": {"options": options},
    "errors.md": {"errors": errors},
    "hooks.md": {"coefficients": coefficients},
    "launch.md": {"launchers": launchers, "promises": promises},
    "coming_from.md": {
        "other libraries": other_libraries,
        "suites": suites,
        **{library: rows_of(library) for library in names.TABLES},
    },
    "training.md": {"presets": presets_beside_published},
    "reliability.md": {"times": times, "figures": figures},
    "decisions/README.md": {"decisions": decisions},
}


def filled(name: str, page: str) -> str:
    """Return a page with the text between each pair of marks replaced."""
    for mark, make in PAGES[name].items():
        between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = between.subn("\\g<1>" + make().replace("\\", r"\\") + "\n\\g<2>", page)
        assert count == 1, f"docs/{name} has {count} places for the table {mark!r}"
    return page


def main() -> None:
    for name in PAGES:
        page = (DOCS / name).read_text()
        if "--check" not in sys.argv:
            (DOCS / name).write_text(filled(name, page))
        elif filled(name, page) != page:
            sys.exit(f"docs/{name} differs from the code: run this tool")


if __name__ == "__main__":
    main()
