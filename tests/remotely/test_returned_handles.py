"""An actor whose handle another one returns lives as long as its receiver has a handle."""

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

import remotely
from tests.clusters import wait_until


@remotely.remote_class(cpus=0)
class Table:
    made: Any = None

    def __init__(self, rows: int = 0) -> None:
        self.rows = rows

    @classmethod
    def of(cls, rows: int) -> "Table":
        return cls(rows)

    def size(self) -> int:
        return self.rows

    def attribute(self) -> None:
        self.made = Table(7)

    def among(self) -> dict[str, Any]:
        return {"tables": [Table(7), Table(8)]}

    def stream(self) -> Iterator[Any]:
        yield Table(7)

    @remotely.batched
    def batch(self, rows: list[int]) -> list[Any]:
        return [Table(each) for each in rows]


@remotely.remote_class(cpus=0)
class Async:
    async def make(self) -> Any:
        return Table(7)

    async def stream(self) -> AsyncIterator[Any]:
        yield Table(7)


@remotely.remote_class(cpus=0)
class Factory:
    """Passes on what another actor makes."""

    def make(self) -> Any:
        return Table(0).of(7)


def by_attribute() -> Any:
    table = Table()
    table.attribute()
    return table.made


WAYS: dict[str, Callable[[], Any]] = {
    "class method": lambda: Table().of(7),
    "attribute": by_attribute,
    "among others": lambda: Table().among()["tables"][0],
    "future": lambda: Table().of.submit(7).result(),
    "stream": lambda: next(Table().stream()),
    "batched": lambda: Table().batch(7),
    "async": lambda: Async().make(),
    "async stream": lambda: next(cast("Iterator[Any]", Async().stream())),
    "two actors": lambda: Factory().make(),
    "executor": lambda: remotely.Executor(1).submit(Table.of, 7).result(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_returned_actor_outlives_its_maker_and_ends_with_its_last_handle(
    here: None, way: str
) -> None:
    made = WAYS[way]()
    gc.collect()
    wait_until(lambda: len(remotely.actors()) == 1, "the end of its maker")
    assert made.size() == 7
    del made
    gc.collect()
    wait_until(lambda: remotely.actors() == [], "its end")


class Failed(Exception):
    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self.table = table


@remotely.remote_class(cpus=0)
class Giver:
    def __init__(self) -> None:
        self.table: Any = None

    def fail(self) -> None:
        raise Failed(Table(7))

    def give(self, keep: bool) -> Any:
        table = self.table or Table(7)
        self.table = table if keep else None
        return table


def test_an_actor_in_a_raised_error_is_held_too(here: None) -> None:
    with pytest.raises(Failed) as failed:
        Giver().fail()
    gc.collect()
    assert failed.value.table.size() == 7


def test_an_actor_that_was_held_before_is_held_again(here: None) -> None:
    giver = Giver()
    first = giver.give(keep=True)
    del first
    gc.collect()
    again = giver.give(keep=False)
    assert again.size() == 7
    remotely.close(giver)
    assert again.size() == 7


def test_an_actor_keeps_what_it_has_returned_for_itself_too(here: None) -> None:
    table = Table()
    table.attribute()
    made = table.made
    del made
    gc.collect()
    assert table.made.size() == 7
