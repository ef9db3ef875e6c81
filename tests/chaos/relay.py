"""A relay of TCP connections with weather: what a network does, without a network that does it.

It carries bytes and cannot read them: what it relays is encrypted.

    pass            everything arrives
    up, down        what goes up (from who connected), or down, is swallowed in silence
    full            both
    delay=MS        everything arrives, later
    stall           nothing moves, and arrives when the weather changes
    cut=BYTES       each connection is reset after so many bytes more: amid a frame
    reset           each connection is reset at once
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

LOOK_S = 0.02
PIECE = 1 << 16


class Relay:
    """Runs in a thread of its own, until the process ends or `close`."""

    def __init__(self, weather: Callable[[], str] = lambda: "pass") -> None:
        self._weather = weather
        self._loop = asyncio.new_event_loop()
        self._local: dict[str, str] = {}
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def through(self, address: str) -> str:
        """Return the address that leads to a tcp address by way of this relay; others unchanged."""
        if not address.startswith("tcp://"):
            return address
        if address not in self._local:
            listening = asyncio.run_coroutine_threadsafe(self._listen(address), self._loop)
            self._local[address] = listening.result()
        return self._local[address]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        for server in self._servers:
            server.close()
        self._let_settle()  # one accepted just now has no task yet that could close it
        while (tasks := asyncio.all_tasks(self._loop)) or self._open:  # one may begin another
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(_ended(tasks))
            for writer in list(self._open):
                self._reset(writer)
            self._let_settle()  # what was closed is gone a turn later
        self._let_settle()
        self._loop.close()

    def _let_settle(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(LOOK_S))

    def _read(self, reader: asyncio.StreamReader) -> "asyncio.Task[bytes]":
        reading = self._loop.create_task(reader.read(PIECE))
        # Who reads may be gone by the time that the connection breaks.
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return reading

    async def _listen(self, address: str) -> str:
        split = urlsplit(address)
        target = (str(split.hostname), int(split.port or 0))

        def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open.add(writer)  # a task that is cancelled before it begins closes nothing
            self._tasks.add(task := self._loop.create_task(self._relay(reader, writer, target)))
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        self._servers.append(server)
        return f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _relay(
        self, up: asyncio.StreamReader, to_caller: asyncio.StreamWriter, target: tuple[str, int]
    ) -> None:
        writers, tasks = [to_caller], []
        try:
            while self._weather().split("=")[0] in ("full", "up", "stall"):
                await asyncio.sleep(LOOK_S)
            down, to_target = await asyncio.open_connection(*target)
            writers.append(to_target)
            self._open.add(to_target)
            ways = (("up", up, to_target), ("down", down, to_caller))
            tasks = [asyncio.create_task(self._carry(*way)) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            return
        finally:  # cancelled, it may be anywhere above
            for task in tasks:
                task.cancel()
            for writer in writers:
                self._reset(writer)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        """Close with RST, as a cut line does, not with FIN."""
        self._open.discard(writer)
        with contextlib.suppress(OSError):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()  # what is not sent yet is not waited for

    async def _carry(
        self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes one way until either end is gone, or the weather cuts."""
        left: int | None = None
        piece: asyncio.Task[bytes] | None = None
        while True:
            piece = piece or self._read(reader)
            done, _ = await asyncio.wait([piece], timeout=LOOK_S)
            name, _, value = self._weather().partition("=")
            if name == "reset":
                return
            left = (int(value) if left is None else left) if name == "cut" else None
            if not done or name == "stall":
                await asyncio.sleep(0 if not done else LOOK_S)
                continue
            data = piece.result()
            piece = None
            if not data:
                return
            if name in (way, "full"):
                continue
            if name == "delay":
                await asyncio.sleep(float(value) / 1000)
            if left is not None:
                data, left = data[:left], left - len(data)
            writer.write(data)
            await writer.drain()
            if left is not None and left <= 0:
                return


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
