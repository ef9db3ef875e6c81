"""Futures as arguments on Ray, where their values go directly from actor to actor."""

import gc
import os
from collections.abc import Callable
from concurrent.futures import CancelledError

import numpy as np
import pytest

import remotely
from tests.clusters import wait_until
from tests.remotely.engines.ray.gate import Gate

pytestmark = pytest.mark.usefixtures("on_ray")


@remotely.remote_class(cpus=0)
class Source:
    def number(self) -> int:
        return 7

    def large(self) -> np.ndarray:
        return np.ones(2_000_000)

    def fail(self) -> None:
        raise ValueError("no number today")

    def itself(self) -> "Source":
        return self

    def die(self) -> None:
        os._exit(3)


@remotely.remote_class(cpus=0)
class Sink:
    def take(self, value: object) -> object:
        return value

    def wait_at(self, gate: Gate) -> None:
        gate.wait()


SINKS = {"serial": Sink, "threaded": remotely.options(Sink, concurrency=2)}
both = pytest.mark.parametrize("sink_class", SINKS.values(), ids=SINKS)


@both
def test_a_done_or_pending_future_arrives_as_its_value(
    sink_class: Callable[[], Sink],
) -> None:
    sink, source, gate = sink_class(), Source(), Gate()
    done, waits = source.number.submit(), gate.wait.submit()
    done.result()

    first, second = sink.take.submit(done), sink.take.submit(waits)
    gate.open()

    assert [first.result(), second.result()] == [7, 7]


@both
@pytest.mark.parametrize("settled", [False, True])
def test_a_failed_future_fails_the_call(sink_class: Callable[[], Sink], settled: bool) -> None:
    sink, failing = sink_class(), Source().fail.submit()
    if settled:
        failing.exception()

    with pytest.raises(ValueError, match="no number today") as caught:
        sink.take(failing)

    assert "Argument 1 of take" in caught.value.__notes__[-1]


@both
def test_the_death_of_an_arguments_actor_does_not_end_the_called_actor(
    sink_class: Callable[[], Sink],
) -> None:
    sink, source = sink_class(), Source()

    with pytest.raises(remotely.ActorDied) as caught:
        sink.take(source.die.submit())

    texts = [*getattr(caught.value, "__notes__", ()), str(caught.value.__cause__)]
    assert any("is a future that failed" in text for text in texts)
    assert sink.take(1) == 1


@both
def test_a_cancelled_future_fails_the_call(
    sink_class: Callable[[], Sink],
) -> None:
    sink, busy, gate = sink_class(), Sink(), Gate()
    held = busy.wait_at.submit(gate)
    cancelled = busy.take.submit(1)
    assert cancelled.cancel()

    with pytest.raises(CancelledError):
        sink.take(cancelled)

    gate.open()
    held.result()


@both
def test_a_pending_call_that_returns_its_actor_is_refused_as_an_argument(
    sink_class: Callable[[], Sink],
) -> None:
    sink, source = sink_class(), Source()

    with pytest.raises(remotely.NotPicklable, match="pass its handle"):
        sink.take(source.itself.submit())


def test_a_done_future_keeps_nothing_in_rays_store() -> None:
    import ray

    source = Source()
    free = ray.available_resources()["object_store_memory"]

    futures = [source.large.submit() for _ in range(5)]
    for future in futures:
        future.result()
    gc.collect()

    def is_free() -> bool:
        return bool(ray.available_resources()["object_store_memory"] >= free - 16_000_000)

    wait_until(is_free, "the store to be as free as before")
    assert len(futures) == 5
