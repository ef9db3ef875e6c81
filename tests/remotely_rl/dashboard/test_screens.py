"""Tests of every screen in a real browser.

Needs Playwright (`pip install '.[browser]'`) and a Chromium on PATH (on Debian,
`apt install chromium`); without them these tests are skipped.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from remotely_rl.dashboard import report
from remotely_rl.runs.media import Media
from tests.remotely_rl.dashboard.folders import make_run
from tools.bench_dashboard.__main__ import browser as chromium_path

if not chromium_path():
    pytest.skip(
        "screens are not tested: there is no Playwright here, or no Chromium on PATH",
        allow_module_level=True,
    )

from playwright.sync_api import Page, expect, sync_playwright

EVIL = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield the page of a dashboard with 450 actors and four runs, opened by its link."""
    runs = tmp_path_factory.mktemp("runs")
    media = Media(make_run(runs / "ppo-1", rows=50, seed=1))
    for step in (100, 200):
        media.image("mine/maze", np.random.default_rng(step).random((16, 16, 3)), step)
        media.histogram("mine/weights", np.arange(9.0) * step, step)
    second = make_run(runs / "ppo-2", rows=60, seed=2, scale=2.0) / "metrics.csv"
    head, *lines = second.read_text().splitlines()
    columns = "episode/success,train/rewards_clipped,evaluation/env_steps,evaluation/return_mean"
    ends = [f"0,0,{n * 100},{n}" if n < 12 else "0,0,," for n in range(len(lines))]
    more = [f"{line},{end}" for line, end in zip(lines, ends, strict=True)]
    second.write_text("\r\n".join([f"{head},{columns}", *more, ""]))
    crashed = "".join(f'{{"what": "crash {n}"}}\n' for n in range(32))
    second.with_name("crashes.jsonl").write_text(crashed)
    ended = {"how": "failed", "why": "ValueError: the loss is NaN"}
    own = {"gamma": 0.9, **{f"mine_{n}": n for n in range(8)}}
    a2c = make_run(runs / "sweep" / "a2c", rows=40, ended=ended, algorithm="a2c", **own)
    (a2c / "checkpoint.pt").touch()
    make_run(runs / "evil", rows=3, env=EVIL)
    served = subprocess.Popen(
        [sys.executable, "-m", "tools.bench_dashboard.made_up", "450", str(runs)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert served.stdout is not None
    try:
        found = re.search(r"(http://\S+)/open\S+", served.stdout.readline())
        assert found is not None
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        with sync_playwright() as playwright:
            launched = playwright.chromium.launch(executable_path=chromium_path(), args=sandbox)
            opened = launched.new_context(base_url=found[1]).new_page()
            opened.set_default_timeout(60_000)
            expect.set_options(timeout=60_000)
            opened.goto(found[0])
            opened.wait_for_url(f"{found[1]}/")
            yield opened
            launched.close()
    finally:
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=60)


@pytest.fixture(autouse=True)
def nothing_goes_wrong(page: Page) -> Iterator[list[str]]:
    """Check for no error in the page, no request to another host and no markup from a name.

    A test that causes one of these clears the list.
    """
    wrong: list[str] = []
    home = page.url.partition("/#")[0].rstrip("/")

    def see_request(request: Any) -> None:
        if not request.url.startswith(home):
            wrong.append(request.url)

    def see_error(error: Any) -> None:
        wrong.append(str(error))

    def see_console(message: Any) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    listeners = (("request", see_request), ("pageerror", see_error), ("console", see_console))
    for event, listener in listeners:
        page.on(event, listener)
    yield wrong
    for event, listener in listeners:
        page.remove_listener(event, listener)
    assert wrong == []
    assert "remotely" in page.title()


def head(page: Page) -> Any:
    return page.locator("h1")


def test_the_overview_leads_to_the_actors_of_a_class(page: Page) -> None:
    page.goto("/#/overview")
    expect(page.get_by_text("10.0.0.1:8010 · 9 machines, 450 actors")).to_be_visible()
    page.get_by_role("link", name="Evaluator").click()
    expect(head(page)).to_have_text("Actors")
    expect(page.get_by_role("status").filter(has_text="of 112")).to_be_visible()


@pytest.mark.parametrize("width", [390, 640, 641, 960, 961, 1100, 1600])
def test_the_figures_of_the_overview_fill_their_rows_at_any_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto("/#/overview")
    expect(page.locator(".figure").first).to_be_visible()
    boxes = [figure.bounding_box() for figure in page.locator(".figure").all()]
    *whole, last = Counter(box["y"] for box in boxes if box).values()
    assert len({*whole}) == 1
    assert last >= whole[0] / 2
    assert all(
        dd.evaluate("element => element.scrollWidth <= element.clientWidth")
        for dd in page.locator(".figure dd").all()
    )
    page.set_viewport_size({"width": 1200, "height": 800})


def test_only_what_is_of_the_cluster_is_greyed_while_its_master_does_not_answer(page: Page) -> None:
    silent = {"stale": "the master does not answer", "age_s": 19.0}
    event = f"data: {json.dumps(page.request.get('/api/cluster').json() | silent)}\n\n"
    page.route(
        "**/api/events",
        lambda route: route.fulfill(content_type="text/event-stream", body=event),
    )
    for screen, opacity in (("overview", "0.55"), ("actors", "0.55"), ("runs", "1")):
        page.goto(f"/#/{screen}")
        page.reload()
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("main")).to_have_css("opacity", opacity)
    page.unroute("**/api/events")
    page.reload()
    expect(page.locator("body")).not_to_have_class("stale")


def test_machines_are_searched(page: Page) -> None:
    page.goto("/#/machines")
    expect(page.locator("tbody tr")).to_have_count(9)
    page.get_by_role("searchbox").fill("node7")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_actors_are_sorted_paged_and_searched_by_the_keyboard(page: Page) -> None:
    page.goto("/#/actors")
    expect(page.locator("tbody tr")).to_have_count(200)
    page.get_by_role("button", name="Memory").press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Memory")
    expect(page.locator("tbody tr").first).to_contain_text("449")
    page.get_by_role("button", name="Next").press("Enter")
    expect(page.get_by_text(re.compile("201.400 of 450"))).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("player-7")
    expect(page.locator("tbody tr")).to_have_count(2)  # 72 and 76


def test_the_slowest_actor_and_its_method_are_found_by_one_click(page: Page) -> None:
    page.goto("/#/actors")
    expect(page.locator("tbody tr")).to_have_count(200)
    page.get_by_role("button", name="99 %").click()
    expect(page.locator("tbody tr").first).to_contain_text("469 ms in step")
    page.locator("tbody tr").first.get_by_role("link").click()
    methods = page.get_by_role("table", name="Methods that took the most time")
    expect(methods.locator("tbody tr")).to_have_count(1)
    expect(methods).to_contain_text("469 ms")


def test_a_search_for_an_actor_shows_how_it_died(page: Page) -> None:
    page.goto("/#/actors")
    ended = page.get_by_label("Ended actors")
    expect(page.locator("tbody tr")).to_have_count(200)
    expect(ended).to_be_empty()
    page.get_by_role("searchbox").fill("player-0")
    expect(ended).to_contain_text("Player-0: exit code 3 on node0")


def test_a_failure_leads_to_its_log_and_advice_is_shown_on_demand(page: Page) -> None:
    page.goto("/#/overview")
    failure = page.get_by_label("Recent failures")
    expect(failure).to_contain_text("Player-0: exit code 3 on node0 1 min ago, and runs again")
    expect(failure).to_contain_text("and 2 earlier: remotely events")
    page.get_by_text("Events", exact=True).click()
    expect(page.get_by_text("Player-0 ended with exit code 3")).to_be_visible()
    expect(page.get_by_text("Player-0 was killed")).to_have_count(0)  # the failures lack it, too
    failure.get_by_text("Player-0").click()
    expect(failure.get_by_text("its last words")).to_be_visible()
    waiting = page.get_by_label("Waiting")
    expect(waiting).to_contain_text("2 requests for Learner for 9 s: Learner asks for 1 CPU")
    expect(waiting).to_contain_text("and 3 more requests")
    expect(waiting.get_by_text("Close an actor. Or ask for less")).not_to_be_visible()
    waiting.get_by_text("2 requests").click()
    expect(waiting.get_by_text("Close an actor. Or ask for less")).to_be_visible()
    failure.get_by_role("link", name="log").click()
    expect(head(page)).to_have_text("Player-0")
    expect(page.get_by_role("log")).to_contain_text("loss 0.25")


def test_a_timeline_has_the_bars_of_each_actor_over_a_time_axis(page: Page) -> None:
    page.goto("/#/timeline")
    page.get_by_role("button", name="Record for 2 s").click()
    expect(page.get_by_text("1 call of 1 actor")).to_be_visible()
    bar = page.get_by_role("img", name="What Player-0 ran").locator("rect")
    expect(bar.locator("title")).to_have_text("step, which goes on: 60 s")
    times = page.get_by_role("img", name="Times of 2 s").locator("text")
    expect(times).to_have_text(["0", "500 ms", "1 s", "1.5 s", "2 s"])


def test_on_a_phone_the_columns_of_an_actor_fold(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/#/actors")
    row = page.locator("tbody tr").first
    expect(row).to_be_visible()
    for cell in ("CPU", "Memory", "Busy", "99 %"):
        shown = row.locator(f'td[data-name="{cell}"]').bounding_box()
        assert shown is not None
        assert 0 <= shown["x"] <= shown["x"] + shown["width"] <= 390
    search = page.get_by_role("searchbox").bounding_box()
    assert search is not None
    assert search["width"] > 0.9 * 390
    page.set_viewport_size({"width": 1200, "height": 800})


def test_an_actor_shows_what_it_prints(page: Page) -> None:
    page.goto("/#/actors?q=Player-44")
    page.get_by_role("link", name="Player-44", exact=True).click()
    expect(head(page)).to_have_text("Player-44")
    expect(page.get_by_role("log")).to_contain_text("loss 0.25")
    page.get_by_label("follow").uncheck()
    expect(page.get_by_text("Not sampled: only actors on the")).to_be_visible()


def test_selected_runs_are_compared(page: Page) -> None:
    page.goto("/#/runs")
    expect(page.locator("tbody tr")).to_have_count(4)
    page.get_by_label("Compare ppo-1").check()
    page.get_by_label("Compare ppo-2").check()
    page.get_by_role("button", name="Compare 2").click()
    expect(head(page)).to_have_text("Runs compared")
    expect(page.get_by_text("mean and range of 2 runs")).to_be_visible()
    expect(page.locator("canvas")).to_have_count(1)
    page.get_by_label("over").select_option("time")
    expect(page.get_by_role("img", name=re.compile("rollout.return_mean"))).to_be_visible()


def test_a_chart_of_a_column_that_no_run_has_says_so(page: Page) -> None:
    page.goto("/#/compare?run=ppo-1&run=ppo-2&column=rollout/retrun_mean")
    expect(page.get_by_text("did you mean 'rollout/return_mean'?")).to_be_visible()


def test_what_differs_between_two_runs_is_shown(page: Page) -> None:
    page.goto("/#/compare?run=ppo-1&run=ppo-2")
    rows = page.get_by_role("table", name="Settings that differ").locator("tbody tr")
    expect(rows).to_have_text(["seed1 (ppo-1), 2 (ppo-2)"])
    expect(page.locator("svg.sweep")).to_have_count(0)


def test_settings_for_which_the_picture_has_no_room_are_counted_and_offered(page: Page) -> None:
    page.goto("/#/compare?run=ppo-1&run=ppo-2&run=sweep/a2c")
    table = page.get_by_role("table", name="Settings that differ")
    expect(table.locator("tbody tr")).to_have_count(11)  # algorithm, gamma, mine_0 to 7, seed
    expect(table).to_contain_text("gamma0.9 (sweep/a2c), none (2 runs)")
    expect(page.get_by_text("8 settings drawn, 1 more differ")).to_be_visible()
    heads = page.locator("svg.sweep .head")
    last = page.get_by_label("Draw mine_7")
    expect(last).to_be_disabled()
    page.get_by_label("Draw gamma").uncheck()
    expect(heads).to_have_text([*(f"mine_{n}" for n in range(7)), "rollout/return_mean"])
    last.check()
    page.reload()
    expect(heads).to_have_text([*(f"mine_{n}" for n in range(8)), "rollout/return_mean"])


def test_any_column_of_the_runs_is_searched_and_drawn(page: Page) -> None:
    page.goto("/#/compare?run=ppo-1&run=ppo-2")
    column = page.get_by_label("Column")
    expect(page.locator('datalist option[value="train/policy_loss"]')).to_have_count(1)
    column.fill("train/policy_loss")
    column.press("Enter")
    expect(page.get_by_role("img", name=re.compile("train.policy_loss"))).to_be_visible()
    page.get_by_label("log y").check()
    page.reload()
    expect(page.get_by_label("Column")).to_have_value("train/policy_loss")
    expect(page.get_by_label("log y")).to_be_checked()


def test_fifty_groups_have_colours_of_their_own_in_both_themes(page: Page) -> None:
    script = """async dark => {
        const { colourOf } = await import("/static/curves.js");
        document.documentElement.dataset.theme = dark ? "dark" : "light";
        return [...Array(50).keys()].map(colourOf);
    }"""
    for is_dark in (False, True):
        colours = page.evaluate(script, is_dark)
        assert len(set(colours)) == 50
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def test_no_two_ticks_of_an_axis_have_the_same_label(page: Page) -> None:
    script = """async ticks => {
        const { labels } = await import("/static/curves.js");
        const { figure } = await import("/static/ui.js");
        return labels(ticks, figure);
    }"""
    assert page.evaluate(script, [1.0395, 1.04, 1.0405]) == ["1.0395", "1.04", "1.0405"]
    assert page.evaluate(script, [1234.5, 1234.6, None]) == ["1234.5", "1234.6", ""]
    assert page.evaluate(script, [0, 100, 200]) == ["0", "100", "200"]
    assert page.evaluate(script, [2.995e-4, 3e-4, 3.005e-4]) == ["2.995e-4", "3e-4", "3.005e-4"]
    assert page.evaluate(script, [10000, 10000.1, 10000.2]) == ["10,000", "10,000.1", "10,000.2"]


@pytest.mark.parametrize("width", [390, 1440])
def test_a_report_is_as_wide_as_its_window(
    page: Page, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("report")
    runs = [make_run(folder / f"a-long-name-of-a-run-{n}", seed=n, scale=n) for n in range(3)]
    report.write(runs, folder / "report.html")
    opened = page.context.browser
    assert opened is not None
    looked = opened.new_page(viewport={"width": width, "height": 900})
    looked.goto((folder / "report.html").as_uri())
    assert looked.evaluate("document.documentElement.scrollWidth") <= width
    cut = """() => [...document.querySelectorAll('svg text')].filter(text => {
        const { left, right } = text.getBoundingClientRect();
        return left < 0 || right > innerWidth;
    }).map(text => text.textContent)"""
    assert looked.evaluate(cut) == []
    looked.close()


def test_a_run_of_which_the_list_shows_settings_is_chosen_with_all_others(page: Page) -> None:
    page.goto("/#/runs")
    page.reload()  # nothing is chosen yet
    page.get_by_text("Columns of settings").click()
    page.get_by_role("checkbox", name="gamma").check()
    expect(page.get_by_role("button", name="gamma")).to_be_visible()
    page.get_by_role("searchbox").fill("ppo-")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Choose all shown").click()
    page.get_by_role("button", name="Compare 2").click()
    expect(head(page)).to_have_text("Runs compared")


def test_the_button_that_chooses_runs_says_what_it_will_do(page: Page) -> None:
    page.goto("/#/runs?q=ppo-")
    page.reload()  # nothing is chosen yet
    page.get_by_role("button", name="Choose all shown").click()
    page.get_by_role("searchbox").fill("a2c")
    page.get_by_role("button", name="Choose all shown").click()
    expect(page.get_by_role("button", name="Compare 3")).to_be_visible()
    page.get_by_role("button", name="Choose none").click()
    expect(page.get_by_label("Compare sweep/a2c")).not_to_be_checked()
    expect(page.get_by_role("button", name="Choose all shown")).to_be_visible()


def test_a_run_is_searched_by_each_header_of_the_list(page: Page) -> None:
    page.goto("/#/runs")
    expect(page.locator("tbody tr")).to_have_count(4)
    heads = page.locator("th button").all_inner_texts()
    assert "Last row" in heads
    with page.expect_response("**/api/runs?*q=*") as answer:
        page.get_by_role("searchbox").fill(" ".join(f"{head} != 0.5" for head in heads))
    assert answer.value.json()["found"] == 4


def test_a_run_shows_its_curves_and_settings(page: Page) -> None:
    page.goto("/#/runs/sweep/a2c")
    expect(page.get_by_text("failed: ValueError: the loss is NaN")).to_be_visible()
    expect(page.get_by_text(re.compile("remotely-rl train a2c --resume"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Policy loss: 0.5"))).to_be_visible()
    page.get_by_text("Settings").click()
    expect(page.get_by_text("log_interval_s")).to_be_visible()


def test_a_column_that_an_algorithm_leaves_at_zero_takes_no_room(page: Page) -> None:
    page.goto("/#/runs/ppo-2")
    expect(page.get_by_role("img", name=re.compile("episode.success: 0"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("train.rewards_clipped"))).to_have_count(0)


def test_a_list_of_a_run_that_is_cut_counts_what_it_leaves_out(page: Page) -> None:
    page.goto("/#/runs/ppo-2")
    expect(page.get_by_text("32 in all")).to_be_visible()
    expect(page.get_by_text("crash 31")).to_be_visible()
    expect(page.get_by_text("22 earlier reports not shown here: see ")).to_be_visible()
    expect(page.get_by_text("2 earlier evaluations not shown here: see ")).to_be_visible()


def test_a_run_shows_the_images_and_histograms_of_its_hooks(page: Page) -> None:
    page.goto("/#/runs/ppo-1")
    picture = page.get_by_role("img", name="mine/maze after 200 steps")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 16
    page.get_by_label("Step of mine/maze").fill("0")
    expect(page.get_by_role("img", name="mine/maze after 100 steps")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("mine.weights"))).to_be_visible()


def test_markup_in_a_run_stays_text(page: Page) -> None:
    page.goto("/#/runs/evil")
    expect(page.get_by_text(EVIL).first).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


def test_the_theme_changes_and_stays(page: Page) -> None:
    page.goto("/#/overview")
    button = page.get_by_role("button", name=re.compile("Theme"))
    button.click()
    button.click()
    expect(page.locator("html[data-theme=dark]")).to_have_count(1)
    page.reload()
    expect(page.locator("html[data-theme=dark]")).to_have_count(1)
    button.click()


def show(page: Page, is_seen: bool) -> None:
    """Report the page to itself as visible or hidden."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        not is_seen,
    )


def test_a_hidden_page_sends_no_requests(page: Page) -> None:
    asked: list[str] = []
    page.clock.install()
    page.goto("/#/runs")
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(4)
    expect(page.get_by_text("9 machines, 450 actors")).to_be_visible()
    with page.expect_event("requestfailed", lambda request: "/api/events" in request.url):
        show(page, is_seen=False)  # it leaves the stream of the overview
    listener = lambda request: asked.append(request.url)
    page.on("request", listener)
    page.clock.run_for(60_000)
    assert asked == []
    page.remove_listener("request", listener)
    with page.expect_request("**/api/events"), page.expect_request("**/api/runs?*"):
        show(page, is_seen=True)
    page.clock.resume()


def test_a_page_reports_a_lost_dashboard_and_reconnects(
    page: Page, nothing_goes_wrong: list[str]
) -> None:
    page.route("**/api/events", lambda route: route.abort())
    page.goto("/#/overview")
    page.reload()
    expect(page.get_by_text("The dashboard does not answer; trying again.")).to_be_visible()
    page.unroute("**/api/events")
    expect(page.get_by_text("9 machines, 450 actors")).to_be_visible()
    nothing_goes_wrong.clear()


def test_a_page_of_a_restarted_dashboard_says_how_to_open_it(
    page: Page, nothing_goes_wrong: list[str]
) -> None:
    page.goto("/#/overview")
    expect(page.get_by_text("9 machines, 450 actors")).to_be_visible()
    cookies = page.context.cookies()
    page.context.clear_cookies()
    show(page, is_seen=False)
    show(page, is_seen=True)
    expect(page.get_by_text("Open the link that the dashboard printed")).to_be_visible()
    page.context.add_cookies(cookies)
    expect(page.get_by_text("9 machines, 450 actors")).to_be_visible()
    nothing_goes_wrong.clear()


@pytest.mark.parametrize(
    "screen",
    ["overview", "machines", "actors", "runs", "runs/ppo-1", "compare?run=ppo-1&run=ppo-2"],
)
def test_nothing_is_wider_than_a_phone(page: Page, screen: str) -> None:
    page.set_viewport_size({"width": 380, "height": 740})
    page.goto(f"/#/{screen}")
    expect(head(page)).to_be_visible()
    expect(page.locator("tbody tr, canvas").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.set_viewport_size({"width": 1200, "height": 800})
