"""The training panels of the dashboard, and the handlers of their URLs.

/api/runs                       ?after&limit&sort&q&setting&setting
/api/runs/NAME                  settings, last row, crashes and videos of a run
/api/runs/NAME/metrics          ?columns&points&file&from_byte
/api/runs/NAME/videos/FILE
/api/compare                    ?run&run&over&column&points&smooth&band&by
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from remotely.dashboard import app
from remotely_rl.dashboard import crashes, filters, groups, series
from remotely_rl.dashboard.runs import COLUMNS, NoRun, Runs
from remotely_rl.errors import TrainingError
from remotely_rl.runs import status

SETTING = "setting:"  # before the name of a setting in a column's


def panel(root: Path) -> app.Panel:
    """Return the panels of the runs below a folder."""
    runs = Runs(root)
    return app.Panel(
        "runs",
        "remotely_rl.dashboard",
        [
            Route("/api/runs", _handler(runs, _list)),
            Route("/api/compare", _handler(runs, _compare)),
            Route("/api/runs/{name:path}/metrics", _handler(runs, _metrics)),
            Route("/api/runs/{name:path}/videos/{file}", _handler(runs, _video)),
            Route("/api/runs/{name:path}", _handler(runs, _run)),
        ],
    )


def _handler(runs: Runs, respond: Callable[[Runs, Request], Response]) -> Callable[[Request], Any]:
    """Return a handler that calls `respond` in a thread, and turns errors into HTTP ones."""

    async def handle(request: Request) -> Response:
        try:
            return await to_thread.run_sync(respond, runs, request)
        except NoRun as error:
            raise HTTPException(404, str(error)) from None
        except TrainingError as error:
            raise HTTPException(409, str(error)) from None

    return handle


def _list(runs: Runs, request: Request) -> Response:
    rows = runs.rows()
    settings = runs.settings(row["name"] for row in rows)
    conditions, search = filters.split(request.query_params.get("q", ""))
    shown = request.query_params.getlist("setting")
    found = [
        {**row, **{SETTING + name: settings[row["name"]].get(name) for name in shown}}
        for row in rows
        if all(condition.holds(settings[row["name"]]) for condition in conditions)
    ]
    return app.table(
        request,
        found,
        [*COLUMNS, *(SETTING + name for name in shown)],
        "-updated",
        search,
        total=len(rows),
        folder=str(runs.root),
        settings=filters.differing(settings),
    )


def _run(runs: Runs, request: Request) -> Response:
    name = request.path_params["name"]
    row, config = runs.row(name), runs.config(name)
    try:
        with runs.open(name, "metrics.csv") as file:
            last = series.last_row(file)
    except NoRun:
        last = {}
    return JSONResponse(
        {
            **row,
            "config": config.config,
            "path": str(runs.folder(name)),
            "started": status.facts(config),
            "last": {column: series.plain(number) for column, number in last.items()},
            "videos": runs.videos(name),
            "crashes": _crashes(runs, name, row["steps"]),
        }
    )


def _crashes(runs: Runs, name: str, steps: float | None) -> dict[str, Any] | None:
    """Return the crashes of a run's environments; None if there are none."""
    try:
        with runs.open(name, crashes.NAME) as file:
            return crashes.summary(file, steps, time.time())
    except NoRun:
        return None


def _metrics(runs: Runs, request: Request) -> Response:
    query, name = request.query_params, request.path_params["name"]
    with runs.open(name, "metrics.csv") as file:
        piece = series.read(
            file,
            query.getlist("columns"),
            app.number(request, "points", 400),
            query.get("file", ""),
            app.number(request, "from_byte", 0),
        )
    return JSONResponse({**piece._asdict(), "state": runs.row(name)["state"]})


def _video(runs: Runs, request: Request) -> Response:
    name, file = request.path_params["name"], request.path_params["file"]
    if file not in runs.videos(name):
        raise NoRun(f"there is no video {file!r} of {name!r}")
    runs.open(name, file).close()  # checks that it is a regular file
    return FileResponse(runs.folder(name) / file)


def _compare(runs: Runs, request: Request) -> Response:
    query = request.query_params
    asked = groups.Asked(
        over=query.get("over", series.STEPS),
        column=query.get("column", groups.RETURN),
        points=app.number(request, "points", 400),
        smooth=float(query.get("smooth", 0)),
        interval=query.get("band", "interval") == "interval",
        by=query.get("by"),
    )
    return JSONResponse(groups.compared(runs, query.getlist("run"), asked))
