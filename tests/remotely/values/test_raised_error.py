"""Source lines are added to a remote traceback if they are available here."""

import linecache
import os
import traceback
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from remotely.values import raised_error
from remotely.values.raised_error import with_source_lines

CELL = "<ipython-input-7-0123456789ab>"


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> str:
    """The traceback of a notebook cell, formatted where its source is not available."""
    text = "def fail():\n    raise KeyError('x')\nfail()\n"
    with pytest.raises(KeyError) as raised:
        exec(compile(text, CELL, "exec"), {})  # noqa: S102
    trace = "".join(traceback.format_exception(raised.value))
    lines = text.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, CELL, (len(text), None, lines, CELL))
    return trace


def test_a_frame_of_a_cell_shows_its_line(trace: str) -> None:
    assert "fail()\n" not in trace
    shown = with_source_lines(trace)
    assert f"  File \"{CELL}\", line 2, in fail\n    raise KeyError('x')\n" in shown
    assert f'  File "{CELL}", line 3, in <module>\n    fail()\n' in shown
    assert with_source_lines(shown) == shown


def test_frames_of_an_exception_group_keep_its_margin(trace: str) -> None:
    grouped = "".join(f"  | {line}" for line in trace.splitlines(keepends=True))
    assert "  |     raise KeyError('x')\n" in with_source_lines(grouped)


def frame_of(file: Path) -> str:
    return f'  File "{file}", line 1, in fail\n'


def test_a_frame_of_a_local_file_shows_its_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("fail()\n")
    assert with_source_lines(frame_of(tmp_path / "script.py")).endswith("in fail\n    fail()\n")


def test_pipes_devices_and_huge_files_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linecache, "updatecache", lambda *_: pytest.fail("opened"))
    monkeypatch.setattr(raised_error, "MAX_FILE_BYTES", 100)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b"#" * 101)
    files = [tmp_path / "pipe", tmp_path / "huge", tmp_path, Path("/dev/zero"), Path("/proc/kmsg")]
    for file in [*files, tmp_path / "missing"]:
        assert with_source_lines(frame_of(file)) == frame_of(file)


@hypothesis.given(st.text() | st.from_regex(r'  File "<.*>", line \d+, in .*\n.*', fullmatch=True))
def test_other_text_is_unchanged(text: str) -> None:
    assert with_source_lines(text) == text
