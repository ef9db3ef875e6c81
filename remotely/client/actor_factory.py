"""How a client makes an actor, and makes it again if it died: a place of the master, then the
script's files and modules, the class and its arguments to the process there."""

import gc
import itertools
import secrets
import sys
from collections import deque
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remotely.client.actor_state import ActorState
from remotely.client.channel import Channel
from remotely.client.channels import Ask, Channels
from remotely.client.file_upload import FileUploads
from remotely.client.question import Question
from remotely.client.termination import Terminations
from remotely.engine import Options
from remotely.errors import ActorDied
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.machine import this_machine
from remotely.protocol import control
from remotely.protocol.wire import Kind
from remotely.reporting import log_records
from remotely.values import codec, source_library
from remotely.values.memory_peer import OutgoingValue
from remotely.values.shipping import Shipment

if TYPE_CHECKING:
    from remotely.client.client import Client


class ActorFactory:
    def __init__(
        self,
        client: "Client",
        shipment: Shipment,
        patience_s: float,
        actors: MutableMapping[str, ActorState],
        ask: Ask,
        channels: Channels,
        terminations: Terminations,
    ) -> None:
        self._client = client
        self._uploads = FileUploads(shipment)
        self._patience_s = patience_s
        self._actors = actors
        self._ask = ask
        self._channels = channels
        self._terminations = terminations
        self._counts: dict[str, itertools.count[int]] = {}

    def make(self, actors: Sequence[ActorState], encoded: codec.Encoded, options: Options) -> None:
        """Place all of these and run their constructors; all of them or an error."""
        # No frame here holds a future whose error it raises; see future.py.
        places: deque[Question] = deque()
        made: deque[CallFuture[Any]] = deque()
        collected = False
        try:
            for actor in actors:
                places.append(self._ask_for_place(actor))
            if options.max_restarts:
                for actor in actors:
                    actor.remade_from = encoded, options
            for actor in actors:
                if not collected and not places[0].has_room():
                    gc.collect()  # handles in circles of garbage may be what fills the cluster
                    collected = True
                made.extend(self._init(actor, places.popleft(), encoded, options))
            while made:
                made.popleft().result()
        except BaseException:
            for place in places:  # else a new master would be asked for them
                place.cancel()
            self._terminations.ask_for([actor.actor for actor in actors], 0.0, kill=True)
            raise

    def new_actor(self, cls: type, options: Options, together: int) -> ActorState:
        """Return one that has a name, and no place yet."""
        client = self._client
        number = self._counts.setdefault(cls.__name__, itertools.count(1))
        prefix = f"{client.session[:4]}." if client.inside else ""
        assert isinstance(options.memory, int)
        request = control.Request(
            actor=secrets.token_hex(16),
            name=options.name or f"{prefix}{cls.__name__}-{next(number)}",
            named=bool(options.name),
            together=together,
            class_name=cls.__name__,
            owner="" if options.detached else client.session,
            job=client.job,
            cpus=options.cpus,
            gpus=options.gpus,
            memory=options.memory,
            max_restarts=options.max_restarts,
            maker=client.session,
            python=this_machine.PYTHON,
            env=options.env,
            modules=heavy_modules(),
        )
        actor = ActorState(client, request, owned=not options.detached)
        self._actors[actor.actor] = actor
        return actor

    def remake(self, actor: ActorState, encoded: codec.Encoded, options: Options) -> None:
        """Give an actor that died its next life; its handles stay."""
        life = actor.request.life
        try:
            made = deque(self._init(actor, self._ask_for_place(actor), encoded, options))
            while made:
                made.popleft().result()
        except Exception as error:
            why = f"{actor.name} died, and could not be restarted: {error}"
            with actor.life_lock:
                # Else its next life is on the way, or it was closed meanwhile.
                if actor.request.life == life and actor.ended is None:
                    actor.ended = lambda may: ActorDied(why, may_have_run=may)
        finally:
            # Maybe before it had a place: the master then ended its last life.
            if actor.is_released or actor.ended is not None:
                self._terminations.ask_for([actor.actor], 0.0)
            with actor.life_lock:
                if actor.request.life == life:
                    actor.settled = True
            wakeup.wake(actor)

    def _ask_for_place(self, actor: ActorState) -> Question:
        return self._ask(
            lambda ticket: control.Place(
                ticket=ticket, request=actor.request, patience_s=self._patience_s
            )
        )

    def _init(
        self,
        actor: ActorState,
        place: Question,
        encoded: codec.Encoded,
        options: Options,
    ) -> list[CallFuture[Any]]:
        """Wait for the place, then send the files, the class and the arguments there.

        Returns the futures of the files and of the constructor: what fails first tells why.
        """
        try:
            actor.location = place.result()
        finally:
            place.cancel()  # no more than a word, unless this thread was interrupted
            del place  # see future.py
        channel = self._channels.open(actor)
        whole, stands_for = source_library.library.whole()
        channel.sources_sent = len(stands_for)
        actor.sent = actor.location.life, frozenset((whole.digest, *stands_for))
        prepare = control.Prepare(
            job=self._client.job,
            host=self._client.host,
            path=[str(Path(entry).absolute()) for entry in sys.path],
            files=self._uploads.files,
            concurrency=options.concurrency,
            argv=[str(word).encode(errors="replace").decode() for word in sys.argv],
            log_levels=log_records.levels(),
            sources=whole.content,
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
        outgoing = OutgoingValue(encoded)
        channel.send(Kind.INIT, "", outgoing, future, background=True)
        outgoing.close()
        return [*stored, future]


def send_sources(actor: ActorState, channel: Channel) -> None:
    """Send the modules that an actor may not have; twice, if two threads call, is once."""
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


def heavy_modules() -> list[str]:
    return [name for name in control.HEAVY if name in sys.modules]
