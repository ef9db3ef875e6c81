"""How a client makes an actor: it gets a place from the master, and then sends the script's files
and modules, the class and its arguments to the process there."""

import gc
from collections import deque
from collections.abc import Sequence
from typing import Any

from remotely.calling import sources
from remotely.client.actor_state import ActorState
from remotely.client.bulk_transfer import BulkTransfer, Stores
from remotely.client.channels import Channels
from remotely.client.file_upload import FileUploads
from remotely.client.master_session import MasterSession
from remotely.client.question import Question
from remotely.client.termination import Terminations
from remotely.engine import Options
from remotely.futures.future import CallFuture
from remotely.protocol import control
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import codec, shipping
from remotely.values.owned import own
from remotely.values.payload import SEND_FROM_BYTES, OutgoingValue
from remotely.values.shipping import Shipment

Transfers = dict[StoreAddress, BulkTransfer | None]


class ActorFactory:
    def __init__(
        self,
        session: MasterSession,
        shipment: Shipment,
        channels: Channels,
        terminations: Terminations,
        stores: Stores,
    ) -> None:
        self._session = session
        self._uploads = FileUploads(shipment)
        self._channels = channels
        self._terminations = terminations
        self._stores = stores

    def make(self, actors: Sequence[ActorState], encoded: codec.Encoded, options: Options) -> None:
        """Place all of these and run their constructors.  Makes all of them or raises an error."""
        # No frame here holds a future whose error it raises; see future.py.
        places: deque[Question] = deque()
        made: deque[CallFuture[Any]] = deque()
        collected = False
        transfers: Transfers = {}
        try:
            for actor in actors:
                places.append(self.ask_for_place(actor, options.patience_s))
            if options.max_restarts:
                encoded = own(encoded)
                for actor in actors:
                    actor.made_from = encoded, options
            for actor in actors:
                if not collected and not places[0].has_room():
                    gc.collect()  # handles in cycles of garbage may be what fills the cluster
                    collected = True
                made.extend(self.start(actor, places.popleft(), encoded, options, transfers))
            while made:
                made.popleft().result()
        except BaseException:
            for place in places:  # otherwise a new master would be asked for them
                place.cancel()
            self._terminations.request([actor.actor for actor in actors], 0.0, kill=True)
            raise

    def ask_for_place(self, actor: ActorState, patience_s: float | None = None) -> Question:
        if patience_s is None:
            patience_s = self._session.patience_s
        return self._session.ask(
            lambda ticket: control.Place(
                ticket=ticket,
                request=actor.request,
                patience_s=min(patience_s, control.LONGEST_S),
            )
        )

    def start(
        self,
        actor: ActorState,
        place: Question,
        encoded: codec.Encoded,
        options: Options,
        transfers: Transfers | None = None,
    ) -> list[CallFuture[Any]]:
        """Wait for the place, then send the files, the class and the arguments there.

        `transfers` has the class and arguments on the machines to which they have crossed already.

        Returns the futures of the files and of the constructor: the first that fails tells why.
        """
        try:
            actor.location = place.result()
        finally:
            place.cancel()  # it has its answer, unless this thread was interrupted
            del place  # see future.py
        channel = self._channels.open(actor)
        content, channel.sources_sent = sources.whole(actor, actor.location.life)
        prepare = shipping.prepare(
            self._session.job,
            self._session.host,
            self._uploads.files,
            options.concurrency,
            content,
        )
        body = OutgoingValue(codec.Encoded((control.encode(prepare),), ()))
        missing: CallFuture[list[str]] = CallFuture("the actor")
        channel.send(Kind.PREPARE, "", body, missing, background=True)
        stored: list[CallFuture[None]] = []
        if self._uploads.files:
            try:
                digests = missing.result()
            finally:
                del missing  # see future.py
            worker, _, _ = actor.location.ipc.rpartition("/")  # its folder
            stored = self._uploads.deliver(worker, digests, channel.send_file)
        future: CallFuture[Any] = CallFuture(f"the constructor of {actor.name}", keep=actor)
        transfer = self._transfer(actor, encoded, {} if transfers is None else transfers)
        future.needs = transfer
        outgoing = OutgoingValue(encoded, transfers=(transfer,) if transfer else ())
        channel.send(Kind.INIT, "", outgoing, future, background=True)
        outgoing.close()
        return [*stored, future]

    def _transfer(
        self, actor: ActorState, encoded: codec.Encoded, transfers: Transfers
    ) -> BulkTransfer | None:
        """Bring the class and arguments to an actor's machine, if they are large and it is another.

        Returns when they are there.
        """
        store = self._channels.store_of(actor) if encoded.nbytes >= SEND_FROM_BYTES else None
        if store is None:
            return None
        if store not in transfers:
            transfer = transfers[store] = self._stores.transfer(encoded, [store])
            if transfer is not None:
                transfer.run()
        return transfers[store]
