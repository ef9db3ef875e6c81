"""Tests of saving and loading a replay."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely_rl import durable, trees
from remotely_rl.errors import ReplayError
from remotely_rl.experience.replay import Draw, Replay, Sequences
from remotely_rl.experience.replay.archive import FORMAT
from tests.remotely_rl.experience.replay.worlds import NEXT_STEP, SAME_STEP, World

WIDTH, LENGTH = 3, 25


def silent(sentence: str) -> None:
    """Ignore a message."""


def made(
    world: World, alpha: float = 0.5, seed: int = 1, sequences: Sequences | None = None
) -> Replay:
    return Replay(
        WIDTH * LENGTH,
        WIDTH,
        world.play(2),
        alpha=alpha,
        seed=seed,
        say=silent,
        sequences=sequences,
    )


def learn(replay: Replay) -> None:
    """Draw rows, and update their priorities."""
    if len(replay):
        draw = replay.draw(20)
        replay.update(draw.rows, draw.priorities(np.abs(draw.reward)))


def assert_equal(one: Draw, other: Draw) -> None:
    bootstraps = one.discount > 0  # elsewhere next_obs is undefined
    for name in Draw._fields:
        pairs = zip(*(trees.leaves(getattr(draw, name)) for draw in (one, other)), strict=True)
        for mine, theirs in pairs:
            if name == "next_obs" and one.sequences is None:
                mine, theirs = mine[bootstraps], theirs[bootstraps]
            assert np.array_equal(mine, theirs), name


@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from([NEXT_STEP, SAME_STEP]),
    as_tree=st.booleans(),
    alpha=st.sampled_from([0.0, 0.5]),
    is_stack=st.booleans(),
    sequences=st.sampled_from([None, Sequences(length=4, burn_in=2, stride=5, width=3)]),
    turns=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=10),
)
def test_a_resumed_replay_draws_exactly_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    mode: str,
    as_tree: bool,
    alpha: float,
    is_stack: bool,
    sequences: Sequences | None,
    turns: list[tuple[int, bool]],
) -> None:
    folder = tmp_path_factory.mktemp("replay") / "saved"
    world = World(WIDTH, seed, mode, as_tree=as_tree, state_width=3)
    replay = made(world, alpha, sequences=sequences)
    world.newest_first = not is_stack
    for steps, is_saved in [*turns, (1, True)]:
        replay.append(world.play(steps))
        learn(replay)
        if is_saved:
            replay.save(folder)
    resumed = made(World(WIDTH, seed, mode, as_tree=as_tree), alpha, 99, sequences)
    resumed.load(folder)
    for _ in range(3):
        assert len(resumed) == len(replay)
        if len(replay):
            assert_equal(resumed.draw(30), replay.draw(30))
        trajectory = world.play(7)
        for each in (replay, resumed):
            each.append(trajectory)
            learn(each)
            each.save(folder)  # each finds the folder changed by the other


def test_a_save_writes_only_what_is_new(tmp_path: Path) -> None:
    world = World(1, ends=0.0, loses_life=0.0)
    replay = Replay(1_000, 1, world.play(2))
    replay.append(world.play(900))
    replay.save(tmp_path)
    before = {path.name for path in tmp_path.glob("rows-*")}
    replay.append(world.play(10))
    replay.save(tmp_path)
    new = [path for path in tmp_path.glob("rows-*") if path.name not in before]
    assert before <= {path.name for path in tmp_path.iterdir()}
    assert sum(path.stat().st_size for path in new) < 12 * replay.bytes_per_row


def test_files_of_dropped_rows_are_deleted(tmp_path: Path) -> None:
    world = World(1, ends=0.0, loses_life=0.0)
    replay = Replay(1_000, 1, world.play(2), alpha=0.5)
    for _ in range(40):
        replay.append(world.play(150))
        replay.save(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.raw"))
    assert size < 1.3 * 1_000 * replay.bytes_per_row
    assert len(list(tmp_path.glob("priorities-*"))) == 1


def test_an_idle_environment_does_not_keep_old_files(tmp_path: Path) -> None:
    idle, busy = World(1, ends=0.0, loses_life=0.0), World(1, 2, ends=0.0, loses_life=0.0)
    replay = Replay(400, 2, busy.play(2), alpha=0.5)
    replay.append(idle.play(50), column=1)
    for _ in range(40):
        replay.append(busy.play(60), column=0)
        replay.save(tmp_path)
    files = list(tmp_path.glob("*.raw"))
    assert len(files) < 20
    assert sum(path.stat().st_size for path in files) < 1.5 * 400 * replay.bytes_per_row
    replay.append(idle.play(5), column=1)
    replay.save(tmp_path)
    resumed = Replay(400, 2, World(1).play(2), alpha=0.5)
    resumed.load(tmp_path)
    assert_equal(resumed.draw(50), replay.draw(50))


def test_images_are_loaded_as_stacks_if_they_were_saved_as_stacks(tmp_path: Path) -> None:
    world = World(WIDTH)
    replay = made(world)
    replay.append(world.play(20))
    replay.save(tmp_path)
    resumed = made(World(WIDTH, newest_first=True))  # its example is no stack
    resumed.load(tmp_path)
    trajectory = world.play(7)
    for each in (replay, resumed):
        each.append(trajectory)
    assert resumed.bytes_per_row == replay.bytes_per_row
    assert_equal(resumed.draw(50), replay.draw(50))


@pytest.mark.parametrize("full_at", ["rows-", "priorities-", "replay.json"])
def test_a_failed_save_leaves_only_the_previous_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str
) -> None:
    world = World(WIDTH)
    replay = made(world)
    replay.append(world.play(10))
    replay.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    replay.append(world.play(25))
    write = durable.write

    def fails(path: Path, parts: Iterable[Any]) -> None:
        if not path.name.startswith(full_at):
            return write(path, parts)
        path.with_suffix(path.suffix + ".tmp").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", fails)
        for each in (replay, made(World(WIDTH))):  # the second one has not saved there before
            each.append(world.play(1))
            with pytest.raises(OSError, match="No space left") as caught:
                each.save(tmp_path)
            assert caught.value.errno == errno.ENOSPC
            assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert replay.save(tmp_path) == 2
    resumed = made(World(WIDTH))
    resumed.load(tmp_path)
    assert_equal(resumed.draw(50), replay.draw(50))


def test_a_replay_may_be_saved_to_two_folders(tmp_path: Path) -> None:
    world = World(WIDTH)
    replay = made(world)
    for turn in range(6):
        replay.append(world.play(9))
        replay.save(tmp_path / "ab"[turn % 2])
    resumed = made(World(WIDTH))
    resumed.load(tmp_path / "b")
    assert_equal(resumed.draw(30), replay.draw(30))


def test_images_stored_whole_since_the_last_save_are_all_saved(tmp_path: Path) -> None:
    world = World(WIDTH)
    replay = made(world)
    replay.append(world.play(10))
    replay.save(tmp_path)
    world.newest_first = True
    replay.append(world.play(15))
    replay.save(tmp_path)
    resumed = made(World(WIDTH))
    resumed.load(tmp_path)
    assert_equal(resumed.draw(50), replay.draw(50))


def test_n_step_is_restored(tmp_path: Path) -> None:
    world = World(WIDTH)
    replay = made(world)
    replay.append(world.play(20))
    replay.n_step = 7
    replay.save(tmp_path)
    resumed = Replay(WIDTH * LENGTH, WIDTH, World(WIDTH).play(2), n_step=5, alpha=0.5)
    resumed.load(tmp_path)
    assert resumed.n_step == 7
    assert_equal(resumed.draw(30), replay.draw(30))
    resumed.n_step = replay.n_step = 2
    assert_equal(resumed.draw(30), replay.draw(30))


def test_saves_are_numbered_and_load_returns_the_number(tmp_path: Path) -> None:
    replay = made(World(WIDTH))
    assert [replay.save(tmp_path) for _ in range(3)] == [1, 2, 3]
    assert made(World(WIDTH)).save(tmp_path) == 4  # another replay, not loaded from there
    resumed = made(World(WIDTH))
    assert resumed.load(tmp_path) == 4
    assert resumed.save(tmp_path) == 5


def test_save_works_after_the_main_thread_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(WIDTH)
    replay = made(world)
    replay.append(world.play(20))
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)  # as it is then
    assert replay.save(tmp_path) == 1


def test_is_saved_recognizes_a_saved_replay(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    assert not Replay.is_saved(folder)
    folder.mkdir()
    assert not Replay.is_saved(folder)
    made(World(WIDTH)).save(folder)
    assert Replay.is_saved(folder)


class TestBadInput:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        world = World(WIDTH)
        replay = made(world)
        replay.append(world.play(20))
        replay.save(tmp_path)
        return tmp_path

    def test_a_folder_without_a_replay(self, tmp_path: Path) -> None:
        with pytest.raises(ReplayError, match="has no saved replay"):
            made(World(WIDTH)).load(tmp_path)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"rows": 90}, "whose rows is 75, but this one's is 90"),
            ({"alpha": 0.0}, "whose alpha is 0.5, but this one's is 0.0"),
            ({"example": World(WIDTH, stack=5).play(2)}, r"whose obs is \[\[4, 2, 2\], '|u1'\]"),
            (
                {"example": World(WIDTH, as_tree=True).play(2)},
                r"whose obs\['observation'\] is none",
            ),
        ],
    )
    def test_a_replay_made_with_other_settings(
        self, saved: Path, settings: dict[str, object], words: str
    ) -> None:
        example = World(WIDTH).play(2)
        usual = {"rows": 75, "width": WIDTH, "example": example, "n_step": 3, "alpha": 0.5}
        replay = Replay(**{**usual, **settings})  # type: ignore[arg-type]
        with pytest.raises(ReplayError, match=words):
            replay.load(saved)

    def test_a_damaged_file(self, saved: Path) -> None:
        path = next(saved.glob("rows-*"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        replay = made(World(WIDTH))
        with pytest.raises(ReplayError, match=f"is damaged: the checksum of {path.name} is wrong"):
            replay.load(saved)
        assert len(replay) == 0
        replay.append(World(WIDTH).play(20))
        assert len(replay.draw(5).rows) == 5

    def test_a_truncated_file(self, saved: Path) -> None:
        path = next(saved.glob("priorities-*"))
        os.truncate(path, 100)
        with pytest.raises(ReplayError, match=f"{path.name} has 100 bytes instead of"):
            made(World(WIDTH)).load(saved)

    def test_a_missing_file(self, saved: Path) -> None:
        path = next(saved.glob("rows-*"))
        path.unlink()
        with pytest.raises(ReplayError, match=f"has no saved replay: no .*{path.name}"):
            made(World(WIDTH)).load(saved)

    @pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"content": 3}', b"\xff"])
    def test_a_header_that_is_not_one(self, saved: Path, text: bytes) -> None:
        (saved / "replay.json").write_bytes(text)
        with pytest.raises(ReplayError, match="cannot be read"):
            made(World(WIDTH)).load(saved)

    def test_a_header_that_was_changed(self, saved: Path) -> None:
        header = json.loads((saved / "replay.json").read_text())
        header["content"]["facts"]["n_step"] = 5
        (saved / "replay.json").write_text(json.dumps(header))
        with pytest.raises(ReplayError, match="its checksum is wrong"):
            made(World(WIDTH)).load(saved)

    def test_a_header_of_another_format(self, saved: Path) -> None:
        header = json.loads((saved / "replay.json").read_text())
        header["content"]["format"] = 7
        (saved / "replay.json").write_text(json.dumps(header))
        with pytest.raises(
            ReplayError, match=f"of format 7, and this version reads only format {FORMAT}"
        ):
            made(World(WIDTH)).load(saved)

    def test_a_folder_that_cannot_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match=r"cannot be saved to .*/file/below"):
            made(World(WIDTH)).save(tmp_path / "file" / "below")


# Appends and saves forever; prints the number of each save.
SAVES = """
import sys
from pathlib import Path
from tests.remotely_rl.experience.replay.test_saving import SAVED_AT_A_TIME, WIDTH, made
from tests.remotely_rl.experience.replay.worlds import World
world = World(WIDTH)
replay = made(world)
for turn in range(10**9):
    replay.append(world.play(SAVED_AT_A_TIME))
    replay.save(Path(sys.argv[1]))
    print(turn + 1, flush=True)
"""
SAVED_AT_A_TIME = 4


@pytest.mark.parametrize("halfway", ["rows-*.tmp", "priorities-*.tmp", "replay.json.tmp"])
def test_a_save_survives_a_kill_during_the_next_save(
    tmp_path: Path, nothing_left: None, halfway: str
) -> None:
    for saves in (1, 3, 8):
        with subprocess.Popen(
            [sys.executable, "-c", SAVES, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            for _ in range(saves):
                last = int(process.stdout.readline())
            while not list(tmp_path.glob(halfway)):
                pass
            process.kill()
            last = int([str(last), *process.stdout.read().split()][-1])
        resumed = made(World(WIDTH))
        resumed.load(tmp_path)
        draw = resumed.draw(50)
        # The save after the last printed one may be complete, too.
        assert any(
            np.array_equal(draw.rows, other.rows) and np.array_equal(draw.reward, other.reward)
            for other in (fed(last), fed(last + 1))
        )


def fed(turns: int) -> Draw:
    """Return what a replay draws after a number of turns."""
    world = World(WIDTH)
    replay = made(world)
    for _ in range(turns):
        replay.append(world.play(SAVED_AT_A_TIME))
    return replay.draw(50)
