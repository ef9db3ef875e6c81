"""The executor: `concurrent.futures.Executor` over the cores of a cluster.

It differs from a ProcessPoolExecutor:

    a process is lost        the others continue.  Its calls raise ActorDied or WorkerLost; those of
                             a function marked `@remotely.idempotent`, and those that certainly have
                             not run, go to another process
    machines join            their cores are used, up to `max_workers`
    code                     lambdas, closures and functions of the script work
    an argument is changed   after `submit`: the call sees it as it was
"""

import contextlib
import itertools
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import msgspec

from remotely import arguments
from remotely.api import connection
from remotely.api.current_actor import heading
from remotely.api.remote_class import as_placeable, check_options, make_on, remote_class
from remotely.calling.spare import spare
from remotely.engine import Engine, Options
from remotely.errors import NotPicklable
from remotely.futures.awaitable import AwaitableFuture, give_up
from remotely.machine import threads
from remotely.objects.marks import marks_of
from remotely.pools.scheduler import Scheduler, Staffing
from remotely.protocol.lease import CONNECT_S
from remotely.values import codec, raised_error
from remotely.values.unpicklable import NotToBePickled

MAX_NAME_BYTES = 300  # a larger pickle of a function contains code
ONE, CHUNK = "()", "() of a chunk"  # after the name of the function in that of a call
MAX_CALL_NAME = 200
START_AT_ONCE = 16  # processes, each started on a thread of its own
# A process that has had no call for this long ends, since others may wait for its cores, for at
# most a minute (PLACE_S).  Starting one takes 0.1 s, so a burst every ten seconds loses 1 %.
PROCESS_IDLE_S = 10.0
POLL_EVERY_S = 0.02

P = ParamSpec("P")
R = TypeVar("R")


class Outcomes(NamedTuple):
    """The outcomes of a chunk: the values of its items, and errors by index."""

    values: list[Any]
    errors: dict[int, raised_error.RaisedError]

    def each(self) -> Iterator[Any]:
        """Yield the values; at the index of an error raise it, with its remote traceback.

        Keeps no value that it has yielded.
        """
        self.values.reverse()
        for i in range(len(self.values)):
            if i in self.errors:
                raise raised_error.unpack(*self.errors[i])
            yield self.values.pop()


@spare
@remote_class(cpus=1)  # explicit, so that CPUs limit the number of processes on every cluster
class Runner:
    """An actor of an Executor: runs functions, one by one or in chunks.

    Calls are named after their functions, for messages and `remotely status`: `make()` runs one
    `make`, and `make() of a chunk` several.
    """

    def __init__(self, initializer: Callable[..., object] | None, initargs: Sequence[Any]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def __getattr__(self, name: str) -> Any:
        if name.endswith(CHUNK):
            return self.run_chunk
        if name.endswith(ONE):
            return self.run
        raise AttributeError(name)

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
    """Runs functions in as many processes as the cluster has free cores, up to `max_workers`.

    max_workers   the most processes at a time.  By default, as many as there is room for
    initializer   called with `initargs` in each process before its first function
    options       of each process, as in `remotely.options`: `cpus`, `gpus`, `memory`, `env`,
                  `packages`, `post_mortem`

    A process starts when there is work for it, and ends after ten seconds without work.  Leaving
    the `with` block, and the end of the script, wait for all calls, unless Ctrl-C interrupts that:
    then they are ended.
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
        for name in sorted(options.keys() - set(_PROCESS_OPTIONS)):
            hint = arguments.did_you_mean(name, _OPTIONS) or f"there are {', '.join(_OPTIONS)}"
            raise TypeError(f"an Executor has no option {name!r}; {hint}")
        checked = check_options(as_placeable(Runner).options, options)
        staffing = _AsManyAsFit(max_workers, checked, (initializer, initargs))
        self._scheduler = Scheduler(staffing)
        self._put = staffing.engine.put

    def submit(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AwaitableFuture[R]:
        """Run `fn(*args, **kwargs)` in one of the processes, and return its future."""
        name = _name_of(fn)
        names = name, f"{name}: args", f"{name}: kwargs"
        call = (fn, args, kwargs) if kwargs else (fn, args)
        return self._scheduler.submit(f"{name}{ONE}", call, {}, marks_of(fn), names[: len(call)])

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """Yield `fn` of each item, in order; an error is raised in place of its result.

        timeout     seconds from now after which TimeoutError is raised
        chunksize   items that are sent together; with tiny functions, more than one is faster
        buffersize  the most chunks that are submitted and not yet yielded, for endless iterables.
                    By default, all are submitted immediately
        """
        arguments.whole_number("chunksize", chunksize, 1)
        if buffersize is not None:
            arguments.whole_number("buffersize", buffersize, 1)
        deadline = None if timeout is None else time.monotonic() + timeout
        marks, name = marks_of(fn), _name_of(fn)
        function = self._put_once(fn)
        items = zip(*iterables, strict=False)

        def submit(item: tuple[Any, ...]) -> Future[Any]:
            names = name, f"{name}: args"
            return self._scheduler.submit(f"{name}{ONE}", (function, item), {}, marks, names)

        def submit_chunk(chunk: tuple[Any, ...]) -> Future[Any]:
            names = name, f"{name}: items"
            call = f"{name}{CHUNK}"
            return self._scheduler.submit(call, (function, chunk), {}, marks, names)

        calls: Iterator[Future[Any]]
        if chunksize == 1:
            calls = map(submit, items)
        else:
            chunks = iter(lambda: tuple(itertools.islice(items, chunksize)), ())
            calls = map(submit_chunk, chunks)
        pending = deque(itertools.islice(calls, buffersize))
        return _results(pending, calls, chunksize == 1, deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no further call; with `wait`, return when all calls and processes have ended.

        Without `wait`, the processes end after the last call.
        """
        self._scheduler.close(cancel_futures, wait)

    def _put_once(self, function: Callable[..., Any]) -> Any:
        """Pickle a function once for all of its calls, unless it is sent by name.

        If it does not pickle, the futures of the calls raise that.
        """
        try:
            is_large = codec.encode(function).nbytes > MAX_NAME_BYTES
            return self._put(function) if is_large else function
        except NotPicklable:
            return function

    def kill(self) -> None:
        """Kill every process: running calls raise ActorDied, others are cancelled."""
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

    def __reduce__(self) -> NoReturn:
        why = "is an Executor, and cannot be sent: make one where it is used"
        raise NotToBePickled(self, why)


# Of `remotely.options`; the others make no sense for processes that come and go.
_PROCESS_OPTIONS = (
    *("cpus", "gpus", "memory", "resources", "labels"),
    *("env", "python", "packages", "post_mortem", "machine", "near", "patience_s"),
)
_OPTIONS = ("max_workers", "initializer", "initargs", *_PROCESS_OPTIONS)


class _AsManyAsFit(Staffing):
    """As many processes as there are calls, up to a limit and to the room on the cluster.

    Only the master knows how much room there is.  So it is asked for processes until it refuses
    one, and then for one at a time until it grants one.  The first process waits for room, and the
    calls fail if there is none.  The others never join the queue of placement requests: they are
    placed immediately or not at all.
    """

    def __init__(self, most: int | None, options: Options, args: tuple[Any, ...]) -> None:
        self.engine = connection.current()
        self.is_immediate = not self.engine.cluster
        self._options = options
        self._args = args
        with contextlib.suppress(NotPicklable):  # the calls will raise it
            self._args = self.engine.put(args)  # later changes do not count
        self._has_room = False  # whether the last request was granted
        self.idle_s = PROCESS_IDLE_S
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
                count = min(START_AT_ONCE, int(min(jobs, self._most)) - members)
        started: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def start_one() -> None:
            try:
                started.put(make_on(self.engine, Runner, self._args, {}, options, 1)[0])
            except Exception as error:
                started.put(error)

        for _ in range(count):  # separately, since each is useful without the others
            try:
                threads.start("recruiter", start_one)
            except RuntimeError:  # Python 3.12 starts no thread after the script has ended
                start_one()
        errors = []
        for _ in range(count):
            if isinstance(one := started.get(), Exception):
                errors.append(one)
            else:
                yield one
            del one
        self._has_room = not errors
        if errors:  # the frames of what is raised keep members, so no frame keeps the error
            try:
                raise errors.pop()
            finally:
                errors.clear()

    def member_lost(self) -> None: ...

    def member_leaves(self) -> bool:
        return True


def cores(engine: Engine) -> int:
    """Return how many cores a cluster has; wait for a machine if it has just been started."""
    deadline = time.monotonic() + CONNECT_S
    while not (machines := engine.report(fresh=False).machines) and engine.cluster:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_EVERY_S)
    return int(sum(machine.cpus for machine in machines))


def _name_of(function: object) -> str:
    name = str(getattr(function, "__qualname__", type(function).__name__))
    return name[:MAX_CALL_NAME].encode(errors="replace").decode()


def _results(
    pending: "deque[Future[Any]]",
    more: Iterator[Future[Any]],
    is_single: bool,
    deadline: float | None,
) -> Iterator[Any]:
    """Yield the results of the calls, and keep none of them."""
    try:
        while pending:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            result = [pending[0].result(timeout)]
            pending.popleft()
            pending.extend(itertools.islice(more, 1))
            if is_single:
                yield result.pop()
            else:
                yield from result.pop().each()
    finally:
        give_up(pending)
