"""The benchmark judges and shows what was measured as it says; what it measures, it is run for."""

import importlib.metadata
import json
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import remotely
from tools.bench import page, program, rows, stopwatch, systems, table, turns, units
from tools.bench.benchmark import Benchmark, Limits
from tools.bench.figures import Figures, Spread, spread
from tools.bench.rows import Row, Term, at_least, at_most, judge
from tools.bench.stopwatch import Meter
from tools.bench_collectors import systems as systems_collectors
from tools.bench_ray import systems as systems_ray
from tools.bench_replay import systems as systems_replay
from tools.bench_rl import gpu, pace
from tools.bench_rl import systems as systems_rl
from tools.bench_rl.window import Window
from tools.bench_savina import systems as systems_savina
from tools.bench_vector import systems as systems_vector

SECTIONS = [
    one.SECTION
    for one in (
        systems,
        systems_rl,
        systems_replay,
        systems_vector,
        systems_savina,
        systems_ray,
        systems_collectors,
        gpu,
    )
]
BENCHES = (
    systems.BENCH,
    systems_rl.BENCH,
    systems_replay.BENCH,
    systems_savina.BENCH,
    systems_ray.BENCH,
    systems_collectors.BENCH,
    gpu.BENCH,
)
TITLES = {"ours": "remotely", "bare": "bare pyzmq", "ray": "Ray"}
BARE = Term("bare", "bare pyzmq")


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    """Put back what a benchmark's program replaces for the rest of its process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def measured(**by_system: dict[str, list[float]]) -> Figures:
    figures = Figures()
    for system, by_figure in by_system.items():
        for figure, values in by_figure.items():
            for number, value in enumerate(values):
                figures.add(system, figure, number, value)
    return figures


# --- figures --------------------------------------------------------------------------------------


def test_a_spread_is_the_median_and_the_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert spread([4.0, 1.0]) == Spread(2.5, 1.0, 4.0, 2)


def test_figures_survive_a_file() -> None:
    figures = measured(ours={"call_s": [1.0, 2.0]}, ray={"call_s": [3.0]})
    again = Figures.from_json(figures.to_json())
    assert again.of("ours", "call_s") == {0: 1.0, 1: 2.0}
    assert again.of("ray", "call_s") == {0: 3.0}
    assert again.of("parl", "call_s") == {}


def test_reasons_for_missing_figures_survive_a_file_and_are_in_the_table() -> None:
    figures = measured(ours={"call_s": [1.0]})
    figures.miss("ours", "pong_actors_2", "no time was left")
    figures.miss("ours", "echo_s", "no memory")
    again = Figures.from_json(figures.to_json())
    rows = [Row(name, name) for name in ("pong_actors_2_steps", "pong_s", "echo_s", "call_s")]
    assert [line[2] for line in table.bars(rows, again, TITLES)] == [
        "not run: no time was left",
        "not run",
        "not run: no memory",
        "1.00 s",
    ]


def test_only_figure_lines_of_the_output_are_parsed() -> None:
    said = (
        '[Actor-1] hello\n{"figure": "call_s", "value": 0.5}\n{"other": 1}\n'
        '{"figure": "pace_per_s", "value": 7, "repeat": 0}\n'
        '{"figure": "pace_per_s", "value": 8, "repeat": 1}\n'
        '{"figure": "echo_s", "why": "no memory"}\n{"figure": "cut_off_s", "val'
    )
    values = {"call_s": {0: 0.5}, "pace_per_s": {0: 7.0, 1: 8.0}}
    assert turns.parse(said) == turns.Report(values, {"echo_s": "no memory"})


# --- bars -----------------------------------------------------------------------------------------


def test_the_verdict_uses_the_median_of_the_rounds_ratios() -> None:
    row = Row("a call", "call_s", (at_most(1.3, BARE),))
    figures = measured(ours={"call_s": [1.0, 20.0, 3.0]}, bare={"call_s": [1.0, 10.0, 2.0]})
    verdict = judge(row, row.bars[0], figures)
    assert verdict is not None
    assert verdict.ratio == Spread(1.5, 1.0, 2.0, 3)  # not the ratio of medians, 3 to 2
    assert not verdict.reached


def test_a_round_without_the_other_side_is_ignored() -> None:
    row = Row("a call", "call_s", (at_most(1.3, BARE),))
    figures = measured(ours={"call_s": [1.0, 99.0]}, bare={"call_s": [1.0]})
    verdict = judge(row, row.bars[0], figures)
    assert verdict is not None
    assert verdict.ratio.rounds == 1
    assert verdict.reached
    assert judge(row, row.bars[0], measured(ours={"call_s": [1.0]})) is None


@pytest.mark.parametrize(
    ("bar", "reached"),
    [
        (at_least(40_000), True),
        (at_least(50_001), False),
        (at_most(50_000), True),
        (at_least(1, Term("ray", "Ray", times=2), Term("bare", "x", "other_per_s")), True),
        (at_least(1, Term("ray", "Ray", times=2), Term("bare", "x", "other_per_s", 2)), False),
    ],
)
def test_a_target_is_a_number_or_a_sum_of_other_figures(bar: rows.Bar, reached: bool) -> None:
    figures = measured(
        ours={"calls_per_s": [50_000.0]},
        ray={"calls_per_s": [20_000.0]},
        bare={"other_per_s": [10_000.0]},
    )
    verdict = judge(Row("calls", "calls_per_s"), bar, figures)
    assert verdict is not None
    assert verdict.reached == reached


def test_a_row_may_be_of_another_system() -> None:
    row = Row("inference", "inference_per_s", (at_least(2, Term("bare", "bare")),), of="limit")
    figures = measured(limit={"inference_per_s": [8.0]}, bare={"inference_per_s": [2.0]})
    assert table.bars([row], figures, {"limit": "the limit", "bare": "bare"}) == [
        ["inference", ">= 2 x bare", "8.00/s", "4.00 x", "yes", "bare 2.00/s"]
    ]


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.command)
def test_every_figure_of_the_table_has_a_unit_and_every_term_a_system(bench: Benchmark) -> None:
    for row in bench.rows:
        assert units.shown(row.figure, 0.5)
        assert row.of in bench.systems
        for term in [*row.beside, *(term for bar in row.bars for term in bar.terms)]:
            assert term.system in bench.systems


def test_a_training_and_its_reference_are_measured_in_the_same_round() -> None:
    parts = systems_rl.PARTS
    for row in systems_rl.ROWS:
        for term in (term for bar in row.bars for term in bar.terms):
            part = (term.figure or row.figure).removesuffix("_per_s")
            assert term.system in parts[part]


# --- what is shown --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("call_s", 0.000167, "167 us"),
        ("echo_s", 0.0245, "24.5 ms"),
        ("start_s", 1.5, "1.50 s"),
        ("calls_per_s", 40_000.0, "40,000/s"),
        ("stream_bytes_per_s", 4.1e9, "4.10 GB/s"),
        ("uss_bytes", 9.6e6, "9.60 MB"),
        ("idle_share", 0.0042, "0.42 %"),
        ("pong_steps", 466_000.0, "466 k steps"),
        ("pong_steps", 1_474_000.0, "1.47 M steps"),
    ],
)
def test_a_figure_is_shown_in_the_unit_of_its_name(figure: str, value: float, text: str) -> None:
    assert units.shown(figure, value) == text


def test_a_range_is_in_the_unit_of_its_median() -> None:
    assert units.shown_spread("call_s", Spread(0.9e-3, 0.5e-3, 1.2e-3, 3)) == "900 us (500-1,200)"
    assert units.shown_spread("call_s", Spread(0.9e-3, 0.9e-3, 0.9e-3, 1)) == "900 us"


@pytest.mark.parametrize(
    ("bar", "text"),
    [
        (at_least(40_000), ">= 40,000/s"),
        (at_most(1.3, BARE), "<= 1.3 x bare pyzmq"),
        (at_most(1, BARE), "<= bare pyzmq"),
        (at_most(1, BARE._replace(times=2), Term("ours", "a call")), "<= 2 x bare pyzmq + a call"),
        (at_most(1 / 3, BARE, BARE), "<= 0.33 x (bare pyzmq + bare pyzmq)"),
    ],
)
def test_a_target_is_described_in_words(bar: rows.Bar, text: str) -> None:
    assert table.said(Row("calls", "calls_per_s"), bar) == text


def test_the_table_has_a_line_for_each_bar() -> None:
    rows = (
        Row("a call", "call_s", (at_most(1.3, BARE), at_most(0.1, Term("ray", "Ray")))),
        Row("a start", "start_s", (at_most(0.4),)),
        Row("an end", "end_s"),
    )
    figures = measured(
        ours={"call_s": [1e-4, 3e-4], "start_s": [0.5]}, bare={"call_s": [1e-4, 2e-4]}
    )
    assert table.bars(rows, figures, TITLES) == [
        [
            "a call",
            "<= 1.3 x bare pyzmq",
            "200 us (100-300)",
            "1.25 x (1.00-1.50)",
            "yes",
            "bare pyzmq 150 us",
        ],
        ["", "<= 0.1 x Ray", "", "", "-", ""],
        ["a start", "<= 400 ms", "500 ms", "", "NO", ""],
        ["an end", "", table.MISSING, "", "", ""],
    ]


def test_the_columns_of_the_table_are_aligned() -> None:
    line = ["a very long thing that is measured", "<= Ray", "1 s", "", "yes", ""]
    head, long = table.text([line]).splitlines()
    assert head.index("to reach") == long.index("<= Ray")
    assert head.index("reached") == long.index("yes")


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_the_page_of_a_benchmark_has_one_place_for_it(section: page.Section) -> None:
    begins, ends = section.marks
    text = section.path.read_text()
    assert (text.count(begins), text.count(ends)) == (1, 1)
    assert text.index(begins) < text.index(ends)


def test_the_section_of_the_page_is_replaced_and_the_rest_is_kept() -> None:
    text = systems_rl.SECTION.path.read_text()
    figures = measured(ours={"a2c_84_per_s": [900.0]}, sb3={"a2c_84_per_s": [300.0]})
    once = systems_rl.SECTION.filled(text, {"date": "today"}, figures)
    assert "date: today." in once
    assert "| >= 2 x Stable-Baselines3 |  | 3.00 x | yes |" in once
    assert systems_rl.SECTION.filled(once, {"date": "today"}, figures) == once
    begins, ends = systems_rl.SECTION.marks
    assert once.partition(begins)[0] == text.partition(begins)[0]
    assert once.partition(ends)[2] == text.partition(ends)[2]


def test_the_page_has_all_gpu_rows_and_a_run_fills_them() -> None:
    text = gpu.SECTION.path.read_text()
    for row in gpu.ROWS:
        assert not row.bars or f"| {row.title} | {table.said(row, row.bars[0])} |" in text
    figures = measured(
        ours={"alternating_84_per_s": [21.0, 30.0, 28.0]}, plain={"plain_84_ppo_per_s": [20.0] * 3}
    )
    once = gpu.SECTION.filled(text, {"date": "today"}, figures)
    assert "| >= 1.4 x the plain loop |  | 1.40 x (1.05-1.50) | yes |" in once
    assert gpu.SECTION.filled(once, {"date": "today"}, figures) == once


# --- turns ----------------------------------------------------------------------------------------


def test_every_second_round_is_in_reverse_order() -> None:
    bench = systems.BENCH
    forth = turns.in_order(bench, bench.systems, ["calls", "tcp"], 0)
    assert turns.in_order(bench, bench.systems, ["calls", "tcp"], 1) == forth[::-1]
    assert {turn.part for turn in forth} == {"calls", "tcp"}
    assert turns.in_order(bench, ["ours"], ["calls"], 0) == [
        turns.Turn("calls", "ours", bench.folder / "ours" / "calls.py")
    ]


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.command)
def test_every_script_exists_and_every_system_is_known(bench: Benchmark) -> None:
    for by_system in bench.parts.values():
        for system, script in by_system.items():
            assert system in bench.systems
            assert Path(bench.folder / script).is_file()


@pytest.mark.parametrize("bench", [systems.BENCH, systems_rl.BENCH], ids=["calls", "rl"])
def test_our_version_is_that_installed(bench: Benchmark) -> None:
    assert turns.versions({"ours": bench.systems["ours"]})["ours"] == remotely.__version__


def test_a_turn_returns_its_figures_or_why_it_failed() -> None:
    memory = systems.BENCH.folder / "peers" / "of_memory.py"
    found = turns.take(turns.Turn("streams", "memory", memory), quick=True).values
    assert found.keys() == {"copy_bytes_per_s"}
    assert math.isfinite(found["copy_bytes_per_s"][0])
    with pytest.raises(turns.TurnFailed, match="KeyError: 'none'"):
        turns.take(turns.Turn("none", "memory", memory), quick=True)


# --- pace -----------------------------------------------------------------------------------------


def test_a_meter_counts_what_arrives_after_its_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 104.0, 105.0, 110.0, 125.0])
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    meter = Meter(for_s=20.0, after_s=5.0)
    assert [meter.runs_on(10) for _ in range(5)] == [True, True, True, True, False]
    assert meter.per_s == 1.0  # 20 in the 20 s from the third on


def test_a_pace_is_taken_between_rows_from_the_warm_up_on() -> None:
    window = Window(warm_up_s=2.0, for_s=3.0)
    rows = [
        {"time/seconds": seconds, "time/env_steps": steps, "time/updates": updates}
        for seconds, steps, updates in [
            (9.0, 0.0, 0.0),  # before the first update: it compiles, or waits for actors
            (10.0, 500.0, 1.0),
            (11.0, 600.0, 2.0),
            (12.0, 1000.0, 3.0),
            (14.0, 1400.0, 4.0),
            (16.0, 1800.0, 5.0),
        ]
    ]
    assert pace.per_s(rows, window) == [200.0]
    rows[4]["time/env_steps"] = 1200.0  # 100 a second, and then 300
    assert pace.per_s(rows, window, slices=2) == [100.0, 300.0]
    assert pace.per_s(rows, window, slices=5) == [100.0, 300.0]  # three end where others do
    for too_few in (rows[:5], rows[:1], []):
        with pytest.raises(pace.TooShort):
            pace.per_s(too_few, window)


# --- a run that has to end in time ----------------------------------------------------------------

QUICK, SLOW, DEAD = (
    "import sys; sys.path.pop(0)\nfrom tools.bench.stopwatch import report\n" + rest
    for rest in (
        "report(**{f'{sys.argv[1]}_s': float(sys.argv[sys.argv.index('--limit') + 1])})",
        "report(0, slow_s=1.0)\nimport time\ntime.sleep(60)",
        "report(0, dead_s=2.0)\nsys.exit('broken')",
    )
)


def test_a_part_that_hangs_or_dies_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"slow": SLOW, "dead": DEAD, "quick": QUICK, "large": QUICK}
    for name, script in parts.items():
        (tmp_path / f"{name}.py").write_text(script)
    bench = gpu.BENCH._replace(
        folder=tmp_path,
        systems={"ours": systems.BENCH.systems["ours"]},
        parts={name: {"ours": f"{name}.py"} for name in parts},
        rows=tuple(Row(name, f"{name}_s") for name in parts),
        # For long enough that it can start, and tell its figure, on a machine that is busy.
        limits={"slow": Limits(most_s=8.0), "large": Limits(most_s=900, least_s=600)},
    )
    file = tmp_path / "run.json"
    kept: list[int] = []  # how much is in the file when a figure comes
    add = Figures.add

    def kept_by_now(*values: Any) -> None:
        kept.append(file.exists() and len(json.loads(file.read_text())["figures"]))
        add(*values)

    monkeypatch.setattr(Figures, "add", kept_by_now)
    command = ["bench", "--minutes", "2", "--device", "cpu", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", command)
    section = page.Section(bench, tmp_path / "page", "", "")
    assert program.main(section, None) == 1  # ours has failed
    assert kept == [0, 2, 4]  # a figure and why there are no more, of each before
    monkeypatch.undo()
    figures = Figures.from_json(json.loads(file.read_text())["figures"])
    assert figures.of("ours", "slow_s") == {0: 1.0}  # what it said before it was ended
    assert figures.of("ours", "dead_s") == {0: 2.0}
    assert 60 < figures.of("ours", "quick_s")[0] <= 120  # what is left of two minutes
    assert figures.why_not("ours", "large_s") == "no time was left"
    assert "dead of ours ended with 1: broken" in capsys.readouterr().err


def test_an_unpacked_tree_needs_neither_git_nor_an_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(*_: object, **__: object) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setenv("PATH", "")
    run = page.described(gpu.BENCH, "a command", 1)
    assert run["versions"] == f"remotely-actors {remotely.__version__}"
    assert run["commit"] == "not known: this tree is no checkout"


def test_every_name_of_rays_microbenchmarks_is_measured_on_both() -> None:
    """Each script reports the figure of each row, by its name."""
    for script in systems_ray.BOTH.values():
        text = (systems_ray.BENCH.folder / script).read_text()
        assert [name for name in systems_ray.NAMES if f'"{name}"' not in text] == []
    assert not {*systems_ray.NAMES} & {*systems_ray.WITHOUT}
