"""The actor process: receives calls, runs them, and replies to each exactly once.

It has two threads.

    main thread         owns the call socket (call_socket.py) and runs the user's code, as a script
                        would (dispatch.py)
    background thread   never waits for the user's code.  It answers libzmq's key checks, reads the
                        worker's messages, and ends the process when the worker has died or its
                        lease has expired (fence.py).  So a long call delays neither a new client
                        nor the worker

Reasons to end are checked in this order, so that a full inbox can never keep an orphan alive:

    1  worker gone     the background thread kills the whole process group
    2  lease expired   no call begins; if it is still expired at the next check, as 1
    3  stop asked      no further call begins; running calls finish, then `close`, then 5
    4  next call       as long as there are any
    5  end             send Ending, the last replies and Exiting; release the object and its files;
                       return when the replies have left, after LAST_REPLY_S at most

A worker stopped by SIGSTOP reads nothing, and the line to it fills (transport/line.py).  A thread
that sends then waits, except for the background thread, which must keep checking the lease.
"""

import asyncio
import functools
import mmap
import select
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
from remotely.actor.debugger import Debugger, Lookout
from remotely.actor.dispatch import Cancellations, Dispatcher
from remotely.actor.machine_store import MachineStore
from remotely.actor.payloads import Payloads
from remotely.actor.preparation import Preparation
from remotely.actor.servant import Servant, raised
from remotely.api import connection
from remotely.errors import MasterLost, NotAllowed, WireError
from remotely.machine import memory_file, threads
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control, wire
from remotely.protocol.lease import ACTOR_TIDY_S, CONNECT_S
from remotely.protocol.wire import Kind, Message
from remotely.reporting.throttled_log import ThrottledLog
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.access_list import REVOKED, AccessList
from remotely.transport.activity import OneByOne, traffic_of
from remotely.transport.fence import Fence
from remotely.transport.keys import KeyPair, MemberKey, fresh_pair
from remotely.transport.line import OnMessage
from remotely.transport.loop import Loop, Timer
from remotely.transport.spans import ServerSpanWriter
from remotely.values import payload, published
from remotely.values.following import publishing

if TYPE_CHECKING:  # slow to import, and only an actor that makes calls needs it
    from remotely.calling.engine import CallEngine


MAX_ACTOR_TIDY_S = 16.0
FENCE_POLL_S = 0.05
LAST_REPLY_S = 1.0
MESSAGES_A_TURN = 100  # that an event loop receives before it runs its tasks again
OWN_TERMINAL = "its breakpoint() stops in the terminal of its own process"


class WorkerLine(Protocol):
    """An actor's connection to its worker: a `Line`, or the `Guest` that acts as the worker."""

    def watch(self, loop: Loop, on_message: OnMessage, on_lost: Callable[[], object]) -> None:
        """Call these on the thread of `loop`: for each message, and when the worker has died."""

    def send(self, message: control.ControlMessage) -> None:
        """Send a message.  Any thread may call this.  If the worker is gone, drop the message."""

    @property
    def has_sent_all(self) -> bool:
        """Whether no message waits for the worker to read others."""


class Delegation:
    """The key pair with which this actor makes calls.  The secret never leaves this process."""

    def __init__(self, tell: Callable[[control.Delegate], None]) -> None:
        self._tell = tell
        self._pair: KeyPair | None = None
        self._lock = threading.Lock()
        self._is_known = threading.Event()

    def pair(self) -> KeyPair:
        """Return the pair once the master has admitted it.  Raises MasterLost after CONNECT_S."""
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
        """Note that the master has admitted the key."""
        self._is_known.set()

    def engine(self, birth: control.Birth, prepare: control.Prepare) -> "CallEngine":
        """Return an engine with which this actor makes calls of its own.  Raises MasterLost."""
        from remotely.calling.engine import CallEngine  # noqa: PLC0415 - slow to import
        from remotely.client.carrier import ClusterCarrier  # noqa: PLC0415 - likewise
        from remotely.values.shipping import Shipment  # noqa: PLC0415 - likewise

        key = MemberKey("client", self.pair(), birth.master_public)
        shipment = Shipment.from_tree(connection.shipped_root(), prepare.files)
        actor = birth.request.actor
        carrier = ClusterCarrier(birth.master, key, shipment, job=prepare.job, inside=actor)
        return CallEngine(carrier)


class Background:
    """The background thread.  The main thread calls the public methods."""

    def __init__(
        self,
        birth: control.Birth,
        line: WorkerLine,
        delegation: Delegation,
        servant: Servant,
        store: MachineStore,
        page: mmap.mmap,
    ) -> None:
        self._line = line
        self._delegation = delegation
        self._servant = servant
        self._store = store
        self._page = page
        self._timeline_ends: Timer | None = None
        self._reported = 0
        self._tidy_after_s = ACTOR_TIDY_S
        self.on_attend: Callable[[], None] = lambda: None
        self.is_idle = False  # no calls arrive, so the interval has grown
        self._on_leave: Callable[[], None] = lambda: None
        self._on_cancel: Callable[[control.Cancel], None] = lambda cancel: None
        self._fence = Fence(Path(birth.folder))
        self.access = AccessList(birth.admitted, self._ask_about)
        self.throttled = ThrottledLog(lambda said: print(f"remotely: {said}", file=sys.stderr))
        self.context = sockets.new_context()
        self._zap = sockets.ZapHandler(self.context, self.access.admit, self.throttled)
        self.loop = Loop()
        self._thread: threading.Thread | None = None

    def start(
        self,
        on_leave: Callable[[], None],
        on_cancel: Callable[[control.Cancel], None],
        tidy: Callable[[], None],
    ) -> None:
        """Start the thread.

        It calls `on_leave` when the worker asks the actor to end gracefully, `on_cancel` when a
        caller cancels a call, and `tidy` every ACTOR_TIDY_S while calls arrive.
        """
        self._tidy = tidy
        self._on_leave = on_leave
        self._on_cancel = on_cancel
        self._line.watch(self.loop, self._on_worker_message, exiting.end_group)
        self.loop.watch_socket(self._zap.socket, self._zap.answer)
        self._next_tidy = self.loop.after(ACTOR_TIDY_S, self._tidy_and_report)
        self.loop.after(self._fence.until_look_s(), self._check_fence)
        self._thread = threads.start("background", self.loop.run)

    def leave_idle(self) -> None:
        """A message has arrived: tidy every ACTOR_TIDY_S again."""
        self.is_idle = False
        self.loop.call(self._leave_idle)

    def may_answer(self) -> bool:
        """Return whether the lease holds."""
        return not self._fence.has_passed

    def wait_for_lease(self) -> None:
        """Return at once unless the lease has expired; then wait until it is renewed.

        If it is not, the background thread ends this process.
        """
        while self._fence.has_passed:
            time.sleep(FENCE_POLL_S)

    def stop(self, within_s: float) -> bool:
        """Stop the thread; return whether it has ended in time."""
        assert self._thread is not None
        self.loop.stop()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Return when all messages have left and every socket of the context is closed."""
        self._zap.socket.close()
        self.context.term()

    # --- on the thread ----------------------------------------------------------------------------

    def _on_worker_message(self, message: object, fds: list[OwnedFd]) -> None:
        match message:
            case control.Caller(key=key, admitted=admitted) as caller:
                self.access.update(caller)
                self._zap.decide(key, "client" if admitted else None)
                if not admitted:
                    self._line.send(control.CallerHeard(key=key))
            case control.Delegated():
                self._delegation.confirm()
            case control.Cancel():
                self._on_cancel(message)
            case control.Attend():
                self.on_attend()
            case control.RecordTimeline(seconds=seconds):
                self._record_timeline(fds[0] if fds else None, seconds)
            case control.Meet():
                self._store.introduced(fds[0] if fds else None)
            case control.Leave():
                self._on_leave()  # -> 3

    def _record_timeline(self, memory: OwnedFd | None, seconds: float) -> None:
        """Record calls in this memory, for so long; without memory, no further ones."""
        from remotely.actor import server_spans  # noqa: PLC0415 - rarely needed

        if self._timeline_ends is not None:
            self._timeline_ends.cancel()
        if memory is None:
            server_spans.end(self._servant)
            return
        writer = ServerSpanWriter(memory_file.map_all(memory), self._page)
        server_spans.begin(self._servant, writer)
        self._timeline_ends = self.loop.after(
            seconds, functools.partial(server_spans.end, self._servant)
        )

    def _ask_about(self, key: bytes) -> None:
        self._line.send(control.MayCall(key=key))

    def _check_fence(self) -> None:
        if self._fence.look():  # 2
            exiting.try_print("remotely: the worker lost its lease, so its actors end\n")
            exiting.end_group()
        self.loop.after(self._fence.until_look_s(), self._check_fence)

    def _tidy_and_report(self) -> None:
        """Tidy up and report the number of calls, at growing intervals while no calls arrive."""
        self._tidy()
        self._servant.tidy()
        was_called = self._servant.calls != self._reported
        if (all_sent := self._line.has_sent_all) and was_called:
            self._reported = self._servant.calls
            self._line.send(control.Count(calls=self._reported))
        if all_sent and not was_called:
            self._tidy_after_s = min(2 * self._tidy_after_s, MAX_ACTOR_TIDY_S)
        else:
            self._tidy_after_s = ACTOR_TIDY_S
        self._next_tidy = self.loop.after(self._tidy_after_s, self._tidy_and_report)
        self.is_idle = self._tidy_after_s > ACTOR_TIDY_S

    def _leave_idle(self) -> None:
        self._tidy_after_s = ACTOR_TIDY_S
        self._next_tidy.cancel()
        self._next_tidy = self.loop.after(ACTOR_TIDY_S, self._tidy_and_report)


class Actor:
    """The main thread of an actor, from its start to its end.

    `served` is an existing object of a process that outlives the actor (`remotely.serve`).  Without
    it, a client creates the object and the process exists for that object alone.
    """

    def __init__(
        self,
        birth: control.Birth,
        line: WorkerLine,
        activity: OneByOne,
        served: object = None,
        concurrency: int = 1,
    ) -> None:
        self._tell = line.send
        delegation = Delegation(line.send)
        store = MachineStore(lambda: line.send(control.Meet()))
        payload.fetch_parcel = store.fetch_argument
        published.serve, published.follow = publishing.origin_of, store.follow
        publishing.find_listening = lambda: birth.listening
        request = birth.request
        payloads = Payloads(request.name, store, traffic_of(activity.page))
        preparation = Preparation(
            birth.host,
            Path(birth.folder),
            payloads,
            functools.partial(delegation.engine, birth),
            given=request.env,
            kept_as=request.actor if request.max_restarts and not request.owner else "",
        )
        self._debugger = debugger = Debugger(
            request.name, activity.page, request.post_mortem, lambda: lookout.begin()
        )
        handlers = {Kind.DEBUG: debugger.answer_as_call}
        self._servant = Servant(payloads, preparation, activity, handlers)
        if served is not None:
            self._servant.adopt(served, concurrency)
            debugger.refuses = f"{request.name} has dialled in: {OWN_TERMINAL}"
        else:
            debugger.install()
        self._is_borrowed = served is not None
        self._background = Background(birth, line, delegation, self._servant, store, activity.page)
        self._access = self._background.access
        self._wait_for_lease = self._background.wait_for_lease
        self._socket = CallSocket(self._background.context, birth, self._background.loop)
        lookout = Lookout(
            self._background.loop,
            self._access,
            self._background.throttled,
            self._background.may_answer,
        )
        lookout.watch(self._socket, debugger)
        self._background.on_attend = lookout.attend
        self._cancellations = Cancellations(
            activity.page, self._socket.send_beside, self._background.loop.after
        )
        self._dispatcher = Dispatcher(
            self._servant, self._socket, self._cancellations, self._wait_for_lease
        )
        self._handle = self._dispatcher.handle
        self._is_over = self._dispatcher.is_over
        self._gone: deque[bytes] = deque()  # routes of clients that are gone
        self._is_restart = birth.again
        self._background.start(self._stop, self._cancellations.on_cancel, self._tidy)

    def run(self) -> int:
        """Serve until asked to stop, then end gracefully; return the exit code."""
        try:
            if self._is_restart:
                self._tell(control.Begun())
                self._servant.recreate()
            self._debugger.is_open = True
            self._tell(control.Bound(tcp=self._socket.tcp))
            self._serve()
            if self._servant.is_async:  # even if it is over: its `close` runs on a loop
                asyncio.run(self._serve_async())
        except BaseException as error:  # such as the user's SystemExit: earlier replies arrive
            self._leave(error)
            raise
        self._end()
        return 0

    def _stop(self) -> None:
        """Begin no further call.  Any thread may call this."""
        self._dispatcher.stop()
        self._debugger.end()

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
        loop = self._dispatcher.loop = asyncio.get_running_loop()
        over = loop.create_future()
        dispatcher = self._dispatcher

        def turn() -> None:
            try:
                serve_some()
            except Exception as error:  # else the loop would only log it, and callers would wait
                if not over.done():
                    over.set_exception(error)

        def serve_some() -> None:
            for _ in range(MESSAGES_A_TURN):
                if self._is_over() or not (self._turn() or dispatcher.run_due()):
                    break
            else:  # there may be more; let running calls continue first
                loop.call_soon(turn)
            if self._is_over():
                if not over.done():
                    over.set_result(None)
            elif (due_ms := dispatcher.until_due_ms()) is not None:
                loop.call_later(due_ms / 1000, turn)

        def woken() -> None:
            self._woken([self._socket.wake_fd])
            turn()

        loop.add_reader(self._socket.fd, turn)
        loop.add_reader(self._socket.wake_fd, woken)
        dispatcher.run_early()
        turn()
        await over
        await dispatcher.before_end()
        self._tell_ending()
        await dispatcher.end_calls_on_loop()
        await dispatcher.close_on_loop()
        loop.remove_reader(self._socket.fd)
        loop.remove_reader(self._socket.wake_fd)

    def _turn(self) -> bool:
        """4: take one message; return whether there was one."""
        self._wait_for_lease()  # 2
        checks_keys = self._access.some_revoked  # read once: the background thread may change it
        if (received := self._socket.receive(checks_keys)) is None:
            return False
        if self._background.is_idle:
            self._background.leave_idle()
        route, key, frames = received
        try:
            messages = wire.unbatch(wire.decode(frames, "client"))
        except WireError as error:
            self._background.throttled.add(
                "a message", f"dropped a message: {error}", time.monotonic()
            )
            return True
        if checks_keys and not self._access.may_call(key):
            self._debugger.forget(route)
            for message in messages:
                self._socket.send(raised(route, message, NotAllowed(REVOKED)))
            return True
        self._socket.holds = len(messages) > 1
        try:
            for message in messages:
                if not self._is_over():
                    self._handle(route, message)
        finally:  # also if a call raises SystemExit
            self._socket.end_batch()
        return True

    # --- consumers of streams ---------------------------------------------------------------------

    def _tidy(self) -> None:
        """On the background thread: find the clients that are gone."""
        silent = self._servant.silent(time.monotonic())
        for route in silent:
            if not self._socket.reaches(route):
                self._gone.append(route)
        if silent:  # and sending may have consumed the socket's edge-triggered event
            self._socket.wake()

    def _woken(self, ready: Iterable[int]) -> None:
        if self._socket.wake_fd in ready:
            self._socket.clear_wake()
            self._socket.end_batch()
        while self._gone:  # as if each client had closed its streams itself
            route = self._gone.popleft()
            for name in self._servant.streams.names_of(route):
                self._handle(route, Message(Kind.CLOSE, 0, name, b"", ()))
            self._servant.forget(route)

    # --- the end ----------------------------------------------------------------------------------

    def _tell_ending(self) -> None:
        why = "its constructor raised" if self._servant.failed else "closed"
        self._tell(control.Ending(why=why))  # 5; from now on the worker allows us DRAIN_S

    def _end(self) -> None:
        if not self._servant.is_async:  # else its loop has done so
            self._tell_ending()
            self._dispatcher.end()
        if faults.ON:
            faults.at("actor.end")
        self._leave()

    def _leave(self, error: BaseException | None = None) -> None:
        """Release everything; return when the last reply has left, or after LAST_REPLY_S."""
        self._tell(control.Exiting(calls=self._servant.calls))  # and now DRAIN_S once more
        if self._is_borrowed:
            self._servant.streams.close_all()
        else:
            self._release(error)
        stopped = self._background.stop(LAST_REPLY_S)
        self._socket.close(LAST_REPLY_S)
        if stopped:
            self._background.close()

    def _release(self, error: BaseException | None) -> None:
        """Release what the user's code has left, as an interpreter does at shutdown.

        The order matters: each step may run the user's code, and use what the later steps release.
        """
        if error is not None:
            traceback.clear_frames(error.__traceback__)  # 1: its frames reference the object
        files = exiting.flush_files()  # 2: before the collector may close any of them
        self._servant.release()  # 3: runs `__del__`, with whatever calls it makes
        exiting.end_child_processes()  # 4
        exiting.run_exit_functions()
        connection.shutdown()  # 5: ends the actors that this one owns
        exiting.flush_files()  # 6: what 3 to 5 have written
        del files
