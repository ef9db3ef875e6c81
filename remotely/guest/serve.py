"""`remotely.serve`, without the imports of an actor process that it needs."""

from pathlib import Path

from remotely.protocol.lease import PLACE_S


def serve(
    served: object,
    *,
    name: str | None = None,
    address: str | None = None,
    key: str | Path | None = None,
    concurrency: int | None = None,
    patience_s: float = PLACE_S,
) -> str:
    """Serve an object of this process as an actor of a cluster, until the actor ends.

    Returns the reason: "closed", "killed by ..." or "the cluster was stopped".

    name         for `get_actor`; unique on the cluster
    address      of the cluster's master, "host:8010"; REMOTELY_ADDRESS by default
    key          the cluster's worker.key; by default the one in ~/.remotely/keys
    concurrency  how many calls run at a time, on threads; by default as many as its class says
    patience_s   how long to try to reach the cluster, at the beginning and whenever the
                 connection is lost

    Without concurrency, calls run on this thread, one after the other.  The object outlives the
    actor: its `close` is called only if a client closes the actor.  Raises NotConnected without an
    address, MasterLost if nothing answers there, NotAllowed for a wrong key, NameTaken, TypeError
    and ValueError.
    """
    from remotely.guest.serving import serve_object  # noqa: PLC0415 - clients do not need it

    return serve_object(served, name, address, key, concurrency, patience_s)
