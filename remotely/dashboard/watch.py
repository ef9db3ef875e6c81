"""The newest snapshot of a cluster, requested on demand.

A status request costs each process of the cluster a message (master/queries.py).  So one is sent
only when a browser asks and the last snapshot is REFRESH_S old.  All browsers share a snapshot.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

from remotely.dashboard.rows import Snapshot, snapshot
from remotely.errors import MasterLost
from remotely.protocol import control
from remotely.reporting.cluster_status import cluster_status

REFRESH_S = 5.0
TIMEOUT_S = 10.0  # for a reply; a killed master is noticed by then


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
        self._asking = asyncio.Lock()

    async def look(self) -> Snapshot:
        """Return a snapshot that is at most REFRESH_S old.  Raises MasterLost."""
        async with self._asking:
            newest = self._newest
            if newest is None or self._clock() - newest.at >= REFRESH_S:
                try:
                    status = await asyncio.wait_for(asyncio.wrap_future(self._ask()), TIMEOUT_S)
                except TimeoutError:
                    raise MasterLost(f"the master at {self.address} does not answer") from None
                now = cluster_status(status, self.address)
                newest = self._newest = snapshot(now, self._clock(), newest)
            return newest
