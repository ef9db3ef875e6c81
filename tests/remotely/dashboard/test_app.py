"""The routes of the dashboard and their access control, over a fake cluster."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from remotely.errors import MasterLost
from remotely.protocol import control
from remotely.protocol.resources import Resources
from remotely.protocol.spans import SERVER_SPAN

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
pytest.importorskip("httpx2", reason="starlette's test client needs httpx2")

from starlette.testclient import TestClient

from remotely.dashboard import app, watch
from remotely.dashboard.access import Access

EVIL = '<img src=x onerror="document.title=1">'


class FakeViewer:
    """A cluster with one machine and some actors."""

    def __init__(self, count: int = 3) -> None:
        self.requests = 0
        self.on_lost: Callable[[str], object] = lambda why: None
        self.error: Exception | None = None
        self.logs = {"id-0": "one\r\ntwo\x1b[31m red\x1b[0m \x07\x9b \u202e\n"}
        self.workers = [
            control.WorkerStatus(
                worker="w",
                machine="node0",
                host="elsewhere",
                address="10.0.0.1",
                python="3.11",
                resources=Resources(8, 0, 1 << 30),
                free_cpus=5,
                free_gpus=0,
                free_memory=1 << 29,
                actors=[self.actor(n) for n in range(count)],
            )
        ]

    def actor(self, n: int) -> control.ActorStatus:
        name = EVIL if n == 1 else f"Player-{n}"
        location = control.Location(
            actor=f"id-{n}",
            name=name,
            class_name="Player",
            life=0,
            pid=100 + n,
            host="elsewhere",
            machine="node0",
            ipc="",
            tcp="",
            public_key=b"",
        )
        request = control.Request(
            actor=f"id-{n}", name=name, class_name="Player", owner="", job="", python="3.11"
        )
        figures = control.Figures(actor=f"id-{n}", calls=n, memory=1000 * n)
        return control.ActorStatus(location=location, request=request, figures=figures)

    def ask_status(self) -> "Future[control.Status]":
        self.requests += 1
        answer: Future[control.Status] = Future()
        if self.error:
            answer.set_exception(self.error)
        else:
            ends = [
                control.EndStatus(
                    name=EVIL,
                    actor="id-9",
                    class_name="C",
                    machine="node0",
                    ago_s=3.0,
                    lost=False,
                    restarting=False,
                    exit="SIGKILL",
                    why="",
                    stderr=EVIL,
                )
            ]
            answer.set_result(
                control.Status(ticket=1, workers=self.workers, clients=[], waiting=0, ends=ends)
            )
        return answer

    def ask_events(self, after: int) -> "Future[control.Events]":
        answer: Future[control.Events] = Future()
        events = [
            control.EventStatus(kind="joined", machine="node0", text="it has joined", number=1),
            control.EventStatus(
                kind="died", machine="node0", text=EVIL, name=EVIL, class_name="C", number=2
            ),
        ]
        answer.set_result(control.Events(ticket=1, events=events, last=2))
        return answer

    def ask_timeline(self, seconds: float) -> "Future[list[control.ProcessTimeline]]":
        answer: Future[list[control.ProcessTimeline]] = Future()
        answer.set_result(
            [
                control.ProcessTimeline(
                    timeline="t",
                    host="h",
                    machine="node0",
                    pid=100,
                    clock=9.0,
                    name=EVIL,
                    class_name="Player",
                    actor="id-1",
                    names=["step", "learn"],
                    served=b"".join(
                        SERVER_SPAN.pack(b"r" * 12, name, call, began, began + took, 0, 0)
                        for call, (name, began, took) in enumerate(
                            [(0, 1.0, 0.5), (1, 1.5001, 0.1), (1, 2.0, 1.0)]
                        )
                    ),
                )
            ]
        )
        return answer

    def read_log(self, actor: str, offset: int) -> "Future[control.LogPiece]":
        answer: Future[control.LogPiece] = Future()
        text = self.logs.get(actor)
        answer.set_result(
            control.LogPiece(
                ticket=1,
                text=text or "",
                offset=len(text or ""),
                known=text is not None,
                ended=False,
            )
        )
        return answer


class Dashboard:
    def __init__(self, viewer: FakeViewer, bearer: str = "") -> None:
        self.viewer = viewer
        self.access = Access(["testserver"], "remotely-1", bearer)
        self.stopping = asyncio.Event()
        cluster = app.Cluster("here:8010", viewer)
        self.application = app.make(self.access, cluster, stopping=self.stopping)
        self.stranger = TestClient(self.application)
        self.browser = TestClient(self.application)
        self.opened = self.browser.get("/open", params={"link": self.access.link})

    def get(self, path: str, **query: Any) -> Any:
        answer = self.browser.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def dashboard() -> Dashboard:
    return Dashboard(FakeViewer(), "a token for prometheus")


# --- access control -------------------------------------------------------------------------------


def test_the_link_sets_a_cookie_that_scripts_and_other_sites_cannot_use(
    dashboard: Dashboard,
) -> None:
    assert dashboard.opened.status_code == 200
    cookie = dashboard.opened.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    again = dashboard.stranger.get("/open", params={"link": "used"})
    assert again.status_code == 401
    assert "set-cookie" not in again.headers


def test_a_head_request_does_not_use_the_link_up(dashboard: Dashboard) -> None:
    link = {"link": dashboard.access.link}
    assert "set-cookie" not in dashboard.stranger.head("/open", params=link).headers
    assert "set-cookie" in dashboard.stranger.get("/open", params=link).headers


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8020", "", "10.0.0.1"])
def test_a_request_for_an_unknown_host_is_refused_even_with_the_cookie(
    dashboard: Dashboard, host: str
) -> None:
    for path in ("/", "/api/actors", "/metrics", "/open", "/static/app.js"):
        answer = dashboard.browser.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "--name" in answer.text
    assert dashboard.viewer.requests == 0


PATHS = (
    "/",
    "/static/app.js",
    "/api/cluster",
    "/api/events",
    "/api/history",
    "/api/machines",
    "/api/actors",
    "/api/actors/id-0",
    "/api/actors/id-0/log",
    "/api/actors/id-0/flame",
    "/metrics",
    "/nothing",
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "cookie", [None, "remotely-1=guess", "remotely-1=", "remotely-1", "=;\x01"]
)
def test_a_request_without_the_cookie_is_refused_and_does_not_reach_the_cluster(
    dashboard: Dashboard, path: str, cookie: str | None
) -> None:
    headers = {} if cookie is None else {"cookie": cookie}
    answer = dashboard.stranger.get(path, headers=headers)
    assert answer.status_code == 401
    assert "Player" not in answer.text
    assert dashboard.viewer.requests == 0


@pytest.mark.parametrize("other", ['tree={"open":true}', "a[b]=1", "two words=2", "lone"])
def test_cookies_of_other_servers_on_the_same_host_do_no_harm(
    dashboard: Dashboard, other: str
) -> None:
    ours = f"remotely-1={dashboard.browser.cookies['remotely-1']}"
    answer = dashboard.stranger.get("/", headers={"cookie": f"{other}; {ours}"})
    assert answer.status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_and_head_are_served(dashboard: Dashboard, method: str) -> None:
    for path in PATHS:
        assert dashboard.browser.request(method, path).status_code == 405
    assert dashboard.viewer.requests == 0


@pytest.mark.parametrize("path", [*PATHS, "/healthz", "/open"])
def test_every_response_has_the_security_headers(dashboard: Dashboard, path: str) -> None:
    for client in (dashboard.stranger, dashboard.browser):
        if path == "/api/events" and client is dashboard.browser:
            dashboard.stopping.set()
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_healthz_is_open_and_metrics_need_the_bearer_token(dashboard: Dashboard) -> None:
    assert dashboard.stranger.get("/healthz").text == "ok\n"
    refused = dashboard.stranger.get("/metrics", headers={"authorization": "Bearer guess"})
    assert refused.status_code == 401
    token = {"authorization": "Bearer a token for prometheus"}
    answer = dashboard.stranger.get("/metrics", headers=token)
    assert answer.status_code == 200
    assert 'remotely_actors{class="Player"} 3.0' in answer.text
    assert 'remotely_cpus{state="free"} 5.0' in answer.text
    assert "remotely_machines_sick 0.0" in answer.text
    assert dashboard.stranger.get("/api/actors", headers=token).status_code == 401


# --- content --------------------------------------------------------------------------------------


def test_the_page_and_its_scripts_load_nothing_from_elsewhere(dashboard: Dashboard) -> None:
    page = dashboard.browser.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for name in ("app.js", "ui.js", "cluster.js", "app.css", "icon.svg"):
        file = dashboard.browser.get(f"/static/{name}")
        assert file.status_code == 200
        text = file.text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text
        tag = {"if-none-match": file.headers["etag"]}
        assert dashboard.browser.get(f"/static/{name}", headers=tag).status_code == 304
    assert "<script>" not in page.text
    assert "style=" not in page.text


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "nothing.js", "%00"])
def test_only_static_files_are_served(dashboard: Dashboard, name: str) -> None:
    assert dashboard.browser.get(f"/static/{name}").status_code == 404


def test_actors_are_sorted_searched_and_paginated_on_the_server(dashboard: Dashboard) -> None:
    page = dashboard.get("/api/actors", sort="-memory", limit=2)
    assert (page["total"], page["found"]) == (3, 3)
    assert [row["actor"] for row in page["rows"]] == ["id-2", "id-1"]
    assert dashboard.get("/api/actors", q="player-2")["found"] == 1
    assert [each["machine"] for each in dashboard.get("/api/machines")["rows"]] == ["node0"]
    refused = dashboard.browser.get("/api/actors", params={"sort": "secret"})
    assert refused.status_code == 400
    assert "no column 'secret'" in refused.json()["error"]
    refused = dashboard.browser.get("/api/actors", params={"after": "x"})
    assert refused.json()["error"] == "after is a whole number from 0 on, not 'x'"


def test_a_search_for_an_actor_finds_those_that_died(dashboard: Dashboard) -> None:
    assert dashboard.get("/api/actors")["ends"] == []
    (end,) = dashboard.get("/api/actors", q="id-9")["ends"]
    assert (end["actor"], end["how"]) == ("id-9", "SIGKILL")
    assert dashboard.get("/api/actors", q="id-0")["ends"] == []


def test_the_history_is_newest_first_and_asks_no_process_of_the_cluster(
    dashboard: Dashboard,
) -> None:
    newest, oldest = dashboard.get("/api/history")["events"]
    assert (newest["kind"], newest["actor"], newest["text"]) == ("died", EVIL, EVIL)
    assert (oldest["kind"], oldest["number"]) == ("joined", 1)
    until = dashboard.get("/api/history", until=1)
    assert ([each["kind"] for each in until["events"]], until["earlier"]) == (["joined"], 0)
    assert dashboard.viewer.requests == 0


def test_the_cluster_is_asked_on_demand_and_requests_at_the_same_time_share_the_status(
    dashboard: Dashboard,
) -> None:
    dashboard.browser.get("/")
    dashboard.browser.get("/static/app.js")
    dashboard.stranger.get("/healthz")
    assert dashboard.viewer.requests == 0
    for path in ("/api/cluster", "/api/actors", "/api/machines", "/api/actors/id-0", "/metrics"):
        assert dashboard.browser.get(path).status_code == 200
    assert dashboard.viewer.requests == 1


def test_markup_in_names_is_sent_as_text_in_json(dashboard: Dashboard) -> None:
    answer = dashboard.browser.get("/api/cluster")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["ends"][0]["stderr"] == EVIL
    assert dashboard.get("/api/actors/id-1")["name"] == EVIL


def test_control_characters_in_a_log_are_made_visible(dashboard: Dashboard) -> None:
    piece = dashboard.get("/api/actors/id-0/log", offset=-1)
    assert piece["text"] == "one\ntwo\x1b[31m red\x1b[0m \\x07\\x9b \\u202e\n"
    missing = dashboard.browser.get("/api/actors/nobody/log")
    assert missing.status_code == 404
    assert "no actor of this cluster" in missing.json()["error"]


@pytest.mark.parametrize("offset", [-5, 1 << 63, "x", ""])
def test_an_offset_that_no_log_has_is_refused_without_asking(
    dashboard: Dashboard, offset: object
) -> None:
    refused = dashboard.browser.get("/api/actors/id-0/log", params={"offset": str(offset)})
    assert refused.status_code == 400
    assert "offset is a whole number from -1 on" in refused.json()["error"]


def test_probes_of_any_host_learn_whether_the_master_answers_and_has_a_machine(
    dashboard: Dashboard,
) -> None:
    def probe(path: str) -> tuple[int, str]:
        answer = dashboard.stranger.get(path, headers={"host": "10.0.0.7:8020"})
        return answer.status_code, answer.text

    assert probe("/livez") == probe("/readyz") == (200, "ok\n")
    assert dashboard.viewer.requests == 1
    for unfit in ({"away_s": 3.0}, {"sick": "no space left"}, {"drains_s": 3.0}):
        dashboard = Dashboard(FakeViewer())
        (machine,) = dashboard.viewer.workers
        dashboard.viewer.workers = [msgspec.structs.replace(machine, **unfit)]
        assert probe("/livez") == (200, "ok\n")
        assert probe("/readyz") == (503, "no machine\n")
    dashboard = Dashboard(FakeViewer())
    dashboard.viewer.error = MasterLost("the master at 10.1.2.3 is silent")
    assert probe("/livez") == probe("/readyz") == (503, "no answer from the master\n")
    assert probe("/healthz") == (200, "ok\n")


def test_an_actor_on_another_machine_cannot_be_sampled(dashboard: Dashboard) -> None:
    why = "only actors on the dashboard's own machine can be sampled"
    assert dashboard.get("/api/actors/id-0")["flame"] == why
    refused = dashboard.browser.get("/api/actors/id-0/flame")
    assert (refused.status_code, refused.json()["error"]) == (503, why)
    assert dashboard.browser.get("/api/actors/nobody").status_code == 404


def test_a_lost_master_is_reported_and_the_next_request_tries_again(dashboard: Dashboard) -> None:
    dashboard.viewer.error = MasterLost("the master at here:8010 is gone")
    answer = dashboard.browser.get("/api/cluster")
    assert (answer.status_code, answer.json()["error"]) == (503, "the master at here:8010 is gone")
    dashboard.viewer.error = None
    assert dashboard.get("/api/cluster")["actors"] == 3


def test_the_event_stream_has_the_overview_and_ends_with_the_dashboard() -> None:
    dashboard = Dashboard(FakeViewer())
    events: list[dict[str, Any]] = []

    async def follow() -> None:
        cookie = dashboard.browser.cookies["remotely-1"]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/events",
            "query_string": b"",
            "headers": [(b"host", b"testserver"), (b"cookie", f"remotely-1={cookie}".encode())],
        }

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def send(message: Any) -> None:
            if body := message.get("body"):
                events.append(json.loads(body.removeprefix(b"data: ")))
                dashboard.stopping.set()

        await asyncio.wait_for(dashboard.application(scope, receive, send), 10)

    asyncio.run(follow())
    (overview,) = events
    assert (overview["address"], overview["actors"]) == ("here:8010", 3)


# --- a master that does not answer ----------------------------------------------------------------


class SlowViewer(FakeViewer):
    """Answers once, and then not any more."""

    def ask_status(self) -> "Future[control.Status]":
        return super().ask_status() if not self.requests else Future()


def known_after(
    viewer: FakeViewer, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> tuple[watch.KnownState, Exception]:
    """Return what is known 60 s after the first look, and the error of a look at that time."""
    monkeypatch.setattr(watch, "PATIENCE_S", 0.01)
    monkeypatch.setattr(watch, "TIMEOUT_S", 0.02)

    async def looks() -> tuple[watch.KnownState, Exception]:
        watched = watch.ClusterWatch("here", viewer.ask_status, lambda: clock[0])
        assert (await watched.known()).why == ""
        clock[0] += 60
        seen = await watched.known()
        with pytest.raises(MasterLost) as lost:
            await watched.look()
        return seen, lost.value

    return asyncio.run(looks())


def test_what_is_known_is_shown_with_its_age_while_the_master_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, error = known_after(SlowViewer(), [100.0], monkeypatch)
    assert (seen.age_s, seen.why) == (60, "the master at here does not answer")
    assert len(seen.snapshot.actors) == 3
    assert str(error) == "the master at here does not answer"  # probes and metrics are told


def test_what_is_known_is_shown_with_the_reason_why_the_master_is_gone() -> None:
    dashboard = Dashboard(FakeViewer())
    assert dashboard.get("/api/cluster")["stale"] == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "REFRESH_S", 0.0)
        dashboard.viewer.error = MasterLost("train.py (pid 7) has ended, and its cluster with it")
        known = dashboard.get("/api/cluster")
    assert (known["stale"], known["actors"]) == (str(dashboard.viewer.error), 3)


def test_a_master_that_is_lost_is_told_at_once_and_so_is_its_return() -> None:
    viewer = FakeViewer()

    async def looks() -> None:
        watched = watch.ClusterWatch("here", viewer.ask_status)
        await watched.known()
        for why in ("the connection to the master broke", ""):
            news = watched.news
            await asyncio.to_thread(watched.note_lost, why)
            await asyncio.wait_for(news.wait(), 5)
            assert (await watched.known()).why == why
        assert viewer.requests == 1  # what is known is as new as it was

    asyncio.run(looks())


def test_nothing_is_asked_of_a_master_that_is_lost(dashboard: Dashboard) -> None:
    viewer, why = dashboard.viewer, "the connection to the master broke"
    viewer.on_lost(why)
    viewer.ask_events = viewer.ask_timeline = viewer.read_log = None  # type: ignore[assignment]
    for path in ("history", "timeline?seconds=1", "actors/id-0/log"):
        answer = dashboard.browser.get(f"/api/{path}")
        assert (answer.status_code, answer.json()["error"]) == (503, why)


def test_an_actor_that_has_ended_says_how() -> None:
    dashboard = Dashboard(FakeViewer())
    answer = dashboard.browser.get("/api/actors/id-9")
    assert answer.status_code == 404
    assert answer.json()["error"] == f"{EVIL} has ended (SIGKILL)"


def test_a_timeline_is_recorded_as_bars_by_actor_or_as_a_file(dashboard: Dashboard) -> None:
    found = dashboard.get("/api/timeline", seconds=1)
    (row,) = found["actors"]
    assert (row["name"], row["calls"]) == (EVIL, 3)
    assert [bar[2] for bar in row["bars"]] == ["step", "learn", "learn"]
    file = dashboard.browser.get("/api/timeline?seconds=1&trace")
    assert "attachment" in file.headers["content-disposition"]
    assert len([e for e in file.json()["traceEvents"] if e["ph"] == "X"]) == 3
    assert dashboard.browser.get("/api/timeline?seconds=3000").status_code == 400


def test_a_list_that_is_cut_says_how_much_of_it_is_missing(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remotely.dashboard.rows.PAGE", 0)
    assert dashboard.get("/api/history") == {"events": [], "earlier": 2}
    found = dashboard.get("/api/timeline", seconds=1)
    assert (found["actors"], found["more"]) == ([], 1)


@pytest.mark.parametrize(("drawing", "query"), [("by_actor", ""), ("trace", "&trace")])
def test_no_browser_waits_while_a_timeline_is_drawn(
    dashboard: Dashboard, drawing: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*asked: object) -> dict[str, list[str]]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # another thread than that of the loop
            return {"actors": []}
        raise AssertionError("the loop that serves all browsers draws")

    monkeypatch.setattr(f"remotely.reporting.chrome_trace.{drawing}", draw)
    answer = dashboard.browser.get(f"/api/timeline?seconds=1{query}")
    assert answer.json()["actors"] == []
