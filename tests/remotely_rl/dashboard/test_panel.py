"""The training panels: their answers, all from inside the folder of the runs."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
pytest.importorskip("httpx2", reason="starlette's test client needs httpx2")

from starlette.testclient import TestClient

import remotely
from remotely.dashboard import app
from remotely.dashboard.access import Access
from remotely_rl.cli import main
from remotely_rl.dashboard import filters, report
from remotely_rl.dashboard.panel import panel
from remotely_rl.dashboard.runs import NoRun, Runs
from remotely_rl.runs import aggregate, status, videos
from remotely_rl.runs.media import Media
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.supervision.logbook import Logbook, load
from remotely_rl.supervision.report import Cause, CrashReport
from tests.remotely_rl.dashboard.folders import make_run

EVIL = '<img src=x onerror="document.title=1">'


class Browser:
    def __init__(self, runs: Path) -> None:
        access = Access(["testserver"], "remotely-1")
        self.client = TestClient(app.make(access, panels=[panel(runs)]))
        self.client.get("/open", params={"link": access.link})

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, path: str, **query: Any) -> tuple[int, str]:
        answer = self.client.get(path, params=query)
        return answer.status_code, answer.json()["error"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    make_run(folder / "one", seed=1)
    make_run(folder / "two", seed=2, scale=3.0)
    make_run(folder / "sweep" / "a2c", algorithm="a2c", rows=0)
    return folder


@pytest.fixture
def browser(runs: Path) -> Browser:
    return Browser(runs)


def test_runs_are_listed_with_their_last_rows_also_in_subfolders(
    browser: Browser,
) -> None:
    page = browser.get("/api/runs", sort="name")
    assert [row["name"] for row in page["rows"]] == ["one", "sweep/a2c", "two"]
    one, a2c, _ = page["rows"]
    assert (one["algorithm"], one["env"], one["seed"]) == ("ppo", "CartPole-v1", 1)
    assert (one["steps"], one["return_mean"], one["state"]) == (400, 4.0, "unknown")
    assert (a2c["steps"], a2c["return_mean"]) == (None, None)
    assert [row["name"] for row in browser.get("/api/runs", q="a2c")["rows"]] == ["sweep/a2c"]


def test_how_a_run_ended_is_shown_at_once_with_the_command_that_goes_on(
    browser: Browser, runs: Path
) -> None:
    folder = RunFolder(runs / "one")
    folder.checkpoint.touch()
    claim = status.TrainingLock(folder)
    claim.begin(None)
    (row,) = browser.get("/api/runs", q="one")["rows"]
    assert (row["state"], row["why"], row["go_on"]) == ("trains", "", "")
    claim.end("ValueError: the loss is NaN", status.How.FAILED, {})
    claim.release()
    (row,) = browser.get("/api/runs", q="one")["rows"]
    assert (row["state"], row["why"]) == ("failed", "ValueError: the loss is NaN")
    assert row["go_on"] == f"remotely-rl train ppo --resume {runs / 'one'}"
    assert browser.get("/api/runs/one/metrics")["state"] == "failed"
    assert browser.get("/api/runs/one")["started"]["remotely"] == remotely.__version__


def test_a_run_without_a_checkpoint_is_listed_with_the_command_that_starts_it_anew(
    browser: Browser, runs: Path
) -> None:
    claim = status.TrainingLock(RunFolder(runs / "one"))
    claim.begin(None)
    claim.release()  # and nothing is written, as after SIGKILL
    (row,) = browser.get("/api/runs", q="one")["rows"]
    assert (row["state"], row["go_on"]) == ("killed", "")
    assert row["start_anew"].startswith(f"cd {Path.cwd()} && ")
    listed = CliRunner().invoke(main, ["runs", str(runs)]).output
    assert f"        {status.NO_CHECKPOINT}\n        {row['start_anew']}\n" in listed
    report.write([runs / "one"], runs / "report.html")
    assert status.NO_CHECKPOINT in (runs / "report.html").read_text()


def test_the_command_lists_runs_with_their_ends(runs: Path) -> None:
    claim = status.TrainingLock(RunFolder(runs / "two"))
    claim.begin(None)
    done = CliRunner().invoke(main, ["runs", str(runs)])
    assert re.search(r"^trains  two  400 steps  return 12$", done.output, re.MULTILINE)
    claim.end("the mean return of 12 is reached", status.How.TARGET, None)
    claim.release()
    done = CliRunner().invoke(main, ["runs", str(runs)])
    assert "target  two  400 steps  return 12\n        the mean return of 12 is" in done.output
    assert "no checkpoint" not in done.output
    listed = json.loads(CliRunner().invoke(main, ["runs", str(runs), "--json"]).output)
    assert {row["name"]: row["state"] for row in listed}["two"] == "target"


def test_an_added_row_is_shown(browser: Browser, runs: Path) -> None:
    before = browser.get("/api/runs/one/metrics")
    with (runs / "one" / "metrics.csv").open("a") as file:
        file.write("5,500,100,5,55,66,0.5\r\n")
    after = browser.get("/api/runs/one/metrics", file=before["file"], from_byte=before["next_byte"])
    assert after["series"]["rollout/return_mean"] == [55]
    assert browser.get("/api/runs/one")["return_mean"] == 55


def test_a_run_has_its_settings_and_videos(browser: Browser, runs: Path) -> None:
    (runs / "sweep" / "a2c" / "play.mp4").write_bytes(b"a film")
    run = browser.get("/api/runs/sweep/a2c")
    assert run["config"]["env"] == "CartPole-v1"
    assert run["videos"] == [{"file": "play.mp4", "env_steps": None, "scores": []}]
    film = browser.client.get("/api/runs/sweep/a2c/videos/play.mp4", headers={"range": "bytes=2-3"})
    assert (film.status_code, film.content) == (206, b"fi")


def test_crashes_of_environments_are_shown_with_their_rate_and_what_can_be_replayed(
    browser: Browser, runs: Path
) -> None:
    assert browser.get("/api/runs/one")["crashes"] is None
    path = runs / "one" / "crashes.jsonl"
    keep = Logbook(path)
    for seed in range(12):
        died = CrashReport(3, Cause.DIED, "SIGSEGV", step=2, seed=seed, actions=(0, 1))
        keep(died)
    keep(CrashReport(None, Cause.HUNG, EVIL, "a stack"))
    with path.open("a") as file:
        file.write('{"cut off')
    found = browser.get("/api/runs/one")["crashes"]
    assert (found["count"], found["steps_per_crash"], found["recent"]) == (13, 31, 13)
    newest, second = found["last"][:2]
    assert (newest["text"], newest["details"]) == (f"an actor hung: {EVIL}", "a stack")
    assert (newest["can_replay"], second["can_replay"]) == (False, True)
    assert second["text"] == "environment 3 died in step 2, seed 11: SIGSEGV"
    assert load(path)[second["number"]] == died


def test_an_evaluation_leads_to_the_video_of_its_policy(browser: Browser, runs: Path) -> None:
    file = runs / "one" / "metrics.csv"
    lines = file.read_text().splitlines()
    ends = (",,", ",150,7", ",,", ",350,9", ",,")
    wider = [f"{lines[0]},evaluation/env_steps,evaluation/return_mean"]
    wider += [line + end for line, end in zip(lines[1:], ends, strict=True)]
    file.write_text("\r\n".join([*wider, ""]))
    (runs / "one" / "best.mp4").write_bytes(b"a film")
    videos.describe(runs / "one" / "best.mp4", 350, [9.0])
    run = browser.get("/api/runs/one")
    assert [each["env_steps"] for each in run["evaluations"]] == [350, 150]
    assert run["videos"] == [{"file": "best.mp4", "env_steps": 350, "scores": [9.0]}]


def test_images_and_histograms_of_hooks_are_shown(browser: Browser, runs: Path) -> None:
    written = Media(runs / "one")
    for step in (100, 200):
        written.image("maze", np.ones((2, 2, 3)), step)
    written.histogram("mine/h", np.arange(5.0), 100)
    assert browser.get("/api/runs/one")["media"]
    found = browser.get("/api/runs/one/media")
    first, second = found["images"]["maze"]
    assert (first["step"], second["step"]) == (100, 200)
    assert [line["step"] for line in found["histograms"]["mine/h"]] == [100]
    answer = browser.client.get(f"/api/runs/one/media/{first['file']}")
    assert (answer.status_code, answer.content[:4]) == (200, b"\x89PNG")
    assert not browser.get("/api/runs/two")["media"]


def test_media_that_are_a_symlink_are_rejected(
    browser: Browser, runs: Path, tmp_path: Path
) -> None:
    Media(tmp_path).image("i", np.ones((2, 2, 3)), 1)
    (runs / "one" / "media").symlink_to(tmp_path / "media")
    Media(runs / "two").image("j", np.ones((2, 2, 3)), 1)
    (runs / "two" / "media" / "i@1.png").symlink_to(tmp_path / "media" / "i@1.png")
    for name in ("one", "two"):
        assert "i" not in browser.get(f"/api/runs/{name}/media")["images"]
        assert browser.refused(f"/api/runs/{name}/media/i@1.png")[0] == 404


def test_runs_that_differ_by_seed_become_one_line_with_a_band(browser: Browser) -> None:
    asked = {"run": ["one", "two", "sweep/a2c"], "column": "rollout/return_mean"}
    found = browser.get("/api/compare", **asked)
    (group,) = found["groups"]
    assert group["label"] == "ppo, CartPole-v1"
    assert [line["run"] for line in group["lines"]] == ["one", "two"]
    band = group["band"]
    assert (band["low"][-1], band["mean"][-1], band["high"][-1]) == (4.0, 8.0, 12.0)
    assert found["left_out"] == ["sweep/a2c"]
    (alone,) = browser.get("/api/compare", run="one")["groups"]
    assert alone["band"] is None


def test_groups_are_labelled_by_differing_settings(browser: Browser, runs: Path) -> None:
    make_run(runs / "three", seed=1, gamma=0.5)
    found = browser.get("/api/compare", run=["one", "three"])
    assert [group["label"] for group in found["groups"]] == [
        "ppo, CartPole-v1",
        "ppo, CartPole-v1, gamma=0.5",
    ]


def test_any_column_is_compared_and_the_columns_of_the_runs_are_offered(
    browser: Browser, runs: Path
) -> None:
    file = runs / "one" / "metrics.csv"
    lines = file.read_text().splitlines()
    wider = [lines[0] + ",evaluation/success", *(line + ",0.25" for line in lines[1:])]
    file.write_text("\r\n".join([*wider, ""]))
    found = browser.get("/api/compare", run=["one", "two"], column="evaluation/success")
    (group,) = found["groups"]
    assert (group["lines"][0]["y"][-1], found["left_out"]) == (0.25, ["two"])
    assert {"evaluation/success", "train/policy_loss"} <= set(found["columns"])


def test_a_column_that_none_of_the_runs_has_suggests_the_nearest(
    browser: Browser, runs: Path
) -> None:
    make_run(runs / "new", rows=0)
    for asked, missing in (
        ("rollout/retrun_mean", "'rollout/retrun_mean'; did you mean 'rollout/return_mean'?"),
        ("?", "'?'"),
    ):
        found = browser.get("/api/compare", run=["one", "two"], column=asked)
        assert found["missing"] == f"none of these runs has {missing}"
    assert browser.get("/api/compare", run="one")["missing"] == ""
    (runs / "new" / "metrics.csv").write_text("")
    assert browser.get("/api/compare", run="new", column="?")["missing"] == ""


@pytest.fixture
def sweep(runs: Path) -> list[str]:
    """Runs of two rates, with two values of gamma and three seeds each."""
    names = []
    for rate, gamma, seed in itertools.product((1, 2), (0.9, 0.99), (1, 2, 3)):
        names.append(f"rate-{rate}-{gamma}-{seed}")
        scale = 10 * rate + seed
        make_run(runs / names[-1], scale=scale, seed=seed, gamma=gamma, learning_rate=rate)
    return names


def test_a_sweep_is_grouped_by_one_setting_with_the_interval_of_its_runs(
    browser: Browser, sweep: list[str]
) -> None:
    found = browser.get("/api/compare", run=sweep, by="learning_rate")
    labels = [group["label"] for group in found["groups"]]
    assert labels == [f"ppo, CartPole-v1, learning_rate={rate}" for rate in (1, 2)]
    for group, rate in zip(found["groups"], (1, 2), strict=True):
        ends = np.array([4.0 * (10 * rate + seed) for seed in (1, 2, 3, 1, 2, 3)])
        interval = aggregate.interval([ends])
        assert interval is not None
        low, high = interval
        last = group["last"]
        assert (last["runs"], last["mean"]) == (6, aggregate.interquartile_mean(ends))
        assert last["interval"] == [low, high]
        band = group["band"]
        assert (band["is_interval"], band["low"][-1], band["high"][-1]) == (True, low, high)
    assert len(browser.get("/api/compare", run=sweep)["groups"]) == 4


def test_runs_of_unequal_length_are_compared_where_the_shortest_ends(
    browser: Browser, runs: Path
) -> None:
    make_run(runs / "long", rows=9, seed=1)
    make_run(runs / "short", rows=3, seed=2, scale=3.0)
    (group,) = browser.get("/api/compare", run=["long", "short"])["groups"]
    assert (group["last"]["mean"], group["last"]["at"]) == ((2.0 + 6.0) / 2, 200.0)
    assert group["band"]["x"][-1] == 200.0
    make_run(runs / "done", rows=3, seed=2, scale=3.0, ended={"how": "target"})
    (group,) = browser.get("/api/compare", run=["long", "done"])["groups"]
    assert (group["last"]["mean"], group["last"]["at"]) == ((8.0 + 6.0) / 2, None)
    assert group["band"]["x"][-1] == 800.0


def test_a_band_may_be_the_range_and_is_that_for_few_runs(
    browser: Browser, sweep: list[str]
) -> None:
    (group,) = browser.get("/api/compare", run=sweep[:3], band="range")["groups"]
    assert (group["band"]["is_interval"], group["band"]["high"][-1]) == (False, 52.0)
    (group,) = browser.get("/api/compare", run=sweep[:2])["groups"]
    assert (group["band"]["is_interval"], group["last"]["interval"]) == (False, None)


def test_the_settings_in_which_runs_differ_are_the_axes_of_a_sweep_but_for_the_seed(
    browser: Browser, sweep: list[str]
) -> None:
    found = browser.get("/api/compare", run=sweep)
    assert found["axes"] == ["gamma", "learning_rate"]
    assert list(found["settings"]) == ["gamma", "learning_rate", "seed"]
    assert found["settings"]["gamma"][sweep[0]] == 0.9


def test_settings_also_differ_from_those_of_a_run_without_a_number(browser: Browser) -> None:
    found = browser.get("/api/compare", run=["one", "sweep/a2c"])
    assert found["left_out"] == ["sweep/a2c"]
    assert found["settings"] == {"algorithm": {"one": "ppo", "sweep/a2c": "a2c"}}


def test_lines_are_smoothed_without_a_bias_to_the_first_value(browser: Browser) -> None:
    (group,) = browser.get("/api/compare", run="one", smooth=0.5)["groups"]
    weights = [0.5, 1.0]
    assert group["lines"][0]["y"][:2] == [0.0, pytest.approx(1.0 / sum(weights), rel=1e-5)]
    assert browser.refused("/api/compare", run="one", smooth=1)[0] == 400


def test_the_list_is_filtered_by_settings_and_shows_them_as_columns(
    browser: Browser, sweep: list[str]
) -> None:
    asked = {"q": "gamma=0.99 learning_rate>1 rate-", "setting": ["gamma"], "sort": "name"}
    page = browser.get("/api/runs", **asked)
    assert [row["name"] for row in page["rows"]] == sweep[-3:]
    assert page["rows"][0]["setting:gamma"] == 0.99
    assert (page["found"], page["total"]) == (3, 15)
    assert page["settings"] == ["gamma", "learning_rate"]
    highest = browser.get("/api/runs", setting="gamma", sort="-setting:gamma")["rows"][0]
    assert highest["setting:gamma"] == 0.99


@pytest.mark.parametrize(
    ("word", "holds"),
    [
        ("gamma=0.98", True),
        ("gamma=.980", True),
        ("gamma!=0.98", False),
        ("gamma<1", True),
        ("gamma>=0.99", False),
        ("clip_range=none", True),
        ("activation=TANH", True),
        ("activation<1", False),
        ("anneal=true", True),
        ("Gamma < 1", True),
        ("of_others=1", False),
        ("of_others!=1", True),
        ("algorithm=PPO", True),
        ("environment = CartPole-v1", True),
        ("state=killed", False),
        ("return>200", True),
        ("steps>=400,000", True),
        ("Steps/s<99", False),
        ("time>5 min", False),
        ("time=3min", True),
        ("last row<1h", True),
        ("tags=paper", True),
        ("max>1", False),
    ],
)
def test_a_condition_on_a_column_or_a_setting(word: str, holds: bool) -> None:
    settings = {"gamma": 0.98, "clip_range": None, "activation": "tanh", "anneal": True}
    of_run = {"algorithm": "ppo", "env": "CartPole-v1", "state": "failed", "tags": "best paper"}
    numbers = {"return_mean": 201.5, "steps": 400_000, "steps_per_s": 99, "return_max": None}
    row = {**of_run, **numbers, "seconds": 180.0, "updated": 1_000.0}
    ((condition,), rest) = filters.split(f"some {word} other", [*settings, "of_others"])
    assert condition.holds(filters.cells(row, settings, now=1_060.0)) is holds
    assert rest.split() == ["some", "other"]


def test_a_condition_on_an_unknown_name_suggests_the_nearest(browser: Browser) -> None:
    said = (400, "no column and no setting is called 'Retrun', did you mean 'Return'?")
    assert browser.refused("/api/runs", q="one Retrun > 2") == said


def test_notes_and_tags_are_written_by_the_command_and_searched(
    browser: Browser, runs: Path
) -> None:
    words = ["note", str(runs / "one"), "too greedy", "--tag", "paper", "--tag", "old"]
    assert CliRunner().invoke(main, words).output == "too greedy\ntags: paper old\n"
    done = CliRunner().invoke(main, ["note", str(runs / "one"), "--untag", "old"])
    assert done.output == "too greedy\ntags: paper\n"
    (row,) = browser.get("/api/runs", q="paper")["rows"]
    assert (row["name"], row["tags"], row["note"]) == ("one", "paper", "too greedy")
    done = CliRunner().invoke(main, ["note", str(runs / "one"), "--tag", "two words"])
    assert done.exit_code == 2
    assert "a tag is a word" in done.output
    done = CliRunner().invoke(main, ["note", str(runs / "sweep")])
    assert done.exit_code == 2


def test_invalid_comparisons_are_rejected(browser: Browser) -> None:
    status, why = browser.refused("/api/compare", run="one", over="rollout/return_mean")
    assert (status, why[:10]) == (400, "the x axis")
    status, why = browser.refused("/api/compare", run=[f"r{n}" for n in range(51)])
    assert (status, why) == (400, "51 runs are too many for one chart; choose 50 at most")


# --- hostile folders and names --------------------------------------------------------------------


NAMES = (
    "../secret",
    "..",
    ".",
    "",
    "one/../../secret",
    "one/..",
    "/etc",
    "one//two",
    "one/",
    "\0",
    "one\0",
    "linked",
    "nothing",
    "sweep",
    "long" * 100,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_out_of_the_root_is_rejected(
    runs: Path, tmp_path: Path, name: str
) -> None:
    make_run(tmp_path / "secret")
    (runs / "linked").symlink_to(tmp_path / "secret")
    with pytest.raises(NoRun):
        Runs(runs).folder(name)


@pytest.mark.parametrize("name", ["%2e%2e/secret", "..%2fsecret", "linked", "%00", "%2fetc"])
def test_a_url_that_leads_out_of_the_root_is_not_found(
    browser: Browser, runs: Path, tmp_path: Path, name: str
) -> None:
    make_run(tmp_path / "secret")
    (runs / "linked").symlink_to(tmp_path / "secret")
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/metrics", f"/api/runs/{name}/videos/a"):
        assert browser.client.get(path).status_code == 404


def test_a_run_folder_that_is_a_symlink_out_is_neither_listed_nor_compared(
    browser: Browser, runs: Path, tmp_path: Path
) -> None:
    make_run(tmp_path / "secret")
    (runs / "linked").symlink_to(tmp_path / "secret")
    names = [row["name"] for row in browser.get("/api/runs")["rows"]]
    assert "linked" not in names
    assert browser.get("/api/compare", run="linked")["left_out"] == ["linked"]
    status, why = browser.refused("/api/runs/linked")
    assert (status, why) == (404, "'linked' leads out of the folder of the runs")


@pytest.mark.parametrize("file", ["metrics.csv", "config.json", "play.mp4"])
def test_a_file_of_a_run_that_is_a_symlink_or_irregular_is_rejected(
    browser: Browser, runs: Path, tmp_path: Path, file: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text((runs / "one" / "config.json").read_text())
    for make in (lambda path: path.symlink_to(secret), os.mkfifo):
        (runs / "one" / file).unlink(missing_ok=True)
        make(runs / "one" / file)
        path = {
            "metrics.csv": "/api/runs/one/metrics",
            "config.json": "/api/runs/one",
            "play.mp4": "/api/runs/one/videos/play.mp4",
        }[file]
        assert browser.refused(path)[0] == 404
        assert browser.client.get("/api/runs").status_code == 200


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"algorithm": 1}', "\x00"])
def test_a_folder_with_a_foreign_config_json_is_not_listed(
    browser: Browser, runs: Path, content: str
) -> None:
    (runs / "other").mkdir()
    (runs / "other" / "config.json").write_text(content)
    assert browser.get("/api/runs")["total"] == 3
    assert browser.refused("/api/runs/other")[0] == 409


def test_markup_in_a_run_is_json_text(browser: Browser, runs: Path) -> None:
    make_run(runs / "<b>run", env=EVIL)
    (row,) = browser.get("/api/runs", q="<b>")["rows"]
    assert (row["name"], row["env"]) == ("<b>run", EVIL)
    assert browser.client.get("/api/runs").headers["content-type"] == "application/json"


def test_the_root_may_be_a_run_itself(runs: Path) -> None:
    browser = Browser(runs / "one")
    assert [row["name"] for row in browser.get("/api/runs")["rows"]] == ["one"]
    assert browser.get("/api/runs/one/metrics")["rows"] == 5


# --- the process ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "there is no folder nowhere"),
        ([".", "--listen", "0.0.0.0:0"], "needs TLS"),
        ([".", "--listen", "127.0.0.1:x"], "127.0.0.1:x"),
        ([".", "--address", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_errors_are_one_sentence(words: list[str], why: str) -> None:
    done = CliRunner().invoke(main, ["dashboard", *words])
    assert done.exit_code == 2
    assert why in done.output
    assert "Traceback" not in done.output


def test_the_dashboard_loads_no_torch_and_no_environment() -> None:
    script = (
        "import sys; import remotely_rl.dashboard.command, remotely_rl.dashboard.groups; "
        "print([name for name in ('torch', 'gymnasium', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_an_infinite_score_of_a_video_does_not_hide_its_run(browser: Browser, runs: Path) -> None:
    (runs / "one" / "best.mp4").touch()
    videos.describe(runs / "one" / "best.mp4", 350, [float("inf"), 9.0])
    described = browser.get("/api/runs/one")["videos"]
    assert described == [{"file": "best.mp4", "env_steps": 350, "scores": [None, 9.0]}]


@pytest.mark.parametrize("content", ['{"text": "mine", "tags": [', "{}", '"mine"'])
def test_notes_that_were_spoilt_by_hand_are_not_replaced(
    browser: Browser, runs: Path, content: str
) -> None:
    file = runs / "one" / "notes.json"
    file.write_text(content)
    said = CliRunner().invoke(main, ["note", str(runs / "one"), "--tag", "paper"])
    assert said.exit_code == 2
    assert "mend or remove it" in said.output
    assert file.read_text() == content
    assert "one" in {row["name"] for row in browser.get("/api/runs")["rows"]}


def test_a_note_that_the_dashboard_would_not_read_is_refused(runs: Path) -> None:
    said = CliRunner().invoke(main, ["note", str(runs / "one"), "x" * (1 << 20)])
    assert said.exit_code == 2
    assert "a note has 1024 KiB at most" in said.output


def test_an_infinite_setting_is_shown_as_text(browser: Browser, runs: Path) -> None:
    file = runs / "one" / "config.json"
    content = json.loads(file.read_text())
    content["config"]["max_grad_norm"] = float("inf")
    file.write_text(json.dumps(content))
    assert browser.get("/api/runs/one")["config"]["max_grad_norm"] == "inf"
    rows = browser.get("/api/runs", setting="max_grad_norm")["rows"]
    assert "inf" in {row["setting:max_grad_norm"] for row in rows}
    settings = browser.get("/api/compare", run=["one", "two"])["settings"]
    assert settings["max_grad_norm"]["one"] == "inf"


def test_a_crash_report_that_is_cut_off_does_not_shift_the_numbers_of_others(
    browser: Browser, runs: Path
) -> None:
    file = runs / "one" / "crashes.jsonl"
    file.write_text('{"what": "A"}\n{"what": "torn\n{"what": "B"}\n')
    found = browser.get("/api/runs/one")["crashes"]
    assert found["count"] == 2
    assert [(one["number"], one["text"]) for one in found["last"]] == [
        (1, "None: B"),
        (0, "None: A"),
    ]
