"""Output of actors appears complete, with their names, and cannot control the terminal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely.reporting.terminal import CLEAR_REST, TerminalScreen, shown


def test_each_line_has_its_actors_name() -> None:
    assert TerminalScreen().add("A-1", "one\ntwo\n") == "[A-1] one\n[A-1] two\n"


def test_a_line_stays_open_until_its_actor_ends_it() -> None:
    screen = TerminalScreen()
    assert [screen.add("A", text) for text in ("work", "ing", "\n", "next\n")] == [
        "[A] work",
        "ing",
        "\n",
        "[A] next\n",
    ]


def test_another_actor_starts_a_line_of_its_own() -> None:
    screen = TerminalScreen()
    assert screen.add("A", "half") == "[A] half"
    assert screen.add("B", "whole\n") == "\n[B] whole\n"
    assert screen.add("A", "\n") == ""  # B has ended its line
    assert screen.add("A", "\n") == "[A] \n"


@pytest.mark.parametrize("clears", [True, False])
def test_a_progress_bar_stays_on_its_line(clears: bool) -> None:
    rest = CLEAR_REST if clears else ""
    screen = TerminalScreen(clears)
    assert screen.add("A", "\r 10%") == "[A]  10%"
    assert screen.add("A", "\r 20%\r 30%") == f"\r[A]  30%{rest}"
    assert screen.add("A", "\r100%\n") == f"\r[A] 100%{rest}\n"


def test_windows_newlines_end_lines() -> None:
    assert TerminalScreen().add("A", "one\r\ntwo\r\n") == "[A] one\n[A] two\n"


def test_an_open_line_is_ended_when_the_client_ends() -> None:
    screen = TerminalScreen()
    assert screen.close() == ""
    screen.add("A", "half")
    assert [screen.close(), screen.close()] == ["\n", ""]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred\x1b[0m\tand plain", "\x1b[31mred\x1b[0m\tand plain"),
        ("\x1b]0;a title\x07", "\\x1b]0;a title\\x07"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m\x00", "\\x9b31m\\x00"),
        ("file\u202egnp.exe", "file\\u202egnp.exe"),
    ],
)
def test_control_sequences_are_escaped_and_colours_pass(text: str, seen: str) -> None:
    assert shown(text) == seen


@given(
    st.lists(st.tuples(st.sampled_from("AB"), st.text(alphabet="a\r\n\x1b[0m\x07é", max_size=9)))
)
def test_no_output_sends_any_other_control_character(
    said: list[tuple[str, str]],
) -> None:
    screen = TerminalScreen(clears=True)
    sent = "".join(screen.add(name, text) for name, text in said) + screen.close()
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f]", sent)
    assert not re.search(r"\x1b(?!\[[0-9;]*m|\[K)", sent)
    assert not sent or sent.endswith("\n")
