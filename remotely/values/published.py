"""Published values: the newest version of a value, which any process reads without a call.

    params = remotely.Published(model.state_dict())    # version 1
    actors = remotely.group(Actor, 8, params)
    params.set(model.state_dict())                     # version 2

    value, version = self.params.latest()              # in an actor

The memory, its slots and who may do what when is in versions.py; how it travels, in
shared_memory.py, and to other machines, following.py.  This file is what the user sees: values in,
views or copies out, and waiting.

Arrays and tensors are laid out in the shared memory, each aligned, and the rest of the value is
pickled beside them (codec.py).  A reader unpickles that, with views of the memory.  It keeps the
value that it has read last, so that to read it again is one look at a word.
"""

import time
import weakref
from collections.abc import Callable, MutableMapping, MutableSequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

from remotely.errors import NotShared, PublisherGone, RemotelyError
from remotely.machine import this_machine, threads
from remotely.machine.shield import RLock
from remotely.protocol.resources import format_bytes
from remotely.values import borrowing, codec, versions
from remotely.values.picklers import tensors_to_host
from remotely.values.shared_memory import MemoryAddress, SharedMemory
from remotely.values.versions import MappedVersions, Version, Versions

T = TypeVar("T")
M = TypeVar("M")


class _Pair(NamedTuple, Generic[T]):
    value: T
    version: int


class Latest(_Pair[T]):
    """What `Published.latest` returns: `value, version = params.latest()`.

    value         read-only views of the shared memory, or a copy
    version       its number, from 1
    layout        counts the structures that were published: it differs from that of the version
                  before if keys, shapes or dtypes do, or what is neither array nor tensor
    is_final      true if the process that publishes is gone, so that there will be no newer one
    """

    layout: int
    is_final: bool


class Published(Generic[T]):
    """The newest version of a value, in shared memory.  One process writes, any number read.

    Pass it in calls, constructors and results.  The process that has created it publishes new
    versions with `set`; the others read them with `latest`.  Nobody waits: the writer takes memory
    that no reader holds, and a reader always finds the last version that is complete, also after
    the writer has been killed.  A reader holds the version that it has read last, unless it was
    copied, and each whose arrays it still has.

    On another machine, the newest version is fetched when a reader has looked at the one before,
    once for all actors there; with `eager`, as soon as there is one.

    Raises NotPicklable for a value that cannot be pickled, and MemoryError for one larger than the
    memory of this machine.  If the sender was killed before it arrived, or its machine cannot be
    reached, the receiver raises NotShared.
    """

    def __init__(self, value: T, *, eager: bool = False) -> None:
        encoded = _encoded(value)
        memory = versions.new_memory()
        self._eager = eager
        self._hold(memory, versions.new_versions(memory), memory.token, None)
        self._versions.write(encoded)

    def _hold(self, memory: SharedMemory, held: Versions, token: str, origin: bytes | None) -> None:
        """Use this memory.  `token` names what is published, on all machines."""
        self._memory = memory
        self._versions = held
        self._token, self._origin = token, origin
        self._read: tuple[Version, T] | None = None
        self._reading = RLock()
        _held[token] = self

    def set(self, value: T) -> int:
        """Publish a new version, and return its number.  The value is copied once.

        Tensors of a GPU are published as tensors of the CPU, which `latest(into=model)` copies to
        wherever the model is.

        Raises RemotelyError in any other process than the one that created it.
        """
        self._check_writer()
        return self._versions.write(_encoded(value))

    @overload
    def latest(self, *, copy: bool = False, into: None = None) -> "Latest[T]": ...
    @overload
    def latest(self, *, into: M) -> "Latest[M]": ...

    def latest(self, *, copy: bool = False, into: Any = None) -> "Latest[Any]":
        """Return the newest version.  It takes no call, and waits for nobody.

        Its arrays are read-only views, and its tensors share the memory too: do not write to them.
        The same version is the same objects.  With `copy` the value is private and writable.

        `into` is a module, or a value of the same structure: arrays and tensors are copied into it,
        in place, and it is returned as the value.
        """
        if into is not None:
            version = self._versions.read()
            _copy_into(into, codec.decode(*version.unpacked()), "the value")
            return self._latest(version, into)
        if copy:
            version = self._versions.read()
            return self._latest(version, codec.decode(*version.unpacked(_copied(version))))
        read = self._read
        if read is None or read[0].number != self._versions.number:
            with self._reading:
                version = self._versions.read()
                read = self._read = version, codec.decode(*version.unpacked())
        return self._latest(*read)

    def _latest(self, version: Version, value: M) -> "Latest[M]":
        latest = Latest(value, version.number)
        latest.layout, latest.is_final = version.layout, not self._versions.has_writer()
        return latest

    def release(self) -> None:
        """Let go of the version that was read last; arrays that are kept hold it still."""
        self._read = None

    def wait(self, newer_than: int, timeout: float | None = None) -> bool:
        """Wait for a version above `newer_than`; return False if none came in `timeout` seconds.

        Raises PublisherGone if there will be none, because the process that publishes is gone.
        """
        return self._wait(newer_than, timeout, [])

    async def wait_async(self, newer_than: int, timeout: float | None = None) -> bool:
        """`wait`, for a coroutine: others run on its event loop meanwhile."""
        import asyncio  # noqa: PLC0415 - slow to import, and async code has imported it

        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        cancelled: list[bool] = []

        def tell(is_newer: bool, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(is_newer) if error is None else done.set_exception(error)

        def wait() -> None:
            outcome: tuple[bool, BaseException | None]
            try:
                outcome = self._wait(newer_than, timeout, cancelled), None
            except Exception as error:
                outcome = False, error
            if not cancelled:
                loop.call_soon_threadsafe(tell, *outcome)

        if self.version > newer_than:
            return True
        threads.start("published", wait)
        try:
            return await done
        finally:
            cancelled.append(True)

    def _wait(self, newer_than: int, timeout: float | None, cancelled: list[bool]) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while not cancelled:
            is_over = not self._versions.has_writer()
            if self.version > newer_than:  # read after the writer's end was: it may be its last
                return True
            if is_over:
                raise PublisherGone(
                    f"there is no version above {newer_than}, and will be none: the process that "
                    f"published is gone. Its last version, {self.version}, can still be read"
                )
            left_s = versions.SLICE_S if until is None else until - time.monotonic()
            if left_s <= 0:
                return False
            self._versions.sleep(newer_than, left_s)
        return False

    @property
    def version(self) -> int:
        """The number of the newest version, without reading it."""
        return self._versions.number

    @property
    def held_bytes(self) -> int:
        """The memory of all versions on this machine: the newest, those held, and a spare one."""
        return self._versions.held_bytes

    def _check_writer(self) -> None:
        if not self._versions.is_writer():
            raise RemotelyError(
                "only the process that created a Published can set it; here it is only read. "
                "Return the value to that process, or create a Published here and pass it on"
            )

    def __repr__(self) -> str:
        held = format_bytes(self.held_bytes)
        return f"<remotely.Published version {self.version}, {held} held>"

    def __reduce__(self) -> tuple[Any, ...]:
        address, origin = self._memory.address(), self._origin
        if self._versions.is_writer():
            origin = serve(self._memory, self._eager)
        return _receive, (address, self._token, origin)


def _receive(address: MemoryAddress, token: str, origin: bytes | None) -> Published[Any]:
    """Unpickle: open the memory, unless this process holds it already, or follow its writer."""
    if (published := _held.get(token)) is None:
        if address.is_here():
            memory = versions.open_memory(address)
        elif origin is not None and follow is not None:
            memory = follow(origin)
        else:
            raise NotShared(
                f"this Published is memory of {address.machine}, and arrived in a process of "
                f"{this_machine.machine_name()}, which cannot follow it: that takes a cluster of "
                "`remotely start`. Send its values in calls, or place the actor there (`near=`)"
            )
        published = Published.__new__(Published)
        published._hold(memory, MappedVersions(memory, writes=False), token, origin)
    if published._memory.token == address.token:
        published._memory.acknowledge(address)
    return published


# Return where other machines follow versions in this memory, opaque here; and memory of this
# machine that follows such an origin.  Set by whoever connects to a cluster (following.py).
serve: Callable[[SharedMemory, bool], bytes | None] = lambda memory, eager: None
follow: Callable[[bytes], SharedMemory] | None = None

_held: weakref.WeakValueDictionary[str, Published[Any]] = weakref.WeakValueDictionary()  # by token


# --- values ---------------------------------------------------------------------------------------


def _encoded(value: object) -> codec.Encoded:
    """Pickle a value, with all its arrays and tensors out of band; those of a GPU as the CPU's."""
    with tensors_to_host():
        return codec.encode(value, "the published value", small_bytes=1)


def _copied(version: Version) -> memoryview:
    memory = borrowing.new_memory(version.nbytes)
    memory[:] = version.region[: version.nbytes]
    return memory


def _copy_into(target: Any, value: Any, where: str) -> None:
    """Copy arrays and tensors into those at the same place of `target`, in place."""
    if hasattr(target, "load_state_dict"):
        try:
            target.load_state_dict(value)
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
            kind = type(target).__name__
            raise ValueError(f"into=: {where} is no state of this {kind}: {error}") from error
    elif hasattr(target, "shape") and hasattr(value, "shape"):
        if tuple(target.shape) != tuple(value.shape):
            raise ValueError(
                f"into=: {where} has the shape {tuple(value.shape)}, and the one to write to has "
                f"{tuple(target.shape)}"
            )
        if hasattr(target, "copy_"):
            target.detach().copy_(value)
        else:
            target[...] = value
    elif isinstance(target, MutableMapping):
        if target.keys() != value.keys():
            differ = sorted(map(repr, set(target) ^ set(value)))
            raise ValueError(f"into=: {where} has other keys: {', '.join(differ)}")
        for key, part in value.items():
            if _is_leaf(part):
                target[key] = part
            else:
                _copy_into(target[key], part, f"{where}[{key!r}]")
    elif isinstance(target, MutableSequence | tuple):
        if len(target) != len(value):
            raise ValueError(
                f"into=: {where} has {len(value)} items, and what to write to has {len(target)}"
            )
        for i, part in enumerate(value):
            if not _is_leaf(part):
                _copy_into(target[i], part, f"{where}[{i}]")
            elif isinstance(target, MutableSequence):
                target[i] = part
    else:
        raise TypeError(f"into=: {where} is a {type(target).__name__}, which has no arrays")


def _is_leaf(value: object) -> bool:
    """Tell whether a part is neither array, tensor nor container: it is assigned, not copied."""
    return not (hasattr(value, "shape") or isinstance(value, MutableMapping | list | tuple))
