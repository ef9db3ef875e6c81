"""The parameter store: shared memory in which several learners step the same parameters.

Stooke and Abbeel 2018, https://arxiv.org/abs/1803.02811, section 4: the parameters and their
optimizer's moments are shared.  A learner computes a gradient at its own copy.  Then, chunk by
chunk, it reads the current values, steps them by its gradient, writes the result back and keeps it
as its copy.  So no gradient is lost, however stale it is.

The vector is cut into a few chunks with a lock each, so that learners seldom wait for each other.
A push tries its remaining chunks in turn, LOCK_S each.  An unlocked chunk is always the complete
result of one learner:

    shared memory   COUNTERS | chunk 0: which | chunk 1: which | ... | two slots for each chunk

`which` is the slot that holds the chunk.  A push of one chunk:

    1  lock it, or try the next one if another learner holds the lock
    2  read the slot `which`, including the steps of others
    3  step it by this learner's gradient, in private memory
    4  write the result to the other slot
    5  flip `which`, one aligned word: from here on the step counts
    6  unlock it

A learner that is killed at 1 to 4 has changed nothing, and at 5 or 6 the complete chunk; the kernel
releases its lock.

    Layout           offsets and lengths in the memory
    Store            the shared memory and its locks
    StoreOptimizer   a torch optimizer whose step is a push
    Statistics       shared running statistics of observations and values
    Sharing          a learner's view of all shared state
    Accumulated      several local steps that are pushed together (APPO)
"""

import bisect
import contextlib
import itertools
import mmap
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely.machine import byte_lock, memory_file
from remotely_rl import networks

CHUNKS = 3
LANES = 16  # float32 in the widest vector register
LOCK_S = 1e-3  # for which one chunk is tried, before the next
PAUSE_S = 1e-4  # between two tries
_WORD = 8  # bytes of a counter, and the alignment of slots


class StoreLayout(NamedTuple):
    """The layout of a store's memory: offsets in bytes, lengths in numbers.

    A chunk of n parameters takes (1 + moments) * n numbers: the parameters, then each moment.
    """

    ends: tuple[int, ...]  # of each chunk, in the vector of all parameters
    moments: int  # per parameter: 1 for RMSProp, 2 for Adam
    counters: int

    @classmethod
    def of(
        cls, sizes: Sequence[int], moments: int, counters: int = 0, chunks: int = CHUNKS
    ) -> "StoreLayout":
        """Cut parameters of these sizes into chunks of floor(P / chunks) + 1, or slightly fewer.

        Within a parameter, cuts are at multiples of LANES: torch computes the remainder of a tensor
        with scalar instructions, which round differently.
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
        """The slice of each chunk in the vector of all parameters."""
        return [slice(*pair) for pair in itertools.pairwise((0, *self.ends))]

    def length(self, chunk: int) -> int:
        """Return how many numbers a chunk holds."""
        part = self.slices[chunk]
        parameters: int = part.stop - part.start
        return parameters * (1 + self.moments)

    def offset(self, chunk: int, slot: int) -> int:
        """Return the offset of one of the two slots of a chunk."""
        before = sum(2 * self._room(other) for other in range(chunk))
        within = self._room(chunk) if slot else 0
        return (self.counters + self.chunks) * _WORD + before + within

    @property
    def nbytes(self) -> int:
        return self.offset(self.chunks, 0)

    def _room(self, chunk: int) -> int:
        return -(-self.length(chunk) * 4 // _WORD) * _WORD


class Address(NamedTuple):
    """The address of a store for other processes of this machine."""

    pid: int
    fd: int
    name: str
    layout: StoreLayout


class ParameterStore:
    """Shared memory with locks; see the module's docstring.  Each learner opens its own.

    Locks belong to an open file, so every `ParameterStore` opens the file itself, also in threads
    of one process.  `counters` are integers for the users of the store; each has one writer.
    """

    counters: NDArray[np.int64]

    def __init__(self, layout: StoreLayout, address: Address | None = None):
        """Create the memory, all zeros; or open that of another process at `address`."""
        self.layout = layout
        name = address.name if address else f"remotely-store-{secrets.token_hex(16)}"
        if address is None:
            created = memory_file.create(name, max(layout.nbytes, mmap.PAGESIZE))
            address = Address(os.getpid(), created, name, layout)
            self._created: int | None = created
        else:
            self._created = None
        self.address = address
        fd = memory_file.open_of(address.pid, address.fd, name)
        if fd is None:
            raise FileNotFoundError(f"process {address.pid} no longer has the store")
        self._fd = fd
        self._map = mmap.mmap(fd, max(layout.nbytes, mmap.PAGESIZE))
        self.counters = np.frombuffer(self._map, np.int64, layout.counters)
        self._which = np.frombuffer(
            self._map, np.int64, layout.chunks, offset=layout.counters * _WORD
        )
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self._slots = [
            [self._rows(whole, chunk, layout.offset(chunk, slot)) for slot in range(2)]
            for chunk in range(layout.chunks)
        ]

    def _rows(self, whole: Tensor, chunk: int, offset: int) -> Tensor:
        """Return a slot of a chunk as a view [1 + moments, n] of the memory."""
        length = self.layout.length(chunk)
        numbers = whole[offset : offset + 4 * length].view(torch.float32)
        rows = 1 + self.layout.moments
        return numbers.view(rows, length // rows)

    @classmethod
    def opened(cls, address: Address) -> "ParameterStore":
        """Open the store of another process."""
        return cls(address.layout, address)

    def value(self, chunk: int) -> Tensor:
        """Return a locked chunk [1 + moments, n], as a view of the memory."""
        return self._slots[chunk][int(self._which[chunk])]

    def write(self, chunk: int, rows: Sequence[Tensor] | Tensor) -> None:
        """Overwrite a locked chunk, atomically even if this process is killed."""
        other = 1 - int(self._which[chunk])
        for slot, row in zip(self._slots[chunk][other], rows, strict=True):
            slot.copy_(row)  # 4: no process reads this slot
        self._which[chunk] = other  # 5

    def try_lock(self, chunk: int, exclusive: bool = True) -> bool:
        """Lock a chunk, exclusively or shared with readers; return False if it is locked."""
        return byte_lock.try_lock(self._fd, chunk, exclusive=exclusive)

    def unlock(self, chunk: int) -> None:
        byte_lock.unlock(self._fd, chunk)

    def each(self, exclusive: bool = True) -> Generator[int]:
        """Yield every chunk once, locked, in the order in which locks become free."""
        for chunk in in_turn(range(self.layout.chunks), lambda one: self.try_lock(one, exclusive)):
            try:
                yield chunk
            finally:
                self.unlock(chunk)

    def read(self) -> Tensor:
        """Return a copy of everything, [1 + moments, P]; each chunk is consistent."""
        parts: dict[int, Tensor] = {}
        for chunk in self.each(exclusive=False):
            parts[chunk] = self.value(chunk).clone()
        return torch.cat([parts[chunk] for chunk in range(self.layout.chunks)], 1)

    def write_all(self, value: Tensor) -> None:
        """Overwrite everything, [1 + moments, P]."""
        for chunk in self.each():
            self.write(chunk, value[:, self.layout.slices[chunk]])

    def close(self) -> None:
        """Close the memory's descriptors; other processes keep theirs."""
        os.close(self._fd)
        if self._created is not None:
            os.close(self._created)


def in_turn(
    chunks: Sequence[int],
    try_lock: Callable[[int], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yield each chunk once, when it is locked; try them in turn for LOCK_S each."""
    pending = list(chunks)
    while pending:
        for chunk in list(pending):
            deadline = clock() + LOCK_S
            while not (locked := try_lock(chunk)) and clock() < deadline:
                sleep(PAUSE_S)
            if locked:
                pending.remove(chunk)
                yield chunk


# --- optimizers -----------------------------------------------------------------------------------

MakeOptimizer = Callable[[Sequence[Tensor]], torch.optim.Optimizer]

# The names of the moments of torch's optimizers, in the order of the store.
MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.RMSprop: ("square_avg",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
}


class StoreOptimizer:
    """Steps parameters in a store, with the interface of a torch optimizer.

    It applies a torch optimizer chunk by chunk, so a single learner takes the same steps as without
    a store, bit for bit.  The parameters stay separate tensors, because matrix products of views
    into one vector round differently.  Each learner has its own count of Adam's steps.

    With `every` = k > 1, for Adam only, it takes k steps on its own copy and then adds them to the
    store together (`Accumulated`).
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        store: ParameterStore,
        make: MakeOptimizer,
        every: int = 1,
    ):
        self.store = store
        self._parameters = list(parameters)
        self._make, self._every = make, every
        self._rules: list[torch.optim.Optimizer] = []
        self._own: list[Accumulated] = []
        flat = torch.cat([part.detach().reshape(-1) for part in self._parameters])
        # This learner's copy of the store: parameters, then each moment.
        self._copy = torch.zeros(1 + store.layout.moments, len(flat), device=flat.device)
        self._gradient = torch.zeros_like(flat)
        for part in store.layout.slices:
            pieces = list(self._pieces(part)) or [part]  # a chunk may be empty
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
        """Return the state dict of a torch optimizer of the parameters themselves."""
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
        """Restore the count of steps; the moments are those of the store."""
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
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Push the gradient to the store; with `every` = k, push k local steps together."""
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
        """Copy the store, and add the local steps that are not pushed yet."""
        for chunk in self.store.each(exclusive=False):
            self._read(chunk)
            if self._own:
                self._of(chunk)[0] += self._own[chunk].step
        self._load()

    def _of(self, chunk: int) -> Tensor:
        """Return this learner's copy of a chunk, [1 + moments, n]."""
        return self._copy[:, self.store.layout.slices[chunk]]

    def _pieces(self, part: slice) -> Iterator[slice]:
        """Cut a slice of the vector where parameters begin."""
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
        """Yield each parameter with its part of a vector."""
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
            current = self.store.value(chunk).to(self._copy.device)
            merged = self._own[chunk].merged(*current)
            self.store.write(chunk, merged)
            self._read(chunk)
            self._own[chunk] = self._own[chunk].cleared()


class Accumulated:
    """Local Adam steps of one learner, to be added to the shared parameters.

    After k of them the shared parameters move by the sum of the steps, and the shared moments are
    updated as by k gradients in a row.  So a single learner takes the steps of plain Adam, whatever
    k is.
    """

    def __init__(self, beta1: float, beta2: float):
        self._betas = beta1, beta2
        self.steps = 0
        self.step: Any = 0.0  # the sum of the steps
        self._gradient: Any = 0.0  # discounted sum, with the moment's decay
        self._square: Any = 0.0  # the same of the squares

    def add(self, step: Tensor, gradient: Tensor) -> None:
        """Add a step and the gradient that it was taken with."""
        beta1, beta2 = self._betas
        self.steps += 1
        self.step = self.step + step
        self._gradient = beta1 * self._gradient + gradient
        self._square = beta2 * self._square + gradient.square()

    def merged(self, parameters: Tensor, mean: Tensor, square: Tensor) -> list[Tensor]:
        """Return the new shared parameters and moments."""
        beta1, beta2 = self._betas
        return [
            parameters + self.step,
            beta1**self.steps * mean + (1 - beta1) * self._gradient,
            beta2**self.steps * square + (1 - beta2) * self._square,
        ]

    def cleared(self) -> "Accumulated":
        """Return an accumulator without steps."""
        return Accumulated(*self._betas)


# --- learners -------------------------------------------------------------------------------------


class Statistics:
    """Running statistics that all learners share: of observations, and the value scale.

    A learner that adds a batch loads the shared statistics, adds to them and writes them back.
    """

    def __init__(self, store: ParameterStore):
        self._store = store

    @staticmethod
    def of(learner: Any) -> Tensor:
        """Return those of a learner, as one vector."""
        tensors = map(torch.from_numpy, networks.statistics_of(learner.model).values())
        moments = torch.tensor(learner.value_scale.moments, dtype=torch.float64)
        return torch.cat([*(part.flatten() for part in tensors), moments.view(torch.float32)])

    @contextlib.contextmanager
    def shared_by(self, learner: Any) -> Iterator[None]:
        """Return a context in which a learner updates the shared statistics, under their lock."""
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
        scale = learner.value_scale  # of the same kind: all learners have one config
        scale.mean, scale.variance, scale.count = moments


class SharedAddress(NamedTuple):
    """The addresses of the stores that learners share, for other processes."""

    parameters: Address
    statistics: Address


class Sharing:
    """The stores that learners share: parameters with their moments, and statistics.

    `steps` counts the environment steps of each learner since the stores were created.
    """

    def __init__(self, parameters: ParameterStore, statistics: ParameterStore):
        self._parameters, self._statistics = parameters, statistics
        self.address = SharedAddress(parameters.address, statistics.address)
        self.steps = parameters.counters

    @classmethod
    def begun(cls, learner: Any, size: int) -> "Sharing":
        """Create the stores, with the parameters, moments and statistics of a learner."""
        parameters = list(learner.model.parameters())
        kind = type(learner.optimizer)
        rows = [torch.cat([part.detach().reshape(-1) for part in parameters])]
        state = learner.optimizer.state
        for name in MOMENTS[kind]:
            moment = [state.get(one, {}).get(name, torch.zeros_like(one)) for one in parameters]
            rows.append(torch.cat([part.detach().reshape(-1) for part in moment]))
        sizes = [part.numel() for part in parameters]
        store = ParameterStore(StoreLayout.of(sizes, len(MOMENTS[kind]), counters=size))
        store.write_all(torch.stack(rows).cpu())
        counted = Statistics.of(learner)
        statistics = ParameterStore(StoreLayout.of([len(counted)], 0, chunks=1))
        statistics.write_all(counted[None])
        return cls(store, statistics)

    @classmethod
    def opened(cls, address: SharedAddress) -> "Sharing":
        """Open the stores of another process."""
        return cls(
            ParameterStore.opened(address.parameters), ParameterStore.opened(address.statistics)
        )

    def join(self, learner: Any) -> None:
        """Make a learner's steps pushes to the store, from here on."""
        plain = learner.optimizer.state_dict()
        parameters = list(learner.model.parameters())
        every: int = getattr(learner.config, "steps_per_push", 1)
        learner.optimizer = StoreOptimizer(
            parameters, self._parameters, learner.make_optimizer, every
        )
        learner.optimizer.load_state_dict(plain)
        learner.statistics = Statistics(self._statistics)

    def close(self) -> None:
        self._parameters.close()
        self._statistics.close()
