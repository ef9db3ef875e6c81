"""Connections that send no request, or half of one: none stays, and a peer has few of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

import uvicorn

from remotely.dashboard import connections
from remotely.dashboard.connections import LimitedProtocol

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
WHOLE = HALF + b"\r\n"


async def application(scope: object, receive: object, send: object) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[operator]


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    config = uvicorn.Config(application, http=LimitedProtocol, lifespan="off", log_level="error")
    config.load()
    loop = asyncio.get_running_loop()
    state = uvicorn.server.ServerState()
    make = lambda: LimitedProtocol(config, state, {}, loop)
    server = await loop.create_server(make, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    assert not LimitedProtocol.waiting


@pytest.mark.parametrize("begin", [b"", HALF, WHOLE + HALF], ids=["nothing", "half", "a second"])
def test_a_request_that_does_not_arrive_ends_its_connection(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 0.05)

    async def run() -> None:
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in (begin.removesuffix(HALF), HALF if begin else b""):
                writer.write(piece)
                await writer.drain()
                if piece == WHOLE:
                    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 3)
            writer.close()

    asyncio.run(run())


def test_a_peer_has_few_connections_that_wait_and_any_number_that_have_sent_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "WAITING_EACH", 3)

    async def run() -> None:
        async with served() as port:
            opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            reader, refused = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 3)
            opened[0][1].write(WHOLE)
            await opened[0][0].readuntil(b"ok")  # this one waits no more
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            opened[-1][1].write(WHOLE)
            await opened[-1][0].readuntil(b"ok")
            for writer in (refused, *(writer for _, writer in opened)):
                writer.close()
            while LimitedProtocol.waiting:
                await asyncio.sleep(0.001)

    asyncio.run(run())
