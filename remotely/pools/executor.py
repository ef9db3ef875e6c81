"""The executor: `concurrent.futures.Executor` over the cores of a cluster.

It differs from a ProcessPoolExecutor where a cluster does:

    a process is lost        the others go on.  The calls that it had get ActorDied or WorkerLost;
                             those of a function marked `@remotely.idempotent`, and those that
                             certainly have not run, go to another process
    machines join            their cores are used, unless `max_workers` is reached
    code                     lambdas, closures and functions of the script are fine
    an argument is changed   after `submit`: the call sees it as it was
"""

import contextlib
import functools
import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from remotely import arguments
from remotely.api import connection
from remotely.api.current_actor import heading
from remotely.api.remote_class import as_placeable, check_options, make_on, remote_class
from remotely.engine import Engine, Options
from remotely.errors import NotPicklable
from remotely.objects.marks import retries_of
from remotely.pools.scheduler import Scheduler, Staffing
from remotely.protocol.lease import CONNECT_S
from remotely.values import codec, raised_error

MOST_OF_A_NAME = 300  # bytes
AT_A_TIME = 16  # processes that are started, each on a thread of its own
# A process that has had no call for so long ends: others may wait for its cores, for a minute at
# most (PLACE_S).  To start one again takes 0.1 s, so a burst every ten seconds loses one per cent.
IDLE_S = 10.0
LOOK_EVERY_S = 0.02

P = ParamSpec("P")
R = TypeVar("R")


class Outcomes(NamedTuple):
    """The outcomes of a chunk: the values of its items, and errors by their place."""

    values: list[Any]
    errors: dict[int, raised_error.RaisedError]

    def each(self) -> Iterator[Any]:
        """Yield the values; raise an error, with its traceback over there, in its place."""
        for place, value in enumerate(self.values):
            if place in self.errors:
                raise raised_error.unpack(*self.errors[place])
            yield value


@remote_class(cpus=1)  # counted on every cluster: an Executor takes all that there is room for
class Runner:
    """An actor of an Executor: runs functions, one by one or in chunks."""

    def __init__(self, initializer: Callable[..., object] | None, initargs: Sequence[Any]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return function(*args, **(kwargs or {}))

    def run_chunk(self, function: Callable[..., Any], items: Sequence[Sequence[Any]]) -> Outcomes:
        outcomes = Outcomes([], {})
        for item in items:
            try:
                outcomes.values.append(function(*item))
            except SystemExit:  # ends this process, as in any actor
                raise
            except BaseException as error:
                packed = raised_error.pack(error, heading(), (__name__,))
                outcomes.errors[len(outcomes.values)] = packed
                outcomes.values.append(None)
        return outcomes


class Executor(futures.Executor):
    """Runs functions in as many processes as the cluster has cores free, or `max_workers`.

    max_workers   the most processes at a time.  Without it, as many as there is room for
    initializer   called with `initargs` in each process before its first function
    options       of each process, as in `remotely.options`: `cpus`, `gpus`, `memory`, `env`

    A process starts when there is work for it, and ends when there was none for ten seconds.
    Leaving the `with` block by Ctrl-C ends running
    calls; leaving it in any other way waits for them.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        if max_workers is not None:
            arguments.whole_number("max_workers", max_workers, 1)
        for name in _NOT_OURS & options.keys():
            raise TypeError(f"{name!r} is no option of an Executor's processes")
        checked = check_options(as_placeable(Runner).options, options)
        staffing = _AsManyAsFit(max_workers, checked, (initializer, initargs))
        self._scheduler = Scheduler(staffing)
        self._put = staffing.engine.put

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run `fn(*args, **kwargs)` in one of the processes, and return its future."""
        name = _name_of(fn)
        names = name, f"{name}: args", f"{name}: kwargs"
        call = (fn, args, kwargs) if kwargs else (fn, args)
        return self._scheduler.submit("run", call, {}, _retries_of(fn), names[: len(call)])

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """Yield `fn` of each item, in order; an error is raised where its result would be.

        timeout     seconds from now after which TimeoutError is raised
        chunksize   items that travel together; tiny functions gain from more than one
        buffersize  the most chunks that are submitted and not yet yielded, for endless iterables.
                    Without it, all are submitted at once
        """
        arguments.whole_number("chunksize", chunksize, 1)
        if buffersize is not None:
            arguments.whole_number("buffersize", buffersize, 1)
        ends = None if timeout is None else time.monotonic() + timeout
        retries, name = _retries_of(fn), _name_of(fn)
        function = self._once(fn)
        items = zip(*iterables, strict=False)

        def submit(item: tuple[Any, ...]) -> Future[Any]:
            names = name, f"{name}: args"
            return self._scheduler.submit("run", (function, item), {}, retries, names)

        def submit_chunk(chunk: tuple[Any, ...]) -> Future[Any]:
            names = name, f"{name}: items"
            return self._scheduler.submit("run_chunk", (function, chunk), {}, retries, names)

        calls: Iterator[Future[Any]]
        read: Callable[[Any], Iterator[Any]]
        if chunksize == 1:
            calls, read = map(submit, items), _alone
        else:
            chunks = iter(lambda: tuple(itertools.islice(items, chunksize)), ())
            calls, read = map(submit_chunk, chunks), Outcomes.each
        pending = deque(itertools.islice(calls, buffersize))
        return _results(pending, calls, read, ends)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further call; with `wait`, return when all have run and nothing is left.

        Without it, the processes end when the calls have run, and so does the interpreter.
        """
        scheduler = self._scheduler
        scheduler.close(cancel_futures, wait)
        if not wait and scheduler.is_busy:  # no daemon: the interpreter waits for it
            threading.Thread(target=scheduler.wait, name="remotely-executor").start()

    def _once(self, function: Callable[..., Any]) -> Any:
        """Pickle a function once for all its calls, unless its name is all that travels.

        If it does not pickle, their futures say so.
        """
        try:
            is_large = codec.encode(function).nbytes > MOST_OF_A_NAME
            return self._put(function) if is_large else function
        except NotPicklable:
            return function

    def kill(self) -> None:
        """End every process at once: calls that run get ActorDied, others are cancelled."""
        self._scheduler.close(cancel=True, wait=False)
        self._scheduler.end(0.0)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool | None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.kill()
        else:
            self.shutdown(wait=True)
        return None

    def __del__(self) -> None:
        if hasattr(self, "_scheduler"):
            self._scheduler.close(cancel=False, wait=False)


_NOT_OURS = frozenset(("name", "detached", "wait", "concurrency", "max_restarts"))


class _AsManyAsFit(Staffing):
    """As many processes as there are calls, up to a limit and to the room on the cluster.

    The master alone knows how much room there is, so it is asked for processes until it refuses
    one; from then on for one at a time, until it grants that.  The first process waits for room,
    and the calls fail if there is none.  The others are for now or not at all: they never stand in
    the line of those that wait.
    """

    def __init__(self, most: int | None, options: Options, args: tuple[Any, ...]) -> None:
        self.engine = connection.current()
        self.is_immediate = not self.engine.cluster
        self._options = options
        self._args = args
        with contextlib.suppress(NotPicklable):  # the calls will say so
            self._args = self.engine.put(args)  # as they are now
        self._has_room = False  # as far as we know
        self.idle_s = IDLE_S
        self._most = math.inf if most is None else most
        reserves = options.cpus or options.gpus or options.memory or options.resources
        if most is None and not reserves and not self.is_immediate:  # nothing else limits them
            self._most = cores(self.engine)

    def wants(self, jobs: int, members: int) -> bool:
        return members < min(jobs, self._most)

    def make(self, jobs: int, members: int) -> Iterator[Any]:
        count, options = 1, self._options
        if members:
            options = msgspec.structs.replace(options, patience_s=0)
            if self._has_room:
                count = min(AT_A_TIME, int(min(jobs, self._most)) - members)
        born: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def bear() -> None:
            try:
                born.put(make_on(self.engine, Runner, self._args, {}, options, 1)[0])
            except Exception as error:
                born.put(error)

        for _ in range(count):  # each by itself: they need no others
            threading.Thread(target=bear, name="remotely-recruiter", daemon=True).start()
        errors = []
        for _ in range(count):
            if isinstance(one := born.get(), Exception):
                errors.append(one)
            else:
                yield one
            del one
        self._has_room = not errors
        if errors:
            raise errors[0]

    def hear_of_loss(self) -> None: ...


def cores(engine: Engine) -> int:
    """Return how many cores a cluster has; one that has just been started is waited for."""
    deadline = time.monotonic() + CONNECT_S
    while not (machines := engine.report(fresh=False).machines) and engine.cluster:
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_EVERY_S)
    return int(sum(machine.cpus for machine in machines))


def _name_of(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _retries_of(function: Any) -> int:
    while isinstance(function, functools.partial):
        function = function.func
    return retries_of(function)


def _alone(value: Any) -> Iterator[Any]:
    yield value


def _results(
    pending: "deque[Future[Any]]",
    more: Iterator[Future[Any]],
    read: Callable[[Any], Iterator[Any]],
    ends: float | None,
) -> Iterator[Any]:
    try:
        while pending:
            timeout = None if ends is None else max(0.0, ends - time.monotonic())
            outcome = pending.popleft().result(timeout)
            pending.extend(itertools.islice(more, 1))
            yield from read(outcome)
    finally:
        for future in pending:
            future.cancel()


def register_joblib() -> None:
    """Make the cluster a backend of joblib, and so of scikit-learn.

    After it, `with joblib.parallel_config(backend="remotely"):` runs `joblib.Parallel`, and
    whatever takes `n_jobs`, on the cluster.  Without `n_jobs`, all of its cores are used.  Further
    arguments of `parallel_config` are those of `remotely.Executor`.  Raises ImportError without
    joblib, which is not a dependency of remotely.
    """
    import joblib  # noqa: PLC0415 - not a dependency

    from remotely.pools.joblib_backend import RemotelyBackend  # noqa: PLC0415 - it imports joblib

    joblib.register_parallel_backend("remotely", RemotelyBackend)
