"""The static files of the dashboard: read once at the start, so no path of a request is opened."""

import hashlib
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    content: bytes
    type: str
    tag: str


def load(packages: Iterable[str]) -> dict[str, File]:
    """Return the files in the folders `static` of these packages, by name."""
    files = {}
    for package in packages:
        for entry in resources.files(package).joinpath("static").iterdir():
            suffix = entry.name[entry.name.rfind(".") :]
            if suffix in TYPES:
                files[entry.name] = made(entry.read_bytes(), TYPES[suffix])
    return files


def made(content: bytes, type: str) -> File:
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    return File(content, type, tag)


def answer(request: Request, file: File | None) -> Response:
    """Return a file, or that the browser has it."""
    if file is None:
        return PlainTextResponse("there is no such file", 404)
    headers = {"etag": file.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.type)
