"""The web application: the routes, behind the access control of access.py.

    /                                   the page; its scripts fetch everything else
    /open?link=...                      sets the cookie
    /healthz                            whether this process serves, without authentication
    /livez, /readyz                     whether the master answers; and has a machine for actors
    /metrics                            for Prometheus, with a bearer token or the cookie
    /api/cluster, /api/events           the overview, once or every few seconds
    /api/machines, /api/actors          ?after&limit&sort&q
    /api/actors/ID, .../log?offset, .../flame

Panels of other packages (remotely_rl.dashboard) add their own routes and scripts.
"""

import asyncio
import contextlib
import html
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request, cookie_parser
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remotely.dashboard import files, flame, rows
from remotely.dashboard.access import HEADERS, HEALTH, METHODS, OPEN_TO_ALL, Access
from remotely.dashboard.watch import REFRESH_S, ClusterWatch
from remotely.errors import RemotelyError
from remotely.machine import this_machine
from remotely.protocol import control
from remotely.reporting import chrome_trace
from remotely.reporting.cluster_status import event_as_json
from remotely.reporting.terminal import shown

MOST_TIMELINE_S = 30
MAX_STREAMS = 64  # open event streams, over all browsers
HOW_TO_OPEN = "Open the link that the dashboard printed on its terminal. It works once."


class ClusterViewer(Protocol):
    """The read-only connection to a cluster that the dashboard needs; as `Viewer` has it."""

    on_lost: Callable[[str], object]

    def ask_status(self) -> "Future[control.Status]": ...

    def read_log(self, actor: str, offset: int) -> "Future[control.LogPiece]": ...

    def ask_events(self, after: int) -> "Future[control.Events]": ...

    def ask_timeline(self, seconds: float) -> "Future[list[control.ProcessTimeline]]": ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that is shown."""

    address: str
    viewer: ClusterViewer


class Panel(NamedTuple):
    """A package's addition to the page: its routes, and `static/NAME.js`, loaded as a module."""

    name: str
    package: str
    routes: Sequence[Route]


Handler = Callable[[Request], Awaitable[Response]]


def make(
    access: Access,
    cluster: Cluster | None = None,
    panels: Sequence[Panel] = (),
    stopping: asyncio.Event | None = None,
    on_opened: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """Return the application.  Streams end when `stopping` is set."""
    if cluster is not None:
        panels = [_ClusterPanel(cluster, stopping or asyncio.Event()).panel, *panels]
    static = files.load(["remotely.dashboard", *(panel.package for panel in panels)])
    page = files.file_of(_page(static["index.html"].content, panels), files.TYPES[".html"])

    async def index(request: Request) -> Response:
        return files.response(request, page)

    async def file(request: Request) -> Response:
        return files.response(request, static.get(request.path_params["name"]))

    async def open_link(request: Request) -> Response:
        if request.method == "HEAD":  # a link checker must not use the link up
            return Response()
        cookie = access.use_link(request.query_params.get("link", ""))
        if not cookie:
            return _unauthorized("This link was used already, or is from an earlier start.")
        # Not a redirect: a browser sends no strict cookie after a redirect that began on another
        # site, such as a webmail.  A refresh begins here.
        response = HTMLResponse('<!doctype html><meta http-equiv="refresh" content="0;url=/">')
        response.set_cookie(
            access.cookie_name,
            cookie,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        on_opened()
        return response

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes = [
        Route("/", index),
        Route("/static/{name}", file),
        Route("/open", open_link),
        Route("/healthz", healthz),
    ]
    for panel in panels:
        routes += panel.routes
    application = Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
        exception_handlers={
            HTTPException: _error_response,
            ValueError: _error_response,
            TimeoutError: _error_response,
            RemotelyError: _error_response,
            flame.NoFlame: _error_response,
        },
    )
    return AccessMiddleware(application, access)


def _page(template: bytes, panels: Sequence[Panel]) -> bytes:
    """Return index.html with the scripts of these panels filled in."""
    names = " ".join(panel.name for panel in panels)
    preloads = "".join(
        f'<link rel="modulepreload" href="/static/{panel.name}.js">' for panel in panels
    )
    filled = template.decode().replace("$PANELS", html.escape(names))
    return filled.replace("<!-- $PRELOADS -->", preloads).encode()


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    status = 400 if isinstance(error, ValueError) else 503
    return JSONResponse({"error": str(error) or "the master does not answer"}, status)


def _unauthorized(why: str) -> Response:
    return HTMLResponse(
        f'<!doctype html><html lang="en"><title>remotely</title><meta name="viewport" '
        f'content="width=device-width"><p>{html.escape(why)} {HOW_TO_OPEN}',
        401,
    )


class AccessMiddleware:
    """Passes on the requests that `Access` admits, and adds its headers to every response."""

    def __init__(self, application: ASGIApp, access: Access) -> None:
        self._application = application
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan; there are no WebSockets
            await self._application(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        inner = self._refusal(scope) or self._application
        await inner(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that is not admitted; None if it is."""
        headers, path = Headers(scope=scope), scope["path"]
        if path not in HEALTH and not self._access.knows_host(headers.get("host", "")):
            return PlainTextResponse(
                "this is not a name of the dashboard; start it with --name NAME to add it\n", 421
            )
        if scope["method"] not in METHODS:
            return PlainTextResponse("the dashboard is read-only\n", 405)
        if path in OPEN_TO_ALL or self._access.admits(self._cookie(headers)):
            return None
        if path == "/metrics":
            if self._access.admits_bearer(headers.get("authorization", "")):
                return None
            return PlainTextResponse(
                "start the dashboard with --metrics-token FILE, and send a bearer token\n",
                401,
                {"www-authenticate": "Bearer"},
            )
        if path == "/":
            return _unauthorized("This dashboard does not know your browser.")
        return JSONResponse({"error": HOW_TO_OPEN}, 401)

    def _cookie(self, headers: Headers) -> str:
        # Not http.cookies: it drops all cookies if one of another server on this host is invalid.
        return cookie_parser(headers.get("cookie", "")).get(self._access.cookie_name, "")


class _ClusterPanel:
    """The routes of the cluster."""

    def __init__(self, cluster: Cluster, stopping: asyncio.Event) -> None:
        self._viewer = cluster.viewer
        self._watch = ClusterWatch(cluster.address, cluster.viewer.ask_status)
        cluster.viewer.on_lost = self._watch.note_lost
        self._stopping = stopping
        self._streams = 0
        self._flame_lock = asyncio.Lock()
        self.panel = Panel(
            "cluster",
            "remotely.dashboard",
            [
                Route("/livez", self._live),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics),
                Route("/api/cluster", self._overview),
                Route("/api/events", self._events),
                Route("/api/history", self._history),
                Route("/api/timeline", self._timeline),
                Route("/api/machines", self._machines),
                Route("/api/actors", self._actors),
                Route("/api/actors/{actor}", self._actor),
                Route("/api/actors/{actor}/log", self._log),
                Route("/api/actors/{actor}/flame", self._record),
            ],
        )

    async def _live(self, request: Request) -> Response:
        return await self._health(lambda now: True)

    async def _ready(self, request: Request) -> Response:
        return await self._health(
            lambda now: any(not (m.away_s or m.sick or m.drains_s) for m in now.status.machines)
        )

    async def _health(self, is_well: Callable[[rows.Snapshot], bool]) -> Response:
        """Answer a probe; nothing of the cluster is told, as anybody may ask."""
        try:
            now = await self._watch.look()
        except RemotelyError:
            return PlainTextResponse("no answer from the master\n", 503)
        return PlainTextResponse("ok\n") if is_well(now) else PlainTextResponse("no machine\n", 503)

    async def _overview(self, request: Request) -> Response:
        return JSONResponse(rows.overview(*await self._watch.known()))

    async def _events(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} pages already follow this dashboard")
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        """Yield the overview until the browser leaves or the dashboard ends."""
        self._streams += 1
        try:
            while not self._stopping.is_set():
                news = self._watch.news
                try:
                    data: dict[str, Any] = rows.overview(*await self._watch.known())
                except RemotelyError as error:
                    data = {"error": str(error)}
                yield f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
                await _any_of(self._stopping, news, within_s=REFRESH_S)
        finally:
            self._streams -= 1

    async def _history(self, request: Request) -> Response:
        """Return the last events, newest first, up to the one with the number `until`: a page
        shows them beside an overview, which knows of no later ones."""
        until = number(request, "until", control.MOST)
        found = await self._watch.answer(lambda: self._viewer.ask_events(0))
        known = [each for each in reversed(found.events) if each.number <= until]
        shown_ = [event_as_json(each, time.time()) for each in known[: rows.PAGE]]
        return JSONResponse({"events": shown_, "earlier": len(known) - len(shown_)})

    async def _timeline(self, request: Request) -> Response:
        """Record for some seconds; return bars by actor, or all of it with `trace`."""
        seconds = number(request, "seconds", 2)
        if seconds > MOST_TIMELINE_S:
            raise ValueError(f"seconds are at most {MOST_TIMELINE_S} here; see remotely timeline")
        found = await self._watch.answer(lambda: self._viewer.ask_timeline(seconds), seconds)
        # In a thread: a million calls take seconds, and every browser would wait for them.
        return await asyncio.to_thread(_drawn, found, seconds, "trace" in request.query_params)

    async def _machines(self, request: Request) -> Response:
        now = (await self._watch.known()).snapshot
        return table(request, now.machines(), rows.MACHINE_COLUMNS)

    async def _actors(self, request: Request) -> Response:
        now = (await self._watch.known()).snapshot
        ends = rows.matching(
            msgspec.to_builtins(now.status.ends), request.query_params.get("q", "")
        )
        return table(request, now.actors, rows.ACTOR_COLUMNS, without="metrics", ends=ends)

    async def _actor(self, request: Request) -> Response:
        now = (await self._watch.known()).snapshot
        found = _known(now, request.path_params["actor"])
        owned = [
            {"name": each["name"], "actor": each["actor"]}
            for each in now.actors
            if each["owner"] and each["owner"]["actor"] == found["name"]
        ]
        return JSONResponse(
            {
                **found,
                "owned": owned[: rows.PAGE],
                "owns_more": max(0, len(owned) - rows.PAGE),
                "flame": self._why_no_flame(now, found),
            }
        )

    async def _log(self, request: Request) -> Response:
        offset = number(request, "offset", -1, at_least=-1)
        actor = request.path_params["actor"]
        piece = await self._watch.answer(lambda: self._viewer.read_log(actor, offset))
        if not piece.known:
            raise HTTPException(404, "no log: no actor of this cluster has or had this id")
        text = piece.text.replace("\r\n", "\n").replace("\r", "\n")
        return JSONResponse({"text": shown(text), "offset": piece.offset, "ended": piece.ended})

    async def _record(self, request: Request) -> Response:
        now = await self._watch.look()
        found = _known(now, request.path_params["actor"])
        if why := self._why_no_flame(now, found):
            raise flame.NoFlame(why)
        async with self._flame_lock:  # one at a time, over all browsers
            return JSONResponse(await flame.record(found["pid"]))

    def _why_no_flame(self, now: rows.Snapshot, actor: dict[str, Any]) -> str:
        """Return why the actor cannot be sampled; "" if it can."""
        hosts = {each.worker: each.host for each in now.status.machines}
        if hosts.get(actor["worker"]) != this_machine.identity():
            return "only actors on the dashboard's own machine can be sampled"
        return "" if flame.command() else "py-spy is not installed here: pip install py-spy"

    async def _metrics(self, request: Request) -> Response:
        from remotely.dashboard import prometheus  # noqa: PLC0415 - only needed by scrapes

        now = await self._watch.look()
        return Response(prometheus.text(now), media_type=prometheus.CONTENT_TYPE)


async def _any_of(*events: asyncio.Event, within_s: float) -> None:
    """Return when one of the events is set, or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _known(now: rows.Snapshot, actor: str) -> dict[str, Any]:
    """Return a living actor.  Raises HTTPException, which says how it ended if that is known."""
    if (found := now.actor(actor)) is not None:
        return found
    for end in now.status.ends:
        if end.actor == actor:
            why = f": {end.why}" if end.why else ""
            raise HTTPException(404, f"{end.name} has ended ({end.how}{why})")
    raise HTTPException(404, "no living actor of this cluster has this id")


class Json(JSONResponse):
    """A response of JSON, in which a number that JSON lacks, such as infinity, is its text."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except ValueError:
            return super().render(_finite(content))


def _finite(content: Any) -> Any:
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, list | tuple) else content


def _drawn(found: Sequence[control.ProcessTimeline], seconds: float, is_file: bool) -> Response:
    """Return a timeline of so many seconds as a file, or as bars by actor."""
    if is_file:
        names = {"content-disposition": 'attachment; filename="trace.json"'}
        return Json(chrome_trace.trace(found), headers=names)
    bars = chrome_trace.by_actor(found, seconds)
    lanes = bars["actors"]
    return Json({**bars, "actors": lanes[: rows.PAGE], "more": max(0, len(lanes) - rows.PAGE)})


def table(
    request: Request,
    found: Sequence[rows.Row],
    columns: Sequence[str],
    sort: str = "",
    search: str | None = None,
    without: str = "",
    **more: object,
) -> Response:
    """Return the page of a table that the query asks for, with the fields `more`.

    `without` is a field of the rows that is not shown.
    `search` is what remains of the query's, if the caller has used some of its words.
    """
    query = request.query_params
    page = rows.page(
        found,
        columns,
        query.get("sort") or sort,
        query.get("q", "") if search is None else search,
        number(request, "after", 0),
        number(request, "limit", rows.PAGE),
    )
    shown_rows: list[rows.Row] = [{k: row[k] for k in row if k != without} for row in page.rows]
    return Json({**page._replace(rows=shown_rows)._asdict(), **more})


def number(request: Request, name: str, default: int, at_least: int = 0) -> int:
    """Return an integer parameter of the query.  Raises ValueError if it is no such integer."""
    value = request.query_params.get(name)
    if value is None:
        return default
    with contextlib.suppress(ValueError):
        if at_least <= int(value) <= control.MOST:
            return int(value)
    raise ValueError(f"{name} is a whole number from {at_least} on, not {value[:40]!r}")
