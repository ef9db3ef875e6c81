"""The user's own metrics: counters, gauges and histograms, kept in the process that counts.

Each combination of a name and labels is a series.  A call finds the slot of its series and adds to
a number there; that is all.  In an actor, the slots are a part of its activity page, which its
worker reads when a status is asked for (activity.py): so what a method counted is seen while it
holds the GIL, too.  In any other process they are memory of its own, which its client or its engine
reads for the status.

    bytes         content
    0-7           the number of series
    then          the heap: for each series, its length in two bytes, and its kind, name and labels
    then          a number for each series; of a histogram, the sum of its values
    then          for each histogram, BUCKETS numbers

A fork counts for itself alone, from zero: two processes that add to one number would lose counts.
"""

import logging
import mmap
import os
import re
import struct
import threading
from typing import Any

import msgspec

from remotely.protocol.measures import (
    BUCKETS,
    LABEL,
    METRIC,
    MOST_MEASURE,
    OURS,
    RESERVED,
    LabelName,
    MetricFigures,
    MetricKind,
    MetricName,
    bucket_of,
)
from remotely.protocol.numbers import MOST

log = logging.getLogger("remotely")

MOST_SERIES = 256  # of one process, as is the next
MOST_HISTOGRAMS = 40  # among them
_HEAP = slice(8, 8 + (1 << 15))
_NUMBERS = slice(_HEAP.stop, _HEAP.stop + 8 * MOST_SERIES)
_BUCKETS = slice(_NUMBERS.stop, _NUMBERS.stop + 8 * BUCKETS * MOST_HISTOGRAMS)
SIZE = _BUCKETS.stop
_LENGTH = struct.Struct("@H")
_NAME, _LABEL = re.compile(METRIC), re.compile(LABEL)
_text = msgspec.msgpack.Decoder(tuple[MetricKind, MetricName, dict[LabelName, str]])


def count(name: str, /, n: float = 1, **labels: object) -> None:
    """Add `n` to a counter of yours: `remotely.count("episodes")`.

    The metrics of all processes are in `remotely status --json`, in the dashboard, and in its
    `/metrics` for Prometheus.  A name is as Prometheus has it: letters, digits and underscores, not
    beginning with a digit.  Labels tell series apart: `count("steps", 100, env="Pong")`.

    This takes about 1 us.  A process keeps 256 combinations of a name and labels; a warning says
    when others are dropped, as happens if a label has a number that never comes again.

    Raises ValueError if `n` is negative or no number, and for a name that is not allowed or that
    belongs to a metric of another kind.
    """
    key = (name, *labels.items()) if labels else name
    try:
        number = _counters[key]
    except (KeyError, TypeError):
        number = _slot("counter", name, labels, key)
    if not 0 <= n <= MOST_MEASURE:
        raise ValueError(f"count({name!r}) takes a number that is not negative, not {n!r}")
    if number >= 0:
        with _lock:
            _numbers[number] += n


def gauge(name: str, /, value: float, **labels: object) -> None:
    """Set a gauge of yours, which goes up and down: `remotely.gauge("loss", loss)`.

    Names, labels and limits are as for `count`.
    """
    key = (name, *labels.items()) if labels else name
    try:
        number = _gauges[key]
    except (KeyError, TypeError):
        number = _slot("gauge", name, labels, key)
    if number >= 0:
        _numbers[number] = value


def histogram(name: str, /, value: float, **labels: object) -> None:
    """Add a value to a histogram of yours: `remotely.histogram("episode_length", steps)`.

    It shows how many values there were, their sum, and quantiles within 19 %.  The buckets are
    fixed, four for each doubling from 1e-6 to 1e9.  A process keeps 40 of them.  A value that is
    not finite is dropped, with a warning.  Names and labels are as for `count`.
    """
    key = (name, *labels.items()) if labels else name
    try:
        number = _histograms[key]
    except (KeyError, TypeError):
        number = _slot("histogram", name, labels, key)
    if not -MOST_MEASURE <= value <= MOST_MEASURE:
        _warn_once("not finite", f"{name} was given {value}: a histogram keeps finite numbers")
    elif number >= 0:
        with _lock:
            _numbers[number] += value
            _counts[_tables[number] + bucket_of(value)] += 1


# --- the slots of this process --------------------------------------------------------------------

Key = Any  # a name, or a tuple of it and of labels in the order of the call

_lock = threading.RLock()  # a signal handler or a destructor may count too
_memory = memoryview(b"")
_is_shared = False  # with the worker
_numbers: "memoryview[float]"
_counts: "memoryview[int]"
_counters: dict[Key, int] = {}  # the index of a series among the numbers
_gauges: dict[Key, int] = {}
_histograms: dict[Key, int] = {}
_tables: dict[int, int] = {}  # by that index, where the buckets of a histogram begin
_kinds: dict[str, MetricKind] = {}
_known: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
_by_kind: dict[MetricKind, dict[Key, int]] = {
    "counter": _counters,
    "gauge": _gauges,
    "histogram": _histograms,
}
_heap_end = 0
_said: set[str] = set()


def use(memory: memoryview | None) -> None:
    """Keep the series in this memory from now on; in memory of this process alone for None."""
    global _memory, _is_shared, _numbers, _counts
    with _lock:
        before = _memory
        _memory = memoryview(mmap.mmap(-1, SIZE)) if memory is None else memory
        if _known:  # else this would touch its pages
            _memory[:] = before
        _is_shared = memory is not None
        _numbers, _counts = _memory[_NUMBERS].cast("d"), _memory[_BUCKETS].cast("Q")


def reset() -> None:
    """Begin without any series, in memory of this process alone."""
    global _heap_end, _lock
    _lock = threading.RLock()
    for each in _by_kind.values():
        each.clear()
    _tables.clear()
    _kinds.clear()
    _known.clear()
    _said.clear()
    _heap_end = 0
    use(None)


def of_client() -> list[MetricFigures]:
    """Return the series of this process; none if they are those of an actor, whose worker reads
    them."""
    return [] if _is_shared else of_process()


def of_process() -> list[MetricFigures]:
    """Return the series of this process."""
    return read(_memory)


def read(memory: memoryview) -> list[MetricFigures]:
    """Return the series in memory that may hold any bytes, because its writer may be compromised.

    The writer may add one meanwhile.
    """
    (known,) = memory[:8].cast("Q")
    heap, numbers, counts = memory[_HEAP], memory[_NUMBERS].cast("d"), memory[_BUCKETS].cast("Q")
    found: list[MetricFigures] = []
    at = table = 0
    for series in range(min(known, MOST_SERIES)):
        try:
            (length,) = _LENGTH.unpack_from(heap, at)
            kind, name, labels = _text.decode(heap[at + 2 : at + 2 + length])
        except (struct.error, msgspec.DecodeError, UnicodeDecodeError):
            break
        at += 2 + length
        value, number, buckets = numbers[series], 0, {}
        if kind == "histogram":
            if table >= MOST_HISTOGRAMS:
                break
            its = counts[BUCKETS * table : BUCKETS * (table + 1)].tolist()
            buckets = {bucket: min(each, MOST) for bucket, each in enumerate(its) if each}
            number = min(sum(buckets.values()), MOST)
            table += 1
        is_finite = -MOST_MEASURE <= value <= MOST_MEASURE
        found.append(
            MetricFigures(kind, name, labels, value if is_finite else None, number, buckets)
        )
    return found


def _slot(kind: MetricKind, name: str, labels: dict[str, object], key: Key) -> int:
    """Return the index of the numbers of a series, which is new here; -1 if there is no room."""
    if not _NAME.match(name):
        raise ValueError(
            f"{name!r} is not the name of a metric: it has letters, digits and underscores, does "
            f"not begin with a digit, nor with {OURS!r}"
        )
    for label in labels:
        if not _LABEL.match(label):
            raise ValueError(
                f"{label!r} is not the name of a label: it has letters, digits and underscores, "
                f"does not begin with a digit or two underscores, and is none of "
                f"{', '.join(RESERVED)}"
            )
    texts = {label: str(value) for label, value in labels.items()}
    with _lock:
        if (other := _kinds.get(name, kind)) != kind:
            raise ValueError(f"{name} is a {other} already, so it cannot be a {kind}")
        same = name, frozenset(texts.items())
        if (number := _known.get(same, -1)) < 0:
            number = _known_from_now(kind, name, texts)
            if number < 0:
                return -1
            _known[same], _kinds[name] = number, kind
        if len(_by_kind[kind]) < 4 * MOST_SERIES:  # of each series, some orders of its labels
            try:
                _by_kind[kind][key] = number
            except TypeError:  # a value of a label is not hashable; its text is
                pass
    return number


def _known_from_now(kind: MetricKind, name: str, labels: dict[str, str]) -> int:
    """Add a series; a reader may look between any two of these lines."""
    global _heap_end
    text = msgspec.msgpack.encode((kind, name, labels))
    number, table = len(_known), len(_tables)
    begin, end = _HEAP.start + _heap_end, _HEAP.start + _heap_end + 2 + len(text)
    is_full = number >= MOST_SERIES or (kind == "histogram" and table >= MOST_HISTOGRAMS)
    if is_full or end > _HEAP.stop:
        _warn_once(
            "full",
            f"a metric is dropped: this process has {number} combinations of a name and labels, "
            f"and {table} histograms; it keeps {MOST_SERIES}, and {MOST_HISTOGRAMS}. The first one "
            f"that was dropped is {kind} {name} {labels}",
        )
        return -1
    _memory[begin:end] = _LENGTH.pack(len(text)) + text
    _heap_end += 2 + len(text)
    if kind == "histogram":
        _tables[number] = BUCKETS * table
    _memory[:8].cast("Q")[0] = number + 1
    return number


def _warn_once(what: str, sentence: str) -> None:
    if what not in _said:
        _said.add(what)
        log.warning("%s", sentence)


reset()
os.register_at_fork(after_in_child=reset)
