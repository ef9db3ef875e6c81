"""How calls leave a client: pickled once, and sent through the channel of each actor."""

import functools
from collections.abc import Sequence
from typing import Any

from remotely.client.actor_state import ActorState
from remotely.client.channel import Channel
from remotely.client.channels import Channels
from remotely.client.master_session import MasterSession
from remotely.engine import RemoteActor
from remotely.errors import RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.unretrieved import Tell
from remotely.objects.idempotent import RetriedFuture
from remotely.protocol.wire import Kind
from remotely.values import codec, source_library
from remotely.values.memory_peer import OutgoingValue


class Calls:
    """Sends calls to actors.  `on_unretrieved` hears of errors that nobody has looked at."""

    def __init__(self, session: MasterSession, channels: Channels, on_unretrieved: Tell) -> None:
        self._session = session
        self._channels = channels
        self._on_unretrieved = on_unretrieved  # bound once, not with each call

    def send(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        encoded: codec.Encoded,
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        """Send one call to each actor.  Without `background` the caller is about to wait."""
        self._session.check()
        source_library.library.look()
        outgoing = OutgoingValue(encoded, several=len(remotes) > 1)
        futures = []
        try:
            for remote in remotes:
                future: CallFuture[Any]
                what = f"{remote.name}.{name}"
                if retries:
                    again = functools.partial(self._send_again, kind, name, encoded)
                    future = RetriedFuture(what, remote, again, retries)
                else:
                    future = CallFuture(what, remote)
                if encoded.travelling:
                    future.travelling = encoded.travelling
                if background and kind is Kind.CALL:
                    future.on_unretrieved = self._on_unretrieved
                self._send_to(remote, kind, name, outgoing, future, background)
                futures.append(future)
        finally:
            outgoing.close()
        return futures

    def _send_again(
        self, kind: Kind, name: str, encoded: codec.Encoded, future: CallFuture[Any]
    ) -> None:
        self._session.check()
        assert isinstance(future.keep, ActorState)
        outgoing = OutgoingValue(encoded)
        try:
            self._send_to(future.keep, kind, name, outgoing, future, background=True)
        finally:
            outgoing.close()

    def _send_to(
        self,
        remote: RemoteActor,
        kind: Kind,
        name: str,
        outgoing: OutgoingValue,
        future: CallFuture[Any],
        background: bool,
    ) -> None:
        assert isinstance(remote, ActorState)
        channel = remote.channel
        if channel is None or channel.ended:
            try:
                channel = self._channels.of(remote)
            except RemotelyError as error:
                future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
                future.tell()
                return
        if channel.sources_sent < len(source_library.library.batches):
            _send_sources(remote, channel)
        channel.send(kind, name, outgoing, future, background)


def _send_sources(actor: ActorState, channel: Channel) -> None:
    """Send the modules that an actor may lack.  If two threads do so, nothing is harmed."""
    life = channel.location.life
    there = actor.sent[1] if actor.sent[0] == life else frozenset()
    batches = list(source_library.library.batches)
    for digest, content in batches[channel.sources_sent :]:
        if digest not in there:
            outgoing = OutgoingValue(codec.Encoded((), (memoryview(content),)))
            learnt: CallFuture[None] = CallFuture("the actor")
            channel.send(Kind.SOURCES, digest, outgoing, learnt, background=True)
            outgoing.close()
    actor.sent = life, there.union(digest for digest, _ in batches)
    channel.sources_sent = len(batches)
