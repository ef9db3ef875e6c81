"""Calls that come together run as one, and each caller gets its own answer."""

import asyncio
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.objects.batching import Batching, Gathering, batched_methods


def rule(function: Any = lambda self: None, stack: bool = False) -> Batching:
    return Batching(function, 4, 0.001, stack)


# --- what the method sees, what the callers get ---------------------------------------------------


def test_the_method_sees_a_list_of_each_argument() -> None:
    calls = [((1, "a"), {"k": True}), ((2, "b"), {"k": False})]
    assert rule().together(calls) == (([1, 2], ["a", "b"]), {"k": [True, False]})


def test_stacked_arguments_have_a_new_first_axis_in_dicts_too() -> None:
    calls: list[Any] = [((np.full(3, i), {"x": np.full(2, i)}, i), {}) for i in range(5)]
    (array, inside, number), _ = rule(stack=True).together(calls)
    assert array.shape == (5, 3)
    assert inside["x"].shape == (5, 2)
    assert number.tolist() == [0, 1, 2, 3, 4]


def test_stacked_tensors_are_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    calls: list[Any] = [((torch.full((2,), i),), {}) for i in range(5)]
    (stacked,), _ = rule(stack=True).together(calls)
    assert isinstance(stacked, torch.Tensor)
    assert stacked.shape == (5, 2)


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ([10, 20], [10, 20]),
        (np.array([1, 2]), [1, 2]),
        (([1, 2], np.array([3, 4])), [(1, 3), (2, 4)]),
        ({"a": [1, 2], "b": ([3, 4], [5, 6])}, [{"a": 1, "b": (3, 5)}, {"a": 2, "b": (4, 6)}]),
        (None, [None, None]),
    ],
)
def test_each_caller_gets_its_item(value: Any, answers: list[Any]) -> None:
    assert rule().apart(value, 2) == answers


@pytest.mark.parametrize(
    ("value", "got"), [([1, 2, 3], "3 results"), (7, "int"), (([1, 2], [3]), "1 results")]
)
def test_too_few_or_too_many_answers_are_named(value: Any, got: str) -> None:
    def predict() -> None: ...

    with pytest.raises(ValueError, match=f"predict is batched: for 2 calls .* returned {got}"):
        rule(predict).apart(value, 2)


def test_calls_of_different_forms_run_apart_and_keep_their_order() -> None:
    gathering = Gathering(rule())
    for who, arguments in enumerate([((1,), {}), ((2,), {"k": 1}), ((3,), {}), ((4,), {"k": 2})]):
        gathering.add(who, arguments, now=0.0)
    assert [[who for who, _ in calls] for calls in gathering.take()] == [[0, 2], [1, 3]]


def test_a_batch_is_due_when_its_first_call_has_waited_and_full_at_its_size() -> None:
    gathering = Gathering(rule())
    for i in range(4):
        assert not gathering.is_full
        gathering.add(i, ((i,), {}), now=5.0 + i)
    assert gathering.is_full
    assert gathering.due == pytest.approx(5.001)


@pytest.mark.parametrize("options", [{"max_size": 0}, {"wait_ms": -1}])
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="batched"):
        remotely.batched(**options)(lambda self: None)


# --- in an actor ----------------------------------------------------------------------------------


@remotely.remote_class
class Predictor:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.told = ""

    @remotely.batched(max_size=8, wait_ms=50, stack=True)
    def predict(self, observation: Any) -> Any:
        """Twice what was seen, and its sum."""
        self.sizes.append(len(observation))
        return 2 * observation, observation.sum(axis=1)

    @remotely.batched(wait_ms=50)
    def fail(self, number: Any) -> Any:
        raise LookupError(f"of {len(number)}")

    @remotely.batched
    def too_few(self, number: Any) -> Any:
        return number[:-1]

    def tell(self, what: str) -> list[int]:
        self.told = what
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


def test_concurrent_calls_run_as_one_and_each_gets_its_own_answer(cluster: str) -> None:
    predictor = Predictor()
    futures = [predictor.predict.submit(np.full(3, float(i))) for i in range(20)]
    for i, future in enumerate(futures):
        doubled, total = future.result()
        assert doubled.tolist() == [2.0 * i] * 3
        assert total == 3.0 * i
    assert max(predictor.sizes) == 8
    assert sum(predictor.sizes) == 20


def test_a_lone_call_is_a_batch_of_one_after_its_wait(here: None) -> None:
    predictor = Predictor()
    doubled, total = predictor.predict(np.ones(3))
    assert (doubled.tolist(), float(total)) == ([2.0] * 3, 3.0)
    assert predictor.sizes == [1]


def test_a_call_that_was_made_later_runs_later(here: None) -> None:
    predictor = Predictor()
    futures = [predictor.predict.submit(np.ones(3)) for _ in range(3)]
    assert predictor.tell("after them") == [3]
    assert all(future.done() or future.result() for future in futures)


def test_an_error_reaches_every_caller(here: None) -> None:
    predictor = Predictor()
    futures = [predictor.fail.submit(i) for i in range(3)]
    for future in futures:
        with pytest.raises(LookupError, match="of 3"):
            future.result()
    with pytest.raises(ValueError, match="too_few is batched: for 1 calls"):
        predictor.too_few(1)


@pytest.mark.parametrize("cls", [OnThreads, Async])
def test_it_works_on_threads_and_on_an_event_loop(here: None, cls: Any) -> None:
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


def test_a_batch_of_several_clients_in_a_crowd_answers_each(here: None) -> None:
    """Results that go back together go to one client; those of a batch may be for several."""

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
    lone = target.double.submit(1000)  # is in the first batch, which another's crowd fills
    many = agent.ask_many.submit(target)
    assert lone.result(40) == 2000
    assert many.result(40) == [2 * i for i in range(164)]


def test_on_a_plain_object_it_takes_and_returns_one(here: None) -> None:
    assert Predictor().predict_one()[1] == 2.0
    assert remotely.local(Predictor).predict(np.ones(3))[1] == 3.0
    assert Predictor.predict.__doc__ == "Twice what was seen, and its sum."


def test_a_class_inherits_how_its_methods_are_batched() -> None:
    class Child(Predictor):
        pass

    assert set(batched_methods(Child)) == {"predict", "fail", "too_few"}
