"""The training panels of the dashboard, and the handlers of their URLs.

/api/runs                       ?after&limit&sort&q&setting&setting
/api/runs/NAME                  settings, last row, crashes and videos of a run
/api/runs/NAME/metrics          ?columns&points&file&from_byte
/api/runs/NAME/videos/FILE
/api/runs/NAME/media            images and histograms of hooks
/api/runs/NAME/media/FILE
/api/compare                    ?run&run&over&column&points&smooth&band&by
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from remotely.dashboard import app
from remotely_rl.dashboard import crashes, filters, groups, series
from remotely_rl.dashboard.filters import SETTING
from remotely_rl.dashboard.runs import COLUMNS, NoRun, Runs
from remotely_rl.errors import TrainingError
from remotely_rl.runs import media, status, videos

EVALUATION = ["evaluation/env_steps", "evaluation/return_mean"]
MAX_DESCRIPTION_BYTES = 1 << 16


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
            Route("/api/runs/{name:path}/media", _handler(runs, _media)),
            Route("/api/runs/{name:path}/media/{file}", _handler(runs, _image)),
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
    names = {name for of_run in settings.values() for name in of_run}
    conditions, search = filters.split(request.query_params.get("q", ""), names)
    now = time.time()
    shown = request.query_params.getlist("setting")
    found = [
        {**row, **{SETTING + name: settings[row["name"]].get(name) for name in shown}}
        for row in rows
        if not conditions or _holds(conditions, filters.cells(row, settings[row["name"]], now))
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


def _holds(conditions: list[filters.Filter], cells: dict[str, Any]) -> bool:
    return all(condition.holds(cells) for condition in conditions)


def _run(runs: Runs, request: Request) -> Response:
    name = request.path_params["name"]
    row, config = runs.row(name), runs.config(name)
    try:
        with runs.open(name, "metrics.csv") as file:
            last = series.last_row(file)
    except NoRun:
        last = {}
    return app.Json(
        {
            **row,
            "config": config.config,
            "path": str(runs.folder(name)),
            "started": status.facts(config),
            "last": {column: series.plain(number) for column, number in last.items()},
            "videos": [_described(runs, name, file) for file in runs.videos(name)],
            "evaluations": _evaluations(runs, name, last),
            "media": len(runs.media(name)) and f"{row['steps']}-{len(runs.media(name))}",
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


def _described(runs: Runs, name: str, file: str) -> dict[str, Any]:
    """Return a video, with the steps of training that its agent had, and its scores if known."""
    described: Any = {}
    try:
        with runs.open(name, file + videos.SUFFIX) as opened:
            described = json.loads(opened.read(MAX_DESCRIPTION_BYTES))
    except (NoRun, ValueError):
        pass
    steps: int | None = None
    scores: list[Any] = []
    match described:
        case {"env_steps": int(known), "scores": [*found]}:
            steps, scores = known, found
    numbers = [series.plain(score) for score in scores if isinstance(score, int | float)]
    return {"file": file, "env_steps": steps, "scores": numbers}


def _evaluations(runs: Runs, name: str, last: dict[str, float]) -> list[dict[str, Any]]:
    """Return the evaluations of a run, the newest first."""
    if EVALUATION[0] not in last:
        return []
    with runs.open(name, "metrics.csv") as file:
        columns = series.read(file, EVALUATION, series.MAX_POINTS, bucket=series.last).series
    found: dict[float, dict[str, Any]] = {}
    for steps, mean in zip(*(columns[column] for column in EVALUATION), strict=True):
        if steps is not None:
            found[steps] = {"env_steps": steps, "return_mean": mean}
    return list(found.values())[::-1]


def _media(runs: Runs, request: Request) -> Response:
    name = request.path_params["name"]
    files = runs.media(name)
    images: dict[str, list[dict[str, Any]]] = {}
    for image in sorted(media.images(files)):
        known = {"file": image.file, "step": image.step}
        images.setdefault(media.unquoted(image.name), []).append(known)
    histograms = {}
    for file in files:
        if file.endswith(".jsonl"):
            with runs.open(name, file, media.FOLDER) as opened:
                lines = [found for line in opened if (found := media.parsed(line)) is not None]
            histograms[media.unquoted(file.removesuffix(".jsonl"))] = lines
    return app.Json({"images": images, "histograms": histograms})


def _image(runs: Runs, request: Request) -> Response:
    name, file = request.path_params["name"], request.path_params["file"]
    if not file.endswith(".png"):
        raise NoRun(f"{file!r} is not an image")
    with runs.open(name, file, media.FOLDER) as opened:
        return Response(opened.read(), media_type="image/png")


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
    return app.Json({**piece._asdict(), "state": runs.row(name)["state"]})


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
    return app.Json(groups.compared(runs, query.getlist("run"), asked))
