"""The newest snapshot of a cluster, requested on demand.

A status request costs each process of the cluster a message (master/queries.py).  So one is sent
only when a browser asks and the last snapshot is REFRESH_S old.  All browsers share a snapshot, and
the request for the next one.

A browser does not wait long for a master that does not answer: it gets what is known, with its age
and the reason (`KnownState`).  A master whose connection has broken is not waited for at all, and
those that follow are told (`news`).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from remotely.dashboard.rows import Snapshot, snapshot
from remotely.errors import MasterLost, RemotelyError
from remotely.protocol import control
from remotely.reporting.cluster_status import cluster_status

A = TypeVar("A")

REFRESH_S = 5.0
PATIENCE_S = 2.5  # for a reply, before what is known is shown; a status takes 1.3 s at most
TIMEOUT_S = 10.0  # for a reply; a stopped master is noticed by then


class KnownState(NamedTuple):
    """What is known of a cluster; `why` the master did not answer, if it did not."""

    snapshot: Snapshot
    age_s: float
    why: str = ""


class ClusterWatch:
    """Requests and caches the status of a cluster.  Used on the event loop."""

    def __init__(
        self,
        address: str,
        ask: Callable[[], "Future[control.Status]"],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._ask = ask
        self._clock = clock
        self._newest: Snapshot | None = None
        self._asking: asyncio.Task[Snapshot] | None = None
        self._lost = ""  # why the master cannot be reached
        self._loop: asyncio.AbstractEventLoop | None = None  # once somebody looks
        self.news = asyncio.Event()  # set when the master is lost or back; then it is another one

    def note_lost(self, why: str) -> None:
        """The master cannot be reached; "": it can be.  Any thread may call this."""
        was, self._lost = self._lost, why
        if why != was and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        told, self.news = self.news, asyncio.Event()
        told.set()

    async def look(self) -> Snapshot:
        """Return a snapshot that is at most REFRESH_S old.  Raises MasterLost."""
        self._check()
        newest = self._newest
        if newest is not None and self._clock() - newest.at < REFRESH_S:
            return newest
        return await asyncio.shield(self._request())

    async def answer(self, ask: "Callable[[], Future[A]]", more_s: float = 0.0) -> A:
        """Return the master's answer.  Raises MasterLost, at once if it cannot be reached."""
        self._check()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(ask()), TIMEOUT_S + more_s)
        except TimeoutError:
            raise MasterLost(f"the master at {self.address} does not answer") from None

    def _check(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._lost:
            raise MasterLost(self._lost)

    async def known(self) -> KnownState:
        """Return what is known, soon.  Raises MasterLost if nothing is."""
        why = f"the master at {self.address} does not answer"
        try:
            found = await asyncio.wait_for(self.look(), PATIENCE_S)
            return KnownState(found, max(0.0, self._clock() - found.at))
        except TimeoutError:
            pass
        except RemotelyError as error:
            why = str(error)
        if self._newest is None:
            raise MasterLost(why)
        return KnownState(self._newest, self._clock() - self._newest.at, why)

    def _request(self) -> "asyncio.Task[Snapshot]":
        """Return the request under way; begin one if there is none."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._take())
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._asking

    async def _take(self) -> Snapshot:
        status = await self.answer(self._ask)
        now = cluster_status(status, self.address)
        self._newest = snapshot(now, self._clock(), self._newest)
        return self._newest
