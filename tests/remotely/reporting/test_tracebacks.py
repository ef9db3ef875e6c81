"""Frames of remotely in the stacks of actors are counted, not listed."""

import traceback

from remotely.reporting.terminal import TerminalScreen
from remotely.reporting.tracebacks import ROOT, folded

CRASH = f"""Fatal Python error: Segmentation fault

Thread 0x00007f32bfb546c0 (most recent call first):
  File "{ROOT}transport/loop.py", line 134 in turn
  File "{ROOT}transport/loop.py", line 127 in run
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f32c2e91b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/srv/train.py", line 8 in crash
  File "{ROOT}actor/servant.py", line 466 in _call
  File "{ROOT}actor/zygote.py", line 187 in <module>
  File "<frozen runpy>", line 88 in _run_code

Extension modules: numpy (total: 1)
"""


def test_a_crash_shows_the_users_frames_and_the_innermost_one() -> None:
    assert folded(CRASH).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x00007f32bfb546c0 (most recent call first):",
        f'  File "{ROOT}transport/loop.py", line 134 in turn',
        "  ... 2 frames of remotely",
        "",
        "Current thread 0x00007f32c2e91b80 (most recent call first):",
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/srv/train.py", line 8 in crash',
        "  ... 3 frames of remotely",
        "",
        "Extension modules: numpy (total: 1)",
    ]


def raised_within(screen: TerminalScreen) -> str:
    try:
        screen.add("name", None)  # type: ignore[arg-type]
    except AttributeError:
        return traceback.format_exc()
    return ""


def test_an_error_in_remotely_itself_keeps_the_place_where_it_was_raised() -> None:
    before = raised_within(TerminalScreen())
    after = folded(before)
    assert "in add" in before
    assert "in add" not in after
    assert "  ... 2 frames of remotely" in after or "  ... 1 frame of remotely" in after
    assert "in _lines" in after  # where it was raised
    assert "in raised_within" in after
    assert after.splitlines()[-1] == before.splitlines()[-1]


def test_frames_within_groups_of_errors_are_counted_too() -> None:
    text = "\n".join(
        [
            "  + Exception Group Traceback (most recent call last):",
            f'  |   File "{ROOT}actor/dispatch.py", line 3, in handle',
            "  |     self.work()",
            '  |   File "/srv/train.py", line 8, in step',
            "  |     raise ExceptionGroup",
        ]
    )
    assert folded(text).splitlines()[1:3] == [
        "  |   ... 1 frame of remotely",
        '  |   File "/srv/train.py", line 8, in step',
    ]


def test_other_text_stays_as_it_is() -> None:
    for text in ("", "no frames\n", f"in {ROOT} there are files\n", CRASH.replace(ROOT, "/home/")):
        assert folded(text) == text
