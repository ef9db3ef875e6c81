"""The process of one actor: runs its calls one by one, and answers each exactly once.

Two threads.  The main thread has the ROUTER socket and runs the user's code, as a script would.
The door thread answers libzmq's questions about keys and listens to the worker, so that neither
waits for a long call.

Small results of calls that came together go back together: while the next of them runs, they are
held.  It may be a long one; so for as long as there are any, the door thread looks each LOOK_S,
and sends what has been held since it last looked.  That is the one use of the socket that is not
the main thread's, and why there is a lock.

What ends the process is decided in this order, so that a full inbox can never keep an orphan
alive: worker gone, lease over (fence.py), stop asked, next call.

How a call runs depends on the class:

    plain methods               on the main thread, one after the other
    concurrency=n               on n threads, and so do items of streams and attributes; the main
                                thread only receives and answers (call_threads.py)
    a class with async methods  all on one event loop, on the main thread: async methods interleave
                                at their awaits, plain ones block the loop (or take one of the n
                                threads)
    batched methods             gathered until a batch is full or due, or until another message
                                comes, which was sent after them and so is to run after them

What a call does to the object is the servant's part (servant.py).
"""

import asyncio
import functools
import inspect
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import zmq

from remotely.actor import exiting, log_sender
from remotely.actor.call_threads import CallThreads
from remotely.actor.delegation import Delegation
from remotely.actor.servant import RoutedReply, Servant, raised
from remotely.actor.worker_line import WorkerLine
from remotely.api import connection
from remotely.errors import NotAllowed, WireError
from remotely.objects.batching import Gathering
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.reporting.throttled_log import Complaints
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.access_list import AccessList
from remotely.transport.activity import OneByOne
from remotely.transport.fence import LOOK_EVERY_S, Fence
from remotely.transport.keys import KeyPair
from remotely.transport.loop import Loop
from remotely.values import arena

COUNT_EVERY_S = 2.0
LAST_REPLY_S = 1.0
LOOK_S = 0.002
LOOKS_IN_VAIN = 10  # after which the door thread stops looking
REVOKED = "the key with which this call came was revoked"
FENCED_S = 0.05
# Who found the actor by its name, or borrowed it, may call while its maker is still sending files.
NEED_OBJECT = frozenset((Kind.CALL, Kind.GET, Kind.SET, Kind.END))
OF_STREAMS = frozenset((Kind.NEXT, Kind.CLOSE))
ON_THREADS = frozenset((Kind.CALL, Kind.GET, Kind.SET)) | OF_STREAMS
ASYNC_IN_FLIGHT = 1000  # more wait in the socket, where back-pressure holds the client
_ARE_YOU_THERE = wire.encode(Kind.RESULT, 0)  # of no call: whoever gets it drops it


class Actor:
    """The socket of an actor, and the order and the threads in which its calls run."""

    def __init__(self, birth: control.Birth, worker: socket.socket, activity: OneByOne) -> None:
        self._pid = os.getpid()
        self._line = WorkerLine(worker)
        self._tell = self._line.tell
        self._delegation = Delegation(self._tell)
        self._servant = Servant(birth, self._delegation.pair, activity)
        self._worker = worker
        log_sender.install(birth.request.name, self._line.send)
        self._fence = Fence(Path(birth.folder))
        self._reader = control.Reader(control.ToActor)
        self._stop_asked = False
        self._ender: tuple[bytes, Message] | None = None  # who asked for its end in a call
        self._early: list[tuple[bytes, Message]] = []  # came before there was an object
        self._done: deque[RoutedReply] = deque()
        self._gone: deque[bytes] = deque()  # routes of consumers of streams
        self._done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads: CallThreads | None = None
        self._gathered: dict[str, Gathering] = {}
        self._in_crowd = False  # the call that runs came together with others
        self._held: list[bytes | memoryview] = []  # results that go back together
        self._held_route = b""
        self._is_old = False  # what is held was there at the last look
        self._looks_left = 0
        self._in_flight = 0  # on the event loop
        self._tasks: set[Any] = set()  # it alone holds them but weakly

        self._access = AccessList(birth.client_keys, self._ask_about)
        self._context = sockets.new_context()
        self._complaints = Complaints(lambda said: print(f"remotely: {said}", file=sys.stderr))
        self._zap = sockets.Door(self._context, self._access.admit, self._complaints)
        self._door = Loop()
        self._door.call(self._line.never_wait)
        self._door.watch_socket(self._zap.socket, self._zap.answer)
        self._door.watch(worker.fileno(), self._hear_worker)
        self._door.every(COUNT_EVERY_S, self._count)
        self._door.every(LOOK_EVERY_S, self._mind_fence)
        self._counted = 0
        self._door_thread = threading.Thread(
            target=self._door.run, name="remotely-door", daemon=True
        )
        self._door_thread.start()

        self._lock = threading.Lock()
        self._socket = sockets.server(self._context, KeyPair(birth.public_key, birth.secret_key))
        sockets.bind(self._socket, birth.ipc)
        tcp = ""
        if birth.tcp_host:
            sockets.bind(self._socket, f"tcp://{birth.tcp_host}:*")
            tcp = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._bound = control.Bound(tcp=tcp)
        self._again = birth.again

    def run(self) -> int:
        """Serve until the end, in good order."""
        try:
            if self._again:
                self._servant.make_again()
            self._tell(self._bound)
            self._serve()
            if self._servant.is_async and not self._over():
                asyncio.run(self._serve_async())
        except BaseException as error:  # the user's exit: what was answered before it is answered
            traceback.clear_frames(error.__traceback__)  # they hold the object
            self._leave()
            raise
        self._end()
        return 0

    # --- serving ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket.FD, select.POLLIN)
        poll.register(self._done_fd, select.POLLIN)
        while not self._over() and not self._servant.is_async:
            if not self._turn() and not self._run_due():
                self._woken(fd for fd, _ in poll.poll(self._until_due_ms()))

    async def _serve_async(self) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def turn() -> None:
            while self._in_flight < ASYNC_IN_FLIGHT and not self._over():
                if not self._turn() and not self._run_due():
                    break
            if self._over():
                over.set()
            elif self._gathered:
                loop.call_later((self._until_due_ms() or 0) / 1000, turn)

        def woken() -> None:
            self._woken([self._done_fd])
            turn()

        loop.add_reader(self._socket.FD, turn)
        loop.add_reader(self._done_fd, woken)
        turn()
        await over.wait()
        if self._ender is not None:  # after the calls made before
            await asyncio.gather(*self._tasks, return_exceptions=True)
        loop.remove_reader(self._socket.FD)
        loop.remove_reader(self._done_fd)

    def _over(self) -> bool:
        return self._stop_asked or self._ender is not None or self._servant.failed

    def _woken(self, ready: Iterable[int]) -> None:
        if self._done_fd in ready:
            os.eventfd_read(self._done_fd)
        while self._gone:  # as if they had said so themselves
            route = self._gone.popleft()
            for name in self._servant.streams.of(route):
                self._handle(route, Message(Kind.CLOSE, 0, name, b"", ()))

    def _turn(self) -> bool:
        """Send what is done and take one message; false if there was neither."""
        busy = False
        while self._done:
            self._send(self._done.popleft())
            busy = True
        self._wait_for_lease()
        checks_keys = self._access.some_revoked  # once: the door thread may change it meanwhile
        with self._lock:
            if not sockets.readable(self._socket):
                return busy
            if checks_keys:
                route, key, frames = sockets.receive_identified(self._socket)
            else:  # it costs to ask each for its key
                route, frames = sockets.receive_routed(self._socket)
        try:
            messages = wire.each(wire.decode(frames, "client"))
        except WireError as error:
            self._complaints.add("a message", f"dropped a message: {error}", time.monotonic())
            return True
        if checks_keys and not self._access.may_call(key):
            for message in messages:
                self._send(raised(route, message, NotAllowed(REVOKED)))
            return True
        self._in_crowd = len(messages) > 1
        try:
            for message in messages:
                if not self._over():
                    self._handle(route, message)
        finally:  # a call may end this process by an exception
            self._in_crowd = False
            with self._lock:
                self._send_held()
        return True

    def _handle(self, route: bytes, message: Message) -> None:
        if faults.ON and message.kind is Kind.CALL:
            faults.at("actor.call")
        servant = self._servant
        if not servant.is_made and message.kind in NEED_OBJECT:
            self._early.append((route, message))
            return
        if message.kind is Kind.CALL and message.name in servant.batched:
            self._gather(route, message)
            return
        if self._gathered and message.kind is not Kind.SOURCES:  # calls run in the order made
            self._run_gathered(list(self._gathered))
        if servant.is_async and servant.is_coroutine(message):
            self._start(self._answer_async(route, message))
        elif self._threads is not None and message.kind in ON_THREADS:
            if message.kind in OF_STREAMS:
                work = functools.partial(self._answer_on_thread, route, message)
                self._threads.run_in_turn(message.name, work)
            else:
                self._threads.run(self._answer_on_thread, route, message)
        elif message.kind is Kind.END:
            self._ender = route, message
        else:
            self._send(servant.answer(route, message))
            if self._threads is None and servant.concurrency > 1:
                self._threads = CallThreads(servant.concurrency)
            if message.kind is Kind.INIT and not self._over():
                early, self._early = self._early, []
                for from_whom, call in early:
                    self._handle(from_whom, call)

    def _wait_for_lease(self) -> None:
        while self._fence.has_passed:  # it moves, or the door thread ends us
            time.sleep(FENCED_S)

    def _answer_on_thread(self, route: bytes, message: Message) -> None:
        self._wait_for_lease()
        self._reply(self._servant.answer(route, message))

    async def _answer_async(self, route: bytes, message: Message) -> None:
        self._reply(await self._servant.answer_async(route, message))
        self._in_flight -= 1

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        self._in_flight += 1
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reply(self, reply: RoutedReply) -> None:
        """Send from any thread: only the main thread may touch the socket."""
        self._done.append(reply)
        os.eventfd_write(self._done_fd, 1)

    def _send(self, reply: RoutedReply) -> None:
        if os.getpid() != self._pid:
            exiting.end_fork()
        if faults.ON:
            faults.at("actor.reply")
        with self._lock:
            if self._in_crowd and reply.is_small:
                self._hold(reply)
                return
            self._send_held()
            # Copied, since the next call may change an array that the object keeps.
            arrives = self._send_now((reply.route, *reply.frames))
            if not arrives and reply.loan and (ours := arena.ours()):
                ours.take_back(reply.loan)

    def _send_now(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Return whether there is still whom to send it to."""
        try:
            sockets.send(self._socket, frames)
            return True
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False

    # --- results that go back together; the lock is held ------------------------------------------

    def _hold(self, reply: RoutedReply) -> None:
        if reply.route != self._held_route:  # a batch answers calls of several clients
            self._send_held()
        self._held_route = reply.route
        self._held.append(reply.frames[0])
        if not self._looks_left:
            self._looks_left = LOOKS_IN_VAIN
            self._door.call(self._look_later)

    def _send_held(self) -> None:
        if self._held:
            held, self._held, self._is_old = self._held, [], False
            self._send_now((self._held_route, *wire.together(Kind.RESULTS, held)))

    def _look_later(self) -> None:
        self._door.after(LOOK_S, self._look)

    def _look(self) -> None:
        """On the door thread."""
        with self._lock:
            self._looks_left = LOOKS_IN_VAIN if self._held else self._looks_left - 1
            if self._held and self._is_old:
                self._send_held()
                os.eventfd_write(self._done_fd, 1)  # sending may have swallowed the socket's edge
            self._is_old = bool(self._held)
            if self._looks_left:
                self._look_later()

    # --- batched methods --------------------------------------------------------------------------

    def _gather(self, route: bytes, message: Message) -> None:
        try:
            arguments = self._servant.arguments(route, message)
        except Exception as error:
            self._send(raised(route, message, error))
            return
        name = message.name
        if name not in self._gathered:
            self._gathered[name] = Gathering(self._servant.batched[name])
        self._gathered[name].add((route, message), arguments, time.monotonic())
        if self._gathered[name].is_full:
            self._run_gathered([name])

    def _until_due_ms(self) -> float | None:
        if not self._gathered:
            return None
        due = min(gathering.due for gathering in self._gathered.values())
        return max(0.0, 1000 * (due - time.monotonic()))

    def _run_due(self) -> bool:
        """Run what has waited long enough, when no message waits; true if there was any."""
        if not self._gathered:
            return False
        now = time.monotonic()
        due = [name for name, gathering in self._gathered.items() if gathering.due <= now]
        self._run_gathered(due)
        return bool(due)

    def _run_gathered(self, names: list[str]) -> None:
        for name in names:
            gathering = self._gathered.pop(name)
            for calls in gathering.take():
                if inspect.iscoroutinefunction(gathering.batching.function):
                    self._start(self._run_batch_async(gathering, calls))
                elif self._threads is not None:
                    self._threads.run(self._run_batch_on_thread, gathering, calls)
                else:
                    for reply in self._servant.answer_batch(gathering.batching, calls):
                        self._send(reply)

    def _run_batch_on_thread(self, gathering: Gathering, calls: Any) -> None:
        for reply in self._servant.answer_batch(gathering.batching, calls):
            self._reply(reply)

    async def _run_batch_async(self, gathering: Gathering, calls: Any) -> None:
        for reply in await self._servant.answer_batch_async(gathering.batching, calls):
            self._reply(reply)
        self._in_flight -= 1

    # --- the worker, on the door thread -----------------------------------------------------------

    def _hear_worker(self) -> None:
        try:
            data = self._worker.recv(control.MAX_MESSAGE)
        except OSError:
            data = b""
        if not data:  # the worker is gone, and with it our right to be
            exiting.end_group()
        match self._reader.read(data):
            case control.Admit(client_keys=client_keys):
                self._access.relist(client_keys)
            case control.Caller(key=key, admitted=admitted) as caller:
                self._access.hear(caller)
                self._zap.decide(key, "client" if admitted else None)
            case control.Delegated():
                self._delegation.confirm()
            case control.Leave():
                self._stop_asked = True
                os.eventfd_write(self._done_fd, 1)

    def _ask_about(self, key: bytes) -> None:
        self._tell(control.MayCall(key=key))

    def _mind_fence(self) -> None:
        if self._fence.look():
            exiting.say("remotely: the worker lost its lease, and its actors end\n")
            exiting.end_group()

    def _count(self) -> None:
        self._servant.tidy()
        self._ask_after_consumers()
        if self._line.go_on() and self._servant.calls != self._counted:
            self._counted = self._servant.calls
            self._tell(control.Count(calls=self._counted))

    def _ask_after_consumers(self) -> None:
        """Find out who of those that are silent is gone."""
        silent = self._servant.streams.silent(time.monotonic())
        for route in silent:
            with self._lock:
                if not self._send_now((route, *_ARE_YOU_THERE)):
                    self._gone.append(route)
        if silent:  # also since sending may have swallowed the socket's edge
            os.eventfd_write(self._done_fd, 1)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        why = "its constructor raised" if self._servant.failed else "closed"
        self._tell(control.Ending(why=why))
        if self._threads is not None:
            self._threads.end(drop=self._stop_asked)
        while self._done:
            self._send(self._done.popleft())
        if self._ender is not None:
            self._send(self._servant.answer(*self._ender))
        elif self._stop_asked:
            try:
                self._servant.close()
            except Exception:
                traceback.print_exc()
        if faults.ON:
            faults.at("actor.end")
        self._leave()

    def _leave(self) -> None:
        """Let go of everything; return when the last reply has left, or nobody takes it."""
        self._tell(control.Exiting(calls=self._servant.calls))
        files = exiting.flush_files()
        self._servant.let_go()
        exiting.run_exit_functions()
        connection.shutdown()
        exiting.flush_files()
        del files
        self._door.stop()
        self._door_thread.join(LAST_REPLY_S)
        self._socket.close(linger=int(LAST_REPLY_S * 1000))
        if not self._door_thread.is_alive():
            self._zap.socket.close()
            self._context.term()  # waits until the last reply has left
