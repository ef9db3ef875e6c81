"""Published values on other machines: each follows the writer's versions, over TLS (bulk.py).

    the writer's process   serves the versions that it has published (`Publishing`), and says where
                           in their pickle: an Origin.  Its token is a secret, which authorizes
    a reader's machine     one process follows (`Following`): the store, for all actors of the
                           machine, or a script for itself.  It copies versions into memory of its
                           own, which readers open as if the writer were there

    FOLLOW n     the follower has version n, 0 for none, and wants a newer one
    the reply    NEWER, its number, layout and bytes, then these; or NOT_YET after a while; or
                 FINAL: the writer has ended, and there is none

There is one request at a time, and each is answered with the newest version.  So a slow line never
carries more than one, and versions in between never cross.  Unless the value is `eager`, a
follower asks for a version only once a reader has looked at the one before.

If the writer's machine refuses the connection, or cannot be reached for LOST_S, readers are told
that the writer has ended.  A follower ends when no process of its machine has had the value open
for UNUSED_S.
"""

import os
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import msgspec

from remotely.errors import NotShared
from remotely.machine import threads
from remotely.protocol.address import describe
from remotely.protocol.control import BulkAddress
from remotely.protocol.listening import Listening
from remotely.transport import bulk, certificate
from remotely.transport.bulk import BulkRequest, ByteServer, Connection
from remotely.transport.listening import listen_for_bytes, nearest
from remotely.values import versions
from remotely.values.shared_memory import SharedMemory
from remotely.values.versions import FollowedMemory, MappedVersions

LOST_S = 30.0  # without an answer, after which the writer counts as ended
RECONNECT_EVERY_S = 0.5  # between attempts to reach it
UNUSED_S = 60.0  # without a reader, after which a follower ends
FIRST_S = 20.0  # for which a receiver waits for the first version
NEWS_WITHIN_S = 1.0  # after which NOT_YET is sent: the follower sees that the writer is there

NEWER, NOT_YET, FINAL = 1, 2, 3
_REPLY = struct.Struct(">BQQQ")


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where the writer serves its versions.  `token` names the memory there."""

    token: str
    bulk: BulkAddress
    eager: bool = False

    @property
    def name(self) -> bytes:
        """The name of the value in requests: 32 bytes."""
        return self.token.encode()


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Origin).decode


# --- the writer's side ----------------------------------------------------------------------------


class Publishing:
    """Serves the versions that this process has published.  It listens from the first one on."""

    def __init__(self) -> None:
        self._memories: weakref.WeakValueDictionary[bytes, SharedMemory]
        self._memories = weakref.WeakValueDictionary()  # by name
        self._lock = threading.Lock()
        self._server: ByteServer | None = None
        self._bulk: BulkAddress | None = None
        # Where to listen for other machines; None if there are none.  Set by whoever knows.
        self.find_listening: Callable[[], Listening | None] = lambda: None

    def origin_of(self, memory: SharedMemory, eager: bool) -> bytes | None:
        """Return where other machines follow versions in this memory; None if none can."""
        with self._lock:
            if self._bulk is None and not self._listen():
                return None
            assert self._bulk is not None
            self._memories[memory.token.encode()] = memory
            return _write(Origin(memory.token, self._bulk, eager))

    def stop(self) -> None:
        """Serve nothing any more: this process leaves the cluster."""
        with self._lock:
            server, self._server, self._bulk = self._server, None, None
            self.find_listening = lambda: None
        if server is not None:
            server.close()

    def forget(self) -> None:
        """In a forked child: the parent serves."""
        self.__init__()  # type: ignore[misc]

    def _listen(self) -> bool:
        listening = self.find_listening()
        if listening is None or not listening.host:
            return False
        own = certificate.make()
        listener, endpoints = listen_for_bytes(listening)
        self._server = ByteServer(listener, own, self._memories.__contains__, self._answer)
        self._server.start()
        self._bulk = BulkAddress(endpoints, own.fingerprint)
        return True

    def _answer(self, connection: Connection, request: BulkRequest) -> None:
        memory = self._memories.get(request.value)
        if request.op != bulk.FOLLOW or memory is None:
            connection.send(_REPLY.pack(FINAL, 0, 0, 0))
            return
        reader = MappedVersions(memory, writes=False)
        del memory
        until = time.monotonic() + NEWS_WITHIN_S
        while True:
            is_over = not reader.has_writer()
            if reader.number > request.start:
                version = reader.read()
                head = _REPLY.pack(NEWER, version.number, version.layout, version.nbytes)
                connection.send(head, version.region[: version.nbytes])
                return
            if is_over:
                connection.send(_REPLY.pack(FINAL, 0, 0, 0))
                return
            if (left_s := until - time.monotonic()) <= 0:
                connection.send(_REPLY.pack(NOT_YET, 0, 0, 0))
                return
            reader.sleep(request.start, left_s)


publishing = Publishing()


# --- a reader's machine ---------------------------------------------------------------------------


class Following:
    """Memory of this machine that follows an origin, on a thread of its own."""

    def __init__(self, origin: Origin, on_end: Callable[[], object]) -> None:
        self._origin = origin
        self._on_end = on_end
        self.memory = versions.new_memory()
        self._followed: FollowedMemory = MappedVersions(self.memory, writes=True).follow()
        self._first = threading.Event()  # there is a version, or there will be none
        self._why = "its process has ended, or has let go of it"
        threads.start("follow", self._run)

    def wait_for_first(self) -> str:
        """Wait for the first version; return why there is none, or ""."""
        if not self._first.wait(FIRST_S):
            return f"nothing came within {FIRST_S:g} s"
        return "" if self._followed.number else self._why

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._on_end()
            self._followed.end()
            self._first.set()

    def _follow(self) -> None:
        heard_at = used_at = time.monotonic()
        while True:
            try:
                with bulk.connect(self._origin.bulk) as connection:
                    while True:
                        now = time.monotonic()
                        used_at = now if self._followed.has_users() else used_at
                        if now - used_at > UNUSED_S:
                            return
                        if self._is_wanted() and not self._take(connection):
                            return
                        heard_at = time.monotonic()
            except (OSError, ssl.SSLError) as error:
                self._why = f"{describe(nearest(self._origin.bulk.tcp))} cannot be reached: {error}"
                # Its machine answers that nobody listens there: the process has ended.
                is_over = isinstance(error, ConnectionRefusedError) or not self._followed.number
                if is_over or time.monotonic() - heard_at > LOST_S:
                    return
            time.sleep(RECONNECT_EVERY_S)

    def _is_wanted(self) -> bool:
        if self._origin.eager or not self._followed.number:
            return True
        return self._followed.is_wanted(versions.SLICE_S)

    def _take(self, connection: Connection) -> bool:
        """Take the next version, if there is one by now; return whether there may be more."""
        followed = self._followed
        connection.request(bulk.FOLLOW, self._origin.name, followed.number, 0)
        kind, number, layout, nbytes = _REPLY.unpack(connection.receive(_REPLY.size))
        if kind == NEWER:
            followed.publish(number, layout, nbytes, connection.receive_into)
            self._first.set()
        return bool(kind != FINAL)


class Followings:
    """What this process follows, by token: each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, Following] = {}

    def follow(self, written: bytes) -> SharedMemory:
        """Return memory of this machine that follows an origin, with a version in it.

        Blocks until that has arrived.  Raises NotShared.
        """
        origin: Origin = _read(written)
        with self._lock:
            if (found := self._all.get(origin.token)) is None:
                end = partial(self._all.pop, origin.token, None)
                found = self._all[origin.token] = Following(origin, end)
        if why := found.wait_for_first():
            raise NotShared(
                f"a Published of another machine cannot be followed here: {why}. The process that "
                "creates it must be running, and this machine must be able to connect to it"
            )
        return found.memory


followings = Followings()


def _after_fork() -> None:
    publishing.forget()
    followings.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
