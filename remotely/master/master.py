"""The manager of a cluster: knows who is there, and places actors on workers.

It is never on the path of a call, and holds nothing that a worker does not know: after a restart
the workers register again, with their actors.  It unpickles nothing; it never sees a class.
What it knows and decides is in core.py; here are its socket, its clock, and the processes that it
watches.

    1. a message comes along a route, or a clock or a process says something
    2. the core takes that in as an event, and returns instructions
    3. each is done in turn: most of them send a message
    4. a message that cannot be sent is an event too, whose instructions come last: so a request
       whose worker cannot be reached is placed again, after all others were told

A route is proved by sending a tick along it: libzmq's own heartbeat drops the routes of peers that
are gone, and a send to such a route fails.  That does not need the peer's Python to run, so a
client that holds the GIL for a minute is not taken for dead.
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
from remotely.master import guests
from remotely.master.admission import Admission
from remotely.master.core import Core
from remotely.master.state import Instruction, LetGo, Log, Probe, Tell
from remotely.protocol import control
from remotely.protocol.configs import MasterConfig
from remotely.protocol.lease import LEASE_S, LEAVE_S, TICK_EVERY_S
from remotely.reporting.throttled_log import ThrottledLog
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.key_files import load_master
from remotely.transport.keys import MasterKey
from remotely.transport.loop import Loop
from remotely.transport.sockets import Unknown

log = logging.getLogger("remotely.master")

MAX_HELD = 1000  # messages of one connection that has yet to say who it is
REVOKED = "this key was revoked; ask who runs the cluster for another"
LOOK_AFTER_CUT_S = 0.05  # a monitor may hear of a cut before the socket
RETURN_S = 2.5  # that a worker may come later than its actors: links back off to 2 s
# Messages are trees, and counting references frees them.  The search for cycles, which comes after
# 700 new objects else, would stop the master of 20,000 actors for 0.1 s again and again.
GC_THRESHOLD = 100_000
TICK = control.encode(control.Tick())


class Master:
    def __init__(self, config: MasterConfig) -> None:
        self._key = MasterKey.from_dict(config.key)
        self._key_file = config.key_file
        self._address = config.address
        self._is_embedded = config.lifeline
        self._host = this_machine.identity()
        self._peers: dict[bytes, str] = {}  # by route: the id of a session or a worker
        self._keys: dict[str, bytes] = {}  # by that id: the key with which it came
        self._routes: dict[str, bytes] = {}  # the reverse
        self._pidfds: dict[str, int] = {}  # of the peers on this host
        self._guests: dict[int, str] = {}  # by the descriptor of the connection, also of before
        self._held: dict[bytes, list[object]] = {}  # what came along a route before its name did
        self._ticked = time.monotonic()
        self._admission = Admission(
            self._key.client_keys,
            self._key.worker_keys,
            self._key.pair.secret,
            self._key.viewer_keys,
        )
        self._learns_until = time.monotonic() + LEASE_S if config.learns else 0.0
        self._leave_by = 0.0  # not zero: the cluster is being stopped
        self.core = Core(
            self._admission,
            LEASE_S,
            learns_until=self._learns_until,
            is_embedded=self._is_embedded,
            counts_cpus=config.counts_cpus,
        )
        self._decoders = {role: control.Decoder(union) for role, union in control.ToMaster.items()}
        self._throttled = ThrottledLog(log.warning)

        self._loop = Loop()
        self._context = sockets.new_context()
        self._zap = sockets.ZapHandler(self._context, self._admit, self._throttled)
        self._loop.watch_socket(self._zap.socket, self._zap.answer)
        self._socket = sockets.server(self._context, self._key.pair)
        sockets.bind(self._socket, config.address)
        self._loop.watch_socket(self._socket, self._receive)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._loop.watch_socket(self._monitor, self._see_cut)
        self._loop.every(TICK_EVERY_S, self._tick)
        if config.lifeline or config.attached:
            self._loop.watch(0, self._feel_lifeline)

    def run(self) -> None:
        """Serve until stopped."""
        signals = signal_pipe.open_signal_pipe()
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call(self._stop))
        signal.signal(signal.SIGHUP, lambda *_: self._loop.call(self._read_keys))
        self._loop.watch(signals, lambda: signal_pipe.drain(signals))
        self._loop.run()
        self._socket.disable_monitor()  # or libzmq would wait for us to read
        self._monitor.close(linger=0)
        self._context.destroy(linger=500)

    # --- coming in --------------------------------------------------------------------------------

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
            self._take_in(frames[0], role, key, message)
        except NotAllowed as error:
            self._refuse(frames[0], error)

    def _take_in(self, sender: zmq.Frame, role: str, key: bytes, message: object) -> None:
        now, route = time.monotonic(), sender.bytes
        match message:
            case control.Hello(session=who):
                hello = self._admission.vet_client(message, key)
                self._take(who, route, key)
                self._do(self.core.greet(hello, key, now))
                if message.host == self._host:
                    end = lambda now: self.core.end_session(who, now)
                    self._watch(who, message.pid, end)
                self._hear_held(route, who, self.core.hear_client)
            case control.Register(worker=who):
                before = self._admission.vet_worker(message, key)
                message = guests.vouch(message, key, self._admission.seals)
                why = "its worker's process ended"
                if guests.is_guest(message):
                    for each in before:
                        self._do(self.core.remove_worker(each, guests.AGAIN, now))
                    if refusal := self.core.why_not(message, now):
                        self._send(route, refusal)
                        return
                    self._guests[sockets.fd_of(sender)] = who
                    why = "its process ended"
                self._take(who, route, key)
                is_near = message.host == self._host and self._is_from_here(sender)
                self._do(self.core.enlist(message, now, is_near, before))
                if is_near:
                    end = lambda now: self.core.remove_worker(who, why, now, may_return=True)
                    self._watch(who, message.pid, end)
                self._hear_held(route, who, self.core.hear_worker)
                if who in self._routes:
                    self._do(self.core.settle(message))
                self._zap.review(self._admission.role_of)
            case control.AskRelay():  # of a process that is about to register
                self._send(route, self.core.relay_for_guest())
            case _ if (known := self._peers.get(route)) is None:
                self._hold(route, message)
            case _ if role != "worker":  # a viewer's union has a client's questions alone
                self._do(self.core.hear_client(known, message, now))
            case _:
                self._do(self.core.hear_worker(known, message, now))

    def _see_cut(self, frames: list[zmq.Frame]) -> None:
        """A connection has ended.  If it was a guest's, see to that when its route is gone too.

        `call` has the loop read the socket once more before: there may be the guest's last words.
        """
        fd = sockets.event_fd(frames[0].buffer)
        if who := self._guests.get(fd):
            look = lambda: self._loop.call(lambda: self._look_at(fd, who))
            self._loop.after(LOOK_AFTER_CUT_S, look)

    def _look_at(self, fd: int, who: str) -> None:
        if not self._tell(who, control.Tick()):  # else another connection had this number before
            if self._guests.get(fd) == who:
                del self._guests[fd]
            self._do(self.core.remove_worker(who, guests.CUT, time.monotonic()))

    def _is_from_here(self, sender: zmq.Frame) -> bool:
        """Tell whether a peer connects from this machine, whatever it says of itself."""
        is_remote = sockets.is_remote(self._address)
        return not is_remote or interfaces.is_here(sockets.address_of(sender))

    def _refuse(self, frame: zmq.Frame, error: RemotelyError) -> None:
        """Tell a peer, and the log, what is wrong with what it said."""
        refused = control.Refused(error=type(error).__name__, why=str(error))
        self._send(frame.bytes, refused)
        role, whence = sockets.sender_of(frame)[0], sockets.address_of(frame)
        sentence = f"refused what a {role} at {whence} said: {error}"
        self._throttled.add(f"{role} {whence}", sentence, time.monotonic())

    def _take(self, who: str, route: bytes, key: bytes) -> None:
        """A peer is reached along this route from now on."""
        self._keys[who] = key
        self._peers.pop(self._routes.get(who, b""), None)
        self._routes[who] = route
        self._peers[route] = who

    def _let_go(self, who: str) -> None:
        """A peer has ended."""
        self._keys.pop(who, None)
        self._peers.pop(self._routes.pop(who, b""), None)
        if (pidfd := self._pidfds.pop(who, -1)) >= 0:
            self._loop.unwatch(pidfd)
            os.close(pidfd)

    def _watch(self, who: str, pid: int, end: Callable[[float], list[Instruction]]) -> None:
        """See a process of this host end at once, however it ends; once, if its peer is back.

        Without a descriptor to see it by, or a number that can be looked up, its lease will tell.
        """
        if who in self._pidfds:
            return
        on_end = lambda: self._do(end(time.monotonic()))
        try:
            self._pidfds[who] = pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._loop.call(on_end)
        except OSError as error:
            sentence = f"cannot watch a process of this machine: {error.strerror}"
            self._throttled.add(sentence, sentence, time.monotonic())
        else:
            self._loop.watch(pidfd, on_end)

    def _hold(self, route: bytes, message: object) -> None:
        """Keep what somebody says who has to say first who it is: a new master may be why."""
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

    def _hear_held(
        self, route: bytes, who: str, hear: Callable[[str, object, float], list[Instruction]]
    ) -> None:
        for message in self._held.pop(route, ()):
            if self._peers.get(route) == who:  # and not after its last word
                self._do(hear(who, message, time.monotonic()))

    # --- going out --------------------------------------------------------------------------------

    def _do(self, instructions: Iterable[Instruction]) -> None:
        """Do what the core says, and what it says of each message that could not be sent."""
        left = deque(instructions)
        while left:
            match left.popleft():
                case Tell(who=who, message=message):
                    if not self._tell(who, message):
                        left.extend(self.core.lose_route(who, time.monotonic()))
                case LetGo(who=who):
                    self._let_go(who)
                case Probe(worker=worker, asker=asker, question=question):
                    if not self._tell(worker, control.Tick()):
                        left.extend(self.core.lose_route(worker, time.monotonic()))
                    left.extend(self.core.locate(asker, question))
                case Log(sentence=sentence):
                    log.warning("%s", sentence)

    def _tell(self, who: str, message: msgspec.Struct) -> bool:
        """Return whether it can be reached now."""
        route = self._routes.get(who)
        return route is not None and self._send(route, message)

    def _tick(self) -> None:
        now = time.monotonic()
        away_s = now - self._ticked - TICK_EVERY_S
        if away_s > TICK_EVERY_S:  # stopped, or starved: nobody could renew meanwhile
            self.core.extend_leases(away_s)
        self._ticked = now
        for route, who in list(self._peers.items()):
            if self._send_bytes(route, TICK):
                self.core.renew(who, now)
            else:
                self._do(self.core.lose_route(who, now))
        self._held = {r: held for r, held in self._held.items() if self._send_bytes(r, TICK)}
        self._do(self.core.expire(now))

    # --- keys -------------------------------------------------------------------------------------

    def _admit(self, key: bytes) -> str | Unknown | None:
        """Answer the ZAP handler.  The key may be an actor's whose worker has yet to come back."""
        role = self._admission.role_of(key)
        if role is None and time.monotonic() < self._learns_until:
            self._loop.after(RETURN_S, lambda: self._zap.decide(key, self._admission.role_of(key)))
            return Unknown.ASKED
        return role

    def _read_keys(self) -> None:
        """A key was added or revoked: who came with one that is revoked has to go."""
        if not self._key_file:
            return
        self._key = load_master(Path(self._key_file))
        listed = self._key
        lists = listed.client_keys, listed.worker_keys, listed.viewer_keys
        self._do(self.core.list_keys(*lists))
        for who, key in list(self._keys.items()):
            if self._admission.role_of(key) is None:
                log.warning("a key was revoked; its holder has to go")
                self._tell(who, control.Refused(error="NotAllowed", why=REVOKED))
                now, why = time.monotonic(), "the key of its worker was revoked"
                self._do(self.core.remove_worker(who, why, now))
                self._do(self.core.end_session(who, now))

    # --- the end ----------------------------------------------------------------------------------

    def _feel_lifeline(self) -> None:
        if not os.read(0, 4096):
            self._loop.unwatch(0)
            if self._is_embedded:
                self._loop.stop()
            else:
                self._stop()

    def _stop(self) -> None:
        """End the cluster: every worker ends its actors and itself, and then so do we."""
        if not self._leave_by:
            self._leave_by = time.monotonic() + LEAVE_S
            self._do(self.core.close())
            self._loop.every(0.02, self._see_off)

    def _see_off(self) -> None:
        now = time.monotonic()
        for name in self.core.workers:
            if not self._send_bytes(self._routes[name], TICK):
                self._do(self.core.remove_worker(name, "the cluster was stopped", now))
        if not self.core.workers or now > self._leave_by:
            self._loop.stop()


def _say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever started us need not wait
        os.write(1, f"{line}\n".encode())


def main() -> None:
    """Be a master, as the one line on standard input says; say READY when calls are taken."""
    line = sys.stdin.buffer.readline()
    if not line:  # whoever was to say it was interrupted
        return
    config = msgspec.json.decode(line, type=MasterConfig)
    logging.basicConfig(
        format=daemons.log_format("master", not config.lifeline), level=logging.WARNING
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    daemons.raise_descriptor_limit()
    gc.set_threshold(GC_THRESHOLD)
    try:
        master = Master(config)
    except zmq.ZMQError as error:
        _say(f"cannot take {config.address}: {error}")
        sys.exit(1)
    _say("READY")
    master.run()
    if config.pid_file:
        pid_file.leave(Path(config.pid_file))
    if config.lifeline:  # the script may have been interrupted before it removed its folder
        shutil.rmtree(Path(config.address.removeprefix("ipc://")).parent, ignore_errors=True)
