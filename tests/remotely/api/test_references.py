"""Futures and references as arguments."""

import subprocess
import sys
from typing import Any

import pytest

import remotely
from remotely.errors import NotPicklable


@remotely.remote_class
class Adder:
    def add(self, a: int, b: int = 0) -> int:
        return a + b

    def both(self, values: Any) -> Any:
        return values

    def fail(self) -> int:
        raise KeyError("gone")

    def future(self) -> Any:
        return remotely.submit(Adder().add, 1, 2)


@remotely.remote_class
class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


PUT = """
import remotely
remotely.connect()
kept = remotely.put([1, 2])
remotely.shutdown()
print(remotely.get(kept), remotely.is_connected())
"""


def test_a_future_argument_arrives_as_its_value(place: str) -> None:
    adder = Adder()
    three = adder.add.submit(1, 2)
    assert adder.add(three, b=adder.add.submit(three, three)) == 9
    assert adder.add.submit(three, 1).result() == 4
    assert three.result() == 3


def test_a_reference_argument_arrives_as_its_value_which_get_returns(place: str) -> None:
    adder = Adder()
    ref = remotely.ref(adder.add.submit(1, 2))
    assert adder.add(ref, ref) == 6
    assert remotely.get(ref) == 3
    assert remotely.get(adder.add.submit(2, 2)) == 4
    assert remotely.get(remotely.put([1, 2])) == [1, 2]


def test_nested_futures_arrive_as_values_and_each_only_once(on_cluster: None) -> None:
    adder = Adder()
    made = adder.both.submit([1])
    first, second, deep = adder.both((made, made, {"deep": [made]}))
    assert first == second == [1]
    assert first is second
    assert deep == {"deep": [[1]]}


def test_a_future_is_passed_with_the_changes_that_the_caller_made_to_its_result(place: str) -> None:
    adder = Adder()
    made = adder.both.submit([1])
    made.result().append(2)
    assert made.result() == [1, 2]
    assert adder.both(made) == [1, 2]


def test_a_future_may_be_passed_to_a_group(place: str) -> None:
    group = remotely.group(Adder, 3)
    assert group.add(group[0].add.submit(1, 1), 1) == [3, 3, 3]


def test_the_error_of_a_future_argument_is_raised_with_a_note(place: str) -> None:
    adder = Adder()
    failed = adder.fail.submit()
    with pytest.raises(KeyError, match="gone") as raised:
        adder.add(1, b=failed)
    assert raised.value.__notes__ == [
        "Argument 'b' of add is a future that failed; the call did not run."
    ]
    with pytest.raises(KeyError) as own:
        failed.result()
    assert not hasattr(own.value, "__notes__")


def test_an_idempotent_call_may_have_a_future_argument(on_cluster: None) -> None:
    @remotely.remote_class
    class Careful:
        @remotely.idempotent(retries=2)
        def double(self, value: int) -> int:
            return 2 * value

    careful = Careful()
    assert careful.double(remotely.ref(careful.double.submit(2))) == 8


def test_a_future_cannot_be_returned_and_only_a_future_can_be_referenced(on_cluster: None) -> None:
    with pytest.raises(NotPicklable, match="is a future"):
        Adder().future()
    with pytest.raises(TypeError, match=r"takes the future of a call.*for a value, use put\(\)"):
        remotely.ref(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="none of these"):
        remotely.get(5)


@pytest.mark.parametrize("kind", ["future", "reference"])
def test_constructors_attributes_and_put_refuse_what_stands_for_a_result(
    place: str, kind: str
) -> None:
    future = Adder().add.submit(1, 2)
    given = remotely.ref(future) if kind == "reference" else future
    refused = pytest.raises(NotPicklable, match=f"is a {kind}, and cannot be sent: call")
    with refused:
        Holder({"held": given})
    with refused:
        remotely.group(Holder, each=[(given,)])
    with refused:
        Holder(0).held = [given]
    with refused:
        remotely.put(given)


def test_what_was_put_is_got_without_a_connection() -> None:
    kept = subprocess.run(
        [sys.executable, "-c", PUT], capture_output=True, text=True, timeout=60, check=True
    )
    assert kept.stdout == "[1, 2] False\n"


def test_get_of_several_futures_says_how_to_wait_for_them(place: str) -> None:
    adder = Adder()
    futures = [adder.add.submit(1, 2), adder.add.submit(3, 4)]
    with pytest.raises(TypeError, match=r"\[future\.result\(\) for future in futures\]"):
        remotely.get(futures)
    assert [future.result() for future in futures] == [3, 7]
