"""A traceback from elsewhere gets the lines that are known here, and no others."""

import linecache
import traceback

import hypothesis
import hypothesis.strategies as st
import pytest

from remotely.source_lines import with_source_lines

CELL = "<ipython-input-7-0123456789ab>"


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> str:
    """The traceback of a cell, as where nobody knows its source."""
    text = "def fail():\n    raise KeyError('x')\nfail()\n"
    with pytest.raises(KeyError) as raised:
        exec(compile(text, CELL, "exec"), {})  # noqa: S102 - as a notebook does
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


def test_frames_of_a_group_of_errors_show_theirs_within_its_margin(trace: str) -> None:
    grouped = "".join(f"  | {line}" for line in trace.splitlines(keepends=True))
    assert "  |     raise KeyError('x')\n" in with_source_lines(grouped)


@hypothesis.given(st.text() | st.from_regex(r'  File "<.*>", line \d+, in .*\n.*', fullmatch=True))
def test_what_is_not_known_here_stays_as_it_is(text: str) -> None:
    assert with_source_lines(text) == text
