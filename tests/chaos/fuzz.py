"""Fuzzing of the decoders, and of the ports: by an admitted peer, with raw bytes, without a key.

Good messages are generated from the code itself and mutated, as a whole and byte by byte.  While a
port is fuzzed, a victim calls its actor; its calls must neither fail nor wait, and no process may
end.
"""

import contextlib
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import zmq

import remotely
from remotely.client.carrier import client_of
from remotely.errors import VersionMismatch, WireError
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind
from remotely.transport import key_files, keys, sockets
from remotely.transport.sockets import Reconnect
from remotely.values import codec
from tests.chaos.finding import Finding, Trial
from tests.clusters import Started, processes

Frames = list[bytes]

ACTS = {Kind.CALL, Kind.SET, Kind.END}
BIRTH_MESSAGES = 20  # to make the victim and to ask for its count


# --- good messages and their mutations ------------------------------------------------------------


def good_calls() -> list[Frames]:
    """Return one message of each kind that clients and actors exchange."""
    value = codec.encode(("a value", [1.5, None], {"k": b"bytes"}))
    payload = b"".join(bytes(piece) for piece in value.pieces)
    found = []
    for kind, shape in wire.SHAPES.items():
        buffers = [b"buffer"] * shape.min_buffers
        name = "run" if shape.named else ""
        body = payload if kind not in (wire.Kind.CALLS, wire.Kind.RESULTS) else b""
        found.append([bytes(f) for f in wire.encode(kind, 7, name, [body], buffers)])
    one = wire.encode(wire.Kind.CALL, 8, "run", [payload])[0]
    found.append([bytes(f) for f in wire.batch(wire.Kind.CALLS, [one, one])])
    return found


def good_messages(way: str) -> list[bytes]:
    """Return one control message of each type that may go a way, with plausible values."""
    return [control.encode(_filled(message)) for message in control.WAYS[way]]


def _filled(struct_type: type[msgspec.Struct]) -> Any:
    return struct_type(
        **{field.name: _plausible(field.type) for field in msgspec.structs.fields(struct_type)}
    )


def _plausible(kind: Any) -> Any:
    if hasattr(kind, "__metadata__"):  # a bounded number
        kind = kind.__origin__
    origin = getattr(kind, "__origin__", None)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _filled(kind)
    if origin is list:
        return [_plausible(kind.__args__[0])]
    if origin is tuple:
        return tuple(_plausible(part) for part in kind.__args__ if part is not ...)
    if origin is dict:
        return {_plausible(kind.__args__[0]): _plausible(kind.__args__[1])}
    plain: dict[Any, Any] = {str: "a" * 16, int: 1, float: 1.0, bool: True, bytes: b"k" * 40}
    return plain.get(kind)


def spoilt(frames: Sequence[bytes], draw: random.Random) -> Frames:
    """Return a mutated copy of a message."""
    made = [bytearray(frame) for frame in frames]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        way = draw.randrange(7)
        at = draw.randrange(len(made)) if made else 0
        frame = made[at] if made else bytearray()
        if way == 0 and frame:
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        elif way == 1 and frame:
            frame[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
        elif way == 2:
            del frame[draw.randrange(len(frame) + 1) :]
        elif way == 3:
            place = draw.randrange(len(frame) + 1)
            frame[place:place] = draw.randbytes(draw.choice((1, 2, 8, 100)))
        elif way == 4 and len(frame) >= 4:
            place = draw.randrange(len(frame) - 3)
            extreme = draw.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000))
            frame[place : place + 4] = struct.pack(">I", extreme)
        elif way == 5:
            made.insert(at, bytearray(draw.randbytes(draw.randrange(20))))
        elif made:
            del made[at]
    return [bytes(frame) for frame in made]


# --- the decoders ---------------------------------------------------------------------------------


def decoder(n: int, seed: int, folder: Path) -> Finding:
    """Pass mutated messages to every decoder: it returns, or raises a promised error."""
    del folder
    draw = random.Random(seed)
    calls = good_calls()
    readers = [(control.Decoder(way), good_messages(way)) for way in control.WAYS]
    begun, refused = time.monotonic(), 0
    wrong: list[str] = []
    rss = psutil.Process().memory_info().rss
    for _ in range(n):
        try:
            if draw.random() < 0.5:
                frames = spoilt(draw.choice(calls), draw)
                wire.unbatch(wire.decode(frames, draw.choice(("client", "actor"))))
            else:
                reader, good = draw.choice(readers)
                frames = spoilt([draw.choice(good)], draw)
                reader.decode(frames[0] if frames else b"")
        except (WireError, VersionMismatch):
            refused += 1
        except Exception as error:
            wrong.append(f"{error!r} of {frames!r}")
    grown = psutil.Process().memory_info().rss - rss
    if grown > 50 << 20:
        wrong.append(f"memory grew by {grown >> 20} MiB")
    told = f"{refused:,} refused, memory grew by {grown >> 10} KiB"
    return Finding(n, time.monotonic() - begun, told, wrong)


# --- the ports of a running cluster ---------------------------------------------------------------


@remotely.remote_class
class Victim:
    """An actor that counts the messages that reach its decoder."""

    def __init__(self) -> None:
        self._decoded = 0
        decode = wire.decode

        def counted(frames: Sequence[bytes | memoryview], sender: str) -> wire.Message:
            self._decoded += 1
            return decode(frames, sender)

        wire.decode = counted

    def decoded(self) -> int:
        return self._decoded

    def echo(self, value: Any) -> Any:
        return value


class Ground:
    """A started cluster with its ports, and a victim that is called all the time."""

    def __init__(self, folder: Path) -> None:
        self.started = Started(folder)
        remotely.connect(self.started.address, key=self.started.key)
        self.victim = Victim()
        self.location: control.Location = self.victim._remotely_remote.location
        self.master_key = key_files.load_master(self.started.home / "keys" / "master.key")
        self.key_of = {
            "client": key_files.load_member(self.started.key),
            "worker": key_files.load_member(self.started.home / "keys" / "worker.key"),
        }
        self.ports = {
            "master": (f"tcp://{self.started.address}", self.master_key.pair.public),
            "actor": (self.location.tcp, self.location.public_key),
        }
        self.wrong: list[str] = []
        self.calls = 0
        self._times: list[float] = []
        self._over = threading.Event()
        self._daemons = self._alive()
        self._caller = threading.Thread(target=self._call)

    def __enter__(self) -> "Ground":
        self._caller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._caller.join()
        if ended := self._daemons - self._alive():
            self.wrong.append(f"processes ended: {ended}")
        remotely.shutdown()
        try:
            self.started.stop()
        except AssertionError as error:  # a dead master cannot end its workers
            self.wrong.append(str(error))
            for process in self._alive():
                os.kill(process, signal.SIGKILL)

    def revoked(self) -> keys.KeyPair:
        """Return a client key that was added and revoked."""
        file = self.started.home / "revoked.key"
        self.started.run(self.started.home, "keys", "add", "client", str(file))
        self.started.run(self.started.home, "keys", "revoke", str(file))
        return key_files.load_member(file).pair

    def another_key(self, role: str) -> Path:
        """Return the file of a new key of this role."""
        file = self.started.home / f"another-{role}.key"
        self.started.run(self.started.home, "keys", "add", role, str(file))
        return file

    def p99_ms(self) -> float:
        """Return the p99 of the victim's calls since the last call of this method."""
        times, self._times = self._times, []
        return 1000 * statistics.quantiles(times, n=100)[-1] if len(times) > 1 else 0.0

    def rss(self) -> dict[int, int]:
        found = {}
        for pid in self._daemons:
            with contextlib.suppress(psutil.Error):
                found[pid] = psutil.Process(pid).memory_info().rss
        return found

    def _alive(self) -> set[int]:
        homes = (self.started.home, *self.started.homes)
        return {process.pid for home in homes for process in processes(str(home))}

    def _call(self) -> None:
        while not self._over.is_set():
            self.calls += 1
            number = self.calls
            begun = time.perf_counter()
            try:
                if self.victim.echo(number) != number:
                    self.wrong.append("the victim had another's answer")
            except Exception as error:
                self.wrong.append(f"the victim's call failed: {error!r}")
            self._times.append(time.perf_counter() - begun)
            time.sleep(0.002)


def admitted(n: int, seed: int, folder: Path) -> Finding:
    """Send mutated messages with a valid key: to the master in both roles, to an actor as a client.

    The actor is sent nothing that acts once decoded: a client may run code there, and end it.
    """
    draw = random.Random(seed)
    begun = time.monotonic()
    with Ground(folder) as ground, zmq.Context() as context:
        before = ground.rss()
        peers = []
        for port, role in (("master", "client"), ("master", "worker"), ("actor", "client")):
            address, public = ground.ports[port]
            peer = sockets.client(
                context,
                ground.key_of[role].pair,
                public,
                Reconnect.BACKING_OFF,
            )
            peer.connect(address)
            good = (
                [[message] for message in good_messages(f"{role} > master")]
                if port == "master"
                else good_calls()
            )
            peers.append((peer, good))
        for number in range(n):
            peer, good = draw.choice(peers)
            frames = spoilt(draw.choice(good), draw) or [b""]
            if peer is peers[-1][0] and _acts(frames):
                continue
            if number % 1000 == 0:
                time.sleep(0.05)  # so that messages are read, not dropped at the high-water mark
            with contextlib.suppress(zmq.Again):  # disconnected, and about to reconnect
                peer.send_multipart(frames, zmq.NOBLOCK)
            while peer.poll(0):
                peer.recv_multipart()
        time.sleep(1.0)
        grown = growth(before, ground.rss())
        p99 = ground.p99_ms()
        for peer, _ in peers:
            peer.close(linger=0)
    wrong = [*ground.wrong, *leak(grown)]
    told = f"memory grew by {grown >> 10} KiB, the victim's p99 {p99:.1f} ms"
    return Finding(n, time.monotonic() - begun, told, wrong)


def _acts(frames: Frames) -> bool:
    try:
        return any(message.kind in ACTS for message in wire.unbatch(wire.decode(frames, "client")))
    except WireError:
        return False


def raw(n: int, seed: int, folder: Path) -> Finding:
    """Send bytes that are not ZMTP, or almost, to each port over TCP."""
    draw = random.Random(seed)
    begun = time.monotonic()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    with Ground(folder) as ground:
        ground.p99_ms()
        before = ground.rss()
        for number in range(n):
            host, _, port = draw.choice(list(ground.ports.values()))[0].rpartition(":")
            data = b"".join(spoilt([greeting], draw)) + draw.randbytes(draw.randrange(300))
            if number % 3 == 0:
                data = draw.randbytes(draw.randrange(1, 2000))
            with contextlib.suppress(OSError), socket.socket() as sock:
                sock.settimeout(2.0)
                sock.connect((host.removeprefix("tcp://"), int(port)))
                for byte in data if draw.random() < 0.01 else ():
                    sock.send(bytes([byte]))
                sock.sendall(data)
                if draw.random() < 0.5:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(1.0)
        grown = growth(before, ground.rss())
        p99 = ground.p99_ms()
        decoded, made = ground.victim.decoded(), ground.calls
    wrong = [*ground.wrong, *leak(grown)]
    if decoded > made + BIRTH_MESSAGES:
        wrong.append(f"{decoded} messages reached the decoder; the victim made {made} calls")
    told = (
        f"memory grew by {grown >> 10} KiB, the victim's p99 {p99:.1f} ms; "
        "it alone reached the decoder"
    )
    return Finding(n, time.monotonic() - begun, told, wrong)


def strangers(n: int, seed: int, folder: Path) -> Finding:
    """Connect to each port without a key, with an unknown, revoked or wrong-role key, and with
    the wrong server key."""
    del seed  # keys are random in any case
    begun = time.monotonic()
    entered: dict[str, int] = {}
    tried: dict[str, int] = {}
    with Ground(folder) as ground, zmq.Context() as context:
        known = {"revoked key": ground.revoked(), "wrong role": ground.key_of["worker"].pair}
        for _ in range(n):
            for port, (address, public) in ground.ports.items():
                for how in ("no key", "unknown key", "wrong server", "revoked key", "wrong role"):
                    if how == "wrong role" and port == "master":
                        continue  # it admits both roles
                    knocking = _knock(context, how, public, known.get(how))
                    came_in = _comes_in(knocking, address)
                    entered[how] = entered.get(how, 0) + came_in
                    tried[how] = tried.get(how, 0) + 1
        decoded, made = ground.victim.decoded(), ground.calls
    wrong = [f"{count} came in: {how}" for how, count in entered.items() if count]
    if decoded > made + BIRTH_MESSAGES:
        wrong.append(f"{decoded} messages reached the decoder; the victim made {made} calls")
    told = ", ".join(f"{how} {count:,}" for how, count in tried.items()) + " tried, none came in"
    return Finding(n, time.monotonic() - begun, told, [*ground.wrong, *wrong])


def _knock(context: Any, how: str, public: bytes, pair: keys.KeyPair | None) -> Any:
    peer = context.socket(zmq.DEALER)
    peer.linger = 0
    peer.set(zmq.RECONNECT_IVL, -1)
    if how != "no key":
        mine = pair or keys.fresh_pair()
        peer.curve_publickey, peer.curve_secretkey = mine.public, mine.secret
        peer.curve_serverkey = keys.fresh_pair().public if how == "wrong server" else public
    return peer


def _comes_in(peer: Any, address: str) -> bool:
    monitor = peer.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_DISCONNECTED
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    )
    peer.connect(address)
    with contextlib.suppress(zmq.Again):  # it may already be refused
        peer.send(control.encode(control.Beat()), zmq.NOBLOCK)
    came_in = bool(monitor.poll(3000)) and (
        struct.unpack("=HI", monitor.recv_multipart()[0])[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED
    )
    peer.disable_monitor()
    monitor.close(linger=0)
    peer.close(linger=0)
    return came_in


HOLDER = """
import contextlib, random, socket, sys, time

n, seed, *ports = sys.argv[1:]
draw = random.Random(seed)

def connect():
    host, _, port = draw.choice(ports).rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.setblocking(False)
    return made

def is_cut(held):
    with contextlib.suppress(BlockingIOError):
        while held.recv(100):
            pass
        return True
    return False

held = [connect() for _ in range(int(n))]
print("READY", flush=True)
while True:
    for i in range(len(held)):
        try:
            if i % 2:
                held[i].send(b"\\xff")
            cut = is_cut(held[i])
        except OSError:
            cut = True
        if cut:
            held[i].close()
            held[i] = connect()
    time.sleep(1.0)
"""
WATCH_S = 10.0


def slow(n: int, seed: int, folder: Path) -> Finding:
    """Hold n connections half open, half with a byte a second, while others connect and call.

    Another process holds them, and reconnects when they are cut.
    """
    begun = time.monotonic()
    with Ground(folder) as ground:
        time.sleep(1.0)  # to settle after the start
        ground.p99_ms()
        time.sleep(WATCH_S)
        calm = ground.p99_ms()
        ports = [address.removeprefix("tcp://") for address, _ in ground.ports.values()]
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(n), str(seed), *ports], stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        with holder, holder.stdout:
            assert holder.stdout.readline() == b"READY\n"
            ground.p99_ms()
            time.sleep(WATCH_S)
            busy = ground.p99_ms()
            connecting = [_one_more_client(ground) for _ in range(10)]
            ended = holder.poll() is not None
            holder.kill()
    wrong = list(ground.wrong)
    if ended:
        wrong.append("the process that held the connections has ended")
    if max(connecting) > 1.0:
        wrong.append(f"a connection took {max(connecting):.2f} s")
    if busy > 2 * calm:
        wrong.append(f"the victim's p99 went from {calm:.1f} to {busy:.1f} ms")
    told = (
        f"connect {statistics.median(connecting):.2f} s (at most {max(connecting):.2f}), "
        f"the victim's p99 {busy:.1f} ms, before {calm:.1f} ms"
    )
    return Finding(n, time.monotonic() - begun, told, wrong)


def _one_more_client(ground: Ground) -> float:
    before = time.perf_counter()
    client_of(ground.started.address, ground.started.key).shutdown()
    return time.perf_counter() - before


def growth(before: dict[int, int], after: dict[int, int]) -> int:
    return max((after[pid] - before[pid] for pid in before.keys() & after.keys()), default=0)


def leak(grown: int) -> list[str]:
    return [f"memory of a process grew by {grown >> 20} MiB"] if grown > 50 << 20 else []


TRIALS = {
    "decoder": Trial(10_000_000, decoder),
    "admitted peers": Trial(100_000, admitted),
    "raw bytes": Trial(20_000, raw),
    "strangers": Trial(1_000, strangers),
    "slow peers": Trial(500, slow),
}
