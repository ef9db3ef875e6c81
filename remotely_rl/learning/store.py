"""Parameters that several learners step in turn, in memory that they share.

Stooke and Abbeel 2018, https://arxiv.org/abs/1803.02811, section 4: parameters and the moments of
their optimizer lie in one place.  A learner computes a gradient at its own copy; then, part by
part, it reads what is there, steps it by its gradient, and writes the result over it.  What it has
written is its copy from then on.  So no gradient is lost, however stale it is.

The vector is cut into a few chunks, each under a lock of its own, so that learners seldom wait for
each other.  A push tries the chunks that it has not stepped yet in turn, LOCK_S each.  A chunk that
is under nobody's lock holds what one learner has written, whole:

    shared memory   COUNTERS | chunk 0: which | chunk 1: which | ... | two places for each chunk

`which` says in which of its two places a chunk is.  A push of one chunk:

    1  lock it, or try the next one if another learner has it
    2  read the place that `which` names: what others have stepped meanwhile
    3  step it by this learner's gradient, in memory of its own
    4  write the result to the other place
    5  change `which`, one aligned word: from here on the step counts
    6  unlock it

A learner that is killed at 1 to 4 has changed nothing, and at 5 or 6 all of the chunk; the kernel
frees its lock.

    Layout           where everything lies
    Store            shared memory, its locks, and what is done under them
    StoreOptimizer   an optimizer of torch whose step is a push
    Statistics       of the input and of values, counted by all learners
    Sharing          all that learners share, as one of them has it
    Accumulated      several local steps, told to the store at once (APPO)
"""

import bisect
import contextlib
import itertools
import mmap
import os
import secrets
import struct
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely.machine import memory_file
from remotely_rl import networks

CHUNKS = 3
LANES = 16  # float32 in the widest vector register
LOCK_S = 1e-3  # for one chunk, before the next one is tried
PAUSE_S = 1e-4  # between two tries of one
_LOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, pid
_WORD = 8  # bytes of a counter, and of what places begin at multiples of


class Layout(NamedTuple):
    """Where things lie in the memory of a store: offsets in bytes, lengths in numbers.

    A chunk of n parameters takes (1 + moments) * n numbers: the parameters, then each moment.
    """

    ends: tuple[int, ...]  # of each chunk, in the vector of all parameters
    moments: int  # of the optimizer, for each parameter: 1 of RMSProp, 2 of Adam
    counters: int

    @classmethod
    def of(
        cls, sizes: Sequence[int], moments: int, counters: int = 0, chunks: int = CHUNKS
    ) -> "Layout":
        """Cuts parameters of these sizes into chunks of floor(P / chunks) + 1, or a few less.

        Within a parameter, a cut is at a multiple of LANES: torch computes those with vector
        instructions, and what is left at the end of a tensor with others, that round otherwise.
        """
        begins = list(itertools.accumulate(sizes, initial=0))
        total = begins[-1]
        each = total // chunks + 1
        ends = []
        for chunk in range(1, chunks):
            end = min(each * chunk, total)
            begin = begins[bisect.bisect_right(begins, end) - 1]
            ends.append(begin + (end - begin) // LANES * LANES)
        return cls((*ends, total), moments, counters)

    @property
    def chunks(self) -> int:
        return len(self.ends)

    @property
    def slices(self) -> list[slice]:
        """Of the vector of all parameters, the part of each chunk."""
        return [slice(*pair) for pair in itertools.pairwise((0, *self.ends))]

    def length(self, chunk: int) -> int:
        """How many numbers a chunk holds."""
        part = self.slices[chunk]
        parameters: int = part.stop - part.start
        return parameters * (1 + self.moments)

    def place(self, chunk: int, which: int) -> int:
        """The offset of one of the two places of a chunk."""
        before = sum(2 * self._room(other) for other in range(chunk))
        within = self._room(chunk) if which else 0
        return (self.counters + self.chunks) * _WORD + before + within

    @property
    def nbytes(self) -> int:
        return self.place(self.chunks, 0)

    def _room(self, chunk: int) -> int:
        return -(-self.length(chunk) * 4 // _WORD) * _WORD


class Address(NamedTuple):
    """Where another process of this machine finds a store."""

    pid: int
    fd: int
    name: str
    layout: Layout


class Store:
    """Shared memory; see the module's docstring.  Each learner opens it for itself.

    Locks belong to an open file, so every `Store` has one of its own, threads of a process
    included.  `counters` are whole numbers for their users, each of which has one writer.
    """

    counters: NDArray[np.int64]

    def __init__(self, layout: Layout, address: Address | None = None):
        """New memory, all zeros; or that of another process, if it is still there."""
        self.layout = layout
        name = address.name if address else f"remotely-store-{secrets.token_hex(16)}"
        if address is None:
            made = memory_file.create(name, max(layout.nbytes, mmap.PAGESIZE))
            address = Address(os.getpid(), made, name, layout)
            self._made: int | None = made
        else:
            self._made = None
        self.address = address
        fd = memory_file.open_of(address.pid, address.fd, name)
        if fd is None:
            raise FileNotFoundError(f"process {address.pid} has no store any more")
        self._fd = fd
        self._map = mmap.mmap(fd, max(layout.nbytes, mmap.PAGESIZE))
        self.counters = np.frombuffer(self._map, np.int64, layout.counters)
        self._which = np.frombuffer(
            self._map, np.int64, layout.chunks, offset=layout.counters * _WORD
        )
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self._places = [
            [self._rows(whole, chunk, layout.place(chunk, which)) for which in range(2)]
            for chunk in range(layout.chunks)
        ]

    def _rows(self, whole: Tensor, chunk: int, at: int) -> Tensor:
        """A place of a chunk in the memory [1 + moments, n]."""
        length = self.layout.length(chunk)
        numbers = whole[at : at + 4 * length].view(torch.float32)
        rows = 1 + self.layout.moments
        return numbers.view(rows, length // rows)

    @classmethod
    def opened(cls, address: Address) -> "Store":
        """The store of another process."""
        return cls(address.layout, address)

    def value(self, chunk: int) -> Tensor:
        """What a chunk holds [1 + moments, n]: the memory itself, to be locked before."""
        return self._places[chunk][int(self._which[chunk])]

    def write(self, chunk: int, rows: Sequence[Tensor] | Tensor) -> None:
        """Overwrites a chunk, to be locked before: whole or, if it is killed, not at all."""
        other = 1 - int(self._which[chunk])
        for place, row in zip(self._places[chunk][other], rows, strict=True):
            place.copy_(row)  # 4: nobody reads this place
        self._which[chunk] = other  # 5

    def try_lock(self, chunk: int, alone: bool = True) -> bool:
        """Locks a chunk, for itself or beside other readers, unless another has it."""
        try:
            self._set_lock("F_WRLCK" if alone else "F_RDLCK", chunk)
        except BlockingIOError:
            return False
        return True

    def unlock(self, chunk: int) -> None:
        self._set_lock("F_UNLCK", chunk)

    def each(self, alone: bool = True) -> Generator[int]:
        """Yields every chunk once, locked, in the order in which they are free."""
        for chunk in in_turn(range(self.layout.chunks), lambda one: self.try_lock(one, alone)):
            try:
                yield chunk
            finally:
                self.unlock(chunk)

    def read(self) -> Tensor:
        """A copy of everything [1 + moments, P]; each chunk is whole."""
        parts: dict[int, Tensor] = {}
        for chunk in self.each(alone=False):
            parts[chunk] = self.value(chunk).clone()
        return torch.cat([parts[chunk] for chunk in range(self.layout.chunks)], 1)

    def write_all(self, value: Tensor) -> None:
        """Overwrites everything [1 + moments, P]."""
        for chunk in self.each():
            self.write(chunk, value[:, self.layout.slices[chunk]])

    def close(self) -> None:
        """Lets go of the memory's descriptors; others may still have it."""
        os.close(self._fd)
        if self._made is not None:
            os.close(self._made)

    def _set_lock(self, kind: str, chunk: int) -> None:
        import fcntl  # noqa: PLC0415 - Windows has none

        # Of an open file (F_OFD_...), not of a process: the kernel frees it with the file.
        lock = _LOCK.pack(getattr(fcntl, kind), os.SEEK_SET, chunk, 1, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)


def in_turn(
    chunks: Sequence[int],
    try_lock: Callable[[int], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yields each chunk once it could be locked; tries each for LOCK_S, as long as it takes."""
    pending = list(chunks)
    while pending:
        for chunk in list(pending):
            until = clock() + LOCK_S
            while not (locked := try_lock(chunk)) and clock() < until:
                sleep(PAUSE_S)
            if locked:
                pending.remove(chunk)
                yield chunk


# --- the rules ------------------------------------------------------------------------------------

MakeOptimizer = Callable[[Sequence[Tensor]], torch.optim.Optimizer]

# What an optimizer of torch calls its moments, in the order in which they lie in a store.
MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.RMSprop: ("square_avg",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
}


class StoreOptimizer:
    """Steps parameters in a store; to a learner it is an optimizer of torch.

    The rule is that of torch's optimizer, chunk by chunk, so one learner alone takes the same steps
    as without a store, bit by bit.  The parameters stay tensors of their own, because matrix
    products of views into one vector have other last bits.  How many steps Adam has taken is each
    learner's own count.

    With `every` = k > 1 it is Adam's alone, and k steps in a row are steps of its own copy, which
    it then adds to the store (`Accumulated`).
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], store: Store, make: MakeOptimizer, every: int = 1
    ):  # fmt: skip
        self.store = store
        self._parameters = list(parameters)
        self._make, self._every = make, every
        self._rules: list[torch.optim.Optimizer] = []
        self._own: list[Accumulated] = []
        flat = torch.cat([part.detach().reshape(-1) for part in self._parameters])
        # What this learner has of the store: parameters, and each moment.
        self._copy = torch.zeros(1 + store.layout.moments, len(flat), device=flat.device)
        self._gradient = torch.zeros_like(flat)
        for part in store.layout.slices:
            pieces = list(self._pieces(part)) or [part]  # empty, of few parameters
            values = [self._copy[0, piece] for piece in pieces]
            rule = make(values)
            for value, piece in zip(values, pieces, strict=True):
                value.grad = self._gradient[piece]
                moments = dict(zip(MOMENTS[type(rule)], self._copy[1:, piece], strict=True))
                rule.state[value] = {"step": torch.zeros((), device=flat.device), **moments}
            self._rules.append(rule)
            if every > 1:
                self._own.append(Accumulated(*rule.param_groups[0]["betas"]))
        self.pull()

    def state_dict(self) -> dict[str, Any]:
        """The state as that of torch's optimizer on the parameters themselves."""
        self.pull()
        plain = self._make(self._parameters)
        for group in plain.param_groups:
            group["lr"] = self.param_groups[0]["lr"]
        moments = [list(self._parts(row)) for row in self._copy[1:]]
        for number, parameter in enumerate(self._parameters):
            named = zip(MOMENTS[type(plain)], moments, strict=True)
            state = {name: parts[number][0].clone() for name, parts in named}
            plain.state[parameter] = {"step": self._first["step"].clone(), **state}
        return plain.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with this count of steps; the moments are those of the store."""
        steps = next((one["step"] for one in state["state"].values()), 0)
        for rule in self._rules:
            for of_value in rule.state.values():
                of_value["step"].fill_(float(steps))
        self.pull()

    @property
    def _first(self) -> dict[str, Any]:
        found: dict[str, Any] = next(iter(self._rules[-1].state.values()))
        return found

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for rule in self._rules for group in rule.param_groups]

    def zero_grad(self) -> None:
        """Clears the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Steps every chunk of the store by the gradient, and reads it; or every k-th time."""
        for part, parameter in self._parts(self._gradient):
            part.zero_() if parameter.grad is None else part.copy_(parameter.grad)
        if self._own:
            self._step_own()
        else:
            for chunk in self.store.each():
                self._read(chunk)
                self._rules[chunk].step()
                self.store.write(chunk, self._of(chunk))
        self._load()

    @torch.no_grad()
    def pull(self) -> None:
        """Takes over what is in the store; own steps that are not in it yet are on top."""
        for chunk in self.store.each(alone=False):
            self._read(chunk)
            if self._own:
                self._of(chunk)[0] += self._own[chunk].step
        self._load()

    def _of(self, chunk: int) -> Tensor:
        """This learner's copy of a chunk [1 + moments, n]."""
        return self._copy[:, self.store.layout.slices[chunk]]

    def _pieces(self, part: slice) -> Iterator[slice]:
        """A part of the vector, cut where parameters begin."""
        begin = 0
        for parameter in self._parameters:
            end = begin + parameter.numel()
            piece = slice(max(begin, part.start), min(end, part.stop))
            if piece.start < piece.stop:
                yield piece
            begin = end

    def _load(self) -> None:
        for part, parameter in self._parts(self._copy[0]):
            parameter.copy_(part)

    def _parts(self, vector: Tensor) -> Iterator[tuple[Tensor, nn.Parameter]]:
        """Each parameter, and where it is in a vector."""
        begin = 0
        for parameter in self._parameters:
            end = begin + parameter.numel()
            yield vector[begin:end].view(parameter.shape), parameter
            begin = end

    def _read(self, chunk: int) -> None:
        self._of(chunk).copy_(self.store.value(chunk))

    def _step_own(self) -> None:
        before = self._copy[0].clone()
        for rule in self._rules:
            rule.step()
        steps = self._copy[0] - before
        for own, part in zip(self._own, self.store.layout.slices, strict=True):
            own.add(steps[part], self._gradient[part])
        if self._own[0].steps < self._every:
            return
        for chunk in self.store.each():
            there = self.store.value(chunk).to(self._copy.device)
            merged = self._own[chunk].merged(*there)
            self.store.write(chunk, merged)
            self._read(chunk)
            self._own[chunk] = self._own[chunk].cleared()


class Accumulated:
    """Steps of Adam that one learner has taken by itself, to be added to those of others.

    After k of them the shared parameters move by the sum of the steps, and the shared moments
    become what k gradients in a row would have made of them.  One learner alone thereby takes
    the steps of plain Adam, whatever k is.
    """

    def __init__(self, beta1: float, beta2: float):
        self._betas = beta1, beta2
        self.steps = 0
        self.step: Any = 0.0  # the sum of the steps
        self._gradient: Any = 0.0  # faded as the moments fade, and its square
        self._square: Any = 0.0

    def add(self, step: Tensor, gradient: Tensor) -> None:
        """Counts a step that was taken by a gradient."""
        beta1, beta2 = self._betas
        self.steps += 1
        self.step = self.step + step
        self._gradient = beta1 * self._gradient + gradient
        self._square = beta2 * self._square + gradient.square()

    def merged(self, parameters: Tensor, mean: Tensor, square: Tensor) -> list[Tensor]:
        """What shared parameters and moments become."""
        beta1, beta2 = self._betas
        return [
            parameters + self.step,
            beta1**self.steps * mean + (1 - beta1) * self._gradient,
            beta2**self.steps * square + (1 - beta2) * self._square,
        ]

    def cleared(self) -> "Accumulated":
        """One without any steps."""
        return Accumulated(*self._betas)


# --- a learner ------------------------------------------------------------------------------------


class Statistics:
    """What all learners count together: the statistics of the input, and the units of values.

    One who counts takes what is there, counts its own batch in, and writes the result.
    """

    def __init__(self, store: Store):
        self._store = store

    @staticmethod
    def of(learner: Any) -> Tensor:
        """Those of a learner, in one row."""
        tensors = map(torch.from_numpy, networks.statistics_of(learner.model).values())
        moments = torch.tensor(learner.value_scale.moments, dtype=torch.float64)
        return torch.cat([*(part.flatten() for part in tensors), moments.view(torch.float32)])

    @contextlib.contextmanager
    def shared_by(self, learner: Any) -> Iterator[None]:
        """Within it a learner has what all have counted, and what it counts is theirs."""
        with contextlib.closing(self._store.each()) as chunks:
            next(chunks)
            self._load(learner, self._store.value(0)[0].clone())
            yield
            self._store.write(0, [self.of(learner)])

    def _load(self, learner: Any, row: Tensor) -> None:
        statistics, begin = networks.statistics_of(learner.model), 0
        for name, array in statistics.items():
            end = begin + array.size
            statistics[name] = row[begin:end].view(array.shape).numpy()
            begin = end
        networks.load_statistics(learner.model, statistics)
        moments = row[begin:].clone().view(torch.float64).tolist()
        learner.value_scale = type(learner.value_scale)(*moments)


class SharedAddress(NamedTuple):
    """Where another process finds what learners share."""

    parameters: Address
    statistics: Address


class Sharing:
    """What learners share: parameters with their moments, and statistics.

    `steps` are those of each learner's environments, since the stores were made.
    """

    def __init__(self, parameters: Store, statistics: Store):
        self._parameters, self._statistics = parameters, statistics
        self.address = SharedAddress(parameters.address, statistics.address)
        self.steps = parameters.counters

    @classmethod
    def begun(cls, learner: Any, size: int) -> "Sharing":
        """New stores, with what a learner has: its parameters, its optimizer's moments."""
        parameters = list(learner.model.parameters())
        kind = type(learner.optimizer)
        rows = [torch.cat([part.detach().reshape(-1) for part in parameters])]
        state = learner.optimizer.state
        for name in MOMENTS[kind]:
            moment = [state.get(one, {}).get(name, torch.zeros_like(one)) for one in parameters]
            rows.append(torch.cat([part.detach().reshape(-1) for part in moment]))
        sizes = [part.numel() for part in parameters]
        store = Store(Layout.of(sizes, len(MOMENTS[kind]), counters=size))
        store.write_all(torch.stack(rows).cpu())
        counted = Statistics.of(learner)
        statistics = Store(Layout.of([len(counted)], 0, chunks=1))
        statistics.write_all(counted[None])
        return cls(store, statistics)

    @classmethod
    def opened(cls, address: SharedAddress) -> "Sharing":
        """The stores of another process."""
        return cls(Store.opened(address.parameters), Store.opened(address.statistics))

    def join(self, learner: Any) -> None:
        """From here on a learner's steps are pushes."""
        plain = learner.optimizer.state_dict()
        parameters = list(learner.model.parameters())
        every: int = getattr(learner.config, "steps_per_push", 1)
        learner.optimizer = StoreOptimizer(
            parameters, self._parameters, learner.make_optimizer, every
        )
        learner.optimizer.load_state_dict(plain)
        learner.statistics = Statistics(self._statistics)

    def close(self) -> None:
        """Lets go of both."""
        self._parameters.close()
        self._statistics.close()
