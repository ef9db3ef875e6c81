"""The user's own counters and histograms, summed over processes.  Pure.

Processes come and go, and a sum over those that live would go down, which Prometheus takes for a
restart.  So what each has counted since the last look is added to sums that only grow.  What a
process counts between the last look and its end is missing, and so are series beyond MOST_SUMS.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from remotely.reporting.cluster_status import ClusterStatus, MetricStatus

MOST_SUMS = 10_000  # series: a process that is compromised could report new ones at each look
Labels = tuple[tuple[str, str], ...]
Series = tuple[str, str, Labels]  # kind, name, labels


class Sum(NamedTuple):
    """A counter, or a histogram: then `value` is the sum of its values."""

    value: float
    buckets: Counter[float | None]  # by the greatest value that one may hold


class OwnSums(NamedTuple):
    """`seen` is what each process had counted at the last look."""

    sums: dict[Series, Sum]
    seen: dict[tuple[object, Series], MetricStatus]


def series_of(status: ClusterStatus) -> Iterator[tuple[object, Series, MetricStatus]]:
    """Yield each series with its process.  Those of actors have the label `class`."""
    for actor in status.actors:
        for each in actor.metrics:
            yield (actor.actor, actor.since), _series(each, actor.class_name), each
    for client in status.clients:
        for each in client.metrics:
            yield client.session, _series(each, ""), each


def _series(metric: MetricStatus, class_name: str) -> Series:
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    return metric.kind, name, (("class", class_name), *sorted(metric.labels.items()))


def add(before: OwnSums | None, status: ClusterStatus) -> OwnSums:
    """Return the sums with what was counted since."""
    before = before or OwnSums({}, {})
    sums = dict(before.sums)
    seen = {}
    for process, series, now in series_of(status):
        if now.kind == "gauge":
            continue
        if series not in sums and len(sums) >= MOST_SUMS:
            continue
        seen[process, series] = now
        last = before.seen.get((process, series))
        known = sums.get(series, Sum(0.0, Counter()))
        more = (now.value or 0.0) - ((last.value or 0.0) if last else 0.0)
        if now.kind == "counter":
            more = max(0.0, more)
        buckets = Counter(dict(now.buckets))
        if last:
            buckets -= Counter(dict(last.buckets))
        sums[series] = Sum(known.value + more, known.buckets + buckets)
    return OwnSums(sums, seen)


def gauges(status: ClusterStatus) -> dict[Series, float]:
    """Return each gauge: the mean over the processes that have set it with the same labels."""
    values: dict[Series, list[float]] = {}
    for _, series, each in series_of(status):
        if each.kind == "gauge":
            value = float("nan") if each.value is None else each.value
            values.setdefault(series, []).append(value)
    return {series: sum(each) / len(each) for series, each in values.items()}


def by_name(found: Iterable[Series]) -> dict[tuple[str, str], list[Labels]]:
    """Return the labels of each metric, by its kind and name."""
    names: dict[tuple[str, str], list[Labels]] = {}
    for kind, name, labels in sorted(found):
        names.setdefault((kind, name), []).append(labels)
    return names
