"""A job takes its arguments as they are when it is submitted."""

import functools
import math
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest

from remotely.futures.future import CallFuture
from remotely.futures.reference import Put, Reference
from remotely.pools.job import Job


class Word(str):
    """May have attributes, which may change."""


class Pair(NamedTuple):
    first: Any
    second: Any


def with_default(items: list[int] = []) -> list[int]:  # noqa: B006 - on purpose
    return items


def arguments(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return what travels in the place of these."""
    job = Job("method", args, kwargs, 0, ())
    job.copy_arguments(lambda value: ("copied", value))
    return *job.args, *job.kwargs.values()


@pytest.mark.parametrize(
    "value",
    [
        *([], {}, bytearray(1), Word("word"), Pair([], 1), ([],), (1, {})),
        *([].append, {}.get, with_default, lambda: 1, functools.partial(len), Word("a").upper),
        *(Word, type("Made", (), {})),
    ],
)
def test_what_somebody_can_change_is_copied(value: Any) -> None:
    assert arguments(value) == (("copied", value),)
    assert arguments(name=value) == (("copied", value),)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 1.5, 1j, "word", b"bytes", range(3), (), (1, ("a", None))),
        *(len, math.sqrt, functools.reduce, Future, Put(), CallFuture("a call")),
        Reference[int](Future()),
    ],
)
def test_what_nobody_can_change_is_not(value: Any) -> None:
    assert arguments(value, name=value) == (value, value)


def test_what_was_put_is_not_copied_again_among_others() -> None:
    ref, items = Put(), [1]
    copy = ("copied", items)
    assert arguments((ref, items, (ref, 1)), [ref, items]) == ((ref, copy, (ref, 1)), [ref, copy])
    assert arguments({"a": ref, "b": {"c": [ref], "d": ref}}) == (
        {"a": ref, "b": {"c": [ref], "d": ref}},
    )
