"""The process of one actor: runs its calls one by one, and answers each exactly once.

Two threads.  The main thread owns the ROUTER socket and runs the user's code, as a script would.
The door thread answers libzmq's questions about keys and listens to the worker, so that neither
waits for a long call.  What ends the process is decided in this order, so that a full inbox can
never keep an orphan alive: worker gone, stop asked, next call.

How a call runs depends on the class:

    plain methods               on the main thread, one after the other
    concurrency=n               on n threads; the main thread only receives and answers
    a class with async methods  all on one event loop, on the main thread: async methods interleave
                                at their awaits, plain ones block the loop (or take one of the n
                                threads)
"""

import asyncio
import atexit
import contextlib
import difflib
import faulthandler
import inspect
import itertools
import os
import random
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import AsyncGeneratorType, GeneratorType
from typing import Any, NamedTuple

import zmq

from remotely import arena, codec, connection, control, shipping, sockets, wire
from remotely.arena import Address, Loan
from remotely.construct import construct
from remotely.errors import RemotelyError, WireError
from remotely.keys import KeyPair
from remotely.loop import Loop
from remotely.partner import Parcel, Partner, unpack
from remotely.stream import Token
from remotely.wire import Kind

COUNT_EVERY_S = 1.0
LAST_REPLY_S = 1.0
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ASYNC_IN_FLIGHT = 1000  # more wait in the socket, where back-pressure holds the client
MAX_CONTROL_BYTES = 1 << 18


class Outgoing(NamedTuple):
    """A reply, and what is lent with it."""

    frames: list[bytes | memoryview]
    loan: Loan | None = None


def main(control_fd: int, stdout_fd: int = 1, stderr_fd: int = 2) -> int:
    """Be the actor that the worker describes; return the exit code of this process."""
    if stdout_fd != 1:
        os.setsid()  # a process group of its own: the worker ends it with all that it started
        for fd, standard in ((stdout_fd, 1), (stderr_fd, 2)):
            os.dup2(fd, standard)
            os.close(fd)
    worker = socket.socket(fileno=control_fd)
    birth = control.Reader(control.Birth).read(worker.recv(MAX_CONTROL_BYTES))
    assert isinstance(birth, control.Birth)
    _prepare_process(birth)
    return Actor(birth, worker).run()


def _prepare_process(birth: control.Birth) -> None:
    """Set what must be set before any of the user's modules is imported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    atexit._clear()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()  # a native crash leaves its stack in what ActorDied shows
    request = birth.request
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in birth.gpu_ids)
    os.environ.update(request.env)
    if not request.env.keys() & set(THREAD_VARIABLES):
        _set_threads(max(1, int(request.cpus)))
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # a fork copies its state too


def _set_threads(count: int) -> None:
    """Let BLAS and OpenMP use so many threads: libraries to come, and those that the zygote has."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(count)
    if "numpy" in sys.modules:
        import threadpoolctl  # noqa: PLC0415 - it looks at the libraries that are loaded by now

        threadpoolctl.threadpool_limits(count)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


class Actor:
    """The object, its socket, and the state of this process."""

    def __init__(self, birth: control.Birth, worker: socket.socket) -> None:
        self.birth = birth
        self.object: Any = None
        self.calls = 0
        self._worker = worker
        self._stop_asked = False
        self._ended = ""
        self._ender: tuple[bytes, wire.Message] | None = None  # who asked for it in a call
        self._done: deque[tuple[bytes, Outgoing]] = deque()
        self._partners: dict[bytes, Partner] = {}
        self._done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads: ThreadPoolExecutor | None = None
        self._async_methods: frozenset[str] = frozenset()
        self._is_async = False
        self._streams: dict[str, Any] = {}
        self._stream_names = itertools.count(1)
        self._turns: dict[str, asyncio.Lock] = {}  # of async streams: one item at a time
        self._in_flight = 0
        self._main = threading.get_ident()
        self._prepared: control.Prepare | None = None

        client_keys = frozenset(birth.client_keys)
        self._context = sockets.new_context()
        door = sockets.Door(self._context, lambda key: "client" if key in client_keys else None)
        self._door_socket = door.socket
        self._door = Loop()
        self._door.watch_socket(door.socket, door.answer)
        self._door.watch(worker.fileno(), self._hear_worker)
        self._door.every(COUNT_EVERY_S, self._count)
        self._counted = 0
        self._door_thread = threading.Thread(
            target=self._door.run, name="remotely-door", daemon=True
        )
        self._door_thread.start()

        self._socket = sockets.server(self._context, KeyPair(birth.public_key, birth.secret_key))
        self._socket.bind(birth.ipc)
        tcp = ""
        if birth.tcp_host:
            self._socket.bind(f"tcp://{birth.tcp_host}:*")
            tcp = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        worker.send(control.write(control.Bound(tcp=tcp)))

    def run(self) -> int:
        """Serve until the end, in good order."""
        self._serve()
        if self._is_async and not self._over():
            asyncio.run(self._serve_async())
        self._end()
        return 0

    # --- serving ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket.FD, select.POLLIN)
        poll.register(self._done_fd, select.POLLIN)
        while not self._over() and not self._is_async:
            if not self._turn():
                self._woken(fd for fd, _ in poll.poll())

    async def _serve_async(self) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def turn() -> None:
            while self._in_flight < ASYNC_IN_FLIGHT and not self._over() and self._turn():
                pass
            if self._over():
                over.set()

        def woken() -> None:
            self._woken([self._done_fd])
            turn()

        loop.add_reader(self._socket.FD, turn)
        loop.add_reader(self._done_fd, woken)
        turn()
        await over.wait()
        if self._ender is not None:  # after the calls made before
            await asyncio.gather(*_TASKS, return_exceptions=True)
        loop.remove_reader(self._socket.FD)
        loop.remove_reader(self._done_fd)

    def _over(self) -> bool:
        return self._stop_asked or bool(self._ended)

    def _woken(self, ready: Iterable[int]) -> None:
        if self._done_fd in ready:
            os.eventfd_read(self._done_fd)

    def _turn(self) -> bool:
        """Send what is done and take one message; false if there was neither."""
        busy = False
        while self._done:
            self._send(*self._done.popleft())
            busy = True
        if not sockets.readable(self._socket):
            return busy
        route, frames = sockets.receive_routed(self._socket)
        try:
            message = wire.decode(frames, "client")
        except WireError as error:
            print(f"remotely: dropped a message: {error}", file=sys.stderr)
            return True
        self._handle(route, message)
        return True

    def _handle(self, route: bytes, message: wire.Message) -> None:
        if message.kind is Kind.CALL:
            if message.name in self._async_methods:
                self._start(self._answer_async(route, message))
            elif self._threads is not None:
                self._threads.submit(self._answer_on_thread, route, message)
            else:
                self._send(route, self._answer(route, message))
        elif message.kind is Kind.NEXT and self._is_async_stream(message.name):
            self._start(self._next_async(route, message))
        elif message.kind is Kind.END:
            self._ended, self._ender = "closed", (route, message)
        else:
            self._send(route, self._answer(route, message))

    def _start(self, call: Any) -> None:
        self._in_flight += 1
        task = asyncio.get_running_loop().create_task(call)
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)

    async def _answer_async(self, route: bytes, message: wire.Message) -> None:
        try:
            args, kwargs = self._decode(route, message)
            value = await getattr(self.object, message.name)(*args, **kwargs)
            reply = self._returned(route, message, self._streamed(value))
        except (Exception, asyncio.CancelledError) as error:
            reply = _raised(message, error)
        self._in_flight -= 1
        self.calls += 1
        self._reply(route, reply)

    def _answer(self, route: bytes, message: wire.Message) -> Outgoing:
        """Run one message.  Every one gets exactly one reply, or the process dies.

        SystemExit and its kin are let through on purpose: they end this process, and the worker,
        which sees it end, tells the caller in our place.
        """
        try:
            if message.kind is Kind.CALL:
                return self._returned(route, message, self._call(route, message))
            return self._returned(route, message, _RUN[message.kind](self, route, message))
        except Exception as error:
            return _raised(message, error)
        finally:
            self.calls += message.kind is Kind.CALL

    def _answer_on_thread(self, route: bytes, message: wire.Message) -> None:
        try:
            self._reply(route, self._answer(route, message))
        except SystemExit as error:  # a thread's would be swallowed
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            os._exit(code)

    def _reply(self, route: bytes, reply: Outgoing) -> None:
        """Send from any thread: only the main thread may touch the socket."""
        self._done.append((route, reply))
        os.eventfd_write(self._done_fd, 1)

    def _send(self, route: bytes, reply: Outgoing) -> None:
        try:
            # Copied, since the next call may change an array that the object keeps.
            sockets.send(self._socket, (route, *reply.frames))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # the caller has gone: there is nobody to tell
                raise
            if reply.loan and (ours := arena.ours()):
                ours.take_back(reply.loan)

    # --- what a message does ----------------------------------------------------------------------

    def _prepare(self, route: bytes, message: wire.Message) -> list[str]:
        prepare = control.Reader(control.Prepare).read(message.payload)
        assert isinstance(prepare, control.Prepare)
        self._prepared = prepare
        connection.adopt(prepare, self.birth)
        if prepare.host == self.birth.host:
            sys.path.extend(entry for entry in prepare.path if entry not in sys.path)
        return shipping.missing(Path(self.birth.folder), prepare.files)

    def _file(self, route: bytes, message: wire.Message) -> None:
        _, (content,) = unpack(message, self._partners.get(route))
        shipping.store(Path(self.birth.folder), message.name, content)

    def _open_memory(self, route: bytes, message: wire.Message) -> Address | None:
        """Become the partner of a client; None if it has to be without."""
        address = control.Reader(Address).read(message.payload)
        assert isinstance(address, Address)
        ours = arena.ours()
        known = [p for p in self._partners.values() if p.lender.address == address]
        try:
            self._partners[route] = known[0] if known else Partner(address)
        except OSError:
            return None
        return None if ours is None else ours.address

    def _memory_is_open(self, route: bytes, message: wire.Message) -> None:
        self._partners[route].reads = True

    def _init(self, route: bytes, message: wire.Message) -> None:
        assert self._prepared is not None
        if self._prepared.files:
            root = shipping.lay_out(Path(self.birth.folder), self._prepared.files)
            sys.path.insert(0, str(root))
            connection.set_shipped_root(root)
        try:
            cls, args, kwargs = self._decode(route, message)
            self.object = construct(cls, args, kwargs)
            self._async_methods = async_methods(type(self.object))
            self._is_async = bool(self._async_methods) or has_async_streams(type(self.object))
        except BaseException:
            self._ended = "its constructor raised"
            raise
        if self._prepared.concurrency > 1:
            self._threads = ThreadPoolExecutor(self._prepared.concurrency, "remotely-call")

    def _call(self, route: bytes, message: wire.Message) -> object:
        args, kwargs = self._decode(route, message)
        return self._streamed(self._attribute(message.name)(*args, **kwargs))

    def _decode(self, route: bytes, message: wire.Message) -> Any:
        return codec.decode(*unpack(message, self._partners.get(route)))

    def _returned(self, route: bytes, message: wire.Message, value: object) -> Outgoing:
        what = f"the result of {message.name}" if message.name else "the result"
        parcel = Parcel(codec.encode(value, what))
        loan = parcel.lend(self._partners.get(route)) if parcel.is_large else None
        frames = parcel.message(Kind.RESULT, message.call_id, "", loan)
        parcel.close()
        return Outgoing(frames, loan)

    def _streamed(self, value: Any) -> Any:
        """Keep a generator here, and let its token travel."""
        if not isinstance(value, _GENERATORS):
            return value
        name = f"{next(self._stream_names)}"
        self._streams[name] = value
        return Token(name)

    def _is_async_stream(self, name: str) -> bool:
        return isinstance(self._streams.get(name), AsyncGeneratorType)

    def _next(self, route: bytes, message: wire.Message) -> object:
        stream = self._streams.get(message.name)
        if stream is None:  # it ended while more was asked for
            raise StopIteration
        try:
            return next(stream)
        except BaseException:
            self._streams.pop(message.name, None)
            raise

    async def _next_async(self, route: bytes, message: wire.Message) -> None:
        stream = self._streams[message.name]
        try:
            async with self._turns.setdefault(message.name, asyncio.Lock()):
                reply = self._returned(route, message, await anext(stream))
        except StopAsyncIteration:
            self._streams.pop(message.name, None)
            reply = _raised(message, StopIteration())
        except (Exception, asyncio.CancelledError) as error:
            reply = _raised(message, error)
        self._in_flight -= 1
        self._reply(route, reply)

    def _close_stream(self, route: bytes, message: wire.Message) -> None:
        self._turns.pop(message.name, None)
        stream = self._streams.pop(message.name, None)
        if isinstance(stream, GeneratorType):
            stream.close()
        elif stream is not None:
            closing = asyncio.get_running_loop().create_task(stream.aclose())
            _TASKS.add(closing)
            closing.add_done_callback(_TASKS.discard)

    def _get(self, route: bytes, message: wire.Message) -> object:
        return self._attribute(message.name)

    def _set(self, route: bytes, message: wire.Message) -> None:
        setattr(self.object, message.name, self._decode(route, message))

    def _attribute(self, name: str) -> Any:
        try:
            return getattr(self.object, name)
        except AttributeError:
            if name in dir(self.object):
                raise  # a property of the user's failed
            raise AttributeError(unknown_name(type(self.object), name, dir(self.object))) from None

    # --- the worker, on the door thread -----------------------------------------------------------

    def _hear_worker(self) -> None:
        try:
            data = self._worker.recv(MAX_CONTROL_BYTES)
        except OSError:
            data = b""
        if not data:  # the worker is gone, and with it our right to be
            os.killpg(0, signal.SIGKILL)
        self._stop_asked = True
        os.eventfd_write(self._done_fd, 1)

    def _count(self) -> None:
        arena.tidy()
        if self._partners:
            for route, partner in list(self._partners.items()):
                if not partner.alive():
                    self._partners.pop(route, None)
        if self.calls != self._counted:
            self._counted = self.calls
            self._tell(control.Count(calls=self.calls))

    def _tell(self, message: control.FromActor) -> None:
        with contextlib.suppress(OSError):
            self._worker.send(control.write(message))

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._tell(control.Ending(why=self._ended or "closed"))
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=self._stop_asked)
        while self._done:
            self._send(*self._done.popleft())
        if self._ender is not None:
            route, message = self._ender
            self._send(route, self._answer(route, message))
        elif self._stop_asked:
            try:
                self._close_object()
            except Exception:
                traceback.print_exc()
        connection.shutdown()
        self._tell(control.Count(calls=self.calls))
        atexit._run_exitfuncs()
        self._door.stop()
        self._door_thread.join(LAST_REPLY_S)
        self._socket.close(linger=int(LAST_REPLY_S * 1000))
        if not self._door_thread.is_alive():
            self._door_socket.close()
            self._context.term()  # waits until the last reply has left

    def _finish(self, route: bytes, message: wire.Message) -> None:
        self._close_object()

    def _close_object(self) -> None:
        if callable(close := getattr(self.object, "close", None)):
            closing = close()
            if inspect.iscoroutine(closing):
                asyncio.run(closing)


_TASKS: set[Any] = set()  # the event loop alone holds its tasks but weakly

_GENERATORS = (GeneratorType, AsyncGeneratorType)
_RUN: dict[Kind, Callable[[Actor, bytes, wire.Message], object]] = {
    Kind.PREPARE: Actor._prepare,
    Kind.FILE: Actor._file,
    Kind.INIT: Actor._init,
    Kind.CALL: Actor._call,
    Kind.GET: Actor._get,
    Kind.SET: Actor._set,
    Kind.END: Actor._finish,
    Kind.OPEN: Actor._open_memory,
    Kind.OPENED: Actor._memory_is_open,
    Kind.NEXT: Actor._next,
    Kind.CLOSE: Actor._close_stream,
}


def unknown_name(cls: type, name: str, known: list[str]) -> str:
    """Return a sentence about a name that a class does not have, with the nearest that it has."""
    nearest = difflib.get_close_matches(name, [k for k in known if not k.startswith("__")], 1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{cls.__name__!r} has no method or attribute {name!r}{hint}"


def async_methods(cls: type) -> frozenset[str]:
    """Return the names of a class's asynchronous methods, its bases' included."""
    return frozenset(
        name
        for name in dir(cls)
        if inspect.iscoroutinefunction(inspect.getattr_static(cls, name, None))
    )


def has_async_streams(cls: type) -> bool:
    """Tell whether a class has an `async def` method that yields."""
    return any(
        inspect.isasyncgenfunction(inspect.getattr_static(cls, name, None)) for name in dir(cls)
    )


def _raised(message: wire.Message, error: BaseException) -> Outgoing:
    text = "".join(traceback.format_exception(type(error), error, _users_part(error)))
    try:
        pieces = codec.encode(error, in_band=True).pieces
    except RemotelyError:
        pieces = ()
    told = text.encode(errors="replace")
    return Outgoing(wire.encode(Kind.RAISED, message.call_id, "", pieces, [told]))


def _users_part(error: BaseException) -> Any:
    """Return the traceback without our own frames at its top."""
    here, trace = error.__traceback__, error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace or here


_OURS = {__file__, codec.__file__}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
