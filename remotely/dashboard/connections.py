"""The connections of the dashboard: limits for those that have not sent a request.

Without a cookie a peer can only send requests, so it could hold connections by not finishing them,
each with a descriptor and memory.  A connection either serves a request or waits for the headers
of one:

    waiting    since it was made, or the first byte after a response: until HEADERS_S later
    serving    no limit: event streams stay open
    idle       after a response, without a byte: uvicorn's own limit, of 5 s

A peer may have WAITING_EACH that wait.  The TLS handshake comes before, and has the same time.
"""

import asyncio
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEADERS_S = 5.0  # browsers send them at once
WAITING_EACH = 32  # a browser opens six; a reverse proxy has more, which wait for milliseconds


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol, with these limits."""

    waiting: ClassVar[Counter[str]] = Counter()  # by address of the peer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._peer = self.client[0] if self.client else ""
        if self.waiting[self._peer] >= WAITING_EACH:
            transport.abort()
        else:
            self._begin_waiting()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_serving():
            self._end_waiting()
        elif self._deadline is None and not self.transport.is_closing():
            self._begin_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        super().connection_lost(exc)

    def _is_serving(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _begin_waiting(self) -> None:
        self.waiting[self._peer] += 1
        self._deadline = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _end_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self.waiting[self._peer] -= 1
            if not self.waiting[self._peer]:
                del self.waiting[self._peer]


class LimitedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait longer for a TLS handshake."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEADERS_S
        return await super().create_server(*args, **options)
