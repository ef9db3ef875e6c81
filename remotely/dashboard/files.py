"""The static files of the dashboard, read once at startup: no request opens a path."""

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


class ServedFile(NamedTuple):
    content: bytes
    type: str
    tag: str


def load(packages: Iterable[str]) -> dict[str, ServedFile]:
    """Return the files in the `static` folders of these packages, by name."""
    files = {}
    for package in packages:
        for entry in resources.files(package).joinpath("static").iterdir():
            suffix = entry.name[entry.name.rfind(".") :]
            if suffix in TYPES:
                files[entry.name] = file_of(entry.read_bytes(), TYPES[suffix])
    return files


def file_of(content: bytes, type: str) -> ServedFile:
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    return ServedFile(content, type, tag)


def response(request: Request, file: ServedFile | None) -> Response:
    """Return the response with a file, or 304 if the browser has it already."""
    if file is None:
        return PlainTextResponse("there is no such file", 404)
    headers = {"etag": file.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.type)
