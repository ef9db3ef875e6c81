"""Learning curves of one run, and of several runs."""

import itertools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from remotely_rl.cli import main
from remotely_rl.errors import TrainingError
from remotely_rl.runs import curve, metrics, run_folder

if TYPE_CHECKING:  # importing it takes a second in each test process
    from matplotlib.figure import Figure

PNG = b"\x89PNG"


def run(
    folder: Path,
    returns: list[tuple[float, float]],
    algorithm: str = "a2c",
    env: str = "Pong",
    ended_at: float | None = None,
    **config: Any,
) -> Path:
    """Make a run folder with mean `returns` by minute, at 1000 steps per minute.

    The mean over the last 30 games is `ended_at` at the end.
    """
    folder.mkdir()
    content = {"algorithm": algorithm, "config": {"env": env, **config}}
    (folder / "config.json").write_text(json.dumps(content))
    with (folder / "metrics.csv").open("w") as file:
        print("time/seconds,time/env_steps,rollout/return_mean,rollout/return_interval", file=file)
        for minutes, score in returns:
            cell = "" if math.isnan(score) else score
            print(60 * minutes, 1000 * minutes, cell, cell, sep=",", file=file)
    if ended_at is not None:
        saved = {"counters": {}, "recent": [[ended_at, 100]] * metrics.SHORT_WINDOW}
        run_folder.save_checkpoint(folder / "checkpoint.pt", saved)
    return folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list["Figure"]:
    """Return the figures that are saved."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: "Figure", *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def labels(figure: "Figure") -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_the_mean_of_curves_covers_the_range_of_all() -> None:
    one = (np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    other = (np.array([4.0, 6.0, 20.0]), np.array([6.0, 8.0, 8.0]))
    joint = curve.band([one, other])
    assert joint is not None
    assert (joint.x[0], joint.x[-1]) == (4.0, 10.0)
    for at, low, mean, high in ((4.0, 4.0, 5.0, 6.0), (10.0, 8.0, 9.0, 10.0)):
        i = np.searchsorted(joint.x, at)
        assert (joint.low[i], joint.mean[i], joint.high[i]) == (low, mean, high)
    assert (joint.low <= joint.mean).all()
    assert (joint.mean <= joint.high).all()


def test_a_single_curve_is_unchanged() -> None:
    x, y = np.array([0.0, 3.0]), np.array([1.0, 2.0])
    joint = curve.band([(x, y)])
    assert joint is not None
    assert joint.x is x
    assert joint.mean is y


def test_the_interquartile_mean_of_curves_has_an_interval_if_there_are_three() -> None:
    x = np.array([0.0, 1.0])
    curves = [(x, np.array([y, 10 * y])) for y in (0.0, 1.0, 2.0, 3.0, 100.0)]
    joint = curve.band(curves, iqm=True)
    assert joint is not None
    assert (joint.mean[0], joint.mean[-1]) == (2.0, 20.0)
    assert 0.0 < joint.low[0] < 2.0 < joint.high[0] < 100.0
    pair = curve.band(curves[:2], iqm=True)
    assert pair is not None
    assert (pair.mean[-1], len(pair.low), len(pair.high)) == (5.0, 0, 0)


def test_curves_without_a_common_range_have_no_mean() -> None:
    y = np.zeros(2)
    assert curve.band([(np.array([0.0, 1.0]), y), (np.array([2.0, 3.0]), y)]) is None


def test_runs_that_differ_in_the_seed_are_one_line_with_a_band(
    tmp_path: Path, drawn: list["Figure"]
) -> None:
    runs = [
        run(tmp_path / "a", [(0, 0.0), (10, 10.0)]),
        run(tmp_path / "b", [(0, 2.0), (10, 12.0)]),
        run(tmp_path / "c", [(1, 5.0), (2, 7.0)], "ppo"),
        run(tmp_path / "d", [(1, 5.0), (2, 7.0)], env="Breakout"),
    ]
    assert curve.compare(runs, tmp_path / "out.png") == []
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)
    (figure,) = drawn
    assert labels(figure) == ["a2c, Pong, n = 2", "ppo, Pong, n = 1", "a2c, Breakout, n = 1"]
    minutes, steps = figure.axes
    assert (minutes.get_xlabel(), steps.get_xlabel()) == ("minutes", "thousand steps")
    alone = [np.array(line.get_data())[1].tolist() for line in minutes.lines[:2]]
    assert alone == [[0.0, 10.0], [2.0, 12.0]]
    mean = np.array(minutes.lines[2].get_data())
    assert mean[:, 0].tolist() == [0.0, 1.0]
    assert mean[:, -1].tolist() == [10.0, 11.0]
    assert np.array(steps.lines[2].get_data())[:, -1].tolist() == [10.0, 11.0]
    assert minutes.patches[0].get_path().get_extents().bounds == (0, 0, 10, 12)


def test_the_command_prints_interquartile_means_of_each_method_and_environment(
    tmp_path: Path, drawn: list["Figure"]
) -> None:
    runs = [
        str(run(tmp_path / f"{env}-{seed}", [(0, 0.0), (1, top + seed)], env=env, seed=seed))
        for env, top in (("Pong", 10.0), ("Breakout", 100.0))
        for seed in (1, 2, 3, 4, 5)
    ]
    runs.append(str(run(tmp_path / "one", [(0, 0.0), (1, 5.0)], "ppo")))
    out = tmp_path / "out.png"
    done = CliRunner().invoke(main, ["plot", *runs, "--iqm", "--out", str(out)])
    assert done.output.splitlines() == [
        "a2c, Pong: IQM 13 of 5 runs (95 %: 11.67 to 14.67)",
        "a2c, Breakout: IQM 103 of 5 runs (95 %: 101.7 to 104.7)",
        "a2c, 2 environments, scaled: IQM 0.7083 of 10 runs (95 %: 0.5 to 0.875)",
        "ppo, Pong: IQM 5 of 1 run (fewer than 5 runs: no interval)",
        str(out),
    ]
    (figure,) = drawn
    assert labels(figure)[-1] == "ppo, Pong, n = 1: too few for an interval"
    assert [len(axis.patches) for axis in figure.axes] == [2, 2]


def test_runs_with_different_settings_are_separate_lines_labelled_by_the_difference(
    tmp_path: Path, drawn: list["Figure"]
) -> None:
    runs = [
        run(
            tmp_path / f"{gamma}-{seed}",
            [(0, 0.0), (1, 1.0)],
            gamma=gamma,
            seed=seed,
            clip_range=0.2,
        )
        for gamma in (0.9, 0.99)
        for seed in (1, 2)
    ]
    curve.compare(runs, tmp_path / "out.png", over="minutes")
    (figure,) = drawn
    assert labels(figure) == ["a2c, Pong, gamma=0.9, n = 2", "a2c, Pong, gamma=0.99, n = 2"]
    panel, below = figure.axes[0].get_tightbbox(), figure.legends[0].get_window_extent()
    assert panel is not None
    assert 0 <= below.y0 < below.y1 <= panel.y0  # inside the figure, below all labels


def test_a_run_that_reached_its_target_continues_with_its_last_value(
    tmp_path: Path, drawn: list["Figure"]
) -> None:
    runs = [
        run(tmp_path / "a", [(0, 0.0), (2, 20.0)], ended_at=18.5, target=18.0),
        run(tmp_path / "b", [(0, 0.0), (4, 10.0)], ended_at=3.0, target=18.0),
    ]
    curve.compare(runs, tmp_path / "out.png", over="minutes")
    (figure,) = drawn
    assert labels(figure) == ["a2c, Pong, n = 2", "a run ended at its target"]
    lines = [np.array(line.get_data()).T.tolist() for line in figure.axes[0].lines]
    assert lines[1] == [[2, 20]]  # marked there
    assert (lines[3][0], lines[3][-1]) == ([0, 0], [4, 15])  # the mean of 20 and 10


def test_lines_differ_in_colour_and_style(tmp_path: Path, drawn: list["Figure"]) -> None:
    """A line of one point, and one that took a hundredth of the steps of the other."""
    runs = [
        run(tmp_path / "a", [(0.02, 3.0)]),
        run(tmp_path / "b", [(0.1, 0.0), (2000, 2.0)], "ppo"),
    ]
    curve.compare(runs, tmp_path / "out.png")
    (figure,) = drawn
    for axis, unit in zip(figure.axes, ("hours", "million steps"), strict=True):
        assert axis.get_xlabel() == unit
        assert axis.get_xscale() == "log"
        assert axis.lines[0].get_marker() == "o"
        boxes = [text.get_window_extent() for text in axis.get_xticklabels() if text.get_text()]
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_runs_without_a_common_range_are_drawn_separately(
    tmp_path: Path, drawn: list["Figure"]
) -> None:
    runs = [
        run(tmp_path / "a", [(0, 0.0), (1, 1.0)]),
        run(tmp_path / "b", [(2, 2.0), (3, 3.0)]),
    ]
    curve.compare(runs, tmp_path / "out.png", over="minutes")
    (figure,) = drawn
    assert labels(figure) == ["a2c, Pong, n = 2"]
    x = [np.asarray(line.get_xdata()).tolist() for line in figure.axes[0].lines]
    assert x[:2] == [[0, 1], [2, 3]]
    assert not figure.axes[0].collections  # no band


def test_a_run_named_twice_counts_once(tmp_path: Path, drawn: list["Figure"]) -> None:
    one = run(tmp_path / "a", [(0, 0.0), (1, 1.0)])
    curve.compare([one, tmp_path / "." / "a" / ".." / "a"], tmp_path / "out.png")
    assert labels(drawn[0]) == ["a2c, Pong, n = 1"]


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path: Path, drawn: list["Figure"]) -> None:
    for seed in (1, 2):
        run(tmp_path / f"seed-{seed}", [(0, 0.0), (1, 1.0)])
    curve.compare([tmp_path], tmp_path / "out.png")
    assert labels(drawn[0]) == ["a2c, Pong, n = 2"]


def test_a_run_has_a_curve_once_a_game_is_finished(tmp_path: Path) -> None:
    file, png = run(tmp_path / "a", [(0, math.nan)]) / "metrics.csv", tmp_path / "curve.png"
    assert not curve.draw(file, png, "nothing yet")
    assert not png.exists()
    file = run(tmp_path / "b", [(0, math.nan), (1, 3.0)]) / "metrics.csv"
    assert curve.draw(file, png, "one game")
    assert png.read_bytes().startswith(PNG)


def test_the_command_names_runs_that_it_cannot_draw(tmp_path: Path, drawn: list["Figure"]) -> None:
    full, empty = run(tmp_path / "a", [(0, 0.0), (1, 1.0)]), run(tmp_path / "b", [(0, math.nan)])
    out = tmp_path / "curve.png"  # beside the runs, not in the working directory
    done = CliRunner().invoke(main, ["plot", str(full), str(empty), "--x", "steps"])
    assert done.exit_code == 0
    assert done.stdout == f"{out}\n"
    assert done.stderr == f"left out, because it has no finished episode: {empty}\n"
    assert [axis.get_xlabel() for axis in drawn[0].axes] == ["steps"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument 'RUN...'"),
        (["nowhere"], "there is no run folder nowhere"),
        (["a/metrics.csv"], "a/metrics.csv is a file: give the folder of its run, a"),
        (["b"], "no episode has ended in b"),
        (["c"], "c is not a run folder: it has no config.json"),
        (["d"], "d/metrics.csv cannot be read"),
        (["a", "--x", "hours"], "'hours' is not one of 'minutes', 'steps'"),
        (["a", "--out", "a.nonsense"], "a.nonsense cannot be written: Format 'nonsense'"),
        (["a", "--out", "nowhere/a.png"], "nowhere/a.png cannot be written"),
    ],
)
def test_an_error_of_the_user_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("a"), [(0, 0.0), (1, 1.0)])
    run(Path("b"), [(0, math.nan)])
    Path("c").mkdir()
    (run(Path("d"), []) / "metrics.csv").write_text("seconds,return_mean\n1,much\n")
    done = CliRunner().invoke(main, ["plot", *words])
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_the_x_axis_must_be_known(tmp_path: Path) -> None:
    one = run(tmp_path / "a", [(0, 0.0), (1, 1.0)])
    with pytest.raises(TrainingError, match="axis is minutes or steps, not 'hours'"):
        curve.compare([one], tmp_path / "out.png", over="hours")
