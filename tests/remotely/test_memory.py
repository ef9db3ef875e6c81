"""Large values between processes of one machine: sent through shared memory, without leaks.

values/test_arena.py and values/test_codec.py test the values and the life of a block; these tests
use real processes, which fork and are killed.
"""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import remotely
from remotely.protocol import wire
from remotely.values import arena, codec
from tests.clusters import Started, wait_until

Array = np.ndarray[Any, Any]
MIB = 1 << 20


@remotely.remote_class
class Keeper:
    def __init__(self, kept: Any = None) -> None:
        self.kept = kept

    def wait_for(self, gate: Path) -> None:
        while not gate.exists():
            time.sleep(0.01)

    def echo(self, value: Any) -> Any:
        return value

    def keep(self, value: Any) -> None:
        self.kept = value

    def drop(self) -> None:
        self.kept = None

    def add(self, number: float) -> float:
        self.kept += number
        return float(self.kept.sum())

    def is_a_view(self, value: Any) -> bool:
        return not bool(value.flags.owndata)

    def make(self, nbytes: int) -> Array:
        return np.full(nbytes, 7, np.uint8)

    def rollouts(self, count: int) -> Iterator[dict[str, Array]]:
        for i in range(count):
            yield {"obs": np.full((4, MIB), i, np.uint8), "rewards": np.full(1000, float(i))}

    def pid(self) -> int:
        return os.getpid()

    def fork_and_read(self, value: Array) -> int:
        child = os.fork()
        if child == 0:
            os._exit(int(value[0]))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lent() -> int:
    ours = arena.ours()
    return ours.lent_bytes if ours else 0


@pytest.fixture
def keeper(here: None) -> Any:
    return Keeper()


# --- what arrives ---------------------------------------------------------------------------------


def test_a_large_array_arrives_as_a_private_writable_view(keeper: Keeper) -> None:
    sent = np.arange(MIB, dtype=np.float32)
    got = keeper.echo(sent)
    assert not got.flags.owndata
    assert got.flags.writeable
    got += 1
    assert (keeper.echo(sent) == sent).all()
    assert (got == sent + 1).all()


@pytest.mark.parametrize("value", [np.ones(MIB), bytes(MIB), bytearray(MIB), "x" * MIB], ids=type)
def test_a_large_result_of_any_type_is_sent_through_memory(here: None, value: Any) -> None:
    @remotely.remote_class
    class Maker:
        def __init__(self, value: Any) -> None:
            self.value = value

        def make(self) -> Any:
            return self.value

        def pid(self) -> int:
            return os.getpid()

    maker = Maker(value)
    arriving = f"{arena.file_name(maker.pid())} "
    before = Path("/proc/self/maps").read_text().count(arriving)
    made = maker.make()
    assert Path("/proc/self/maps").read_text().count(arriving) == before + 1
    assert type(made) is type(value)
    assert np.array_equal(made, value)


def test_items_of_a_stream_are_sent_through_memory(keeper: Keeper) -> None:
    for i, item in enumerate(keeper.rollouts(20)):
        assert (item["obs"] == i).all()
        assert not item["obs"].flags.owndata


# --- from the first value on ----------------------------------------------------------------------


@remotely.remote_class
class User:
    def use(self, keeper: Any, submit: bool) -> float:
        value = np.ones(MIB)
        result = keeper.echo.submit(value).result() if submit else keeper.echo(value)
        return float(result.sum())

    def submit_both(self, keeper: Any) -> None:
        self.futures = keeper.keep.submit(np.ones(MIB)), keeper.add.submit(1.0)

    def outcome(self) -> float:
        return float(self.futures[1].result())


@pytest.fixture
def no_large_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process send no large values in frames."""
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 4 * MIB)  # the code that PREPARE brings fits


@pytest.mark.parametrize("submit", [False, True])
def test_the_first_large_argument_is_sent_through_memory(
    here: None, no_large_frames: None, submit: bool
) -> None:
    keeper = Keeper()
    value = np.zeros(MIB)
    assert keeper.is_a_view.submit(value).result() if submit else keeper.is_a_view(value)


def test_arguments_of_a_constructor_are_sent_through_memory_once(
    here: None, no_large_frames: None
) -> None:
    gc.collect()
    before, value = lent(), np.ones(MIB)
    keepers = remotely.group(Keeper, 4, value)
    assert lent() - before < 2 * value.nbytes
    assert keepers.add(1.0) == [2.0 * MIB] * 4


def test_a_process_that_gets_another_handle_exchanges_large_values_at_once(
    here: None, keeper: Any
) -> None:
    user = User()
    for submit in [False, True] * 5:
        assert user.use(keeper, submit) == MIB


def test_a_client_that_did_not_make_an_actor_sends_its_first_large_value_through_memory(
    here: None, no_large_frames: None
) -> None:
    made = remotely.options(Keeper, name="keeper", detached=True)()
    made.pid()
    del made
    for submit in [False, True] * 3:
        gc.collect()  # the last handle is gone, and with it the connection
        keeper = remotely.get_actor("keeper")
        value = np.ones(MIB)
        result = keeper.echo.submit(value).result() if submit else keeper.echo(value)
        assert result.sum() == MIB
        del keeper
    remotely.close(remotely.get_actor("keeper"))


def test_a_large_value_for_a_busy_actor_that_this_process_did_not_make_keeps_its_place(
    here: None, keeper: Any, tmp_path: Path
) -> None:
    user, gate = User(), tmp_path / "gate"
    waiting = keeper.wait_for.submit(gate)
    user.submit_both(keeper)
    assert not waiting.done(), "submit has waited for nothing"
    gate.touch()
    assert user.outcome() == 2.0 * MIB


# --- sent once to several -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["group", "ref", "loop over a ref"])
def test_a_value_for_several_actors_is_copied_once_and_private_to_each(
    here: None, way: str
) -> None:
    keepers = remotely.group(Keeper, 4)
    value = np.zeros(MIB)
    gc.collect()
    before = lent()
    ref = None if way == "group" else remotely.put(value)
    if way == "loop over a ref":
        for keeper in keepers:
            keeper.keep(ref)
    else:
        keepers.keep(value if ref is None else ref)
    assert lent() - before < 2 * value.nbytes
    assert [keeper.add(float(i)) for i, keeper in enumerate(keepers)] == [
        i * len(value) for i in range(4)
    ]
    del ref
    keepers.drop()
    wait_until(lambda: lent() <= before, "all of it came back")


def test_a_ref_does_not_change_with_the_value(keeper: Keeper) -> None:
    value = np.zeros(MIB)
    ref = remotely.put({"deep": [value, b"x" * MIB]})
    value += 1
    for _ in range(2):
        got = keeper.echo(ref)
        assert (got["deep"][0] == 0).all()
        assert got["deep"][1] == b"x" * MIB
        got["deep"][0][:] = 5


# --- when memory is freed -------------------------------------------------------------------------


def test_memory_of_a_killed_reader_is_reclaimed(keeper: Keeper) -> None:
    gc.collect()
    before = lent()
    keeper.keep(np.zeros(MIB))
    os.kill(keeper.pid(), signal.SIGKILL)
    wait_until(lambda: lent() <= before, "what the dead held came back")


def test_a_received_value_outlives_its_sender(keeper: Keeper) -> None:
    got = keeper.make(MIB)
    os.kill(keeper.pid(), signal.SIGKILL)
    with pytest.raises(remotely.ActorDied):
        keeper.pid()
    assert (got == 7).all()
    got += 1


def test_an_abandoned_call_holds_no_memory(keeper: Keeper) -> None:
    future = keeper.make.submit(MIB)
    with suppress(remotely.CallTimeout):  # unless it was quick
        future.result(timeout=0)
    del future
    for _ in range(3):
        keeper.echo(np.zeros(MIB))
    assert lent() <= 16 * MIB


def test_an_actor_that_forks_releases_what_its_children_read(keeper: Keeper) -> None:
    gc.collect()
    before = lent()
    for number in range(6):
        assert keeper.fork_and_read(np.full(MIB, number, np.uint8)) == number
    assert lent() - before < 3 * MIB, "all but what the last child has read"


@pytest.mark.parametrize("calls", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_large_calls_leak_nothing(keeper: Keeper, calls: int) -> None:
    value = np.zeros(100_000, np.uint8)
    there = psutil.Process(keeper.pid())
    here = psutil.Process()

    def held() -> list[int]:
        gc.collect()
        return [lent(), here.num_fds(), there.num_fds()]

    def resident() -> int:
        return there.memory_info().rss + here.memory_info().rss

    for _ in range(500):
        keeper.echo(value)
    before, used = held(), resident()
    for _ in range(calls - 500):
        keeper.echo(value)
    wait_until(lambda: held() == before, "all is where it was")
    assert resident() - used < 20 * MIB


# --- without shared memory ------------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
import remotely

@remotely.remote_class
class Keeper:
    kept = None
    def echo(self, value):
        return value
    def keep(self, value):
        self.kept = value
    def owns(self, value):
        return bool(value.flags.owndata), len(value)

keeper = Keeper()
keepers = []
for i in range(6):
    value = np.full(400_000, i, np.uint8)
    assert (keeper.echo(value) == value).all()
    assert (keeper.echo(remotely.put(value)) == value).all()
    keepers.append(keeper.echo(value))
    keeper.keep(value)
assert all((value == i).all() for i, value in enumerate(keepers))
from remotely.values import arena, codec
print("arena" if arena.ours() else "none")
"""


@pytest.mark.parametrize(("size", "there", "warnings"), [("0", "none", 0), ("1MiB", "arena", 2)])
def test_without_shared_memory_values_are_sent_by_socket_with_one_warning_per_process(
    nothing_left: None, tmp_path: Any, size: str, there: str, warnings: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "REMOTELY_ARENA": size},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [there]
    assert done.stderr.count("memory for large values is full") <= warnings


def test_an_invalid_amount_of_memory_is_refused_with_the_variable(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTELY_ARENA", "half")
    with pytest.raises(ValueError, match=r"^REMOTELY_ARENA='half' is not an amount of memory"):
        remotely.connect()


@remotely.remote_class(concurrency=4)
class Putter:
    def put(self, number: int) -> Any:
        return remotely.put(np.full(20_000, number))


def test_a_put_value_may_contain_a_ref(here: None) -> None:
    keeper = Keeper()
    keeper.echo(np.ones(MIB))  # from now on through shared memory
    one, two = np.arange(30_000), np.arange(30_000) + 0.5
    for value in ([remotely.put(one)], [two, remotely.put(one)], [remotely.put(one), two]):
        ref = remotely.put(value)
        arrived = keeper.echo(ref)
        wanted = [two if array is two else one for array in value]
        assert all(map(np.array_equal, arrived, wanted))
        del value
        assert all(map(np.array_equal, keeper.echo(ref), wanted))


def test_a_ref_returned_by_socket_arrives_unchanged(started: Started, nothing_left: None) -> None:
    """It is dropped before it is sent, and other threads put theirs meanwhile."""
    remotely.connect(started.address, key=started.key)
    putter = Putter()
    for _ in range(5):
        futures = [putter.put.submit(number) for number in range(100)]
        for number, future in enumerate(futures):
            assert (future.result() == number).all()


def test_a_ref_lives_as_long_as_the_values_made_of_it(here: None) -> None:
    gc.collect()
    before = lent()  # by earlier calls, which may end meanwhile
    ref = remotely.put(np.arange(MIB))
    encoded = codec.encode((ref,))
    del ref
    assert lent() >= 8 * MIB
    (value,) = codec.decode(encoded.payload, encoded.buffers)
    assert (value == np.arange(MIB)).all()
    del value, encoded
    assert lent() <= before
