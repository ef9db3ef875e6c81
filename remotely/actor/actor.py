"""The process of one actor: receives calls, has them run, and replies to each exactly once.

Two threads.

    main thread         has the socket of the calls (call_socket.py) and runs the user's code, as a
                        script would (dispatch.py)
    background thread   never waits for the user's code.  It answers libzmq's questions about keys,
                        listens to the worker, and ends the process when the worker is gone or its
                        lease is over (fence.py).  So neither a new client nor the worker waits for
                        a long call

What ends the process is decided in this order, so that a full inbox can never keep an orphan
alive:

    1  worker gone   the background thread kills the process group; nothing of it may go on
    2  lease over    no call begins; at the second look, the same
    3  stop asked    no further call begins; those that run end, then `close`, then 5
    4  next call     as long as there are any
    5  the end       Ending, the last replies, Exiting; let go of the object and its files, and
                     return when the replies have left, LAST_REPLY_S at most

A worker that is stopped reads nothing, and the socket to it fills.  A thread that writes then
blocks, except for the background thread, which has to watch the lease.
"""

import asyncio
import contextlib
import functools
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from remotely.actor import exiting
from remotely.actor.call_socket import CallSocket
from remotely.actor.dispatch import Cancellations, Dispatcher
from remotely.actor.machine_store import MachineStore
from remotely.actor.payloads import Payloads
from remotely.actor.preparation import Preparation
from remotely.actor.servant import Servant, raised
from remotely.api import connection
from remotely.errors import MasterLost, NotAllowed, WireError
from remotely.protocol import control, wire
from remotely.protocol.lease import CONNECT_S
from remotely.protocol.wire import Kind, Message
from remotely.reporting.throttled_log import ThrottledLog
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.access_list import AccessList
from remotely.transport.activity import OneByOne
from remotely.transport.fence import Fence
from remotely.transport.keys import KeyPair, MemberKey, fresh_pair
from remotely.transport.loop import Loop
from remotely.values import references

if TYPE_CHECKING:  # slow to import, and an actor that calls nobody needs none
    from remotely.client.client import Client


MAX_UNTOLD = 1_000  # messages kept for a worker that is stopped; later ones are dropped
TEND_EVERY_S = 2.0  # while calls come; else at growing intervals
TEND_AT_LEAST_EVERY_S = 16.0
FENCED_S = 0.05
LAST_REPLY_S = 1.0
MESSAGES_A_TURN = 100  # that an event loop takes in before it goes on with its calls
REVOKED = "the key with which this call came was revoked"

Hear = Callable[[object, socket.socket | None], None]  # a message, and the socket that came with it


class Line(Protocol):
    """An actor's connection to what is a worker to it."""

    def watch(self, loop: Loop, hear: Hear, lost: Callable[[], None]) -> None:
        """Have the thread of `loop` hear each message of the worker, and of its end."""

    def tell(self, message: control.FromActor) -> None:
        """Send a message, on any thread.  If the worker is gone, drop it."""

    def go_on(self) -> bool:
        """Send what had no room before, on the thread of the loop; return if all is sent."""


class WorkerLine:
    """The line of an actor in a process of its own."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._decoder = control.Decoder(control.ToActor)
        self._untold: deque[bytes] = deque()
        self._never_waits = 0  # a thread

    def watch(self, loop: Loop, hear: Hear, lost: Callable[[], None]) -> None:
        loop.call(self.never_wait)
        loop.watch(self._worker.fileno(), lambda: self._receive(hear, lost))

    def never_wait(self) -> None:
        """From now on, messages of this thread that find no room wait for `go_on`."""
        self._never_waits = threading.get_ident()

    def _receive(self, hear: Hear, lost: Callable[[], None]) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                self._worker, control.MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            data, fds = b"", []
        if not data:
            lost()  # 1: nothing may outlive the worker
        hear(self._decoder.decode(data), socket.socket(fileno=fds[0]) if fds else None)

    def tell(self, message: control.FromActor) -> None:
        self.send(control.encode(message))

    def send(self, data: bytes) -> None:
        """Send an encoded message.  If the worker is gone, drop it."""
        if threading.get_ident() == self._never_waits:
            if len(self._untold) < MAX_UNTOLD:
                self._untold.append(data)
            self.go_on()
        else:
            with contextlib.suppress(OSError):
                self._worker.send(data)

    def hand_over(self, message: control.FromActor, fd: int) -> None:
        """Send a message and a descriptor with it, on any thread but the one that never waits."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._worker, [control.encode(message)], [fd])

    def go_on(self) -> bool:
        while self._untold:
            try:
                self._worker.send(self._untold[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                pass
            self._untold.popleft()
        return True


class Delegation:
    """The key pair of one actor.  Its secret is in the memory of this process only."""

    def __init__(self, tell: Callable[[control.Delegate], None]) -> None:
        self._tell = tell
        self._pair: KeyPair | None = None
        self._lock = threading.Lock()
        self._is_known = threading.Event()

    def pair(self) -> KeyPair:
        """Return the pair, once the master admits it.  Raises MasterLost if it does not answer."""
        with self._lock:
            if self._pair is None:
                self._pair = fresh_pair()
            if not self._is_known.is_set():
                self._tell(control.Delegate(key=self._pair.public))
        if not self._is_known.wait(CONNECT_S):
            raise MasterLost(
                f"the master has not admitted this actor as a caller within {CONNECT_S:g} s; its "
                "machine may have lost the connection, and the next call tries again"
            )
        return self._pair

    def confirm(self) -> None:
        """The master admits it."""
        self._is_known.set()

    def client(self, birth: control.Birth, prepare: control.Prepare) -> "Client":
        """Return the client that this actor becomes.  Raises MasterLost."""
        from remotely.client.client import Client  # noqa: PLC0415 - see above
        from remotely.values.shipping import Shipment  # noqa: PLC0415 - the same

        key = MemberKey("client", self.pair(), birth.master_public)
        shipment = Shipment.from_tree(connection.shipped_root(), prepare.files)
        actor = birth.request.actor
        return Client(birth.master, key, shipment, job=prepare.job, inside=actor)


class Background:
    """What runs on that thread; of its methods the main thread calls the public ones."""

    def __init__(
        self,
        birth: control.Birth,
        line: Line,
        delegation: Delegation,
        servant: Servant,
        store: MachineStore,
    ) -> None:
        self._line = line
        self._delegation = delegation
        self._servant = servant
        self._store = store
        self._counted = 0
        self._tend_after_s = TEND_EVERY_S
        self.is_resting = False  # it tends at longer intervals, as no calls come
        self._on_leave: Callable[[], None] = lambda: None
        self._on_cancel: Callable[[control.Cancel], None] = lambda cancel: None
        self._fence = Fence(Path(birth.folder))
        self.access = AccessList(birth.client_keys, self._ask_about)
        self.throttled = ThrottledLog(lambda said: print(f"remotely: {said}", file=sys.stderr))
        self.context = sockets.new_context()
        self._zap = sockets.ZapHandler(self.context, self.access.admit, self.throttled)
        self.loop = Loop()
        self._thread = threading.Thread(
            target=self.loop.run, name="remotely-background", daemon=True
        )

    def start(
        self,
        on_leave: Callable[[], None],
        on_cancel: Callable[[control.Cancel], None],
        tidy: Callable[[], None],
    ) -> None:
        """Begin.

        `on_leave` is called when the worker wants the actor to end in good order, `on_cancel` when
        a caller takes a call back, and `tidy` every TEND_EVERY_S while calls come.
        """
        self._tidy = tidy
        self._on_leave = on_leave
        self._on_cancel = on_cancel
        self._line.watch(self.loop, self._hear_worker, exiting.end_group)
        self.loop.watch_socket(self._zap.socket, self._zap.answer)
        self._next_tending = self.loop.after(TEND_EVERY_S, self._tend)
        self.loop.after(self._fence.until_look_s(), self._check_fence)
        self._thread.start()

    def end_rest(self) -> None:
        """A message has come after a rest: tend soon, and regularly."""
        self.is_resting = False
        self.loop.call(self._end_rest)

    def wait_for_lease(self) -> None:
        """Return when the lease is not over.  It is renewed, or this process ends."""
        while self._fence.has_passed:
            time.sleep(FENCED_S)

    def stop(self, within_s: float) -> bool:
        """End the thread; return whether it has ended in time."""
        self.loop.stop()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Return when all that was sent has left, and every socket of the context is closed."""
        self._zap.socket.close()
        self.context.term()

    # --- on the thread ----------------------------------------------------------------------------

    def _hear_worker(self, message: object, end: socket.socket | None) -> None:
        match message:
            case control.Admit(client_keys=client_keys):
                self.access.set_keys(client_keys)
            case control.Caller(key=key, admitted=admitted) as caller:
                self.access.update(caller)
                self._zap.decide(key, "client" if admitted else None)
            case control.Delegated():
                self._delegation.confirm()
            case control.Cancel():
                self._on_cancel(message)
            case control.Meet():
                self._store.introduced(end)
            case control.Leave():
                self._on_leave()  # -> 3

    def _ask_about(self, key: bytes) -> None:
        self._line.tell(control.MayCall(key=key))

    def _check_fence(self) -> None:
        if self._fence.look():  # 2
            exiting.say("remotely: the worker lost its lease, and its actors end\n")
            exiting.end_group()
        self.loop.after(self._fence.until_look_s(), self._check_fence)

    def _tend(self) -> None:
        """Tidy up and report.  An actor that nobody calls wakes for it more and more seldom."""
        self._tidy()
        self._servant.tidy()
        has_called = self._servant.calls != self._counted
        if (is_told := self._line.go_on()) and has_called:
            self._counted = self._servant.calls
            self._line.tell(control.Count(calls=self._counted))
        if is_told and not has_called:
            self._tend_after_s = min(2 * self._tend_after_s, TEND_AT_LEAST_EVERY_S)
        else:
            self._tend_after_s = TEND_EVERY_S
        self._next_tending = self.loop.after(self._tend_after_s, self._tend)
        self.is_resting = self._tend_after_s > TEND_EVERY_S

    def _end_rest(self) -> None:
        self._tend_after_s = TEND_EVERY_S
        self._next_tending.cancel()
        self._next_tending = self.loop.after(TEND_EVERY_S, self._tend)


class Actor:
    """The main thread's loop, from the birth of an actor to its end.

    `served` is an object of a process that was there before, and goes on afterwards.  Without it a
    client makes the object, and the process is there for that alone.
    """

    def __init__(
        self,
        birth: control.Birth,
        line: Line,
        activity: OneByOne,
        served: object = None,
        concurrency: int = 1,
    ) -> None:
        self._tell = line.tell
        delegation = Delegation(line.tell)
        store = MachineStore(lambda: line.tell(control.Meet()))
        references.fetch_parcel = store.fetch_argument
        request = birth.request
        payloads = Payloads(request.name, store)
        preparation = Preparation(
            birth.host,
            Path(birth.folder),
            payloads,
            functools.partial(delegation.client, birth),
            kept_as=request.actor if request.max_restarts and not request.owner else "",
        )
        self._servant = Servant(payloads, preparation, activity)
        if served is not None:
            self._servant.adopt(served, concurrency)
        self._is_borrowed = served is not None
        self._background = Background(birth, line, delegation, self._servant, store)
        self._access = self._background.access
        self._wait_for_lease = self._background.wait_for_lease
        self._socket = CallSocket(self._background.context, birth, self._background.loop)
        self._cancellations = Cancellations(
            activity.page, self._socket.send_beside, self._background.loop.after
        )
        self._dispatcher = Dispatcher(
            self._servant, self._socket, self._cancellations, self._wait_for_lease
        )
        self._handle = self._dispatcher.handle
        self._is_over = self._dispatcher.is_over
        self._gone: deque[bytes] = deque()  # routes of consumers of streams
        self._is_restart = birth.again
        self._background.start(self._dispatcher.stop, self._cancellations.hear, self._tidy)

    def run(self) -> int:
        """Serve until the end, in good order."""
        try:
            if self._is_restart:
                self._servant.make_again()
            self._tell(control.Bound(tcp=self._socket.tcp))
            self._serve()
            if self._servant.is_async and not self._is_over():
                asyncio.run(self._serve_async())
        except BaseException as error:  # the user's exit: replies sent before it arrive
            self._leave(error)
            raise
        self._end()
        return 0

    # --- serving ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket.fd, select.POLLIN)
        poll.register(self._socket.wake_fd, select.POLLIN)
        dispatcher = self._dispatcher
        while not self._is_over() and not self._servant.is_async:
            if not self._turn() and not dispatcher.run_due():
                self._woken(fd for fd, _ in poll.poll(dispatcher.until_due_ms()))

    async def _serve_async(self) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        dispatcher = self._dispatcher

        def turn() -> None:
            for _ in range(MESSAGES_A_TURN):
                if self._is_over() or not (self._turn() or dispatcher.run_due()):
                    break
            else:  # more may be there, and the calls that have begun are to go on
                loop.call_soon(turn)
            if self._is_over():
                over.set()
            elif (due_ms := dispatcher.until_due_ms()) is not None:
                loop.call_later(due_ms / 1000, turn)

        def woken() -> None:
            self._woken([self._socket.wake_fd])
            turn()

        loop.add_reader(self._socket.fd, turn)
        loop.add_reader(self._socket.wake_fd, woken)
        turn()
        await over.wait()
        await dispatcher.before_end()
        loop.remove_reader(self._socket.fd)
        loop.remove_reader(self._socket.wake_fd)

    def _turn(self) -> bool:
        """4: take one message; return whether there was any."""
        self._wait_for_lease()  # 2
        checks_keys = self._access.some_revoked  # once: the other thread may change it meanwhile
        if (received := self._socket.receive(checks_keys)) is None:
            return False
        if self._background.is_resting:
            self._background.end_rest()
        route, key, frames = received
        try:
            messages = wire.unbatch(wire.decode(frames, "client"))
        except WireError as error:
            self._background.throttled.add(
                "a message", f"dropped a message: {error}", time.monotonic()
            )
            return True
        if checks_keys and not self._access.may_call(key):
            for message in messages:
                self._socket.send(raised(route, message, NotAllowed(REVOKED)))
            return True
        self._socket.holds = len(messages) > 1
        try:
            for message in messages:
                if not self._is_over():
                    self._handle(route, message)
        finally:  # a call may end this process by an exception
            self._socket.end_batch()
        return True

    # --- consumers of streams ---------------------------------------------------------------------

    def _tidy(self) -> None:
        """On the background thread: forget clients, and find out which consumers are gone."""
        silent = self._servant.silent(time.monotonic())
        for route in silent:
            if not self._socket.reaches(route):
                self._gone.append(route)
        if silent:  # also since sending may have swallowed the socket's edge
            self._socket.wake()

    def _woken(self, ready: Iterable[int]) -> None:
        if self._socket.wake_fd in ready:
            self._socket.clear_wake()
            self._socket.end_batch()
        while self._gone:  # as if each had closed its streams itself
            route = self._gone.popleft()
            for name in self._servant.streams.of(route):
                self._handle(route, Message(Kind.CLOSE, 0, name, b"", ()))
            self._servant.forget(route)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        why = "its constructor raised" if self._servant.failed else "closed"
        self._tell(control.Ending(why=why))  # 5; from now on the worker gives us DRAIN_S
        self._dispatcher.end()
        if faults.ON:
            faults.at("actor.end")
        self._leave()

    def _leave(self, error: BaseException | None = None) -> None:
        """Let go of everything; return when the last reply has left, or nobody takes it."""
        self._tell(control.Exiting(calls=self._servant.calls))  # and from now on DRAIN_S once more
        if self._is_borrowed:
            self._servant.streams.close_all()
        else:
            self._let_go(error)
        stopped = self._background.stop(LAST_REPLY_S)
        self._socket.close(LAST_REPLY_S)
        if stopped:
            self._background.close()

    def _let_go(self, error: BaseException | None) -> None:
        """Let go of everything that the user's code has left, as an interpreter does at its end.

        In this order: each step may run the user's code, and use what the later ones end.
        """
        if error is not None:
            traceback.clear_frames(error.__traceback__)  # 1: they hold the object
        files = exiting.flush_files()  # 2: before the collector may close any of them
        self._servant.let_go()  # 3: `__del__`, with whatever calls it makes
        exiting.run_exit_functions()  # 4
        connection.shutdown()  # 5: what it owns elsewhere ends
        exiting.flush_files()  # 6: what 3 to 5 have written
        del files
