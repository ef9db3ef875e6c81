"""The dashboard's speed, weight and memory, and their targets.

    python -m tools.bench_dashboard            # five minutes
    python -m tools.bench_dashboard --write    # into docs/dashboard.md

The cluster and the runs are simulated (made_up.py).  The page, the server and the files are real,
and so are the master whose share is measured and the run that trains beside a dashboard
(beside.py).  The browser's figures need Playwright and Chromium.  Each figure is a median of
ROUNDS.  Run it on an idle machine.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import psutil

from remotely.dashboard.watch import REFRESH_S
from remotely.transport import key_files
from tools import command_line, tables
from tools.bench import master
from tools.bench.benchmark import ROOT
from tools.bench.page import replaced
from tools.bench_dashboard import beside
from tools.bench_dashboard.made_up import PER_MACHINE, make_runs

ROUNDS = 7
LOOK_S = 20.0  # of a measurement with one viewer, and with none
READS = 2  # of the long run: the second must not use more memory
BEGIN, END = "<!-- speed -->", "<!-- end -->"


class Served:
    """A dashboard in another process, and a client with its cookie."""

    def __init__(self, process: "subprocess.Popen[str]", link: str) -> None:
        self.process = process
        self.link = link
        self.base = link.partition("/open")[0]
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self._opener = urllib.request.build_opener(cookies)

    def wait_until_it_serves(self) -> None:
        """Its link is printed before it has loaded all that it needs; connections wait."""
        self.get("/healthz")

    def open(self) -> None:
        self.get(self.link.removeprefix(self.base))

    def get(self, path: str, **query: Any) -> bytes:
        words = urllib.parse.urlencode(query, doseq=True)
        with self._opener.open(f"{self.base}{path}{'?' * bool(words)}{words}") as answer:
            content: bytes = answer.read()
        return content

    def next_link(self) -> str:
        """Read the link that is printed after the use of one."""
        assert self.process.stdout is not None
        return _link(self.process.stdout.readline())

    def rss_mb(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20

    def cpu_s(self) -> float:
        return _cpu_s(self.process.pid)

    def follow(self) -> Any:
        """Open the stream of the overview."""
        return self._opener.open(f"{self.base}/api/events")

    def asked_after(self, seconds: float) -> int:
        """Wait, and end the dashboard; return the number of questions to its cluster."""
        assert self.process.stdout is not None
        time.sleep(seconds)
        self.process.send_signal(signal.SIGINT)
        (number,) = re.findall(r"asked (\d+) times", self.process.stdout.read())
        return int(number)


def _note_url(urls: list[str], request: Any) -> None:
    urls.append(request.url)


def _link(line: str) -> str:
    found = re.search(r"http://\S+", line)
    assert found, line
    return found[0]


@contextlib.contextmanager
def started(*words: str) -> Iterator[Served]:
    """Start a dashboard by a command; end it as by Ctrl-C."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        dashboard = Served(process, _link(process.stdout.readline()))
        process.stdout.readline()  # the note that the link works once
        dashboard.wait_until_it_serves()
        yield dashboard
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        process.stdout.close()


def served(actors: int, runs: Path) -> contextlib.AbstractContextManager[Served]:
    """Start a dashboard of a simulated cluster."""
    made_up = "tools.bench_dashboard.made_up"
    return started(sys.executable, "-m", made_up, str(actors), str(runs))


@contextlib.contextmanager
def looked_at(dashboard: Served) -> Iterator[None]:
    """Follow the overview as one browser does."""
    dashboard.open()
    stream = dashboard.follow()
    stream.readline()
    try:
        yield
    finally:
        stream.close()


def shares(folder: Path, actors: int) -> dict[str, float]:
    """Return the shares of a core of a master and its dashboard, with one viewer and with none.

    The master's workers are simulated and report each second (tools/bench/master.py).
    """
    key_files.make_keys(folder)
    keys = (
        key_files.load_master(folder / "master.key"),
        key_files.load_member(folder / "client.key"),
        key_files.load_member(folder / "worker.key"),
    )
    with master.running(*keys, actors // PER_MACHINE, actors) as (address, pid):
        main = "from remotely.cli import main; main()"
        script = [sys.executable, "-c", main, "dashboard", address.removeprefix("tcp://")]
        key = ["--key", str(folder / "viewer.key"), "--listen", "127.0.0.1:0"]
        with started(*script, *key) as dashboard:
            found = _shares("with none", pid, dashboard)
            with looked_at(dashboard):
                return found | _shares("with one viewer", pid, dashboard)


def _shares(viewers: str, master_pid: int, dashboard: Served) -> dict[str, float]:
    processes = {"master": master_pid, "dashboard": dashboard.process.pid}
    before = {name: _cpu_s(pid) for name, pid in processes.items()}
    time.sleep(LOOK_S)
    return {
        f"{name} {viewers}": (_cpu_s(pid) - before[name]) / LOOK_S
        for name, pid in processes.items()
    }


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def timed(dashboard: Served, action: Callable[[], object], rounds: int = ROUNDS) -> str:
    """Return the median time of an answer, and its CPU time.

    The CPU time is what the first would be on an idle machine.
    """
    times = []
    cpu_s = dashboard.cpu_s()
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append((time.perf_counter() - began) * 1000)
    cpu_ms = 1000 * (dashboard.cpu_s() - cpu_s) / rounds
    return f"{statistics.median(times):.0f} ms, {cpu_ms:.0f} ms of a core"


def browser() -> str:
    """Return the path of Chromium, empty without it or Playwright."""
    with contextlib.suppress(ImportError):
        import playwright  # noqa: F401, PLC0415 - an optional package

        names = ("chromium", "chromium-browser", "google-chrome")
        return next((path for name in names if (path := shutil.which(name))), "")
    return ""


PAINT = """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"""


def painted(dashboard: Served) -> tuple[float, int, int]:
    """Return milliseconds to the actors' page's first paint, its bytes, and foreign requests."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - as above

    paints, weights, foreign = [], [], 0
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser(), args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        link = dashboard.link
        for _ in range(ROUNDS):
            context = chromium.new_context()  # with an empty cache
            page = context.new_page()
            page.goto(link)
            page.wait_for_url(f"{dashboard.base}/")
            link = dashboard.next_link()
            page.close()
            cookies = context.cookies()
            context.close()
            context = chromium.new_context()
            context.add_cookies(cookies)
            page = context.new_page()
            session = context.new_cdp_session(page)
            session.send("Network.enable")
            sizes: list[float] = []
            urls: list[str] = []
            session.on(
                "Network.loadingFinished", lambda e, s=sizes: s.append(e["encodedDataLength"])
            )
            page.on("request", partial(_note_url, urls))
            page.goto(f"{dashboard.base}/#/actors")
            page.wait_for_selector("tbody tr:nth-child(200)")
            paints.append(float(page.evaluate(PAINT)))
            weights.append(int(sum(sizes)))
            foreign += sum(not url.startswith(dashboard.base) for url in urls)
            context.close()
        chromium.close()
    return statistics.median(paints), int(statistics.median(weights)), foreign


def measured(folder: Path) -> list[list[str]]:
    """Measure all; return the rows of the table."""
    rows: list[list[str]] = []

    def add(what: str, figure: str, target: str) -> None:
        print(f"{what}: {figure} (target: {target})", flush=True)
        rows.append([what, figure, target])

    runs, long = folder / "runs", folder / "long"
    make_runs(runs, 200, 10_000)
    make_runs(long, 1, 1_000_000)
    with served(1000, runs) as dashboard:
        if browser():
            paint_ms, weight, foreign = painted(dashboard)
            add("first contentful paint, 1,000 actors", f"{paint_ms:.0f} ms", "< 300 ms")
            add("weight of that page", f"{weight / 1000:.0f} kB", "< 150 kB")
            add("requests to elsewhere", str(foreign), "0")
        else:
            print("without Playwright or Chromium, paint and weight are not measured")
    with served(1000, runs) as dashboard:
        add(
            "questions to the cluster, nobody looks", str(dashboard.asked_after(2 * REFRESH_S)), "0"
        )
    for name, share in shares(folder / "keys", 1000).items():
        add(f"{name}, 1,000 actors", f"{share:.2%} of a core", "< 1 %")
    with served(1000, runs) as dashboard:
        dashboard.open()
        for which, rounds in (("at first", 1), ("again", ROUNDS)):
            list_ms = timed(dashboard, lambda: dashboard.get("/api/runs"), rounds)
            add(f"list of 200 runs of 10,000 rows, {which}", list_ms, "< 500 ms")
        ten = [f"ppo-{n:03}" for n in range(10)]
        ten_ms = timed(dashboard, lambda: dashboard.get("/api/compare", run=ten))
        add("ten curves of 10,000 rows", ten_ms, "< 300 ms")
        first = json.loads(dashboard.get("/api/runs/ppo-000/metrics"))
        line = (runs / "ppo-000" / "metrics.csv").read_text().splitlines()[-1]
        with (runs / "ppo-000" / "metrics.csv").open("a") as file:
            file.write(f"{line}\r\n")
        tick = dashboard.get(
            "/api/runs/ppo-000/metrics", file=first["file"], from_byte=first["next_byte"]
        )
        add("live tick of a run", f"{len(tick)} B", "< 5 kB")
    with served(10_000, runs) as dashboard:
        dashboard.open()
        look = {"sort": "-memory", "q": "player node1"}
        actors_ms = timed(dashboard, lambda: dashboard.get("/api/actors", **look))
        add("10,000 actors, sorted and searched", actors_ms, "< 100 ms")
    with served(0, long) as dashboard:
        dashboard.open()
        dashboard.get("/api/runs")
        began_mb, read_mb = dashboard.rss_mb(), []
        for _ in range(READS):
            dashboard.get("/api/runs/ppo-000/metrics", points=600)
            read_mb.append(dashboard.rss_mb())
        used = f"{read_mb[0]:.0f} MB, {began_mb:.0f} before, {max(read_mb):.0f} after {READS} reads"
        add("memory over 1,000,000 rows", used, "< 60 MB, flat")
    add("training beside an open dashboard", trained(folder / "trained"), ">= 0.99 of without")
    return rows


def trained(folder: Path) -> str:
    """Return the pace of a run while its page is open, relative to that while it is not."""
    folder.mkdir()
    run = folder / "ppo"
    with served(1000, folder) as dashboard:
        dashboard.open()

        def look() -> None:  # the questions of a run's page
            dashboard.get("/api/cluster")
            dashboard.get("/api/runs/ppo")
            dashboard.get("/api/runs/ppo/metrics", points=600)

        ratios = beside.ratios(run, look)
    middle, around = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
    return f"{middle:.3f} ± {around:.3f} of {len(ratios)} pairs"


def main() -> None:
    parser = command_line.parser("python -m tools.bench_dashboard", __doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/dashboard.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    where = f"On {os.cpu_count()} cores, whose load was {load:.1f} before."
    with tempfile.TemporaryDirectory(prefix="bench-dashboard-") as folder:
        rows = measured(Path(folder))
    if options.write:
        page = ROOT / "docs" / "dashboard.md"
        filled = tables.table(["measure", "figure", "to reach"], rows)
        page.write_text(replaced(page.read_text(), BEGIN, END, f"{where}\n\n{filled}"))


if __name__ == "__main__":
    main()
