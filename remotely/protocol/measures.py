"""The names and histograms of measures, for the process that keeps them and those that show them.
Pure.

A histogram has four buckets for each doubling, so a quantile is known within 19 %.  Bucket 0 holds
all values up to LEAST, the last one those above GREATEST.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from remotely.protocol.numbers import Amount

A_DOUBLING = 4
LEAST, GREATEST = 2.0**-20, 2.0**30
BUCKETS = 2 + A_DOUBLING * 50
_OFFSET = A_DOUBLING * 20

NO_METHOD = "("  # begins what is measured beside methods, such as "(an item of a stream)"

MetricKind = Literal["counter", "gauge", "histogram"]
# As Prometheus has them; a name with a colon is for its recording rules.
NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
OURS = "remotely_"  # at the beginning of the names of our own metrics
RESERVED = ("class", "le", "quantile")  # labels of ours, and of Prometheus
# What a process reports is held to the same as what its code may name: else one that is compromised
# could report a metric of ours, or a label twice.
METRIC = rf"^(?!{OURS}){NAME}\Z"
LABEL = rf"^(?!__|(?:{'|'.join(RESERVED)})\Z){NAME}\Z"
MetricName = Annotated[str, msgspec.Meta(pattern=METRIC)]
LabelName = Annotated[str, msgspec.Meta(pattern=LABEL)]
MOST_MEASURE = 1e300
Measure = Annotated[float, msgspec.Meta(ge=-MOST_MEASURE, le=MOST_MEASURE)]
BucketNumber = Annotated[int, msgspec.Meta(ge=0, le=BUCKETS - 1)]


class MetricFigures(msgspec.Struct, frozen=True, array_like=True):
    """A metric of the user's with one set of labels (transport/own_metrics.py)."""

    kind: MetricKind
    name: MetricName
    labels: dict[LabelName, str]
    value: Measure | None  # the sum of a histogram; None for what is no finite number
    count: Amount = 0  # of a histogram, as are the next
    buckets: dict[BucketNumber, Amount] = {}  # those that are not empty


def bucket_of(value: float) -> int:
    """Return the number of the bucket of a finite value."""
    if value <= LEAST:
        return 0
    if value > GREATEST:
        return BUCKETS - 1
    return math.ceil(A_DOUBLING * math.log2(value)) + _OFFSET


def bound_of(bucket: int) -> float | None:
    """Return the greatest value that is in a bucket; None for the last, which has no bound."""
    if bucket >= BUCKETS - 1:
        return None
    return math.exp2((bucket - _OFFSET) / A_DOUBLING)


def quantile(buckets: Mapping[int, int], share: float) -> float:
    """Return the bound of the bucket below which this share of the values are; 0 without any."""
    left = share * sum(buckets.values())
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            return bound_of(bucket) or GREATEST
    return 0.0
