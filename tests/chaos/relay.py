"""A relay of TCP connections that simulates network faults, its "weather".

It cannot read what it relays, which is encrypted.

    pass            everything arrives
    up, down        bytes from the connecting side, or to it, are dropped silently
    full            both
    delay=MS        everything arrives, later
    stall           everything arrives, once the weather changes
    cut=BYTES       each connection is reset after BYTES more bytes: amid a frame
    reset           each connection is reset at once

A connection that lost bytes is reset when the weather changes.  It never goes on with a gap: TCP
would retransmit the bytes or give up, and CURVE does not notice a missing message.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

LOOK_S = 0.02
PIECE = 1 << 16


class Relay:
    """A relay in its own thread, until the process ends or `close`.

    It uses plain sockets: an accepted asyncio stream has no owner for a turn or two of the loop,
    and cannot be closed then.
    """

    def __init__(self, weather: Callable[[], str] = lambda: "pass") -> None:
        self._weather = weather
        self._loop = asyncio.new_event_loop()
        self._local: dict[str, str] = {}
        self._servers: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def through(self, address: str) -> str:
        """Return the address that leads to a tcp address through this relay; others unchanged."""
        if not address.startswith("tcp://"):
            return address
        if address not in self._local:
            server = socket.create_server(("127.0.0.1", 0))
            server.setblocking(False)
            self._servers.append(server)
            self._local[address] = f"tcp://127.0.0.1:{server.getsockname()[1]}"
            split = urlsplit(address)
            target = (str(split.hostname), int(split.port or 0))
            accept = (server, self._accept, server, target)
            self._loop.call_soon_threadsafe(self._loop.add_reader, *accept)
        return self._local[address]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        for server in self._servers:
            self._loop.remove_reader(server)
            server.close()
        while self._tasks:  # a cancelled task may wait for another task
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(self._tasks))
        for sock in list(self._open):  # if the task was cancelled before it began
            self._reset(sock)
        self._loop.close()

    def _accept(self, server: socket.socket, target: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):  # it disconnected before it was accepted
            caller, _ = server.accept()
            self._keep(caller)
            _ = self._begin(self._relay(caller, target))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self._tasks.add(task := self._loop.create_task(work))
        task.add_done_callback(self._tasks.discard)
        return task

    def _keep(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(sock)

    def _reset(self, sock: socket.socket) -> None:
        """Close with RST, not with FIN."""
        self._open.discard(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    async def _relay(self, caller: socket.socket, target: tuple[str, int]) -> None:
        self._keep(called := socket.socket())
        ways: list[asyncio.Task[None]] = []
        try:
            while self._weather().split("=")[0] in ("full", "up", "stall"):
                await asyncio.sleep(LOOK_S)
            await self._loop.sock_connect(called, target)
            ways.append(self._begin(self._carry("up", caller, called)))
            ways.append(self._begin(self._carry("down", called, caller)))
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            return
        finally:  # a cancellation may come anywhere above
            for way in ways:
                way.cancel()
            if ways:
                await asyncio.wait(ways)
            self._reset(caller)
            self._reset(called)

    async def _carry(self, way: str, here: socket.socket, there: socket.socket) -> None:
        """Carry bytes one way until either end is gone or the weather ends it."""
        left: int | None = None
        has_gap = False
        piece: asyncio.Task[bytes] | None = None
        try:
            while True:
                piece = piece or self._begin(self._read(here))
                done, _ = await asyncio.wait([piece], timeout=LOOK_S)
                name, _, value = self._weather().partition("=")
                is_swallowed = name in (way, "full")
                if name == "reset" or (has_gap and not is_swallowed):
                    return
                left = (int(value) if left is None else left) if name == "cut" else None
                if not done or name == "stall":
                    await asyncio.sleep(0 if not done else LOOK_S)
                    continue
                data, piece = piece.result(), None
                if not data:
                    return
                if is_swallowed:
                    has_gap = True
                    continue
                if name == "delay":
                    await asyncio.sleep(float(value) / 1000)
                if left is not None:
                    data, left = data[:left], left - len(data)
                await self._loop.sock_sendall(there, data)
                if left is not None and left <= 0:
                    return
        except OSError:
            return  # the far end is gone
        finally:
            if piece:  # the loop must release the socket before it is closed
                piece.cancel()
                await asyncio.wait([piece])

    async def _read(self, sock: socket.socket) -> bytes:
        """Return the received bytes; b"" if the connection is gone."""
        try:
            return await self._loop.sock_recv(sock, PIECE)
        except OSError:
            return b""
