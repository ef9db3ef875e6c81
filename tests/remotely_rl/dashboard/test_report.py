"""The report: one page of every run, in which no text of a run takes effect."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from remotely_rl import cli
from remotely_rl.dashboard import report
from remotely_rl.errors import TrainingError
from tests.remotely_rl.dashboard.folders import make_run

EVIL = '<img src=x onerror="document.title=1">'


def test_a_report_has_every_run_and_fetches_nothing(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, seed=n) for n, name in enumerate(("one", "two", "other/one"))]
    report.write(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for name in ("one", "two", "one (2)"):
        assert f"<h2>{name}</h2>" in page
    assert page.count("<svg") > 5
    assert "default-src 'none'" in page
    assert not re.search(r"<script|src=|href=|url\(|@import", page)


def test_the_command_says_that_it_has_replaced_a_report(tmp_path: Path) -> None:
    words = ["report", str(make_run(tmp_path / "run")), "--out", str(tmp_path / "report.html")]
    first, second = (CliRunner().invoke(cli.main, words) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stderr == ""
    assert second.stderr.startswith("replaced the report that was there")


def test_a_folder_of_runs_stands_for_all_of_them_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    for seed in (10, 2, 1):
        make_run(tmp_path / f"seed-{seed}", seed=seed)
    report.write([tmp_path], tmp_path / "report.html")
    heads = re.findall("<h2>(.*?)</h2>", (tmp_path / "report.html").read_text())
    assert heads == ["seed-1", "seed-2", "seed-10"]


def test_the_best_single_game_is_called_max_as_in_the_terminal(tmp_path: Path) -> None:
    report.write([make_run(tmp_path / "run")], tmp_path / "report.html")
    head, row = re.findall(r"<tr>(.*?)</tr>", (tmp_path / "report.html").read_text())
    assert re.findall(r">([^<]+)</th>", head)[-2:] == ["return", "max"]
    assert re.findall(r">([^<]+)</td>", row)[-2:] == ["4", "5"]


def test_markup_in_a_run_is_text_in_the_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<i>run", env=EVIL, note=f"</dd>{EVIL}", algorithm=EVIL)
    report.write([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<img" not in page
    assert "<i>" not in page
    assert page.count("&lt;img src=x onerror=") >= 3


def test_a_run_without_rows_is_reported_with_its_settings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=0)
    (run / "metrics.csv").unlink()
    report.write([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "No episode has ended in these runs." in page
    assert "log_interval_s" in page


def test_a_report_has_the_interquartile_mean_of_runs_that_differ_in_their_seed(
    tmp_path: Path,
) -> None:
    runs = [make_run(tmp_path / str(n), seed=n, scale=n) for n in (1, 2, 3, 4, 5)]
    runs += [make_run(tmp_path / "other", env="Pong")]
    report.write(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<td>CartPole-v1</td><td>5</td><td>12</td><td>95 %: 6.667 to 18.67</td>" in page
    assert "<td>ppo</td><td>Pong</td><td>1</td><td>4</td><td>fewer than 5 runs: no int" in page
    assert "<td>2 environments, scaled</td><td>6</td>" in page
    assert "Scaled: 0 is the lowest" in page


def test_a_path_that_is_not_a_run_and_an_unwritable_file_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"is not a run folder: it has no config\.json"):
        report.write([tmp_path], tmp_path / "report.html")
    with pytest.raises(TrainingError, match="there is no run folder"):
        report.write([tmp_path / "none"], tmp_path / "report.html")
    run = make_run(tmp_path / "run")
    with pytest.raises(TrainingError, match="cannot be written"):
        report.write([run], tmp_path / "nowhere" / "report.html")
