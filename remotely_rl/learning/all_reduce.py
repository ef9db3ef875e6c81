"""What several learners of one run compute together: averages over all of their batches.

Each learner (a rank) computes the gradient of its own batch.  `means` averages the gradients,
weighted by the rows that each is the mean of: N learners with batches of b rows take the step of
one learner with a batch of N * b.  Whatever else parameters depend on is averaged in the same way:
the statistics of the input, the units of values, the mean and deviation of advantages, and the KL
divergence that steers the learning rate.  Every rank gets the same bits, because torch's all-reduce
sums each part on one rank and sends the sum to the others; `same_everywhere` checks that.

    means            weighted means of tensors: one all-reduce
    moments          how many numbers there are, their mean and their variance: one all-gather
    exchange         bytes from each rank to all
    same_everywhere  whether a text is the same on every rank

Groups are objects here, not the one global group of torch.distributed: several runs can train in
threads of one process.  Ranks meet by a file in a folder of the user's alone, and connect over
loopback, because torch's sockets are not encrypted (SECURITY.md).

A call waits for the slowest rank, and looks around every LOOK_S meanwhile: `look` raises what ends
the wait.  A rank that dies closes its connections, so the others get RankGone at once.
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

distributed: Any = _distributed  # many of its classes are documented, and not exported for mypy

LOOK_S = 0.1
LOOPBACK = "127.0.0.1"
MEETING_S = 120.0  # until all ranks are there; one that died before is told of by `look`
SPIN_S = 0.002  # before a wait for a GPU sleeps between two looks
FILE = "rendezvous"
ROOM = 2048  # bytes that an exchange sends at once

NEVER = dt.timedelta(days=365)  # how long a rank may wait for another: `look` decides that


class RankGone(Exception):
    """Another rank has closed its connection: it has ended, whatever the reason."""


class Moments(NamedTuple):
    """Of numbers: how many there are, their mean, and their variance (of the population)."""

    rows: int
    mean: float
    variance: float


class AllReduce:
    """See the module's docstring.  All ranks make the same calls in the same order."""

    def __init__(
        self, folder: Path, rank: int, size: int, device: torch.device,
        look: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        """Meets the other ranks.  `folder` is the same for all of them."""
        self.rank, self.size = rank, size
        self.look = look
        store = distributed.FileStore(str(folder / FILE), size)
        self._gloo = self._met(lambda: _gloo(store, rank, size))
        self._nccl: Any = None
        if device.type == "cuda":
            self._nccl = self._met(lambda: _nccl(store, rank, size))

    def means(self, rows: float, parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Weighted means over the ranks of tensors [...] that are means of `rows` rows each.

        Returns the number of rows of all ranks, and the means.  Of 0 rows the tensors may be NaN,
        and do not count; the means of no rows at all are 0.
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
        """The moments of the numbers of all ranks together (Chan et al.'s parallel algorithm)."""
        own = numbers.detach().double().flatten()
        count = own.numel()
        of_own = [count, float(own.mean()), float(own.var(correction=0))] if count else [0.0] * 3
        gathered = self._gather(torch.tensor(of_own, dtype=torch.float64))
        assert gathered is not None
        return pooled([Moments(int(n), mean, variance) for n, mean, variance in gathered.tolist()])

    def exchange(
        self, content: bytes, gives_up: Callable[[], bool] = lambda: False
    ) -> list[bytes] | None:
        """The contents of all ranks, in their order; None if this one gives up before.

        A rank that gives up has left: it must not call this group again.
        """
        head = len(content).to_bytes(8, "big") + content[:ROOM]
        heads = self._gather(_row_of(head, 8 + ROOM), gives_up)
        if heads is None:
            return None
        sizes = [int.from_bytes(bytes(row[:8].tolist()), "big") for row in heads]
        if max(sizes) <= ROOM:  # as a rule: a second gather would take as long again
            return [
                row[8 : 8 + size].numpy().tobytes() for row, size in zip(heads, sizes, strict=True)
            ]
        gathered = self._gather(_row_of(content, max(sizes)))
        assert gathered is not None
        return [row[:size].numpy().tobytes() for row, size in zip(gathered, sizes, strict=True)]

    def same_everywhere(self, parts: Sequence[Tensor]) -> bool:
        """Whether tensors have the same bits on every rank."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            flat = part.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        return len(set(self.exchange(digest.digest()) or ())) == 1

    def close(self) -> None:
        """Leaves the group: ranks that still wait for this one get RankGone."""
        for group in (self._nccl, self._gloo):
            if group is not None:
                group.abort()

    def _gather(self, own: Tensor, gives_up: Callable[[], bool] = lambda: False) -> Tensor | None:
        """Vectors [n] of all ranks, [ranks, n]; on the CPU.  None if it gives up."""
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
        """Whether work is over, and not given up."""
        try:
            while not (over or _over)(work):
                self.look()
                if gives_up():
                    return False
        except RuntimeError as error:
            raise RankGone(str(error)) from error
        return True

    def _met(self, make: Callable[[], Any]) -> Any:
        """What `make` returns, which waits for the other ranks, and does not look meanwhile."""
        made: list[Any] = []

        def meet() -> None:
            try:
                made.append(make())
            except Exception as error:  # to be raised where others wait for it
                made.append(error)

        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_S)
            self.look()
        if isinstance(made[0], Exception):
            raise RankGone(f"the learners have not met: {made[0]}") from made[0]
        return made[0]


def pooled(parts: Sequence[Moments]) -> Moments:
    """The moments of all numbers, from those of each part; all 0 if there are none."""
    rows = sum(part.rows for part in parts)
    if not rows:
        return Moments(0, 0.0, 0.0)
    mean = math.fsum(part.rows * part.mean for part in parts) / rows
    spread = math.fsum(part.rows * (part.variance + (part.mean - mean) ** 2) for part in parts)
    return Moments(rows, mean, spread / rows)


def _row_of(content: bytes, length: int) -> Tensor:
    """Bytes, and zeros up to this length."""
    return torch.frombuffer(bytearray(content.ljust(length, b"\0")), dtype=torch.uint8)


def check_available(device: torch.device) -> None:
    """Raises TrainingError if this torch cannot connect learners on such a device."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    there = distributed.is_available() and distributed.is_gloo_available()
    if there and backend == "nccl":
        there = distributed.is_nccl_available()
    if not there:
        wheel = "a wheel for CUDA" if backend == "nccl" else "a wheel for Linux"
        raise TrainingError(
            f"several learners on {device.type} need torch.distributed with {backend}, which this"
            f" torch ({torch.__version__}) was built without: install {wheel} by PyTorch's own"
            " command (pytorch.org/get-started), pip install --force-reinstall torch as a rule"
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
    """Whether work on the CPU is over, after LOOK_S at most.  Raises RuntimeError if it failed."""
    try:
        work.wait(dt.timedelta(seconds=LOOK_S))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it came to its end just then, or raises what it failed of
    return True


def _over_on_gpu(work: Any) -> bool:
    """The same for a GPU, where `wait` returns at once, and what reads the result would hang."""
    began = time.monotonic()
    while not work.is_completed():
        waited_s = time.monotonic() - began
        if waited_s > LOOK_S:
            return False
        if waited_s > SPIN_S:
            time.sleep(SPIN_S)
    work.wait()
    return True
