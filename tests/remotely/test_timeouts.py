"""`@remotely.timeout`: how long callers wait, and what they learn of a late call."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import CallTimeout
from tests.clusters import wait_until


@remotely.remote_class(cpus=0)
class Slow:
    def __init__(self) -> None:
        self.ran: list[int] = []

    @remotely.timeout(1.0)
    def limited(self, gate: str, number: int = 0) -> int:
        self.ran.append(number)
        Path(gate + ".begun").touch()
        wait_until(Path(gate).exists, "the gate")
        return number

    @remotely.timeout(40)
    def patient(self, number: int) -> int:
        return number

    def unlimited(self, gate: str) -> int:
        Path(gate + ".begun").touch()
        wait_until(Path(gate).exists, "the gate")
        return 1

    @remotely.timeout(20)
    def raises_a_timeout(self) -> None:
        raise CallTimeout("of another call")

    def all(self) -> list[int]:
        return self.ran


class Gate:
    """Each method waits until the file exists."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    @remotely.timeout(0.3)
    def plain(self, _: object = None) -> int:
        return self._wait()

    @remotely.timeout(0.3)
    def __call__(self) -> int:
        return self._wait()

    @remotely.timeout(0.3)
    def __len__(self) -> int:
        return self._wait()

    @remotely.timeout(0.3)
    def __add__(self, other: object) -> int:
        return self._wait()

    @remotely.timeout(0.3)
    def __enter__(self) -> Any:
        self._wait()
        return self

    def __exit__(self, *_: object) -> None: ...

    @remotely.timeout(0.3)
    @classmethod
    def of_class(cls, gate: str) -> int:
        return wait_for_file(gate)

    @staticmethod
    @remotely.timeout(0.3)
    def of_none(gate: str) -> int:
        return wait_for_file(gate)

    def _wait(self) -> int:
        return wait_for_file(self.gate)


def wait_for_file(gate: str) -> int:
    wait_until(Path(gate).exists, "the gate")
    return 1


class AsyncGate(Gate):
    @remotely.timeout(0.3)
    async def coroutine(self) -> int:
        return await self._wait_in_loop()

    @remotely.timeout(0.3)
    async def __aenter__(self) -> None:
        await self._wait_in_loop()

    async def __aexit__(self, *_: object) -> None: ...

    async def _wait_in_loop(self) -> int:
        return await asyncio.to_thread(self._wait)


# Any, because type checkers know no marked static method.
Gates: Any = remotely.remote_class(cpus=0)(Gate)
AsyncGates: Any = remotely.remote_class(cpus=0)(AsyncGate)


def _enter(gate: str) -> None:
    with Gates(gate):
        pass


async def _enter_in_loop(gate: str) -> None:
    async with AsyncGates(gate):
        pass


async def _await(gate: str) -> None:
    await Gates(gate).plain.submit()


def _in_pool(wait: Callable[[Any, Any], object]) -> Callable[[str], object]:
    def run(gate: str) -> object:
        with remotely.Pool(Gates, 1, gate) as pool:
            return wait(pool, Gates.plain)

    return run


def _in_executor(gate: str) -> object:
    with remotely.Executor(1) as executor:
        try:
            return executor.submit(Gates.of_none, gate).result()
        except CallTimeout:
            executor.kill()
            raise


WAITS: dict[str, Callable[[str], object]] = {
    "a()": lambda gate: Gates(gate)(),
    "len(a)": lambda gate: len(Gates(gate)),
    "a + 1": lambda gate: Gates(gate) + 1,
    "with a": _enter,
    "with group": lambda gate: remotely.group(Gates, 1, gate).__enter__(),
    "a class method": lambda gate: Gates(gate).of_class(gate),
    "a static method": lambda gate: Gates(gate).of_none(gate),
    "async def": lambda gate: AsyncGates(gate).coroutine(),
    "async with a": lambda gate: asyncio.run(_enter_in_loop(gate)),
    "await": lambda gate: asyncio.run(_await(gate)),
    "pool.submit": _in_pool(lambda pool, method: pool.submit(method).result()),
    "pool.map": _in_pool(lambda pool, method: pool.map(method, [1])),
    "pool.imap_unordered": _in_pool(lambda pool, method: list(pool.imap_unordered(method, [1]))),
    "executor.submit": _in_executor,
}


@pytest.mark.parametrize("way", WAITS)
def test_every_wait_for_a_marked_method_ends(here: None, tmp_path: Path, way: str) -> None:
    with pytest.raises(CallTimeout, match=r"has not answered after 0\.3 s"):
        WAITS[way](str(tmp_path / "gate"))
    (tmp_path / "gate").touch()


@pytest.mark.parametrize("each", ["imap", "imap_unordered"])
def test_a_late_item_of_a_pool_is_cancelled_if_it_has_not_begun(
    here: None, tmp_path: Path, each: str
) -> None:
    with remotely.Pool(Slow, 1) as pool:
        items = [str(tmp_path / "gate")] * 2
        results = getattr(pool, each)(Slow.limited, items, return_exceptions=True)
        late = [next(results), next(results)]
        assert [type(error) for error in late] == [CallTimeout] * 2
        assert [error.still_running for error in late] == [True, False]
        (tmp_path / "gate").touch()
        assert pool.submit(Slow.all).result() == [0]
        assert list(results) == []


def test_a_running_call_that_times_out_goes_on(any_cluster: None, tmp_path: Path) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    with pytest.raises(CallTimeout, match=r"Slow-\d+\.limited has not answered") as late:
        actor.limited(str(gate))
    assert late.value.still_running
    gate.touch()
    assert actor.all() == [0]


def test_a_queued_call_that_times_out_is_cancelled(any_cluster: None, tmp_path: Path) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    running = actor.unlimited.submit(str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    with pytest.raises(CallTimeout, match="was cancelled") as late:
        actor.limited(str(gate), 5)
    assert not late.value.still_running
    gate.touch()
    assert running.result() == 1
    assert actor.all() == []


def test_a_submitted_call_has_the_same_timeout_and_may_be_asked_again(
    here: None, tmp_path: Path
) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    future = actor.limited.submit(str(gate))
    with pytest.raises(CallTimeout):
        future.result()
    gate.touch()
    assert future.result(timeout=40) == 0
    assert future.result() == 0  # a done future does not time out


def test_a_group_has_one_timeout_for_all_members(here: None, tmp_path: Path) -> None:
    actors = remotely.group(Slow, 12)
    begin = time.monotonic()
    with pytest.raises(CallTimeout, match=r"limited has not answered after 1 s") as late:
        actors.limited(str(tmp_path / "gate"))
    assert late.value.still_running
    assert time.monotonic() - begin < 12 * 1.0  # not one after the other
    (tmp_path / "gate").touch()
    assert actors.all() == [[0]] * 12


def test_queued_calls_of_a_group_that_times_out_are_cancelled(here: None, tmp_path: Path) -> None:
    actors, gate = remotely.group(Slow, 3), tmp_path / "gate"
    running = actors[0].unlimited.submit(str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    with pytest.raises(CallTimeout, match=r"limited had not begun in time") as late:
        actors.limited(str(gate), 5)
    assert late.value.still_running  # at the others
    gate.touch()
    assert running.result() == 1
    assert actors.all() == [[], [5], [5]]


def test_a_timeout_error_raised_by_the_method_is_sent_to_the_caller(here: None) -> None:
    with pytest.raises(CallTimeout, match="of another call"):
        Slow().raises_a_timeout()


def test_a_call_within_its_timeout_returns_normally(here: None) -> None:
    assert Slow().patient(3) == 3
    assert remotely.group(Slow, 2).patient(3) == [3, 3]


def test_late_calls_leave_no_thread_behind(here: None, tmp_path: Path) -> None:
    actor, gate = Slow(), tmp_path / "gate"
    with pytest.raises(CallTimeout):
        actor.limited(str(gate))
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(CallTimeout):
            actor.limited(str(gate))
    assert threading.active_count() == before
    gate.touch()


@pytest.mark.parametrize("seconds", [0, -1, "5", None, float("nan")])
def test_an_invalid_timeout_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds="):
        remotely.timeout(seconds)


def test_without_a_cluster_the_method_runs_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gate").touch()
    assert Slow.limited.__name__ == "limited"
    assert remotely.local(Slow).limited(str(tmp_path / "gate"), 2) == 2
