"""From handles to the engine: one call, or one attribute, of one or several actors at once."""

import time
from collections.abc import Sequence
from typing import Any

from remotely.engine import RemoteActor
from remotely.errors import CallTimeout
from remotely.futures.future import CallFuture, wait_for

TAKE_BACK_S = 0.5  # for all calls that are late


def remote_of(handle: Any) -> RemoteActor:
    return handle._remotely_remote  # type: ignore[no-any-return]


def call(
    handles: Sequence[Any], name: str, args: Any, kwargs: Any, background: bool, retries: int = 0
) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.call(remotes, name, args, kwargs, background, retries)


def call_one(
    handle: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], background: bool
) -> CallFuture[Any]:
    return call((handle,), name, args, kwargs, background)[0]


def read(handles: Sequence[Any], name: str) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.get(remotes, name)


def write(handles: Sequence[Any], name: str, value: Any) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.set(remotes, name, value)


def end(handles: Sequence[Any], grace_s: float) -> None:
    """End the actors of these handles, which may be of several engines."""
    by_engine: dict[Any, list[RemoteActor]] = {}
    for remote in _remotes(handles):
        by_engine.setdefault(remote.engine, []).append(remote)
    for engine, remotes in by_engine.items():
        engine.end(remotes, grace_s)


def results(futures: Sequence[CallFuture[Any]]) -> list[Any]:
    """Wait for all, so that no call is still running when the first error is raised.

    Of those with a deadline that is over, take back what has not begun, and raise CallTimeout.
    """
    wait_for(futures)
    taken_back, goes_on = _take_back_late(futures)
    futures = [*futures][::-1]
    # No frame of ours holds a future whose error is raised; see future.py.
    values = []
    for number in range(len(futures)):
        if number in taken_back:
            late = f"{futures.pop().what} had not begun in time, and was taken back"
            raise CallTimeout(late, still_running=goes_on)
        values.append(futures.pop().result())
    return values


def _take_back_late(futures: Sequence[CallFuture[Any]]) -> tuple[set[int], bool]:
    """Take back what has not begun; return which those are, and whether any other goes on."""
    taken_back, goes_on = set(), False
    until = time.monotonic() + TAKE_BACK_S
    for number, future in enumerate(futures):
        if future.done():
            continue
        if time.monotonic() < until and future.cancel():
            taken_back.add(number)
        else:
            goes_on = goes_on or not future.done()
    return taken_back, goes_on


def _remotes(handles: Sequence[Any]) -> list[RemoteActor]:
    return [handle._remotely_remote for handle in handles]
