"""What a machine offers."""

import sys

import pytest

from remotely.machine import this_machine

GIB = 1 << 30


@pytest.mark.parametrize(
    ("there", "offered"), [(20 * GIB, 19 * GIB), (40 * GIB, 38 * GIB), (512 * GIB, 510 * GIB)]
)
def test_some_memory_is_kept_for_the_system(there: int, offered: int) -> None:
    assert this_machine.memory_for_actors(there) == offered


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("-c", "python -c"),
        ("", "python"),
        ("/here/train.py", "train.py"),
        ("/lib/remotely_rl/__main__.py", "remotely_rl"),
    ],
)
def test_a_process_is_known_by_its_script_or_its_package(
    argument: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    assert this_machine.script_name() == name
