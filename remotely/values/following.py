"""Published values on other machines: each follows the writer's versions, over TLS (bulk.py).

    the writer's process   serves the versions that it has published (`Publishing`), and says where
                           in their pickle: an Origin.  Its token is a secret, which authorizes
    a reader's machine     one process follows (`Following`): the store, for all actors of the
                           machine, or a script for itself.  It copies versions into memory of its
                           own, which readers open as if the writer were there

    FOLLOW n     the follower has version n, 0 for none, and wants a newer one; and its Wish
    the reply    NEWER, its number, layout and bytes, then these; or VIA, a number, and which other
                 follower passes that version on; or NOT_YET after a while; or FINAL: the writer has
                 ended, and there is none

There is one request at a time, and each is answered with the newest version.  So a slow line never
carries more than one, and versions in between never cross.  Unless the value is `eager`, a
follower asks for a version only once a reader has looked at the one before.

A version of RELAY_FROM_BYTES or more passes from store to store: the writer sends it to one, and
the others form a chain (version_chain.py).  A follower asks the one before it for the same, and
that passes on what it has, also while it is receiving it.  The writer is the last resort:

    event                                         the follower
    the writer says VIA                           asks that follower
    it cannot be reached, or has no such version  asks the writer for the version
    it breaks, is slow, or moves nothing for      asks the writer for the rest of the version; those
    RELAY_PATIENCE_S times its place              after it in the chain notice nothing
    the writer has a newer one by then            takes that, and drops what it had

One that cannot be reached, or is slow, is not asked again by that follower for AVOIDED_S.  Those
further down the chain are more patient, so that only the one next to the fault turns to the writer.
A process that passes a version on holds it as any reader does.  A script that follows for itself
passes nothing on.

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
from typing import NamedTuple

import msgspec

from remotely.errors import NotShared
from remotely.machine import threads
from remotely.protocol.address import describe
from remotely.protocol.control import BulkAddress
from remotely.protocol.listening import Listening
from remotely.testing import faults
from remotely.transport import bulk, certificate
from remotely.transport.bulk import CHUNK_BYTES, BulkRequest, ByteProgress, ByteServer, Connection
from remotely.transport.listening import listen_for_bytes, nearest
from remotely.values import versions
from remotely.values.shared_memory import SharedMemory
from remotely.values.version_chain import MOST_FAILED, VersionChain
from remotely.values.versions import FollowedMemory, MappedVersions, Version

LOST_S = 30.0  # without an answer, after which the writer counts as ended
RECONNECT_EVERY_S = 0.5  # between attempts to reach it
UNUSED_S = 60.0  # without a reader, after which a follower ends
FIRST_S = 20.0  # for which a receiver waits for the first version
NEWS_WITHIN_S = 1.0  # after which NOT_YET is sent: the follower sees that the writer is there

RELAY_FROM_BYTES = 1 << 20  # a smaller version takes longer by way of others
RELAY_PATIENCE_S = 2.0  # with another follower that sends nothing, times its place in the chain
RELAY_PATIENCE_MOST_S = 8.0
SLOWEST_BYTES_PER_S = 1e5  # of another follower
SLOWEST_SHARE = 0.1  # of the fastest that versions have come here
AVOIDED_S = 300.0  # for which a follower asks another no more that has failed it

NEWER, NOT_YET, FINAL, VIA = 1, 2, 3, 4
_REPLY = struct.Struct(">BQQQ")  # VIA: the version, the place in the chain, length of the address


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where the writer serves its versions.  `token` names the memory there."""

    token: str
    bulk: BulkAddress
    eager: bool = False

    @property
    def name(self) -> bytes:
        """The name of the value in requests: 32 bytes."""
        return self.token.encode()


class Wish(msgspec.Struct, frozen=True, array_like=True):
    """What a follower tells the writer with its request.

    relay      where it passes versions on; None if it does not
    failed     the followers that have failed it lately
    version    if not 0, another has just failed to pass this version on, so that the writer has to
    at         send it: from here on
    """

    relay: BulkAddress | None = None
    failed: list[BulkAddress] = []
    version: int = 0
    at: int = 0


class VersionReply(NamedTuple):
    kind: int
    number: int = 0
    layout: int = 0
    nbytes: int = 0

    def send(self, connection: Connection, *parts: memoryview | bytes) -> None:
        connection.send(_REPLY.pack(*self), *parts)

    @classmethod
    def received(cls, connection: Connection) -> "VersionReply":
        return cls(*_REPLY.unpack(connection.receive(_REPLY.size)))


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Origin).decode
_read_wish = msgspec.msgpack.Decoder(Wish).decode
_read_address = msgspec.msgpack.Decoder(BulkAddress).decode


# --- the writer's side ----------------------------------------------------------------------------


class Publishing:
    """Serves the versions that this process has published.  It listens from the first one on."""

    def __init__(self) -> None:
        self._memories: weakref.WeakValueDictionary[bytes, SharedMemory]
        self._memories = weakref.WeakValueDictionary()  # by name
        self._chains: weakref.WeakKeyDictionary[SharedMemory, VersionChain[BulkAddress]]
        self._chains = weakref.WeakKeyDictionary()
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
            self._chains.setdefault(memory, VersionChain())
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
            VersionReply(FINAL).send(connection)
            return
        chain = self._chains[memory]
        reader = MappedVersions(memory, writes=False)
        del memory
        wish = _read_wish(request.onward) if request.onward else Wish()
        with self._lock:
            chain.wait(wish.relay)
        try:
            if (none := self._wait(reader, request.start)) is not None:
                none.send(connection)
                return
            version = reader.read()
            source = None
            if version.nbytes >= RELAY_FROM_BYTES:
                with self._lock:
                    again = wish.version > 0
                    source = chain.source(wish.relay, version.number, wish.failed, again)
        finally:
            with self._lock:
                chain.leave(wish.relay)
        if source is not None:
            address = _write(source.relay)
            reply = VersionReply(VIA, version.number, source.depth, len(address))
            del version
            reply.send(connection, address)
        else:
            reply = VersionReply(NEWER, version.number, version.layout, version.nbytes)
            begin = wish.at if version.number == wish.version else 0
            reply.send(connection, version.region[begin : version.nbytes])

    @staticmethod
    def _wait(reader: MappedVersions, seen: int) -> VersionReply | None:
        """Wait for a newer version; return what to reply if there is none, else None."""
        until = time.monotonic() + NEWS_WITHIN_S
        while True:
            is_over = not reader.has_writer()
            if reader.number > seen:
                return None
            if is_over:
                return VersionReply(FINAL)
            if (left_s := until - time.monotonic()) <= 0:
                return VersionReply(NOT_YET)
            reader.sleep(seen, left_s)


publishing = Publishing()


# --- a reader's machine ---------------------------------------------------------------------------


class Arriving:
    """A version that is arriving here, or is the last that has, for those it is passed on to.

    1  begun    its memory is that of a slot that is being written
    2  done     it is held, so that the slot stays as it is -> the memory of Arriving goes, and with
                it the version, once a newer one is begun and the last of those has it
    3  failed   nothing more will come, and the slot will be written again.  The connections are cut
                first, so that nobody receives a byte of what is written there
    """

    def __init__(self, reply: VersionReply, memory: memoryview) -> None:
        self.reply = reply
        self.memory = memory
        self.progress = ByteProgress()
        self.held: Version | None = None
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()

    def pass_on(self, connection: Connection) -> None:
        """Send it as it arrives.  Raises OSError."""
        with self._lock:
            self._connections.add(connection)
            if self.progress.is_over:
                connection.cut()
        try:
            self.reply.send(connection)
            if not connection.send_as_it_arrives(self.memory, self.progress):
                raise ConnectionAbortedError("the version did not arrive here")
        finally:
            with self._lock:
                self._connections.discard(connection)

    def fail(self) -> None:
        self.progress.end()
        with self._lock:
            for connection in self._connections:
                connection.cut()


class _Overtaken(Exception):
    """Instead of the rest of a version, the writer sends a newer one."""

    def __init__(self, reply: VersionReply) -> None:
        super().__init__()
        self.reply = reply


class Following:
    """Memory of this machine that follows an origin, on a thread of its own.

    `relay` is where this process passes versions on; None if it does not.
    """

    def __init__(
        self, origin: Origin, on_end: Callable[[], object], relay: BulkAddress | None
    ) -> None:
        self._origin = origin
        self._on_end = on_end
        self._relay = relay
        self._failed: dict[BulkAddress, float] = {}  # other followers, and since when
        self._before: tuple[BulkAddress, Connection] | None = None  # in the chain
        self._fastest = 0.0  # bytes per second
        self._arrival: Arriving | None = None
        self._is_over = False
        self._begun = threading.Condition()  # an arrival is, or all of it is over
        self.memory = versions.new_memory()
        self._reader = MappedVersions(self.memory, writes=False)
        self._followed: FollowedMemory = MappedVersions(self.memory, writes=True).follow()
        self._first = threading.Event()  # there is a version, or there will be none
        self._why = "its process has ended, or has let go of it"
        threads.start("follow", self._run)

    def wait_for_first(self) -> str:
        """Wait for the first version; return why there is none, or ""."""
        if not self._first.wait(FIRST_S):
            return f"nothing came within {FIRST_S:g} s"
        return "" if self._followed.number else self._why

    def pass_on(self, connection: Connection, request: BulkRequest) -> None:
        """Answer another follower with a newer version than it has, or with NOT_YET."""

        def has_newer() -> bool:
            arrival = self._arrival
            return self._is_over or (arrival is not None and arrival.reply.number > request.start)

        with self._begun:
            is_there = self._begun.wait_for(has_newer, RELAY_PATIENCE_MOST_S) and not self._is_over
            arrival = self._arrival
        if is_there and arrival is not None:
            arrival.pass_on(connection)
        else:
            VersionReply(NOT_YET).send(connection)

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._on_end()
            self._followed.end()
            self._first.set()
            self._begin(None)
            self._leave_before()

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

    def _take(self, writer: Connection) -> bool:
        """Take the next version, if there is one by now; return whether there may be more."""
        reply = self._ask(writer)
        while reply.kind in (NEWER, VIA):
            try:
                if reply.kind == VIA:
                    reply = self._take_via(writer, reply)
                else:
                    self._receive(reply, partial(self._fill, writer))
                    break
            except _Overtaken as overtaken:
                reply = overtaken.reply
        return reply.kind != FINAL

    def _ask(self, writer: Connection, version: int = 0, at: int = 0) -> VersionReply:
        """Ask the writer for the next version; for the rest of one, if another has failed."""
        since = time.monotonic() - AVOIDED_S
        self._failed = {relay: when for relay, when in self._failed.items() if when > since}
        wish = _write(Wish(self._relay, [*self._failed][-MOST_FAILED:], version, at))
        writer.request(bulk.FOLLOW, self._origin.name, self._followed.number, 0, wish)
        return VersionReply.received(writer)

    def _take_via(self, writer: Connection, via: VersionReply) -> VersionReply:
        """Take a version from another follower; return the writer's reply if that has none."""
        address = _read_address(writer.receive(via.nbytes))
        patience_s = min(via.layout * RELAY_PATIENCE_S, RELAY_PATIENCE_MOST_S)
        try:
            before, reply = self._ask_before(address, via.number, patience_s)
        except OSError:
            self._leave_before()
            self._failed[address] = time.monotonic()
            return self._ask(writer, via.number)

        def fill(arrival: Arriving) -> None:
            try:
                self._fill(before, arrival, patience_s)
            except OSError as error:
                self._leave_before()
                # One that was cut off itself cuts those after it: no time is lost, and it is back.
                if not isinstance(error, ConnectionResetError):
                    self._failed[address] = time.monotonic()
                rest = self._ask(writer, reply.number, arrival.progress.received)
                if rest != reply:
                    raise _Overtaken(rest) from None
                self._fill(writer, arrival)

        self._receive(reply, fill)
        return VersionReply(NOT_YET)

    def _ask_before(
        self, address: BulkAddress, number: int, patience_s: float
    ) -> tuple[Connection, VersionReply]:
        """Ask another follower for a version, or a newer one; return the connection too."""

        def ask(connection: Connection) -> tuple[Connection, VersionReply]:
            connection.stalls_after(patience_s)
            connection.request(bulk.FOLLOW, self._origin.name, number - 1, 0)
            reply = VersionReply.received(connection)
            if reply.kind != NEWER or reply.number < number:
                raise ConnectionAbortedError("it does not have the version")
            return connection, reply

        if self._before is not None and self._before[0] == address:
            try:
                return ask(self._before[1])
            except (ConnectionResetError, BrokenPipeError, ssl.SSLError):
                pass  # it was closed while it was idle
        self._leave_before()
        self._before = address, (connection := bulk.connect(address, patience_s))
        return ask(connection)

    def _leave_before(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before[1].close()

    def _receive(self, reply: VersionReply, fill: Callable[[Arriving], None]) -> None:
        """Publish a version here, which `fill` receives, and pass it on meanwhile."""

        def arrive(memory: memoryview) -> None:
            arrival = Arriving(reply, memory[:])
            self._begin(arrival)
            try:
                fill(arrival)
            except BaseException:
                arrival.fail()
                raise

        self._followed.publish(reply.number, reply.layout, reply.nbytes, arrive)
        self._first.set()
        if self._relay is not None and (arrival := self._arrival) is not None:
            try:
                arrival.held = self._reader.read()
            except OSError:  # no descriptor is left: it cannot be held, nor passed on
                arrival.fail()

    def _begin(self, arrival: Arriving | None) -> None:
        with self._begun:
            self._arrival, self._is_over = arrival, arrival is None
            self._begun.notify_all()

    def _fill(
        self, connection: Connection, arrival: Arriving, patience_s: float | None = None
    ) -> None:
        """Receive the rest of a version.  Raises OSError.

        With `patience_s` also if it is slower than it should be, for so long.
        """
        memory, progress = arrival.memory, arrival.progress
        at = begin = progress.received
        begun = since = time.monotonic()
        seen = at
        while at < memory.nbytes:
            if faults.ON:
                faults.at("published.receive")
            at += connection.receive_some(memory[at:])
            if at - progress.received >= CHUNK_BYTES or at == memory.nbytes:
                progress.move(at)
            if patience_s is not None and (now := time.monotonic()) - since > patience_s:
                least = max(SLOWEST_BYTES_PER_S, SLOWEST_SHARE * self._fastest)
                if at - seen < least * (now - since):
                    raise ConnectionAbortedError("it is slow")
                since, seen = now, at
        took_s = max(time.monotonic() - begun, 1e-3)
        self._fastest = max(self._fastest, (at - begin) / took_s)


class Followings:
    """What this process follows, by name: each once.

    `relay` is where it passes versions on.  Set by the store.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[bytes, Following] = {}
        self.relay: BulkAddress | None = None

    def __contains__(self, name: bytes) -> bool:
        return name in self._all

    def pass_on(self, connection: Connection, request: BulkRequest) -> None:
        """Answer another follower that asks for a newer version than it has.  Raises OSError."""
        if (found := self._all.get(request.value)) is None:
            raise ConnectionAbortedError("it is not followed here any more")
        found.pass_on(connection, request)

    def follow(self, written: bytes) -> SharedMemory:
        """Return memory of this machine that follows an origin, with a version in it.

        Blocks until that has arrived.  Raises NotShared.
        """
        origin: Origin = _read(written)
        with self._lock:
            if (found := self._all.get(origin.name)) is None:
                end = partial(self._all.pop, origin.name, None)
                found = self._all[origin.name] = Following(origin, end, self.relay)
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
