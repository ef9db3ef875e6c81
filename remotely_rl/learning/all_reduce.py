"""All-reduce between the learners of a run: averages over all of their batches.

Each learner (a rank) computes the gradient of its own batch.  `means` averages the gradients,
weighted by their numbers of rows: N learners with batches of b rows take the step of one learner
with a batch of N * b.  All other inputs of an update are averaged in the same way: the statistics
of the observations, the value scale, the mean and deviation of advantages, and the KL divergence
that steers the learning rate.  Every rank gets the same bits, because torch's all-reduce sums each
part on one rank and sends the sum to the others; `same_everywhere` checks that.

    means            weighted means of tensors: one all-reduce
    moments          count, mean and variance of numbers: one all-gather
    exchange         bytes from each rank to all
    same_everywhere  whether tensors are the same on every rank

Groups are objects, not the global group of torch.distributed, so several runs can train in threads
of one process.  Ranks rendezvous through a file in a folder that only the user can access, and
connect over loopback, because torch's sockets are not encrypted (SECURITY.md).

A call waits for the slowest rank, and meanwhile calls `look` every LOOK_S, which may raise to end
the wait.  A rank that dies closes its connections, so the others get RankGone immediately.
"""

import datetime as dt
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as _distributed
from torch import Tensor

from remotely_rl.errors import TrainingError

distributed: Any = _distributed  # mypy misses many of its documented classes

LOOK_S = 0.1
LOOPBACK = "127.0.0.1"
MEETING_S = 120.0  # timeout of the rendezvous; `look` raises if a rank has died before
SPIN_S = 0.002  # a wait for a GPU spins for this long, then sleeps for this long between checks
FILE = "rendezvous"
ROOM = 2048  # bytes that an exchange sends in its first gather

NEVER = dt.timedelta(days=365)  # timeout of waits for another rank; `look` ends them instead


class RankGone(Exception):
    """Another rank has closed its connection: it has ended, for whatever reason."""


class Moments(NamedTuple):
    """Count, mean and population variance of numbers."""

    rows: int
    mean: float
    variance: float


class AllReduce:
    """See the module's docstring.  All ranks make the same calls in the same order."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        device: torch.device,
        look: Callable[[], None] = lambda: None,
    ):
        """Wait for the other ranks, which use the same `folder`."""
        self.rank, self.size = rank, size
        self.look = look
        store = distributed.FileStore(str(folder / FILE), size)
        self._gloo = self._rendezvous(lambda: _gloo(store, rank, size))
        self._nccl: Any = None
        if device.type == "cuda":
            self._nccl = self._rendezvous(lambda: _nccl(store, rank, size))

    def means(self, rows: float, parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Average tensors [...], each a mean over this rank's `rows` rows, over all ranks.

        Returns the number of rows of all ranks, and the means.  With 0 rows the tensors may be NaN
        and do not count; if no rank has rows, the means are 0.
        """
        one = parts[0].new_ones(1)
        flat = torch.cat([*(part.detach().reshape(-1) for part in parts), one])
        flat = flat.mul_(rows) if rows else torch.zeros_like(flat)
        if self._nccl is not None and flat.is_cuda:
            self._wait(self._nccl.allreduce([flat]), over=_over_on_gpu)
        else:
            self._wait(self._gloo.allreduce([flat]))
        total = flat[-1]
        averaged = torch.split(flat[:-1] / total.clamp(min=1), [part.numel() for part in parts])
        return total, [mean.view(part.shape) for mean, part in zip(averaged, parts, strict=True)]

    def moments(self, numbers: Tensor) -> Moments:
        """Return the moments of the numbers of all ranks (Chan et al.'s parallel algorithm)."""
        flat = numbers.detach().double().flatten()
        count = flat.numel()
        own = [count, float(flat.mean()), float(flat.var(correction=0))] if count else [0.0] * 3
        gathered = self._gather(torch.tensor(own, dtype=torch.float64))
        assert gathered is not None
        return pooled([Moments(int(n), mean, variance) for n, mean, variance in gathered.tolist()])

    def exchange(
        self, content: bytes, gives_up: Callable[[], bool] = lambda: False
    ) -> list[bytes] | None:
        """Return the contents of all ranks in order, or None if `gives_up` returns true first.

        A rank that gives up must not use this group again.
        """
        head = len(content).to_bytes(8, "big") + content[:ROOM]
        heads = self._gather(_row_of(head, 8 + ROOM), gives_up)
        if heads is None:
            return None
        sizes = [int.from_bytes(bytes(row[:8].tolist()), "big") for row in heads]
        if max(sizes) <= ROOM:  # the usual case, without a second gather
            return [
                row[8 : 8 + size].numpy().tobytes() for row, size in zip(heads, sizes, strict=True)
            ]
        gathered = self._gather(_row_of(content, max(sizes)))
        assert gathered is not None
        return [row[:size].numpy().tobytes() for row, size in zip(gathered, sizes, strict=True)]

    def same_everywhere(self, parts: Sequence[Tensor]) -> bool:
        """Return whether tensors have the same bits on every rank."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            flat = part.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        return len(set(self.exchange(digest.digest()) or ())) == 1

    def close(self) -> None:
        """Leave the group: ranks that wait for this one get RankGone."""
        for group in (self._nccl, self._gloo):
            if group is not None:
                group.abort()

    def _gather(self, own: Tensor, gives_up: Callable[[], bool] = lambda: False) -> Tensor | None:
        """Gather CPU vectors [n] of all ranks to [ranks, n]; None if `gives_up` returns true."""
        parts = [torch.empty_like(own) for _ in range(self.size)]
        if not self._wait(self._gloo.allgather([parts], [own]), gives_up):
            return None
        return torch.stack(parts)

    def _wait(
        self,
        work: Any,
        gives_up: Callable[[], bool] = lambda: False,
        over: Callable[[Any], bool] | None = None,
    ) -> bool:
        """Wait for work.  Returns False if `gives_up` returns true first."""
        try:
            while not (over or _over)(work):
                self.look()
                if gives_up():
                    return False
        except RuntimeError as error:
            raise RankGone(str(error)) from error
        return True

    def _rendezvous(self, make: Callable[[], Any]) -> Any:
        """Call `make` in a thread, because it blocks until all ranks call it; return its result."""
        result: list[Any] = []

        def run() -> None:
            try:
                result.append(make())
            except Exception as error:  # raised below, in the caller's thread
                result.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_S)
            self.look()
        if isinstance(result[0], Exception):
            raise RankGone(f"the learners could not connect: {result[0]}") from result[0]
        return result[0]


def pooled(parts: Sequence[Moments]) -> Moments:
    """Combine the moments of parts to those of all numbers; all 0 if there are none."""
    rows = sum(part.rows for part in parts)
    if not rows:
        return Moments(0, 0.0, 0.0)
    mean = math.fsum(part.rows * part.mean for part in parts) / rows
    spread = math.fsum(part.rows * (part.variance + (part.mean - mean) ** 2) for part in parts)
    return Moments(rows, mean, spread / rows)


def _row_of(content: bytes, length: int) -> Tensor:
    """Return bytes as a tensor, padded with zeros to `length`."""
    return torch.frombuffer(bytearray(content.ljust(length, b"\0")), dtype=torch.uint8)


def check_available(device: torch.device) -> None:
    """Raise TrainingError if this torch cannot connect learners on such a device."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    there = distributed.is_available() and distributed.is_gloo_available()
    if there and backend == "nccl":
        there = distributed.is_nccl_available()
    if not there:
        wheel = "a wheel for CUDA" if backend == "nccl" else "a wheel for Linux"
        raise TrainingError(
            f"several learners on {device.type} need torch.distributed with {backend}, which this"
            f" torch ({torch.__version__}) was built without: install {wheel} with the command from"
            " pytorch.org/get-started, usually pip install --force-reinstall torch"
        )


def _gloo(store: Any, rank: int, size: int) -> Any:
    kind: Any = distributed.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(hostname=LOOPBACK)]
    options._timeout = dt.timedelta(seconds=MEETING_S)
    group = kind(distributed.PrefixStore("gloo", store), rank, size, options)
    group._set_default_timeout(NEVER)
    return group


def _nccl(store: Any, rank: int, size: int) -> Any:
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    kind: Any = distributed.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = NEVER
    return kind(distributed.PrefixStore("nccl", store), rank, size, options)


def _over(work: Any) -> bool:
    """Wait up to LOOK_S for work on the CPU; return whether it is done.

    Raises RuntimeError if it failed.
    """
    try:
        work.wait(dt.timedelta(seconds=LOOK_S))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it has completed just now, or this raises its error
    return True


def _over_on_gpu(work: Any) -> bool:
    """The same for a GPU, where `wait` does not block, and reading the result would hang."""
    began = time.monotonic()
    while not work.is_completed():
        waited_s = time.monotonic() - began
        if waited_s > LOOK_S:
            return False
        if waited_s > SPIN_S:
            time.sleep(SPIN_S)
    work.wait()
    return True
