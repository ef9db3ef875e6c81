"""Introspection of classes: whether calls run one at a time."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import remotely
from remotely.objects import introspection


class Plain:
    def ask(self) -> None: ...


class Batches:
    @remotely.batched
    def ask(self, questions: list[Any]) -> None: ...


class Asynchronous:
    async def ask(self) -> None: ...


class Streams:
    async def ask(self) -> AsyncIterator[int]:
        yield 1


class Disguised:
    def __new__(cls) -> Any:
        return Asynchronous()


class Inherits(Asynchronous):
    pass


@pytest.mark.parametrize("decorate", [lambda cls: cls, remotely.remote_class])
@pytest.mark.parametrize(
    ("cls", "is_serial"),
    [
        (Plain, True),
        (Batches, False),
        (Asynchronous, False),
        (Streams, False),
        (Disguised, False),
        (Inherits, False),
    ],
)
def test_only_classes_with_plain_methods_are_serial(
    cls: type, is_serial: bool, decorate: Any
) -> None:
    cls = decorate(type(cls.__name__, (cls,), {}))

    assert introspection.is_serial(cls, 1) is is_serial
    assert not introspection.is_serial(cls, 2)
