"""The modules of this process: which of them a life of an actor has been sent."""

from collections.abc import Sequence

from remotely.engine import RemoteActor
from remotely.values import sources
from remotely.values.sources import Batch


def whole(actor: RemoteActor, life: int) -> tuple[bytes, int]:
    """Return all modules, for a new life of an actor, and how many batches they stand for."""
    batch, stands_for = sources.library.whole()
    actor.sent = life, frozenset((batch.digest, *stands_for))
    return batch.content, len(stands_for)


def unsent(actor: RemoteActor, life: int, sent: int) -> tuple[Sequence[Batch], int]:
    """Return the batches that a life of an actor lacks, and how many there are now.

    The first `sent` went over the same connection.  Others may have been sent by other clients, as
    `actor.sent` tells, which is brought up to date.  If two threads send the same, nothing is
    harmed.
    """
    batches = list(sources.library.batches)
    there = actor.sent[1] if actor.sent[0] == life else frozenset()
    lacking = [batch for batch in batches[sent:] if batch.digest not in there]
    actor.sent = life, there.union(batch.digest for batch in batches)
    return lacking, len(batches)
