"""The newest state of a cluster, asked for only while somebody looks.

A question costs every process of the cluster a message (master/queries.py), so it is asked when a
browser wants to know and the last answer is EVERY_S old.  Several browsers share an answer.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

from remotely.dashboard.rows import Snapshot, snapshot
from remotely.errors import MasterLost
from remotely.protocol import control
from remotely.reporting.cluster_status import status_facts

EVERY_S = 5.0
PATIENCE_S = 10.0  # for an answer; a master that was killed is noticed by then


class Watch:
    """Asks a cluster for its status.  Used on the event loop."""

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
        """Return the state of the cluster, at most EVERY_S old.  Raises MasterLost."""
        async with self._asking:
            newest = self._newest
            if newest is None or self._clock() - newest.at >= EVERY_S:
                try:
                    found = await asyncio.wait_for(asyncio.wrap_future(self._ask()), PATIENCE_S)
                except TimeoutError:
                    raise MasterLost(f"the master at {self.address} does not answer") from None
                facts = status_facts(found, self.address)
                newest = self._newest = snapshot(facts, self._clock(), newest)
            return newest
