"""The shell of the master: its socket, its clock, its keys, and the processes that it watches.

The master is never on the path of a call, and holds nothing that the workers do not know: after a
restart they register again, with their actors.  It unpickles nothing and sees no class.  core.py
has its state and decisions.

    1. a message arrives, a timer fires, or a process ends
    2. the core handles that as an event, and returns instructions
    3. the shell carries them out in order; most of them send a message
    4. a message that cannot be sent is an event too.  Its instructions come last, so a request
       whose worker is unreachable is placed again after all other messages were sent

The shell tests a route by sending a tick: libzmq's own heartbeat drops the routes of peers that are
gone, and sending on such a route fails.  The peer's Python need not run for that, so a client that
holds the GIL for a minute is not considered dead.
"""

import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import zmq

from remotely.errors import NotAllowed, RemotelyError
from remotely.machine import daemons, interfaces, pid_file, signal_pipe, this_machine
from remotely.machine.watched_process import WatchedProcess
from remotely.master import guests
from remotely.master.admission import REVOKED, Admission
from remotely.master.core import Core
from remotely.master.state import Forget, Instruction, Log, RouteProbe, Send
from remotely.protocol import control
from remotely.protocol.address import parse_address
from remotely.protocol.configs import MasterConfig
from remotely.protocol.lease import LEASE_S, LEAVE_S, TICK_EVERY_S
from remotely.reporting.throttled_log import ThrottledLog
from remotely.testing import faults
from remotely.transport import key_files, sockets
from remotely.transport.key_watch import KeyWatch
from remotely.transport.keys import ROLES, MasterKey
from remotely.transport.loop import Loop
from remotely.transport.sockets import UnknownKey

log = logging.getLogger("remotely.master")

MAX_HELD = 1000  # messages of one connection that has not introduced itself
DISCONNECT_DELAY_S = 0.05  # a monitor may report the end of a connection before its last message
UNKNOWN_KEY_WAIT_S = 2.5  # a worker may reconnect later than its actors: links back off to 2 s
# Messages are trees, so reference counting frees them.  The default threshold of 700 would make the
# cycle collector pause the master of 20,000 actors for 0.1 s again and again.
GC_THRESHOLD = 100_000
TICK = control.encode(control.Tick())


class Master:
    def __init__(self, config: MasterConfig) -> None:
        self._key = MasterKey.from_dict(config.key)
        self._key_file = config.key_file
        self._key_watch: KeyWatch | None = None
        self._address = config.address
        self._is_embedded = config.lifeline
        self._host = this_machine.identity()
        self._peers: dict[bytes, str] = {}  # route -> id of a session or worker
        self._keys: dict[str, bytes] = {}  # that id -> key of its connection
        self._routes: dict[str, bytes] = {}  # that id -> route
        self._processes: dict[str, WatchedProcess] = {}  # of the peers on this host
        self._guests: dict[int, str] = {}  # by descriptor of the connection, which may be closed
        self._held: dict[bytes, list[object]] = {}  # by route: messages before the introduction
        self._ticked = time.monotonic()
        self._admission = Admission(
            self._key.client_keys,
            self._key.worker_keys,
            self._key.pair.secret,
            self._key.viewers,
        )
        self._recovers_until = time.monotonic() + LEASE_S if config.learns else 0.0
        self._leave_by = 0.0  # nonzero while the cluster is being stopped
        self.core = Core(
            self._admission,
            LEASE_S,
            recovers_until=self._recovers_until,
            is_embedded=self._is_embedded,
            counts_cpus=config.counts_cpus,
            host=self._host,
        )
        self._decoders: dict[str, control.Decoder] = {
            role: control.Decoder(f"{role} > master") for role in ROLES
        }
        self._throttled = ThrottledLog(log.warning)

        self._loop = Loop()
        self._context = sockets.new_context()
        self._zap = sockets.ZapHandler(self._context, self._admit, self._throttled)
        self._loop.watch_socket(self._zap.socket, self._zap.answer)
        self._socket = sockets.server(self._context, self._key.pair)
        sockets.bind(self._socket, config.address)
        self._loop.watch_socket(self._socket, self._receive)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._loop.watch_socket(self._monitor, self._handle_disconnect)
        self._loop.every(TICK_EVERY_S, self._tick)
        if self._key_file:
            self._key_watch = KeyWatch(Path(self._key_file), self._key, self._on_keys)
        if config.lifeline or config.attached:
            self._loop.watch(0, self._read_lifeline)

    def run(self) -> None:
        """Serve until stopped."""
        signals = signal_pipe.open_signal_pipe()
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call(self._stop))
        self._loop.watch(signals, lambda: signal_pipe.drain(signals))
        self._loop.run()
        self._socket.disable_monitor()  # else libzmq would wait until we read it
        self._monitor.close(linger=0)
        self._context.destroy(linger=500)

    # --- input ------------------------------------------------------------------------------------

    def _receive(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        role, key = sockets.sender_of(frames[0])
        if self._admission.role_of(key) != role:
            self._send(route, control.Refused(error="NotAllowed", why=REVOKED))
            return
        try:
            message = self._decoders[role].decode(frames[1].buffer if len(frames) == 2 else b"")
        except RemotelyError as error:
            self._refuse(frames[0], error)
            return
        if faults.ON:
            faults.at("master.message")
        try:
            self._handle(frames[0], role, key, message)
        except NotAllowed as error:
            self._refuse(frames[0], error)

    def _handle(self, sender: zmq.Frame, role: str, key: bytes, message: object) -> None:
        now, route = time.monotonic(), sender.bytes
        match message:
            case control.Hello(session=peer):
                hello = self._admission.vet_client(message, key)
                self._set_route(peer, route, key)
                self._execute(self.core.greet(hello, key, now))
                if message.host == self._host:
                    end = lambda now: self.core.end_session(peer, now)
                    self._watch(peer, message.pid, end)
                self._handle_held(route, peer, self.core.handle_client)
            case control.Register(worker=peer):
                before = self._admission.vet_worker(message, key)
                message = guests.vet(message, key, self._admission.seals)
                why = "its worker's process ended"
                if guests.is_guest(message):
                    for each in before:
                        self._execute(self.core.remove_worker(each, guests.AGAIN, now))
                    if refusal := self.core.refusal_of(message, now):
                        self._send(route, refusal)
                        return
                    self._guests[sockets.fd_of(sender)] = peer
                    why = "its process ended"
                self._set_route(peer, route, key)
                is_near = message.host == self._host and self._is_local(sender)
                self._execute(self.core.register_worker(message, now, is_near, before))
                if is_near:
                    end = lambda now: self.core.remove_worker(peer, why, now, may_return=True)
                    self._watch(peer, message.pid, end)
                self._handle_held(route, peer, self.core.handle_worker)
                if peer in self._routes:
                    self._execute(self.core.reconcile_worker(message))
                self._zap.review(self._admission.role_of)
            case control.AskRelay():  # from a process that is about to register
                self._send(route, guests.choose_relay(self.core.state))
            case control.AskKey() if self._key_watch is not None and route in self._peers:
                self._key_watch.look_now()  # the next answer may be another
                self._execute(self.core.handle_client(self._peers[route], message, now))
            case _ if (known := self._peers.get(route)) is None:
                self._hold(route, message)
            case _ if role != "worker":  # the messages of a viewer are a subset of a client's
                self._execute(self.core.handle_client(known, message, now))
            case _:
                self._execute(self.core.handle_worker(known, message, now))

    def _handle_disconnect(self, frames: list[zmq.Frame]) -> None:
        """Handle the end of a connection: remove the guest if its route is gone too.

        `call` makes the loop read the socket first, for the guest's last messages.
        """
        fd = sockets.event_fd(frames[0].buffer)
        if peer := self._guests.get(fd):
            look = lambda: self._loop.call(lambda: self._remove_guest(fd, peer))
            self._loop.after(DISCONNECT_DELAY_S, look)

    def _remove_guest(self, fd: int, peer: str) -> None:
        if not self._send_to(peer, control.Tick()):  # else `fd` was an earlier connection of it
            if self._guests.get(fd) == peer:
                del self._guests[fd]
            self._execute(self.core.remove_worker(peer, guests.CUT, time.monotonic()))

    def _is_local(self, sender: zmq.Frame) -> bool:
        """Return whether a peer connects from this machine, whatever it claims."""
        is_remote = sockets.is_remote(self._address)
        return not is_remote or interfaces.is_here(sockets.address_of(sender))

    def _refuse(self, frame: zmq.Frame, error: RemotelyError) -> None:
        """Report an invalid message to its sender and to the log."""
        refused = control.Refused(error=type(error).__name__, why=str(error))
        self._send(frame.bytes, refused)
        role, whence = sockets.sender_of(frame)[0], sockets.address_of(frame)
        line = f"refused a message of a {role} at {whence}: {error}"
        self._throttled.add(f"{role} {whence}", line, time.monotonic())

    def _set_route(self, peer: str, route: bytes, key: bytes) -> None:
        """Set the route to a peer."""
        self._keys[peer] = key
        self._peers.pop(self._routes.get(peer, b""), None)
        self._routes[peer] = route
        self._peers[route] = peer

    def _forget(self, peer: str) -> None:
        """Forget a peer that has ended."""
        self._keys.pop(peer, None)
        self._peers.pop(self._routes.pop(peer, b""), None)
        if (process := self._processes.pop(peer, None)) is not None:
            self._loop.unwatch(process.fileno())

    def _watch(self, peer: str, pid: int, end: Callable[[float], list[Instruction]]) -> None:
        """Watch a process of this host, to notice its end immediately.

        If that is not possible, the lease of the peer expires instead.
        """
        if peer in self._processes:
            return
        on_end = lambda: self._execute(end(time.monotonic()))
        try:
            self._processes[peer] = process = WatchedProcess(pid)
        except ProcessLookupError:
            self._loop.call(on_end)
        except OSError as error:
            line = f"cannot watch a process of this machine: {error.strerror}"
            self._throttled.add(line, line, time.monotonic())
        else:
            self._loop.watch(process.fileno(), on_end)

    def _hold(self, route: bytes, message: object) -> None:
        """Keep a message of a peer that has to introduce itself first, as after a restart."""
        held = self._held.setdefault(route, [])
        if not held or isinstance(message, control.Beat):
            self._send(route, control.WhoAreYou())
        if len(held) < MAX_HELD:
            held.append(message)

    def _send(self, route: bytes, message: msgspec.Struct) -> bool:
        """Return whether there is a route; a message on it may still be lost with its peer."""
        return self._send_bytes(route, control.encode(message))

    def _send_bytes(self, route: bytes, message: bytes) -> bool:
        try:
            sockets.send(self._socket, (route, message))
        except zmq.ZMQError:
            return False
        return True

    def _handle_held(
        self, route: bytes, peer: str, hear: Callable[[str, object, float], list[Instruction]]
    ) -> None:
        for message in self._held.pop(route, ()):
            if self._peers.get(route) == peer:  # it may have said goodbye
                self._execute(hear(peer, message, time.monotonic()))

    # --- output -----------------------------------------------------------------------------------

    def _execute(self, instructions: Iterable[Instruction]) -> None:
        """Carry out instructions, and those that follow from messages that cannot be sent."""
        pending = deque(instructions)
        while pending:
            match pending.popleft():
                case Send(peer=peer, message=message):
                    if not self._send_to(peer, message):
                        pending.extend(self.core.lose_route(peer, time.monotonic()))
                case Forget(peer=peer):
                    self._forget(peer)
                case RouteProbe(worker=worker, client=client, request=request):
                    if not self._send_to(worker, control.Tick()):
                        pending.extend(self.core.lose_route(worker, time.monotonic()))
                    pending.extend(self.core.locate(client, request))
                case Log(line=line):
                    log.warning("%s", line)

    def _send_to(self, peer: str, message: msgspec.Struct) -> bool:
        """Return whether there is a route to the peer."""
        route = self._routes.get(peer)
        return route is not None and self._send(route, message)

    def _tick(self) -> None:
        now = time.monotonic()
        away_s = now - self._ticked - TICK_EVERY_S
        if away_s > TICK_EVERY_S:  # this process was stopped or starved: no peer could renew
            self.core.extend_leases(away_s)
        self._ticked = now
        for route, peer in list(self._peers.items()):
            if self._send_bytes(route, TICK):
                self.core.renew(peer, now)
            else:
                self._execute(self.core.lose_route(peer, now))
        self._held = {r: held for r, held in self._held.items() if self._send_bytes(r, TICK)}
        self._execute(self.core.expire(now))

    # --- keys -------------------------------------------------------------------------------------

    def _admit(self, key: bytes) -> str | UnknownKey | None:
        """Answer the ZAP handler; later, if the worker that knows the key may still come back."""
        role = self._admission.role_of(key)
        if role is None and time.monotonic() < self._recovers_until:
            decide = lambda: self._zap.decide(key, self._admission.role_of(key))
            self._loop.after(UNKNOWN_KEY_WAIT_S, decide)
            return UnknownKey.ASKED
        return role

    def _on_keys(self, keys: MasterKey) -> None:
        """Called by the thread that watches the file of keys."""
        self._loop.call(lambda: self._set_keys(keys))

    def _set_keys(self, keys: MasterKey) -> None:
        """Replace the lists of keys, and remove the peers whose key was revoked.

        Each of them is refused before anything else that follows from it: what ends its actors
        would otherwise arrive first, without the reason.
        """
        instructions = self.core.set_keys(keys.client_keys, keys.worker_keys, keys.viewers)
        role_of = self._admission.role_of
        revoked = [peer for peer, key in self._keys.items() if role_of(key) is None]
        for peer in revoked:
            log.warning("a key was revoked; its holder is disconnected")
            self._send_to(peer, control.Refused(error="NotAllowed", why=REVOKED))
        self._execute(instructions)
        for peer in revoked:
            now, why = time.monotonic(), "the key of its worker was revoked"
            self._execute(self.core.remove_worker(peer, why, now))
            self._execute(self.core.end_session(peer, now))

    # --- shutdown ---------------------------------------------------------------------------------

    def _read_lifeline(self) -> None:
        if not os.read(0, 4096):
            self._loop.unwatch(0)
            if self._is_embedded:
                self._loop.stop()
            else:
                self._stop()

    def _stop(self) -> None:
        """Stop the cluster: every worker ends its actors and itself, then the master ends."""
        if not self._leave_by:
            self._leave_by = time.monotonic() + LEAVE_S
            self._execute(self.core.close())
            self._loop.every(0.02, self._await_workers)

    def _await_workers(self) -> None:
        now = time.monotonic()
        for name in self.core.workers:
            if not self._send_bytes(self._routes[name], TICK):
                self._execute(self.core.remove_worker(name, "the cluster was stopped", now))
        if not self.core.workers or now > self._leave_by:
            if self._key_file and not self.core.state.workers.machines():
                key_files.note_ended(Path(self._key_file), parse_address(self._address)[1])
            self._loop.stop()


def _print(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent process need not wait
        os.write(1, f"{line}\n".encode())


def main() -> None:
    """Run a master with the config on standard input; print READY once it accepts connections."""
    line = sys.stdin.buffer.readline()
    if not line:  # the parent process was interrupted
        return
    config = msgspec.json.decode(line, type=MasterConfig)
    daemons.log_to(config.log, "master", not config.lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    daemons.raise_descriptor_limit()
    gc.set_threshold(GC_THRESHOLD)
    try:
        master = Master(config)
    except zmq.ZMQError as error:
        _print(f"cannot bind to {config.address}: {error}")
        sys.exit(1)
    _print("READY")
    master.run()
    if config.pid_file:
        pid_file.leave(Path(config.pid_file))
    if config.lifeline:  # the script may have been interrupted before it removed its folder
        shutil.rmtree(Path(config.address.removeprefix("ipc://")).parent, ignore_errors=True)
