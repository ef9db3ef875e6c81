"""Flame graphs: the tree of py-spy's stacks, and the errors of py-spy."""

import asyncio
import os
from pathlib import Path

import pytest

from remotely.dashboard import flame


def test_stacks_become_a_tree_with_the_widest_first() -> None:
    root = flame.tree(["main;step;wait 10", "main;step;add (a b.py:3) 30", "main;log 60"])
    assert root["samples"] == 100
    (main,) = root["calls"]
    assert [(each["name"], each["samples"]) for each in main["calls"]] == [
        ("log", 60),
        ("step", 40),
    ]
    assert [each["name"] for each in main["calls"][1]["calls"]] == ["add (a b.py:3)", "wait"]


def test_a_tree_begins_with_the_users_method_and_leaves_out_our_thread() -> None:
    around = "main (remotely/actor/zygote.py:64);run (remotely/actor/servant.py:9)"
    root = flame.tree(
        [
            f"{around};step (user.py:3);add (remotely/api/handle.py:1) 30",
            f"{around} 70",
            "Thread._bootstrap (threading.py:1);Loop.run (remotely/transport/loop.py:118) 100",
        ]
    )
    assert root["samples"] == 100
    assert [each["name"] for each in root["calls"]] == [flame.IDLE, "step (user.py:3)"]


def test_frames_with_a_tiny_share_are_left_out() -> None:
    root = flame.tree(["main;often 999", "main;rare 1"])
    assert [each["name"] for each in root["calls"][0]["calls"]] == ["often"]


def test_without_py_spy_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(flame.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert flame.command() == ""
    with pytest.raises(flame.NoFlame, match="pip install py-spy"):
        asyncio.run(flame.record(os.getpid()))


def test_an_error_of_py_spy_is_passed_on_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(flame, "command", lambda: str(fake))
    with pytest.raises(flame.NoFlame, match=r"Permission denied.*ptrace_scope"):
        asyncio.run(flame.record(os.getpid()))
