"""The cluster as a joblib backend, which importing this module registers; see `register_joblib`.

joblib submits batches of calls, with callbacks for their futures.  Large arrays that are arguments
of many calls, such as X and y of a grid search, are put once for all of them.  The user may change
an array between two batches, so each batch compares it with what was put.  This takes 0.2 ms per
MB, less than a copy.  An array that only one batch uses is freed with that batch; one that several
have used is kept until the end of the run, since more may come.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import joblib
import numpy as np
from joblib._parallel_backends import AutoBatchingMixin, ParallelBackendBase

from remotely.api import connection
from remotely.api.verbs import put
from remotely.futures.reference import Put
from remotely.machine.shield import RLock
from remotely.objects.marks import idempotent, marks_of
from remotely.pools.executor import Executor, cores
from remotely.values import codec

PUT_FROM_BYTES = 1 << 16


class JoblibBatch:
    """One of joblib's batches; it may be retried as often as all of its functions may."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        retries = min((marks_of(function).retries for function, _, _ in calls.items), default=0)
        if retries:
            idempotent(retries=retries)(self)

    def __call__(self, *arrays: Any) -> Any:
        """Run the calls; `arrays` are those that the `_Placeholder`s stand for."""
        _replace(
            self._calls, lambda value: arrays[value.n] if type(value) is _Placeholder else value
        )
        return self._calls()


class _Placeholder:
    """Stands in a batch for the n-th of the arrays that are passed with it."""

    def __init__(self, n: int) -> None:
        self.n = n


class _Once:
    """A callback that is dropped once it was called.

    It refers to the future, and the future to it.  This cycle would keep the backend and its
    processes alive until the garbage collector runs.
    """

    def __init__(self, callback: Callable[[Future[Any]], object]) -> None:
        self._callback: Callable[[Future[Any]], object] | None = callback

    def __call__(self, future: Future[Any]) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(future)


class _PutArray:
    """An array that was put; `batches` is the number of batches that use it and are not done."""

    def __init__(self, value: "np.ndarray[Any, Any]") -> None:
        self.value = value  # so that no other array gets its id
        self.ref = put(value)
        self.batches = 0
        self.is_shared = False

    def is_of(self, value: "np.ndarray[Any, Any]") -> bool:
        """Tell whether this is the array, as it is now."""
        return not isinstance(self.ref, Put) or _are_equal(codec.encode(value), self.ref.value)


class RemotelyBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc] # no types
    """Keeps its processes between `Parallel` runs, for as long as it lives."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, **options: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._options = options
        self._executor: Executor | None = None
        self._made_for: tuple[int, dict[str, Any]] = 0, {}
        self._puts: dict[int, _PutArray] = {}  # by the id of the array
        self._lock = RLock()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many calls run at a time; -1 is all cores of the cluster, -2 all but one."""
        if n_jobs == 0:
            raise ValueError(  # joblib's words
                "n_jobs == 0 in Parallel has no meaning: use 1 or more, or -1 for all cores of the "
                "cluster"
            )
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        return max(1, cores(connection.current()) + 1 + (n_jobs or -1))

    def configure(self, n_jobs: int = 1, parallel: Any = None, **of_run: Any) -> int:
        """Prepare for a `Parallel` run; its own options win over those of `parallel_config`."""
        n_jobs = self.effective_n_jobs(n_jobs)
        options = {k: v for k, v in of_run.items() if k not in _OF_MEMMAPPING}
        options = {**self._options, **options}
        wanted = n_jobs, options
        if self._executor is None or self._made_for != wanted:
            self._executor = Executor(n_jobs, **options)
            self._made_for = wanted
        self.parallel = parallel
        return n_jobs

    def submit(
        self, func: Any, callback: Callable[[Future[Any]], object] | None = None
    ) -> Future[Any]:
        assert self._executor is not None
        placeholders: dict[int, _Placeholder] = {}  # by the id of the array
        arrays: list[_PutArray] = []

        def put_array(value: Any) -> Any:
            if not isinstance(value, np.ndarray) or value.nbytes < PUT_FROM_BYTES:
                return value
            if id(value) not in placeholders:
                placeholders[id(value)] = _Placeholder(len(arrays))
                arrays.append(self._put(value))
            return placeholders[id(value)]

        _replace(func, put_array)
        future = self._executor.submit(JoblibBatch(func), *(array.ref for array in arrays))
        if callback is not None:
            future.add_done_callback(_Once(callback))
        if arrays:  # after the callback, which submits the next batch: it may use them too
            future.add_done_callback(_Once(lambda _: self._release(arrays)))
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def terminate(self) -> None:
        """End a `Parallel` run."""
        self._puts.clear()  # the next run may pass changed arrays
        self.parallel = None  # it refers to this backend, and so to its processes
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End running calls, and cancel waiting ones, because a call has failed."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.kill()
        if ensure_ready:
            n_jobs, options = self._made_for
            self.configure(n_jobs, self.parallel, **options)

    def _put(self, value: "np.ndarray[Any, Any]") -> _PutArray:
        """Put an array for another batch, unless it was put before and is still the same."""
        with self._lock:
            array = self._puts.get(id(value))
            if array is None or not array.is_of(value):
                array = self._puts[id(value)] = _PutArray(value)
            else:
                array.is_shared = True
            array.batches += 1
        return array

    def _release(self, arrays: list[_PutArray]) -> None:
        """Forget the arrays of a batch that is done, unless other batches use them."""
        with self._lock:
            for array in arrays:
                array.batches -= 1
                is_current = self._puts.get(id(array.value)) is array
                if is_current and not array.batches and not array.is_shared:
                    del self._puts[id(array.value)]
        arrays.clear()


# What `Parallel` passes to every backend, for memory maps of its own.
_OF_MEMMAPPING = frozenset(
    ("max_nbytes", "temp_folder", "mmap_mode", "prefer", "require", "verbose", "context")
)


def _replace(batch: Any, replace: Callable[[Any], Any]) -> None:
    """Replace arguments in the calls of one of joblib's batches."""
    batch.items = [
        (
            function,
            tuple(map(replace, args)),
            {name: replace(value) for name, value in kwargs.items()},
        )
        for function, args, kwargs in batch.items
    ]


def _are_equal(one: codec.Encoded, other: codec.Encoded) -> bool:
    parts = (one.payload, *one.buffers), (other.payload, *other.buffers)
    return [*map(len, parts[0])] == [*map(len, parts[1])] and all(map(_is_same, *parts))


def _is_same(one: Any, other: Any) -> bool:
    """Compare bytes, in words of eight, which is ten times as fast."""
    words = len(one) // 8
    return bytes(one[words * 8 :]) == bytes(other[words * 8 :]) and np.array_equal(
        np.frombuffer(one, np.uint64, words), np.frombuffer(other, np.uint64, words)
    )


joblib.register_parallel_backend("remotely", RemotelyBackend)
