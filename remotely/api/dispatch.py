"""From handles to the engine: one call, or one attribute, of one or several actors at once."""

from collections.abc import Sequence
from typing import Any

from remotely.engine import RemoteActor
from remotely.errors import CallTimeout
from remotely.futures.future import CallFuture, wait_for


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


def in_time(futures: list[CallFuture[Any]]) -> Any:
    """Take the value of the one call in a list; take it back if it has not begun in time.

    Raises CallTimeout.  The list is empty then: no frame of ours holds the future; see future.py.
    """
    try:
        return futures[0].result()
    except CallTimeout:
        if futures[0].done() or not futures[0].cancel():  # its own outcome; or it has begun
            raise
        raise CallTimeout(
            f"{futures[0].what} had not begun in time, and was taken back", still_running=False
        ) from None
    finally:
        futures.clear()


def results(futures: Sequence[CallFuture[Any]]) -> list[Any]:
    """Wait for all, so that no call is still running when the first error is raised."""
    wait_for(futures)
    futures = [*futures][::-1]
    # No frame of ours holds a future whose error is raised; see future.py.
    return [futures.pop().result() for _ in range(len(futures))]


def _remotes(handles: Sequence[Any]) -> list[RemoteActor]:
    return [handle._remotely_remote for handle in handles]
