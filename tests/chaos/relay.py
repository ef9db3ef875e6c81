"""A relay of TCP connections with weather: what a network does, without a network that does it.

It carries bytes and cannot read them: what it relays is encrypted.

    pass            everything arrives
    up, down        what goes up (from who connected), or down, is swallowed in silence
    full            both
    delay=MS        everything arrives, later
    stall           nothing moves, and arrives when the weather changes
    cut=BYTES       each connection is reset after so many bytes more: amid a frame
    reset           each connection is reset at once

A connection of which something was swallowed is reset when the weather changes.  It never goes on
with a gap: TCP would send again what was lost, or give up, and CURVE does not see a message that is
missing.
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
    """Runs in a thread of its own, until the process ends or `close`.

    Its sockets are plain ones, known from the call that made them: a stream of asyncio's is
    nobody's for a turn or two after it was accepted, and then cannot be closed.
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
        """Return the address that leads to a tcp address by way of this relay; others unchanged."""
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
        while self._tasks:  # what is cancelled may wait for a task of its own
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(self._tasks))
        for sock in list(self._open):  # whose task was cancelled before it began
            self._reset(sock)
        self._loop.close()

    def _accept(self, server: socket.socket, target: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):  # gone again before it was accepted
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
        """Close with RST, as a cut line does, not with FIN."""
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
        finally:  # cancelled, it may be anywhere above
            for way in ways:
                way.cancel()
            if ways:
                await asyncio.wait(ways)
            self._reset(caller)
            self._reset(called)

    async def _carry(self, way: str, here: socket.socket, there: socket.socket) -> None:
        """Carry bytes one way until either end is gone, or the weather cuts."""
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
            if piece:  # the loop lets go of a socket before it is closed
                piece.cancel()
                await asyncio.wait([piece])

    async def _read(self, sock: socket.socket) -> bytes:
        """Return what came; nothing where the connection is gone."""
        try:
            return await self._loop.sock_recv(sock, PIECE)
        except OSError:
            return b""
