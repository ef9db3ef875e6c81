"""The types of handles, methods and futures.  mypy and pyright check this file: `make types`.

Each mistake that a checker must find has an ignore beside it; an unused ignore is an error.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import pytest

import remotely


@remotely.remote_class
class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    @remotely.method
    def add(self, n: int, times: int = 1) -> int:
        self.count += n * times
        return self.count

    @remotely.method
    async def label(self, prefix: str) -> str:
        return f"{prefix}{self.count}"

    @remotely.method
    def up_to(self, end: int) -> Iterator[int]:
        yield from range(self.count, end)

    @remotely.method
    async def slowly_up_to(self, end: int) -> AsyncIterator[int]:
        for number in range(self.count, end):
            yield number

    @remotely.timeout(30)
    @remotely.idempotent(retries=2)
    def half(self) -> float:
        return self.add(0) / 2

    @remotely.batched
    def double(self, numbers: list[int]) -> list[float]:
        return [2.0 * number for number in numbers]

    @remotely.batched(max_size=8)
    def join(self, names: list[str], numbers: list[int]) -> list[str]:
        return [f"{name}{number}" for name, number in zip(names, numbers, strict=True)]

    def plain(self, n: int) -> bytes:
        return b"." * n


class Careful(Counter):
    @remotely.method
    def add(self, n: int, times: int = 1) -> int:
        assert n >= 0
        return super().add(n, times)


def test_calls_have_the_types_of_their_methods(on_cluster: None) -> None:
    counter = Counter(10)
    assert assert_type(counter.add(1), int) == 11
    assert assert_type(counter.add.submit(1, times=2).result(), int) == 13
    assert assert_type(counter.label("n="), str) == "n=13"
    assert assert_type(counter.label.submit("n=").result(), str) == "n=13"
    assert assert_type(list(counter.up_to(15)), list[int]) == [13, 14]
    assert assert_type(list(counter.slowly_up_to(15)), list[int]) == [13, 14]
    assert assert_type(counter.half.submit().result(), float) == 6.5
    assert assert_type(counter.double(3), float) == 6.0
    assert assert_type(counter.join.submit("a", 3).result(), str) == "a3"
    assert assert_type(remotely.submit(counter.plain, 2).result(), bytes) == b".."
    assert assert_type(remotely.submit(counter.add, 0).result(), int) == 13
    assert assert_type(Careful(1).add.submit(2).result(), int) == 3


def test_a_handle_by_name_has_the_type_of_the_given_class(on_cluster: None) -> None:
    made = remotely.options(Careful, name="typed")(1)
    assert assert_type(remotely.get_actor("typed", Careful), Careful) == made
    assert assert_type(remotely.get_actor("typed", Counter).add.submit(1).result(), int) == 2
    with pytest.raises(TypeError, match="'typed' is of the class Careful, not str"):
        remotely.get_actor("typed", str)


def test_the_members_of_a_group_have_the_type_of_its_class(on_cluster: None) -> None:
    with remotely.group(Counter, 2, 1) as counters:
        futures = assert_type(
            [counter.add.submit(1) for counter in counters], list[remotely.Future[int]]
        )
        assert [future.result() for future in futures] == [2, 2]
        assert counters.add(1) == [3, 3]  # Any for type checkers


def test_futures_have_the_types_of_their_results(on_cluster: None) -> None:
    counter = Counter(1)
    futures: list[remotely.Future[int]] = [counter.add.submit(0), counter.add.submit(0)]
    for future in remotely.as_completed(futures):
        assert assert_type(future.result(), int) == 1

    async def add() -> int:
        return assert_type(await counter.add.submit(1), int)

    assert asyncio.run(add()) == 2
    with remotely.Pool(Counter, 2, 1) as pool:
        assert assert_type(pool.map(Counter.plain, [1, 2]), list[bytes]) == [b".", b".."]
        # One actor may get both.
        assert sorted(pool.map(Counter.add, [1, 1])) in ([2, 2], [2, 3])


def test_type_checkers_find_mistakes_in_calls(on_cluster: None) -> None:
    counter = Counter(1)
    with pytest.raises(TypeError):
        counter.add("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        counter.add.submit("x").result()  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        counter.add.submit(1, tims=2).result()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        counter.add.sumbit(1)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        counter.half.submit().nothing()  # type: ignore[attr-defined]
