"""A result that was not fetched, since its future was passed on: it stays in its store."""

from collections.abc import Callable
from typing import Any

from remotely.client.bulk_transfer import Stores
from remotely.errors import ActorDied, RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.reference import Elsewhere
from remotely.transport.bulk import ValueGone
from remotely.values import codec
from remotely.values.payload import Parcel
from remotely.values.references import InStore


class KeptResult(Elsewhere):
    """The store lets it go when this object is gone.

    `send_whole` asks the actor itself, for where its store cannot be reached.
    """

    def __init__(
        self,
        parcel: Parcel,
        what: str,
        stores: Stores,
        send_whole: Callable[[Parcel], CallFuture[Any]],
    ) -> None:
        self._parcel = parcel
        self._what = what
        self._stores = stores
        self._send_whole = send_whole

    def __del__(self) -> None:
        self._stores.release(self._parcel)

    def entry(self) -> InStore:
        """Return what arrives elsewhere as the value."""
        return InStore(self._parcel)

    def fetch(self) -> Any:
        try:
            return codec.decode(*self._stores.fetch(self._parcel))
        except (OSError, ValueGone) as error:
            why = str(error)
        try:
            return self._send_whole(self._parcel).result()
        except RemotelyError:
            raise ActorDied(
                f"the result of {self._what} is lost, since it was not fetched before: {why}",
                may_have_run=True,
            ) from None
