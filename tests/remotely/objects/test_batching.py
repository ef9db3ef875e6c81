"""Batched methods: calls that arrive together run as one, and each caller gets its own result."""

import asyncio
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.objects.batching import Batching, PendingBatch, batched_methods


def rule(function: Any = lambda self: None, stack: bool = False) -> Batching:
    return Batching(function, 4, 0.001, stack)


# --- arguments and results ------------------------------------------------------------------------


def test_the_method_gets_a_list_of_each_argument() -> None:
    calls = [((1, "a"), {"k": True}), ((2, "b"), {"k": False})]
    assert rule().merge(calls) == (([1, 2], ["a", "b"]), {"k": [True, False]})


def test_stacked_arguments_have_a_new_first_axis_in_dicts_too() -> None:
    calls: list[Any] = [((np.full(3, i), {"x": np.full(2, i)}, i), {}) for i in range(5)]
    (array, inside, number), _ = rule(stack=True).merge(calls)
    assert array.shape == (5, 3)
    assert inside["x"].shape == (5, 2)
    assert number.tolist() == [0, 1, 2, 3, 4]


def test_tensors_are_stacked_into_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    calls: list[Any] = [((torch.full((2,), i),), {}) for i in range(5)]
    (stacked,), _ = rule(stack=True).merge(calls)
    assert isinstance(stacked, torch.Tensor)
    assert stacked.shape == (5, 2)


@pytest.mark.parametrize(
    ("value", "results"),
    [
        ([10, 20], [10, 20]),
        (np.array([1, 2]), [1, 2]),
        (([1, 2], np.array([3, 4])), [(1, 3), (2, 4)]),
        ({"a": [1, 2], "b": ([3, 4], [5, 6])}, [{"a": 1, "b": (3, 5)}, {"a": 2, "b": (4, 6)}]),
        (None, [None, None]),
    ],
)
def test_each_caller_gets_its_item(value: Any, results: list[Any]) -> None:
    assert rule().split(value, 2) == results


@pytest.mark.parametrize(
    ("value", "got"), [([1, 2, 3], "3 results"), (7, "int"), (([1, 2], [3]), "1 results")]
)
def test_a_wrong_number_of_results_raises_an_error(value: Any, got: str) -> None:
    def predict() -> None: ...

    with pytest.raises(ValueError, match=f"predict is batched: for 2 calls .* returned {got}"):
        rule(predict).split(value, 2)


@pytest.mark.parametrize(
    ("callers", "batches"),
    [
        (["one", "one", "one", "one"], [[0], [1], [2], [3]]),
        (["one", "two", "three", "four"], [[0, 2], [1, 3]]),
        (["one", "two", "two", "one"], [[0], [1, 3], [2]]),
    ],
)
def test_calls_with_different_parameters_form_separate_batches_in_the_order_of_each_caller(
    callers: list[str], batches: list[list[int]]
) -> None:
    batch = PendingBatch(rule())
    calls: list[Any] = [((1,), {}), ((2,), {"k": 1}), ((3,), {}), ((4,), {"k": 2})]
    for i, (caller, arguments) in enumerate(zip(callers, calls, strict=True)):
        batch.add((caller.encode(), i), arguments, now=0.0)
    assert [[i for (_, i), _ in calls] for calls in batch.take()] == batches


def test_a_batch_is_due_wait_ms_after_its_first_call_and_full_at_max_size() -> None:
    batch = PendingBatch(rule())
    for i in range(4):
        assert not batch.is_full
        batch.add((b"route", i), ((i,), {}), now=5.0 + i)
    assert batch.is_full
    assert batch.due == pytest.approx(5.001)


@pytest.mark.parametrize("options", [{"max_size": 0}, {"wait_ms": -1}])
def test_invalid_options_raise_a_value_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="batched"):
        remotely.batched(**options)(lambda self: None)


# --- in an actor ----------------------------------------------------------------------------------


@remotely.remote_class
class Predictor:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    @remotely.batched(max_size=8, wait_ms=50, stack=True)
    def predict(self, observation: Any) -> Any:
        """Return twice the observation, and its sum."""
        self.sizes.append(len(observation))
        return 2 * observation, observation.sum(axis=1)

    @remotely.batched(wait_ms=50)
    def fail(self, number: Any) -> Any:
        raise LookupError(f"of {len(number)}")

    @remotely.batched
    def too_few(self, number: Any) -> Any:
        return number[:-1]

    def batch_sizes(self) -> list[int]:
        return self.sizes

    def predict_one(self) -> Any:
        return self.predict(np.ones(2))


@remotely.remote_class(concurrency=2)
class OnThreads:
    @remotely.batched(max_size=4, wait_ms=20)
    def double(self, number: Any) -> Any:
        return [2 * n for n in number]


@remotely.remote_class
class Async:
    @remotely.batched(max_size=4, wait_ms=20)
    async def double(self, number: Any) -> Any:
        await asyncio.sleep(0)
        return [2 * n for n in number]


def test_concurrent_calls_run_as_one_and_each_gets_its_own_result(cluster: str) -> None:
    predictor = Predictor()
    futures = [predictor.predict.submit(np.full(3, float(i))) for i in range(20)]
    for i, future in enumerate(futures):
        doubled, total = future.result()
        assert doubled.tolist() == [2.0 * i] * 3
        assert total == 3.0 * i
    assert max(predictor.sizes) == 8
    assert sum(predictor.sizes) == 20


def test_a_single_call_is_a_batch_of_one_after_its_wait(here: None) -> None:
    predictor = Predictor()
    doubled, total = predictor.predict(np.ones(3))
    assert (doubled.tolist(), float(total)) == ([2.0] * 3, 3.0)
    assert predictor.sizes == [1]


def test_a_later_call_of_another_method_runs_after_the_batch(here: None) -> None:
    predictor = Predictor()
    futures = [predictor.predict.submit(np.ones(3)) for _ in range(3)]
    assert predictor.batch_sizes() == [3]
    assert all(future.result() for future in futures)


def test_an_error_reaches_every_caller(here: None) -> None:
    predictor = Predictor()
    futures = [predictor.fail.submit(i) for i in range(3)]
    for future in futures:
        with pytest.raises(LookupError, match="of 3"):
            future.result()
    with pytest.raises(ValueError, match="too_few is batched: for 1 calls"):
        predictor.too_few(1)


@pytest.mark.parametrize("cls", [OnThreads, Async])
def test_batching_works_on_threads_and_on_an_event_loop(here: None, cls: Any) -> None:
    actor = cls()
    futures = [actor.double.submit(i) for i in range(10)]
    assert [future.result() for future in futures] == [2 * i for i in range(10)]


def test_several_clients_share_a_batch(here: None) -> None:
    @remotely.remote_class
    class Agent:
        def ask(self, predictor: Any, number: float) -> Any:
            return predictor.predict(np.full(3, number))[0].tolist()

    predictor = Predictor()
    agents = remotely.group(Agent, 4)
    agents.ask(predictor, 0.0)
    futures = [agent.ask.submit(predictor, float(i)) for i, agent in enumerate(agents)]
    assert [future.result() for future in futures] == [[2.0 * i] * 3 for i in range(4)]
    assert max(predictor.sizes) > 1


def test_many_calls_of_several_clients_in_full_batches_all_get_results(here: None) -> None:
    """Replies that are sent together go to one client; a batch may have calls of several."""

    @remotely.remote_class
    class Doubler:
        @remotely.batched(max_size=33, wait_ms=5000)
        def double(self, number: Any) -> Any:
            return [2 * n for n in number]

    @remotely.remote_class
    class Agent:
        def ask_many(self, target: Any) -> list[int]:
            futures = [target.double.submit(i) for i in range(164)]
            return [future.result(40) for future in futures]

    target = Doubler()
    agent = Agent()
    single = target.double.submit(1000)  # in the first batch, which the agent's calls fill
    many = agent.ask_many.submit(target)
    assert single.result(40) == 2000
    assert many.result(40) == [2 * i for i in range(164)]


def test_a_call_from_within_or_on_a_plain_object_takes_and_returns_one_item(here: None) -> None:
    assert Predictor().predict_one()[1] == 2.0
    assert remotely.local(Predictor).predict(np.ones(3))[1] == 3.0
    assert Predictor.predict.__doc__ == "Return twice the observation, and its sum."


def test_a_class_inherits_batched_methods() -> None:
    class Child(Predictor):
        pass

    assert set(batched_methods(Child)) == {"predict", "fail", "too_few"}
