"""The user's own metrics, in the process that keeps them and on its activity page."""

import logging
import math
import os
from collections.abc import Iterator

import msgspec
import pytest

import remotely
from remotely.protocol.measures import BUCKETS, MetricFigures, bound_of, bucket_of, quantile
from remotely.transport import activity, own_metrics
from remotely.transport.own_metrics import MOST_HISTOGRAMS, MOST_SERIES, SIZE, of_process, read


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    own_metrics.reset()
    yield
    own_metrics.reset()


def test_a_counter_a_gauge_and_a_histogram_are_kept() -> None:
    remotely.count("episodes")
    remotely.count("episodes", 2)
    remotely.gauge("loss", 3.5)
    remotely.gauge("loss", -1.5)
    for value in (0.0, 0.5, 0.5, 1000.0):
        remotely.histogram("length", value)
    assert of_process() == [
        MetricFigures("counter", "episodes", {}, 3.0),
        MetricFigures("gauge", "loss", {}, -1.5),
        MetricFigures(
            "histogram",
            "length",
            {},
            1001.0,
            4,
            {0: 1, bucket_of(0.5): 2, bucket_of(1000.0): 1},
        ),
    ]


def test_labels_tell_series_apart_in_any_order_and_as_text() -> None:
    remotely.count("steps", env="Pong", seed=1)
    remotely.count("steps", seed=1, env="Pong")
    remotely.count("steps", seed="1", env="Pong")
    remotely.count("steps", env="Pong", seed=[1])  # not hashable
    remotely.count("steps", env="Pong", seed=[1])
    assert [(each.labels, each.value) for each in of_process()] == [
        ({"env": "Pong", "seed": "1"}, 3.0),
        ({"env": "Pong", "seed": "[1]"}, 2.0),
    ]


@pytest.mark.parametrize("name", ["", "2nd", "a-b", "a:b", "a\n", "é", "remotely_calls"])
def test_a_name_is_one_of_prometheus_and_not_ours(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a metric"):
        remotely.count(name)


@pytest.mark.parametrize("label", ["__name__", "class", "le", "a-b"])
def test_a_label_is_one_of_prometheus_and_not_ours(label: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a label"):
        remotely.gauge("loss", 1.0, **{label: "x"})


def test_a_name_has_one_kind() -> None:
    remotely.count("episodes")
    with pytest.raises(ValueError, match="episodes is a counter already"):
        remotely.gauge("episodes", 1.0)


@pytest.mark.parametrize("number", [-1, math.nan, math.inf])
def test_a_counter_only_grows(number: float) -> None:
    with pytest.raises(ValueError, match="not negative"):
        remotely.count("episodes", number)


def test_a_gauge_may_be_no_number_and_a_histogram_drops_what_is_not_finite(
    caplog: pytest.LogCaptureFixture,
) -> None:
    remotely.gauge("loss", math.nan)
    remotely.histogram("length", math.inf)
    remotely.histogram("length", math.nan)
    assert [(each.value, each.count) for each in of_process()] == [(None, 0), (0.0, 0)]
    assert len(caplog.records) == 1


def test_a_full_process_says_once_that_it_drops_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "remotely")
    for number in range(2 * MOST_SERIES):
        remotely.count("steps", number=number)
    for number in range(2 * MOST_SERIES):
        remotely.count("steps", number=number)
    found = of_process()
    assert len(found) == MOST_SERIES
    assert {each.value for each in found} == {2.0}
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "a metric is dropped"
    ]


def test_long_labels_and_many_histograms_are_dropped_too(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2 * MOST_HISTOGRAMS):
        remotely.histogram(f"h{number}", 1.0)
    remotely.count("steps", text="x" * SIZE)
    remotely.count("steps", text="y")
    assert len(of_process()) == MOST_HISTOGRAMS + 1
    assert len(caplog.records) == 1


def test_a_value_is_within_its_bucket() -> None:
    for value in (1e-9, 2.0**-20, 1e-6, 0.3, 1.0, 1.1, 2.0**30, 1e300):
        bucket = bucket_of(value)
        most = bound_of(bucket)
        assert (most is None and bucket == BUCKETS - 1) or (most is not None and value <= most)
        if 0 < bucket < BUCKETS - 1:
            assert (bound_of(bucket - 1) or 0.0) < value


def test_a_quantile_is_a_bound_below_which_that_share_is() -> None:
    buckets = {bucket_of(1.0): 98, bucket_of(8.0): 2}
    assert quantile(buckets, 0.5) == 1.0
    assert quantile(buckets, 0.99) == 8.0
    assert quantile({}, 0.5) == 0.0


def test_any_memory_can_be_read() -> None:
    assert read(memoryview(b"\xff" * SIZE)) == []
    remotely.count("a")
    remotely.count("b")
    with activity.new() as (_, page):
        activity.keep_own_metrics(page)
        assert [each.name for each in activity.own_metrics_of(page)] == ["a", "b"]
        at = page.find(b"counter", page.find(b"counter") + 1)
        page[at : at + 7] = b"nothing"
        assert [each.name for each in activity.own_metrics_of(page)] == ["a"]
        activity.keep_own_metrics(None)


def test_what_an_actor_has_is_not_reported_by_its_client_too() -> None:
    remotely.count("episodes")
    assert len(own_metrics.of_client()) == 1
    with activity.new() as (_, page):
        activity.keep_own_metrics(page)
        remotely.count("episodes")
        assert own_metrics.of_client() == []
        assert [each.value for each in activity.own_metrics_of(page)] == [2.0]
        activity.keep_own_metrics(None)
    assert [each.value for each in own_metrics.of_client()] == [2.0]


def test_a_fork_counts_from_zero() -> None:
    remotely.count("episodes")
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        remotely.count("episodes", 5)
        os.write(writing, f"{[each.value for each in of_process()]}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 100) == b"[5.0]"
    assert [each.value for each in of_process()] == [1.0]
    os.close(reading)
    os.close(writing)


def test_a_page_cannot_have_a_metric_of_ours() -> None:
    remotely.count("episodes_calls")
    with activity.new() as (_, page):
        activity.keep_own_metrics(page)
        at = page.find(b"episodes_calls")
        page[at : at + 9] = b"remotely_"
        assert activity.own_metrics_of(page) == []
        activity.keep_own_metrics(None)


@pytest.mark.parametrize("label", ["class", "le", "quantile", "__name__"])
def test_no_report_has_a_label_of_ours(label: str) -> None:
    report = msgspec.msgpack.encode(MetricFigures("counter", "steps", {label: "x"}, 1.0))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(report, type=MetricFigures)
